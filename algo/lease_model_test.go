//go:build !race

package algo

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// The check below walks through all states that two nodes, which borrow from one limit, can reach:
// calls and answers arrive late or never, nodes die, generations end, in every order. The limit is
// the code of this package. Each admission is also charged to a second state at the instant at
// which it was decided, as if there were no leases, and would have been admitted there too: that is
// the guarantee. Mutants of the protocol, each with one rule broken, show that the check finds what
// it looks for.

// tick is the step of the clock.
const tick = int64(10_000)

// world is one state of all that takes part.
type world struct {
	now      int64
	s, lease State // the limit's
	truth    State // what was admitted, when it was
	nodes    [2]leaseNode
	broken   string
}

type leaseNode struct {
	held  [2]heldUnits // by end
	sent  leaseCall    // under way to the limit
	reply heldUnits    // under way from it; left is what was granted
}

type heldUnits struct{ end, left, used int64 }

type leaseCall struct {
	there      bool
	told       [2]Told
	cost, want int64
}

// leaseMutant breaks one rule.
type leaseMutant struct {
	name string
	// take replaces Limit.TakeAhead
	take func(l *Limit, w *world, a Ask, h *Ahead) Result
	// late is how long after the end a node goes on
	late int64
	// keeps what it returns
	keeps bool
	// where it breaks nothing: within a fixed window it is all one when a unit is charged
	harmless []string
}

func honest(l *Limit, w *world, a Ask, h *Ahead) Result {
	return l.TakeAhead(&w.s, &w.lease, w.now, a, h)
}

var leaseMutants = []leaseMutant{
	{name: "charges when it lends", harmless: []string{"fixed window", "fixed window, two holders"},
		take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
			h.Told = [2]Told{}
			r := honest(l, w, a, h)
			if h.Got > 0 {
				l.force(&w.s, w.now, h.Got)
				w.lease = State{}
			}
			return r
		}},
	{name: "forgets what ended", harmless: []string{"fixed window, two holders"},
		take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
			if n := l.lease.Lent(&w.lease); w.lease.B != 0 && w.now >= n.End {
				if n.Older = 0; w.now >= n.Last {
					n.Newer = 0
				}
				keepLent(&w.lease, n, w.lease.C)
			}
			return honest(l, w, a, h)
		}},
	{name: "ends both generations at once", harmless: []string{"fixed window", "fixed window, two holders", "log",
		"bucket"}, take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
		if n := l.lease.Lent(&w.lease); w.lease.B != 0 && w.now >= n.End {
			l.force(&w.s, n.End-1, n.Out())
			w.lease = State{}
		}
		return honest(l, w, a, h)
	}},
	{name: "ends as of the beginning", harmless: []string{"fixed window", "fixed window, two holders"},
		take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
			if n := l.lease.Lent(&w.lease); w.lease.B != 0 && w.now >= n.End {
				l.force(&w.s, n.End-2*l.lease.w, n.Older)
				n.Older = 0
				keepLent(&w.lease, n, w.lease.C)
			}
			return honest(l, w, a, h)
		}},
	{name: "is told twice", take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
		twice := *h
		l.Learn(&w.s, &w.lease, w.now, &twice)
		return honest(l, w, a, h)
	}},
	{name: "charges nothing when told", take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
		for i, t := range h.Told {
			h.Told[i] = Told{End: t.End, Returned: t.Used + t.Returned}
		}
		return honest(l, w, a, h)
	}},
	{name: "believes what is told of the past", take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
		l.Roll(&w.s, &w.lease, w.now)
		for i, t := range h.Told {
			if n := l.lease.Lent(&w.lease); w.lease.B != 0 && t.End < n.End {
				h.Told[i].End = n.End
			}
		}
		return honest(l, w, a, h)
	}},
	{name: "admits as if nothing were out", take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
		l.Learn(&w.s, &w.lease, w.now, h)
		r := l.Take(&w.s, w.now, a)
		if r.Allowed {
			l.Lend(&w.s, &w.lease, w.now, h)
		}
		return r
	}},
	{name: "lends what is not there", take: func(l *Limit, w *world, a Ask, h *Ahead) Result {
		before := w.s
		before.Ext = slices.Clone(w.s.Ext)
		l.Learn(&w.s, &w.lease, w.now, h)
		before, w.s = w.s, State{}
		l.Lend(&w.s, &w.lease, w.now, h)
		w.s = before
		h.Want = 0
		return l.TakeWith(&w.s, &w.lease, w.now, a)
	}},
	{name: "a node goes on for two ticks", take: honest, late: 2 * tick},
	{name: "a node uses what it returned", take: honest, keeps: true},
}

