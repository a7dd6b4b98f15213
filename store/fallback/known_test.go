package fallback

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// shapes are one limit of each algorithm.
var shapes = map[string]algo.Config{
	"fixed_window":    {Algorithm: algo.FixedWindow, N: 6, Window: time.Hour},
	"first request":   {Algorithm: algo.FixedWindow, N: 6, Window: time.Hour, FirstRequest: true},
	"sliding_window":  {Algorithm: algo.SlidingWindow, N: 6, Window: time.Hour},
	"buckets":         {Algorithm: algo.SlidingWindow, N: 6, Window: time.Hour, Buckets: 12},
	"sliding_log":     {Algorithm: algo.SlidingLog, N: 6, Window: time.Hour},
	"token_bucket":    {Algorithm: algo.TokenBucket, N: 6, Window: time.Hour},
	"refill interval": {Algorithm: algo.TokenBucket, N: 6, Window: time.Hour, RefillInterval: true},
	"leaky_bucket":    {Algorithm: algo.LeakyBucket, N: 6, Window: time.Hour, Burst: 5},
	"concurrency":     {Algorithm: algo.Concurrency, N: 6, Timeout: time.Hour},
}

// TestNeverAgainstWhatIsKnown: each of several nodes admits its part, rounded up, of the units that
// the primary last said were left; none of none.
func TestNeverAgainstWhatIsKnown(t *testing.T) {
	for name, config := range shapes {
		for _, nodes := range []int{1, 2, 3} {
			for heard := range int64(7) {
				t.Run(fmt.Sprintf("%s/%d nodes/%d", name, nodes, heard), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s, p := newTest(t, Options{FixedNodes: nodes})
						c := counter(t, config)
						for i := range heard + 1 {
							// the last is heard of by asking once more where nothing is left
							if i < heard || heard == 6 {
								take(t, s, charge(c, "k", 1))
							}
						}
						cut(t, s, p, hangs)
						left, admitted := 6-heard, int64(0)
						for range 10 {
							r := take(t, s, charge(c, "k", 1))[0]
							if r.Allowed {
								admitted++
							} else if r.RetryAfter == 0 || r.Remaining > left {
								t.Errorf("a refusal says %+v", r)
							}
						}
						want := ceil(left, int64(nodes))
						if heard == 0 { // it has never heard of the key
							if want = ceil(6, int64(nodes)); name == "leaky_bucket" {
								// the queue, and the one that is served
								want = ceil(5, int64(nodes)) + 1
							}
						}
						if admitted != want {
							t.Errorf("%d were admitted of %d that were left, want %d", admitted, left, want)
						}
					})
				})
			}
		}
	}
}

// TestKnownRunsOut: what the primary said holds as long as it can be so, and no longer.
func TestKnownRunsOut(t *testing.T) {
	for name, config := range shapes {
		if config.Algorithm == algo.Concurrency {
			continue // see TestKnownSlotsLapse
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newTest(t, Options{})
				c := counter(t, config)
				var r algo.Result
				for range 7 {
					r = take(t, s, charge(c, "k", 1))[0]
				}
				cut(t, s, p, hangs)
				// By the reference, which goes on without the network.
				time.Sleep(time.Duration(r.RetryAfter)*time.Microsecond - 100*time.Millisecond - time.Second)
				if take(t, s, charge(c, "k", 1))[0].Allowed {
					t.Error("admitted before the primary would have")
				}
				time.Sleep(2 * time.Second)
				if !take(t, s, charge(c, "k", 1))[0].Allowed {
					t.Error("refused for longer than the primary said")
				}
				time.Sleep(2 * time.Hour)
				n := 0
				for range 10 {
					if take(t, s, charge(c, "k", 1))[0].Allowed {
						n++
					}
				}
				if n < 5 {
					t.Errorf("when all is over %d of 6 were admitted", n)
				}
			})
		})
	}
}

// TestKnownSlotsLapse: slots that other nodes give back are not heard of, so that what is known of
// them holds for a moment only, and nothing that was taken meanwhile is left over.
func TestKnownSlotsLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := counter(t, shapes["concurrency"])
		for range 7 {
			take(t, s, charge(c, "k", 1))
		}
		cut(t, s, p, hangs)
		if take(t, s, charge(c, "k", 1))[0].Allowed {
			t.Error("admitted at once, with all slots held")
		}
		time.Sleep(time.Duration(disorder) * time.Microsecond)
		for i := range 20 { // of two slots each
			charges := []store.Charge{charge(c, "k", 2)}
			var r [1]algo.Result
			if _, err := s.Take(t.Context(), charges, r[:]); err != nil || !r[0].Allowed {
				t.Fatalf("call %d: %+v, %v", i, r[0], err)
			}
			ok, err := s.Release(t.Context(), c, []byte("k"), charges[0].Ask.Slot)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	})
}

