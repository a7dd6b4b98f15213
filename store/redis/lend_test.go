package redis_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// TestLender: Redis lends as the pure algorithm does.
func TestLender(t *testing.T) {
	server := redistest.Start(t)
	storetest.Lender(t, emptied(redis.Options{URL: server.URL()}, server))
}

func testLenderInCluster(t *testing.T, cluster *redistest.Cluster) {
	storetest.Lender(t, emptied(redis.Options{URL: cluster.URL(), Partitions: 1}, cluster.Nodes()...))
}

// lending is a counter whose limit lends, of a group or of none.
func lending(t testing.TB, c algo.Config, group uint64) *rule.Counter {
	t.Helper()
	l := mustLimit(t, c)
	return &rule.Counter{
		ID: rand.Uint64(), Group: group, Domain: "test", Limit: l,
		Lease: &rule.Counter{ID: rand.Uint64(), Group: group, Domain: "test", Limit: l.Lease()},
	}
}

// borrow is one call of TakeAhead for one charge.
func borrow(t testing.TB, s *redis.Store, c *rule.Counter, key string, cost int64, h *algo.Ahead) (algo.Result, int64) {
	t.Helper()
	ahead, results := []algo.Ahead{*h}, make([]algo.Result, 1)
	now, _, err := s.TakeAhead(t.Context(), 0, 0, []store.Charge{charge(c, key, cost)}, ahead, results)
	if err != nil {
		t.Fatal(err)
	}
	*h = ahead[0]
	return results[0], now
}

// leases are limits that lend, of each form in which their states lie in Redis. Their windows
// outlast any test.
func leases() map[string]algo.Config {
	all := map[string]algo.Config{}
	for _, shape := range shapes {
		c := shape.c
		c.N, c.Burst, c.Lease, c.LeaseFor = 100, 0, 10, 10*time.Second
		if _, err := algo.New(c); err == nil {
			all[shape.name] = c
		}
	}
	return all
}

// TestLendExpiry: neither a state nor its record of units lent goes before the units out, used at
// the last moment, would make no difference any more. A state goes no sooner than the units that
// are to be charged to it: in a bucket they come on top of its level.
func TestLendExpiry(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	n := 0
	for name, cfg := range leases() {
		for _, group := range []uint64{0, rand.Uint64()} {
			t.Run(fmt.Sprint(name, " ", group > 0), func(t *testing.T) {
				n++
				prefix := fmt.Sprintf("lend%d:", n)
				s := open(t, redis.Options{URL: server.URL(), Prefix: prefix})
				c := lending(t, cfg, group)
				l := c.Limit
				var st, record algo.State
				var told algo.Told
				for step, ask := range []struct {
					cost, want int64
					twice      bool // by compare-and-swap
				}{{0, 5, false}, {1, 0, false}, {1, 5, false}, {2, 0, false}, {0, 3, false}, {1, 0, true},
					{-1, 0, false}, {1, 5, true}, {200, 5, false}} {
					charges, ahead := []store.Charge{charge(c, "k", ask.cost)},
						[]algo.Ahead{{Want: ask.want, Told: [2]algo.Told{told}}}
					if ask.twice {
						charges, ahead = append(charges, charge(c, "k", 0)), append(ahead, algo.Ahead{})
					}
					now, _, err := s.TakeAhead(t.Context(), 0, 0, charges, ahead, make([]algo.Result, len(charges)))
					if err != nil {
						t.Fatal(err)
					}
					l.TakeAhead(&st, &record, now, charges[0].Ask,
						&algo.Ahead{Want: ask.want, Told: [2]algo.Told{told}})
					if told = (algo.Told{}); ahead[0].Got > 0 {
						told = algo.Told{End: ahead[0].Until, Used: 1}
					}
					out := l.LentAt(&record, now)
					// What is out may be used up to its end.
					all, empty := st, record
					all.Ext = append([]byte(nil), st.Ext...)
					l.Roll(&all, &empty, out.Last)
					fresh := int64(0)
					if all.B != 0 {
						fresh = out.Last + l.Check(&all, out.Last, algo.Ask{}).ResetAfter
					}
					keys, _ := server.Do("KEYS", prefix+"*").([]any)
					first, last := int64(1<<62), int64(0)
					for _, key := range keys {
						at := server.Do("PEXPIRETIME", key.(string)).(int64) * 1000
						first, last = min(first, at), max(last, at)
					}
					if out.Out() > 0 && last < fresh {
						t.Errorf("step %d: all is gone %d µs before it is fresh", step, fresh-last)
					}
					if bucket := cfg.Algorithm == algo.TokenBucket || cfg.FirstRequest; out.Out() > 0 && bucket &&
						first < out.Last {
						t.Errorf("step %d: a state is gone %d µs before the last of what is out ends", step,
							out.Last-first)
					}
					if most := now + 3*(cfg.Window+400*days*2).Microseconds(); last > most {
						t.Errorf("step %d: kept for %v", step, time.Duration(last-now)*time.Microsecond)
					}
				}
				if l.LentAt(&record, record.A-1).Out() == 0 {
					t.Error("nothing is out in the end")
				}
			})
		}
	}
}

