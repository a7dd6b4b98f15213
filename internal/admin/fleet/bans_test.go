package fleet

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
)

// What a ban refused is added up over all nodes, whichever node is asked. The counts of a node that
// left are missed, a node of another version is missing, and one that began later says so.
func TestBanCounts(t *testing.T) {
	url := redistest.Start(t).URL()
	all := newFleet(t, url, 3, "domain: shop\nlimits: [{name: login, per: [ip], allow: 1000/min}]")
	var stop func()
	for _, m := range all {
		stop = following(t, m.limiter)
	}
	key := []string{"198.51.100.0/24"}
	if _, err := all[0].limiter.Bans().Set(t.Context(), "shop", "login", key, time.Now().Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	for i, m := range all {
		patience.Until(t, "the ban is known", func() bool { return len(m.limiter.Bans().List()) == 1 })
		for n := range 5 * (i + 1) {
			r := weir.Request{Hits: 1, Domain: "shop", Attributes: rule.Map{"ip": fmt.Sprintf("198.51.100.%d", n)}}
			var d weir.Decision
			if err := m.limiter.Decide(t.Context(), &r, &d); err != nil || d.Allowed {
				t.Fatal(err, d.Allowed)
			}
		}
	}
	id := insight.BanID("shop", "login", []string{"ip=198.51.100.0/24"})
	for i, m := range all {
		c, n := m.BanCounts(t.Context())
		if c.Of[id] != 30 || n.Asked != 3 || n.Answered != 3 || c.Began.Before(all[2].began.Truncate(time.Millisecond)) {
			t.Errorf("node %d: %d by %+v, since %v", i, c.Of[id], n, c.Began)
		}
	}
	for i, m := range all { // as each does that runs
		if left := m.nodeLeft(); !left.IsZero() {
			t.Errorf("node %d: one of three has left: %v", i, left)
		}
	}
	leaves := time.Now().Truncate(time.Millisecond)
	stop()
	all[2].store.Close()
	all = all[:2]
	for _, m := range all {
		patience.Until(t, "the node that left is missed", func() bool {
			c, n := m.BanCounts(t.Context())
			return n.Asked == 2 && c.Of[id] == 15 && !c.Began.Before(leaves)
		})
	}
	stranger := newMember(t, url, "node-x", "domain: shop\nlimits: [{name: login, per: [ip], allow: 1000/min}]", func(n *nodes.Nodes) {
		n.Handle(kindBans, func(context.Context, []byte) ([]byte, error) { return []byte("?"), nil })
	})
	hearEachOther(t, append(all, stranger)...)
	patience.Until(t, "the answer is a new one", func() bool {
		c, n := all[0].BanCounts(t.Context())
		return c.Of[id] == 15 && n.Asked == 3 && n.Answered == 2
	})
}

// following makes a limiter share its bans until it is stopped, or the test ends.
func following(t *testing.T, l *weir.Limiter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Follow(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	<-l.Followed()
	return stop
}

// TestRoll: who leaves is missed until as many are there as there were; that one who comes counts
// only since then, it says itself.
func TestRoll(t *testing.T) {
	var r roll
	at := func(second int) time.Time { return time.Unix(int64(1000+second), 0) }
	for i, c := range []struct{ nodes, left int }{
		{1, 0}, {3, 0}, {3, 0}, {2, 3}, {2, 3}, {1, 5}, {2, 5}, {3, 0}, {4, 0}, {3, 9}, {4, 0}, {0, 11},
	} {
		want := time.Time{}
		if c.left > 0 {
			want = at(c.left)
		}
		if got := r.note(c.nodes, at(i)); !got.Equal(want) {
			t.Errorf("%d: %d nodes: one left at %v, want %v", i, c.nodes, got, want)
		}
	}
}
