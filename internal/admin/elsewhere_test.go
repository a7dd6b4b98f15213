package admin

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
)

// mates is a node that hears of others by name.
type mates struct {
	alone
	mu    sync.Mutex
	names []string
	tally insight.Nodes
	// silent nodes tell nothing of their decisions.
	silent bool
}

func (m *mates) set(tally insight.Nodes, names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names, m.tally = names, tally
}

func (m *mates) hush(silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent = silent
}

func (m *mates) List(context.Context) (list []insight.NodeState, n insight.Nodes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range m.names {
		list = append(list, insight.NodeState{Node: name, Self: name == m.Self()})
	}
	return list, m.tally
}

func (m *mates) answers(node string) insight.Nodes {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := insight.Nodes{Asked: 1, Remark: m.tally.Remark}
	if !m.silent && slices.Contains(m.names, node) {
		n.Answered = 1
	}
	return n
}

func (m *mates) Decisions(_ context.Context, node string, _ recent.Query) ([]recent.Entry, insight.Nodes) {
	return nil, m.answers(node)
}

func (m *mates) CountDecisions(_ context.Context, node string, _ recent.Query) (recent.Found, insight.Nodes) {
	return recent.Found{}, m.answers(node)
}

// TestNode: who asks for a node that is not there is told which there are, or that it cannot be
// known. A stream of a node ends when that is gone; when it is only not heard, the stream says so
// once, and that it is back.
func TestNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWhole(t, nil)
		m := &mates{alone: alone{w.recent}}
		w.o.Nodes = m
		two, one := insight.Nodes{Asked: 2, Answered: 2}, insight.Nodes{Asked: 2, Answered: 1}
		for _, c := range []struct {
			tally  insight.Nodes
			names  []string
			node   string
			status int
			says   string
		}{
			{two, []string{"n1", "n2"}, "n3", 404, "node: no node is called n3; there are n1, n2"},
			{insight.Nodes{Asked: 1, Answered: 1}, []string{"n1"}, "n3", 404, "node: no node is called n3; there is n1 alone"},
			{one, []string{"n1"}, "n2", 503, "node: n2 is not among the 1 of 2 nodes that answer: n1"},
			{insight.Nodes{Asked: 1, Answered: 1, Remark: "Redis is away"}, []string{"n1"}, "n2", 503, "n2 is not among the 1 of 1 nodes that answer: n1; Redis is away"},
			{two, []string{"n1", "n2"}, "n2\u202e\x1b", 404, `no node is called \"n2\\u202e\\x1b\";`},
		} {
			m.set(c.tally, c.names...)
			for _, target := range []string{streamPath + "?views=decisions&node=", decisionsPath + "?node="} {
				a := w.as("viewer", "GET", target+url.QueryEscape(c.node), "")
				if a.Status != c.status || !strings.Contains(a.Body, c.says) ||
					!strings.Contains(a.Body, `"field":"node"`) {
					t.Errorf("%s %q: %d %s", target, c.node, a.Status, a.Body)
				}
			}
			time.Sleep(streamEvery) // what was said a moment ago is said again
		}

		m.set(two, "n1", "n2")
		c, end := w.follow(t, "viewer", "?views=decisions&node=n2")
		defer end()
		ended := func() bool {
			synctest.Wait()
			select {
			case <-w.followed:
				return true
			default:
				return false
			}
		}
		problems := func() (list []string) {
			synctest.Wait()
			for _, e := range c.of("problem") {
				list = append(list, e.data)
			}
			return list
		}
		time.Sleep(time.Minute)
		m.set(one, "n1")
		time.Sleep(lateness - streamEvery)
		if got := problems(); len(got) != 0 {
			t.Errorf("a node that may be late is missed: %q", got)
		}
		time.Sleep(time.Minute)
		if got := problems(); len(got) != 1 ||
			got[0] != `{"view":"decisions","detail":"n2 is not among the 1 of 2 nodes that answer: n1"}` {
			t.Errorf("%q", got)
		}
		m.set(two, "n1", "n2")
		time.Sleep(time.Minute)
		if got := c.of("decisions"); len(got) != 1 ||
			got[0].data != `{"decisions":[],"shown":"all","nodes":{"asked":1,"answered":1}}` {
			t.Errorf("it is heard again: %v", got)
		}
		m.hush(true) // of another version
		time.Sleep(time.Minute)
		if got := problems(); len(got) != 2 || !strings.Contains(got[1],
			"n2 does not tell of its decisions: it is busy, or runs another version") {
			t.Errorf("%q", got)
		}
		if a := w.as("viewer", "GET", decisionsPath+"?node=n2", ""); a.Status != 503 ||
			!strings.Contains(a.Body, "n2 does not tell of its decisions") {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		if ended() {
			t.Fatal("the stream of a node that may be there ends")
		}
		m.set(two, "n1", "n3") // it began anew
		time.Sleep(2 * lateness)
		if !ended() {
			t.Error("the stream of a node that is gone goes on")
		}
	})
	// A server that knows of no nodes.
	w := newWhole(t, func(o *Options) { o.Nodes = nil })
	if a := w.as("viewer", "GET", decisionsPath+"?node=n1", ""); a.Status != 404 ||
		!strings.Contains(a.Body, "the nodes of this server have no names") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// TestElsewhere: each decision is told once, none from before the stream, and those that an answer