// TestLendLostAnswer: a call whose answer is lost was made once. Its caller is told nothing, and
// what was lent to it is out until it ends.
func TestLendLostAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, cfg := range leases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()                    // each waits for an answer that does not come
			cfg.LeaseFor = algo.MaxLeaseFor // what is out stays out, however slow the machine
			proxy := redistest.Proxy(t, server.Addr())
			s := open(t, redis.Options{URL: "redis://" + proxy.Addr(), Timeout: 500 * time.Millisecond})
			direct := open(t, redis.Options{URL: server.URL()})
			c := lending(t, cfg, rand.Uint64())
			h := algo.Ahead{Want: 6}
			if borrow(t, direct, c, "k", 10, &h); h.Got != 6 {
				t.Fatalf("%+v", h)
			}
			// Calls that may be made twice on a busy machine charge nothing.
			eventually(t, "the store is there", func() bool {
				_, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 0)}, make([]algo.Result, 1))
				return err == nil
			})
			// Told: 3 used, 1 returned; charged: 2; lent: 4 of the 8 that may be.
			lost := []algo.Ahead{{Told: [2]algo.Told{{End: h.Until, Used: 3, Returned: 1}}, Want: 4, Got: 1, Until: 1,
				Out: 1}}
			proxy.LoseReplies()
			_, _, err := s.TakeAhead(t.Context(), 0, 0, []store.Charge{charge(c, "k", 2)}, lost, make([]algo.Result, 1))
			if err == nil || errors.Is(err, store.ErrNotCharged) {
				t.Fatalf("the answer is lost, and the error is %v", err)
			}
			// On a busy machine it may be given up before it is made.
			eventually(t, "the call is made", func() bool {
				var peek algo.Ahead
				r, _ := borrow(t, direct, c, "k", 0, &peek)
				return r.Remaining+peek.Out != 90
			})
			if a := lost[0]; a.Got != 0 || a.Until != 0 || a.Out != 0 {
				t.Errorf("beside an error: %+v", a)
			}
			proxy.Pass()
			// Nothing repeats it when the connection is there again.
			eventually(t, "the connection is there again", func() bool {
				_, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 0)}, make([]algo.Result, 1))
				return err == nil
			})
			var peek algo.Ahead
			r, _ := borrow(t, direct, c, "k", 0, &peek)
			if used := 100 - r.Remaining - peek.Out; used != 10+3+2 || peek.Out != 6-3-1+4 {
				t.Errorf("%d used and %d out, want 15 and 6", used, peek.Out)
			}
			// A call that cannot be sent has told nothing.
			proxy.Refuse()
			proxy.Cut()
			again := []algo.Ahead{{Told: [2]algo.Told{{End: h.Until, Used: 2}}, Want: 4}}
			eventually(t, "a call fails for certain", func() bool {
				_, _, err := s.TakeAhead(t.Context(), 0, 0, []store.Charge{charge(c, "other", 0)}, []algo.Ahead{{}},
					make([]algo.Result, 1))
				return errors.Is(err, store.ErrNotCharged)
			})
			// On a busy machine its time can be over before the connection is refused.
			eventually(t, "this call fails for certain", func() bool {
				_, _, err := s.TakeAhead(t.Context(), 0, 0, []store.Charge{charge(c, "k", 2)}, again,
					make([]algo.Result, 1))
				if err == nil {
					t.Fatal("a call that cannot be sent is made")
				}
				return errors.Is(err, store.ErrNotCharged)
			})
			if r2, _ := borrow(t, direct, c, "k", 0, &peek); r2.Remaining != r.Remaining || peek.Out != 6 {
				t.Errorf("%+v, %+v", r2, peek)
			}
		})
	}
}