// leaseChecks are the limits that are walked through: lengths are in ticks.
var leaseChecks = []struct {
	name               string
	c                  Config
	window, generation time.Duration
}{
	{"log", Config{Algorithm: SlidingLog, N: 3}, 3, 1},
	{"log, long leases", Config{Algorithm: SlidingLog, N: 3}, 2, 2},
	{"fixed window", Config{Algorithm: FixedWindow, N: 3}, 4, 1},
	{"fixed window, two holders", Config{Algorithm: FixedWindow, N: 5}, 1, 1},
	{"sliding window", Config{Algorithm: SlidingWindow, N: 3}, 2, 1},
	{"bucket", Config{Algorithm: TokenBucket, N: 2, Burst: 3}, 3, 1},
	{"bucket, long leases", Config{Algorithm: TokenBucket, N: 3, Burst: 3}, 2, 2},
}

// TestLeaseStates walks through all states of each limit, and then lets each mutant fail.
func TestLeaseStates(t *testing.T) {
	for _, check := range leaseChecks {
		c := check.c
		c.Window, c.Lease, c.LeaseFor = check.window*10*time.Millisecond, MaxLease, check.generation*10*time.Millisecond
		l := must(t, c)
		t.Run(check.name, func(t *testing.T) {
			if check.name != "fixed window" {
				effort.Long(t, "walks through all states of each limit")
			}
			t.Parallel()
			states, trace := walkLease(l, &leaseMutant{take: honest})
			if trace != "" {
				t.Fatalf("%v, after %d states:\n%s", l, states, trace)
			}
			t.Logf("%v: %d states", l, states)
			for i := range leaseMutants {
				m := &leaseMutants[i]
				if slices.Contains(m.harmless, check.name) {
					continue
				}
				states, trace := walkLease(l, m)
				if trace == "" {
					t.Errorf("%v: nothing is found in %d states where a limit or a node %s", l, states, m.name)
				}
				t.Logf("%s: found after %d states, in %d steps", m.name, states, strings.Count(trace, "\n")-1)
			}
		})
	}
}

// walkLease visits all states. It returns how many it saw, and the steps to the first one that
// breaks the guarantee.
func walkLease(l *Limit, m *leaseMutant) (states int, trace string) {
	return walk([]world{{now: base - base%(12*tick)}},
		func(w *world, b []byte) []byte { return w.key(l, b) },
		func(w *world, visit func(*world, move)) { w.next(l, m, visit) },
		func(w *world) string { return w.broken })
}

// move is what leads from one state to another: a text with up to two numbers in it, as Sprintf
// takes them.
type move struct {
	text string
	a, b int
}

func (s move) String() string {
	return fmt.Sprintf(s.text, []any{s.a, s.b}[:strings.Count(s.text, "%d")]...)
}