// TestSettlementsAreKnown: units that a request cost more or less than were reserved count in the
// node's knowledge of its key.
func TestSettlementsAreKnown(t *testing.T) {
	for _, test := range []struct {
		reserved, actual, fits int64
		away, late             bool
	}{
		{reserved: 50, actual: 5, fits: 95},
		{reserved: 50, actual: 80, fits: 20},
		{reserved: 50, actual: 80, fits: 20, away: true},
		{reserved: 50, actual: 5, fits: 50, away: true},
		{reserved: 50, actual: 120, fits: 0},
		{reserved: 50, actual: 5, fits: 50, late: true}, // in the window after
	} {
		synctest.Test(t, func(t *testing.T) {
			s, p := newTest(t, Options{})
			c := perHour(t, 100)
			var r [1]algo.Result
			at, err := s.Take(t.Context(), []store.Charge{charge(c, "k", test.reserved)}, r[:])
			if err != nil {
				t.Fatal(err)
			}
			if test.late {
				time.Sleep(time.Hour)
				take(t, s, charge(c, "k", 50))
			}
			time.Sleep(time.Second)
			if test.away {
				cut(t, s, p, refuses)
			}
			if err := s.Settle(t.Context(), []store.Settlement{{
				Counter: c, Limit: c.Limit, Key: []byte("k"),
				At: at, Reserved: test.reserved, Actual: test.actual,
			}}); err != nil {
				t.Fatal(err)
			}
			if !test.away {
				cut(t, s, p, refuses)
			}
			if take(t, s, charge(c, "k", test.fits+1))[0].Allowed {
				t.Errorf("%+v: more was admitted than is left", test)
			}
			if test.fits > 0 && !take(t, s, charge(c, "k", test.fits))[0].Allowed {
				t.Errorf("%+v: refused what there is room for", test)
			}
		})
	}
}

// TestForgetKeepsWhatIsUsed: a grant changes what a key may do, not what it has done; a reset does.
func TestForgetKeepsWhatIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c, wider := perHour(t, 10), perHour(t, 15)
		for range 11 {
			take(t, s, charge(c, "k", 1))
		}
		s.Forget(c, []byte("k"))
		cut(t, s, p, refuses)
		granted := charge(c, "k", 1)
		granted.Limit = wider.Limit
		n := 0
		for range 20 {
			if take(t, s, granted)[0].Allowed {
				n++
			}
		}
		if n != 5 {
			t.Errorf("%d more were admitted under a grant of 15 than the 10 that were used, want 5", n)
		}
		s = newOver(t, newMemory(t, nil), Options{}) // one that can be looked into
		take(t, s, charge(c, "k", 10))
		if _, err := s.Reset(t.Context(), c, []byte("k")); err != nil {
			t.Fatal(err)
		}
		if ch := charge(c, "k", 1); s.known.claim(&ch, 1).known {
			t.Error("what was reset is still known")
		}
	})
}

// TestKnownIsBounded: keys near their limit are kept, others make room.
func TestKnownIsBounded(t *testing.T) {
	k := newKnown()
	c := perHour(t, 100)
	note := func(key string, remaining int64) {
		ch := charge(c, key, 1)
		k.record([]store.Charge{ch},
			[]algo.Result{{Limit: 100, SoftLimit: 100, Remaining: remaining, ResetAfter: 1e12, Allowed: true}}, 1)
	}
	const near = 1000
	for i := range near {
		note(fmt.Sprint("near ", i), 0)
	}
	for i := range 300_000 {
		note(fmt.Sprint("far ", i), 99)
	}
	kept := 0
	for i := range near {
		ch := charge(c, fmt.Sprint("near ", i), 1)
		if k.claim(&ch, 1).denied {
			kept++
		}
	}
	if kept < near*99/100 {
		t.Errorf("%d of %d keys that are refused are known", kept, near)
	}
}

// TestNotingAllocatesNothing, for each answer is noted.
func TestNotingAllocatesNothing(t *testing.T) {
	k, c := newKnown(), perHour(t, 100)
	charges, results := []store.Charge{charge(c, "k", 1)},
		[]algo.Result{{Limit: 100, Remaining: 7, ResetAfter: 1e12, Allowed: true}}
	now := int64(0)
	if n := testing.AllocsPerRun(1000, func() { now++; k.record(charges, results, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestClaims: what is known is never admitted twice, whatever is taken and given up meanwhile.
func TestClaims(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k, c := newKnown(), perHour(t, 100)
		left := rapid.Int64Range(0, 20).Draw(rt, "left")
		nodes := rapid.Int64Range(1, 4).Draw(rt, "nodes")
		ch := charge(c, "k", 1)
		k.record([]store.Charge{ch},
			[]algo.Result{{Limit: 100, SoftLimit: 100, Remaining: left, ResetAfter: 1e12, Allowed: true}}, 1)
		held := int64(0)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			if cost := rapid.Int64Range(1, 3).Draw(rt, "cost"); rapid.Bool().Draw(rt, "free") && held >= cost {
				k.free(c, ch.Key, cost)
				held -= cost
			} else if ch.Ask.Cost = cost; !k.claim(&ch, nodes).denied {
				held += cost
			}
			if held > ceil(left, nodes) {
				t.Fatalf("%d are held of %d that were left for %d nodes", held, left, nodes)
			}
		}
	})
}
