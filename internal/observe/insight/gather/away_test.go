package gather

import (
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// While Redis is away a node decides on its share of each limit. What is used of the share is told
// as the same part of the whole: a client that used 60 % has not used 180 % a second later, and has
// no limit of its own.
func TestFillWithoutStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	primary, err := redis.Open(redis.Options{URL: server.URL(), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	local, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := fallback.New(primary, fallback.Options{Local: local, FixedNodes: 3, Deadline: patience.Left(t) / 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	c := New(Options{Seed: 1})
	l, err := weir.New(store,
		weir.WithRules(
			load(t, "domain: shop\nlimits: [{ name: search, per: [user], allow: 60/day, algorithm: sliding_log }]")),
		weir.WithHooks(c.Hooks()))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(n int) (admitted int) {
		t.Helper()
		for range n {
			d, err := l.Allow(t.Context(), weir.Request{Attributes: rule.Map{"user": "ada"}})
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				admitted++
			}
			c.Snapshot(snapshot.Want{OnlyTop: true}) // which takes the decision in
		}
		return admitted
	}
	fill := func() float64 {
		t.Helper()
		r, _, err := c.Rule(t.Context(), "shop", "search", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return r.MaxFill
	}
	if n := ask(37); n != 37 || fill() != 0.6167 {
		t.Fatalf("%d are admitted, and %v used", n, fill())
	}
	server.Kill()
	// 23 are left, and this node's part of them is 8.
	if n := ask(4); n != 4 || fill() < 0.6167 || fill() > 0.85 {
		t.Errorf("without Redis %d are admitted, and %v used", n, fill())
	}
	if s := c.Snapshot(snapshot.Want{Samples: true}); s.Rules[0].All.Keys[0].Own {
		t.Error("the client counts as one with a limit of its own")
	}
	if n := ask(6); n != 4 || fill() <= 1 || fill() > 1.2 {
		t.Errorf("then %d are admitted, and %v used", n, fill())
	}
}
