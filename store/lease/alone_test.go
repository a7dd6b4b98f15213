package lease

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// TestAlone: to a node that is alone, leases make no difference but that refusals are repeated for
// a while. Its calls are held against a store that lends nothing, within a window, and while time
// passes as fast as a refusal says.
func TestAlone(t *testing.T) {
	for _, a := range []algo.Algorithm{algo.FixedWindow, algo.SlidingLog, algo.SlidingWindow, algo.TokenBucket} {
		t.Run(a.String(), func(t *testing.T) {
			local, all := uint64(0), 0
			rapid.Check(t, func(rt *rapid.T) {
				w := newWorld()
				exact, s := newLender(t, w), newNode(t, w, newLender(t, w), Options{})
				var leases, plains []*rule.Counter
				for range rapid.IntRange(1, 3).Draw(rt, "limits") {
					c := algo.Config{Algorithm: a, N: rapid.Int64Range(4, 60).Draw(rt, "N"), Window: time.Hour,
						Soft: rapid.SampledFrom([]int{0, 0, 20}).Draw(rt, "soft")}
					plains = append(plains, counterOf(t, c))
					if c.Lease = rapid.SampledFrom([]int{0, 50, 90, 90}).Draw(rt, "lease"); c.Lease > 0 {
						c.LeaseFor = 2 * time.Second
					}
					leases = append(leases, counterOf(t, c))
				}
				for range rapid.IntRange(20, 150).Draw(rt, "calls") {
					var here, there []store.Charge
					only := rapid.IntRange(0, len(leases)).Draw(rt, "limit") // the last: all of them
					for i := range leases {
						if only < len(leases) && only != i {
							continue
						}
						cost := rapid.SampledFrom([]int64{1, 1, 1, 1, 1, 1, 1, 2, 3, 0, -1}).Draw(rt, "cost")
						mode := rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Enforce, rule.Enforce, rule.Shadow,
							rule.Quota}).Draw(rt, "mode")
						for _, to := range []struct {
							list *[]store.Charge
							c    *rule.Counter
						}{{&here, leases[i]}, {&there, plains[i]}} {
							c := charge(to.c, "key", cost)
							c.Mode = mode
							*to.list = append(*to.list, c)
						}
					}
					w.advance(time.Microsecond) // calls of one instant could be of one batch, and heard in any order
					got, want := make([]algo.Result, len(here)), make([]algo.Result, len(here))
					now, err := s.Take(context.Background(), here, got)
					if err != nil {
						rt.Fatal(err)
					}
					if at, _ := exact.Take(context.Background(), there, want); now > at || now < at-2 {
						rt.Fatalf("decided at %d, it is %d", now, at)
					}
					for i := range got {
						g, x := got[i], want[i]
						if !g.Allowed && g.RetryAfter != algo.Never {
							if g.RetryAfter < x.RetryAfter {
								rt.Fatalf("charge %d, %v, %+v, comes back too early:\n got %+v\nwant %+v", i,
									here[i].Limit, here[i].Ask, g, x)
							}
							g.RetryAfter = x.RetryAfter
						}
						// What is lent is not yet charged, so the state may be fresh earlier.
						g.ResetAfter, x.ResetAfter = 0, 0
						if g != x {
							rt.Fatalf("charge %d of %d, %v, %+v, mode %d:\n got %+v\nwant %+v", i, len(got),
								here[i].Limit, here[i].Ask, here[i].Mode, g, x)
						}
					}
					if rapid.IntRange(0, 3).Draw(rt, "background") == 0 {
						s.step(context.Background())
					}
				}
				for _, n := range s.Stats().Limits {
					local += n.Local
					all += int(n.Local + n.Store + n.Mixed)
				}
			})
			t.Logf("%d of %d decisions made here", local, all)
			// Of those, rapid may draw none; of these some are.
			w := newWorld()
			s := newNode(t, w, newLender(t, w), Options{})
			c := counterOf(t, algo.Config{Algorithm: a, N: 60, Window: time.Hour, Lease: 90, LeaseFor: 2 * time.Second})
			for range 30 {
				w.advance(time.Microsecond)
				take(t, s, charge(c, "key", 1))
				s.step(t.Context())
			}
			if n := s.Stats().Limits[0]; n.Local == 0 {
				t.Errorf("nothing was decided here: %+v", n)
			}
		})
	}
}