// walk visits all states that can be reached from some, in order of the number of steps. key says
// all of a state that matters from now on, and broken what is wrong with it, "" for nothing. walk
// returns how many states it saw, and the steps to the first one that is broken.
func walk[W any](begin []W,
	key func(*W, []byte) []byte, next func(*W, func(*W, move)), broken func(*W) string) (states int, trace string) {
	type past struct {
		parent int
		how    move // what led here from the parent
	}
	type reached struct {
		state W
		past
	}
	var queue []reached
	var buf []byte
	history, seen := []past{}, map[string]struct{}{}
	add := func(w *W, parent int, how move) {
		buf = key(w, buf[:0])
		if _, ok := seen[string(buf)]; ok && broken(w) == "" {
			return
		}
		seen[string(buf)] = struct{}{}
		queue = append(queue, reached{*w, past{parent, how}})
	}
	for i := range begin {
		add(&begin[i], -1, move{"the beginning, number %d", i, 0})
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		history = append(history, at.past)
		parent := len(history) - 1
		if wrong := broken(&at.state); wrong != "" {
			steps := []string{wrong}
			for i := parent; i >= 0; i = history[i].parent {
				steps = append(steps, history[i].how.String())
			}
			slices.Reverse(steps)
			return len(history), strings.Join(steps, "\n")
		}
		next(&at.state, func(w *W, how move) { add(w, parent, how) })
	}
	return len(history), ""
}

// copied returns a world that shares nothing with w.
func (w *world) copied() world {
	c := *w
	c.s.Ext, c.lease.Ext, c.truth.Ext = slices.Clone(w.s.Ext), slices.Clone(w.lease.Ext), slices.Clone(w.truth.Ext)
	return c
}

// admit notes a unit that is admitted now.
func (w *world) admit(l *Limit, units int64) {
	if units > 0 && !l.Take(&w.truth, w.now, Ask{Cost: units}).Allowed {
		w.broken = "more is admitted than without leases"
	}
}

// next calls visit with every state that can follow.
func (w *world) next(l *Limit, m *leaseMutant, visit func(*world, move)) {
	c := w.copied()
	c.now += tick
	visit(&c, move{"a tick", 0, 0})
	for i := range w.nodes {
		n := &w.nodes[i]
		for j, h := range n.held {
			if h.left > 0 && w.now < h.end+m.late {
				c := w.copied()
				c.nodes[i].held[j].left--
				c.nodes[i].held[j].used++
				c.admit(l, 1)
				visit(&c, move{"node %d uses a unit", i, 0})
			}
		}
		if n.held != ([2]heldUnits{}) {
			c := w.copied()
			c.nodes[i].held = [2]heldUnits{}
			visit(&c, move{"node %d dies", i, 0})
		}
		switch {
		case n.sent.there:
			c := w.copied()
			c.nodes[i].sent = leaseCall{}
			visit(&c, move{"node %d is not heard", i, 0})
			c = w.copied()
			c.deliver(l, i, m)
			visit(&c, move{"node %d is heard", i, 0})
		case n.reply.end != 0:
			c := w.copied()
			c.nodes[i].reply = heldUnits{}
			visit(&c, move{"node %d gets no answer", i, 0})
			c = w.copied()
			if c.nodes[i].hold(n.reply, w.now) {
				visit(&c, move{"node %d gets its answer", i, 0})
			}
		default:
			for _, kind := range []struct {
				cost, want int64
				returns    bool
				how        string
			}{{1, 2, false, "node %d asks for more"}, {1, 0, true, "node %d asks, and returns"},
				{0, 2, true, "node %d asks ahead, and returns"}} {
				c := w.copied()
				c.send(i, kind.cost, kind.want, kind.returns, m)
				visit(&c, move{kind.how, i, 0})
			}
		}
	}
}

// send takes what is told out of the node's books, and sends it.
func (w *world) send(i int, cost, want int64, returns bool, m *leaseMutant) {
	n := &w.nodes[i]
	call := leaseCall{there: true, cost: cost, want: want}
	for j := range n.held {
		h := &n.held[j]
		t := Told{End: h.end, Used: h.used}
		h.used = 0
		if returns {
			t.Returned = h.left
			if !m.keeps {
				h.left = 0
			}
		}
		if t.Used+t.Returned > 0 {
			call.told[j] = t
		}
		if h.left == 0 {
			*h = heldUnits{}
		}
	}
	n.sent = call
}

