package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
)

// What a ban refused is added up over all nodes, whichever node is asked. A node of another version
// is missing, and one that began later says so.
func TestBanCounts(t *testing.T) {
	url := redistest.Start(t).URL()
	all := newFleet(t, url, 3, "domain: shop\nlimits: [{name: login, per: [ip], allow: 1000/min}]")
	for _, m := range all {
		following(t, m.limiter)
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
	stranger := newMember(t, url, "node-x", "domain: shop\nlimits: [{name: login, per: [ip], allow: 1000/min}]", func(n *nodes.Nodes) {
		n.Handle(kindBans, func(context.Context, []byte) ([]byte, error) { return []byte("?"), nil })
	})
	hearEachOther(t, append(all, stranger)...)
	patience.Until(t, "the answer is a new one", func() bool {
		c, n := all[0].BanCounts(t.Context())
		return c.Of[id] == 30 && n.Asked == 4 && n.Answered == 3
	})
}

// following makes a limiter share its bans until the test ends.
func following(t *testing.T, l *weir.Limiter) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Follow(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-l.Followed()
}