// testLendAcross: where a call is of several partitions, one that denies takes back what the others
// have lent.
func testLendAcross(t *testing.T, cluster *redistest.Cluster) {
	s := open(t, redis.Options{URL: cluster.URL()})
	cfg := algo.Config{Algorithm: algo.SlidingLog, N: 100, Window: 20 * days, Lease: 10, LeaseFor: algo.MaxLeaseFor}
	c, full := lending(t, cfg, rand.Uint64()),
		counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 0, Window: 100 * days})
	key := func(i int) string { return fmt.Sprint("key ", i) }
	other := 1
	for s.PartOf(c, []byte(key(other))) == s.PartOf(c, []byte(key(0))) {
		other++
	}
	ahead := []algo.Ahead{{Want: 5}, {Want: 6}}
	results := make([]algo.Result, 2)
	both := []store.Charge{charge(c, key(0), 1), charge(c, key(other), 1)}
	if _, _, err := s.TakeAhead(t.Context(), 0, 0, both, ahead, results); err != nil || ahead[0].Got != 5 ||
		ahead[1].Got != 6 {
		t.Fatalf("%+v, %v", ahead, err)
	}
	ahead = []algo.Ahead{{Want: 5, Told: [2]algo.Told{{End: ahead[0].Until, Used: 2, Returned: 1}}}, {}}
	denied := []store.Charge{charge(c, key(0), 1), charge(full, key(other), 1)}
	if _, _, err := s.TakeAhead(t.Context(), 0, 0, denied, ahead, results); err != nil || results[1].Allowed ||
		ahead[0].Got != 0 || ahead[0].Out != 2 {
		t.Fatalf("%+v, %+v, %v", results, ahead, err)
	}
	eventually(t, "what was lent and charged has come back", func() bool {
		var peek algo.Ahead
		r, _ := borrow(t, s, c, key(0), 0, &peek)
		return peek.Out == 2 && r.Remaining == 100-1-2-2
	})
}

// TestLendNotRemembered: a refusal while units are out is not repeated from memory, since they may
// come back at any time.
func TestLendNotRemembered(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour})
	c := lending(t, algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: 100 * days, Lease: 10}, 0)
	h := algo.Ahead{Want: 10}
	borrow(t, s, c, "k", 90, &h)
	if r, _ := take(t, s, charge(c, "k", 1)); r[0].Allowed {
		t.Fatalf("%+v", r[0])
	}
	told := algo.Ahead{Told: [2]algo.Told{{End: h.Until, Returned: 10}}}
	borrow(t, s, c, "other", 0, &algo.Ahead{})
	borrow(t, open(t, redis.Options{URL: server.URL()}), c, "k", 0, &told)
	if r, _ := take(t, s, charge(c, "k", 1)); !r[0].Allowed {
		t.Errorf("%+v", r[0])
	}
}