// deliver lets the limit decide.
func (w *world) deliver(l *Limit, i int, m *leaseMutant) {
	n := &w.nodes[i]
	call := n.sent
	n.sent = leaseCall{}
	h := Ahead{Told: call.told, Want: call.want}
	if r := m.take(l, w, Ask{Cost: call.cost}, &h); r.Allowed {
		w.admit(l, call.cost)
	}
	if h.Got > 0 {
		n.reply = heldUnits{end: h.Until, left: h.Got}
	}
	if m.name == "" {
		if left := l.CheckWith(&w.s, &w.lease, w.now, Ask{}); !left.Allowed {
			w.broken = "more is charged and out than the limit has"
		}
		if out := l.lease.Lent(&w.lease).Out(); out > l.lendable {
			w.broken = fmt.Sprintf("%d units are out", out)
		}
	}
}

// hold adds units to what a node has. It reports false if they are of no use any more.
func (n *leaseNode) hold(got heldUnits, now int64) bool {
	n.reply = heldUnits{}
	for j := range n.held {
		if n.held[j].end == got.end {
			n.held[j].left += got.left
			return true
		}
	}
	for j := range n.held {
		if h := &n.held[j]; *h == (heldUnits{}) || h.end <= now {
			*h = got
			return true
		}
	}
	return false
}

// key says all of w that matters from now on, with times as they are from now.
func (w *world) key(l *Limit, b []byte) []byte {
	if l.algo == FixedWindow || l.algo == SlidingWindow {
		b = append(b, byte(w.now%l.w/tick)) // the rest does not know what time it is
	}
	b = appendLeaseState(b, l, &w.s, w.now)
	b = appendLeaseState(b, l, &w.truth, w.now)
	ahead := func(end int64) byte { return byte(max(0, (end-w.now)/tick+3)) } // a late node looks back
	n := l.lease.Lent(&w.lease)
	if w.lease.B == 0 {
		n = Lent{End: w.now - 3*tick}
	}
	b = append(b, ahead(n.End), byte(n.Older), byte(n.Newer))
	var nodes [2][]byte
	for i := range w.nodes {
		e := make([]byte, 0, 32)
		o := &w.nodes[i]
		for _, h := range [...]heldUnits{o.held[0], o.held[1], o.reply} {
			e = append(e, ahead(h.end), byte(h.left), byte(h.used))
		}
		if o.sent.there {
			e = append(e, 1, byte(o.sent.cost), byte(o.sent.want))
			for _, t := range o.sent.told {
				e = append(e, ahead(t.End), byte(t.Used), byte(t.Returned))
			}
		}
		nodes[i] = e
	}
	if slices.Compare(nodes[0], nodes[1]) > 0 {
		nodes[0], nodes[1] = nodes[1], nodes[0]
	}
	b = append(append(b, nodes[0]...), 255)
	return append(append(b, nodes[1]...), 255)
}

// appendLeaseState appends what counts of a state from now on.
func appendLeaseState(b []byte, l *Limit, s *State, now int64) []byte {
	switch l.algo {
	case TokenBucket:
		_, level, _ := l.level(s, now)
		return binary.AppendUvarint(b, level)
	case FixedWindow:
		_, _, used, _ := l.current(s, now, false)
		return append(b, byte(used))
	case SlidingWindow:
		cur, prev := s.B>>32, s.B&maxCount
		switch start := now - now%l.sub; {
		case s.B == 0 || start-s.A > l.sub:
			cur, prev = 0, 0
		case start > s.A:
			cur, prev = 0, cur
		}
		return append(b, byte(cur), byte(prev))
	default:
		r := l.ring(s, now)
		r.drop(r.dead(now - l.w))
		for i := range r.n {
			b = append(b, byte((now-r.at(i))/(tick/10)))
		}
		return append(b, 255)
	}
}
