//go:build !race

package weir_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir"
)

// Under the race detector a sync.Pool drops what it holds at random.

func TestDecideAllocatesNothing(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 5/min}
  - {name: api, when: {path: /api/**}, per: [user|ip], allow: [1000000/min, 5000000/hour]}
  - {name: all, allow: 100000000/s, algorithm: token_bucket}
`)))
	r := weir.Request{Attributes: weir.Pairs{{Name: "path", Value: "/api/x"}, {Name: "ip", Value: "192.0.2.1"},
		{Name: "user", Value: "ada"}}}
	var d weir.Decision
	ctx := context.Background()
	allocs := testing.AllocsPerRun(1000, func() {
		r.Hits = 1
		if err := l.Decide(ctx, &r, &d); err != nil || !d.Allowed || len(d.Limits) != 3 {
			t.Fatal(err, d.Allowed, d.Limits)
		}
	})
	if allocs != 0 {
		t.Fatalf("%v allocations a decision", allocs)
	}
}

// Nor where keys are banned: of others, of this one, or for each denial that counts towards a ban.
func TestBansAllocNothing(t *testing.T) {
	l, _ := banLimiter(t, newClock(), `
limits:
  - {name: login, per: [ip], allow: 1/min, algorithm: sliding_log, ban: {after: 100000, within: 1h, for: 1h, scope: domain}}
  - {name: api, per: [ip], allow: [1000000/min, 5000000/hour]}
`)
	for _, key := range []string{"192.0.2.1", "192.0.2.2"} {
		if _, err := l.Bans().Set(t.Context(), "", "login", []string{key}, time.UnixMicro(epoch).Add(time.Hour), ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Grants().Set(t.Context(), "", "api", []string{"192.0.2.4"}, "7/min, 8/hour", time.UnixMicro(epoch).Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"198.51.100.0/24", "2001:db8:7::/48"} {
		if _, err := l.Bans().Set(t.Context(), "", "api", []string{key}, time.UnixMicro(epoch).Add(time.Hour), "", weir.BanInDomain); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range map[string]weir.Request{"network": from("198.51.100.8", "/"), "banned": from("192.0.2.1", "/"), "denied": from("192.0.2.3", "/"),
		"granted": from("192.0.2.4", "/")} {
		var d weir.Decision
		ctx := context.Background()
		for range 10 {
			_ = l.Decide(ctx, &r, &d)
		}
		allocs := testing.AllocsPerRun(1000, func() {
			if err := l.Decide(ctx, &r, &d); err != nil || d.Allowed {
				t.Fatal(err, d.Allowed)
			}
		})
		if allocs >= 1 {
			t.Errorf("%s: %v allocations a decision", name, allocs)
		}
	}
}