// leaves out are counted once, also where a node is missing in one answer or late.
func TestElsewhere(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	made := func(id int, after time.Duration) recent.Entry {
		return recent.Entry{ID: weir.DecisionID(id), Time: begin.Add(after)}
	}
	answer := func(after time.Duration, seconds map[int64]int, list ...recent.Entry) *answered {
		counted := map[int64]int{}
		for second, n := range seconds {
			counted[begin.Unix()+second] = n
		}
		return &answered{Found: recent.Found{Decisions: list, Seconds: counted}, after: begin.Add(after - lateness)}
	}
	before := answer(time.Second, map[int64]int{0: 2}, made(2, 500*time.Millisecond), made(1, 0))
	var e elsewhere
	for i, c := range []struct {
		answer *answered
		ids    []weir.DecisionID // oldest first
		fit    int
	}{
		{before, nil, 0},
		{before, nil, 0}, // the same for a while
		// Forty in the new second, of which the answer has two.
		{answer(2*time.Second, map[int64]int{0: 2, 1: 40}, made(4, 1600*time.Millisecond), made(3, 1500*time.Millisecond), made(2, 500*time.Millisecond), made(1, 0)), []weir.DecisionID{3, 4}, 40},
		// One node does not answer; what another one made is new.
		{answer(3*time.Second, map[int64]int{0: 1, 1: 10, 2: 1}, made(5, 2*time.Second), made(3, 1500*time.Millisecond)), []weir.DecisionID{5}, 1},
		// It answers again, with one that was late.
		{answer(4*time.Second, map[int64]int{0: 2, 1: 41, 2: 3}, made(7, 2500*time.Millisecond), made(6, 2200*time.Millisecond), made(5, 2*time.Second), made(8, 1900*time.Millisecond), made(4, 1600*time.Millisecond)), []weir.DecisionID{8, 6, 7}, 3},
		// Seconds that are no longer asked for are forgotten.
		{answer(30*time.Second, nil), nil, 0},
	} {
		list, fit := e.take(c.answer)
		var ids []weir.DecisionID
		for _, d := range list {
			ids = append(ids, d.ID)
		}
		if !slices.Equal(ids, c.ids) || fit != c.fit {
			t.Errorf("%d: %v and %d, want %v and %d", i, ids, fit, c.ids, c.fit)
		}
	}
	if len(e.seen)+len(e.counted) != 0 {
		t.Errorf("%v and %v are kept", e.seen, e.counted)
	}
}
