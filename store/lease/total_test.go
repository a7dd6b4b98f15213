package lease

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// total is what all tests of totals ask for: 10,000 an hour, and a lease of 5 %.
var total = []algo.Config{
	{Algorithm: algo.FixedWindow, N: 10_000, Window: time.Hour, Lease: 5},
	{Algorithm: algo.SlidingLog, N: 10_000, Window: time.Hour, Lease: 5},
	{Algorithm: algo.SlidingWindow, N: 10_000, Window: time.Hour, Lease: 5},
}

// TestExactTotal: under load at least 95 % of the limit is admitted, since no more than the lease
// is out. What is left is admitted as soon as everything was returned; and not one more.
func TestExactTotal(t *testing.T) {
	for _, cfg := range total {
		t.Run(cfg.Algorithm.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 7))
			w := newWorld()
			primary := newLender(t, w)
			ns := newNodes(t, w, rng, primary, 4)
			c := counterOf(t, cfg)
			admitted := 0
			load := func(requests int) {
				for n := range requests {
					if n%10 == 0 {
						w.advance(time.Millisecond)
					}
					if n%100 == 0 {
						for _, s := range ns.all {
							s.tick(w.at())
						}
					}
					i := rng.IntN(len(ns.all))
					ns.all[i].pump(t.Context())
					if ns.take(i, charge(c, "key", 1)) {
						admitted++
					}
				}
			}
			load(200_000)
			if admitted < 9500 || admitted > 10_000 {
				t.Errorf("%d admitted under load", admitted)
			}
			t.Logf("%d admitted under load, with %d calls", admitted, primary.calls.Load())
			if calls := primary.calls.Load(); calls > 200_000/20 {
				t.Errorf("%d calls for 200,000 decisions", calls)
			}
			for _, s := range ns.all {
				if err := s.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				st := s.Stats()
				if st.Left != 0 || st.Untold != 0 {
					t.Errorf("after the drain: %+v", st)
				}
				if n := st.Limits[0]; n.Granted != n.Used+n.Returned || n.Lapsed != 0 {
					t.Errorf("%+v: something was lost", n)
				}
			}
			load(1000)
			if admitted != 10_000 {
				t.Errorf("%d admitted in the end", admitted)
			}
			ns.check(c)
		})
	}
}

// TestManyGoroutines is TestExactTotal with goroutines, by the real clock, and a second limit in
// each other call.
func TestManyGoroutines(t *testing.T) {
	m, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c := counterOf(t, algo.Config{Algorithm: algo.SlidingLog, N: 10_000, Window: time.Hour, Lease: 5})
	other := counterOf(t, algo.Config{Algorithm: algo.SlidingLog, N: 9_000, Window: time.Hour, Lease: 20,
		LeaseFor: 50 * time.Millisecond})
	plain := counterOf(t, algo.Config{Algorithm: algo.SlidingLog, N: 50_000, Window: time.Hour})
	var all []*Store
	for range 3 {
		s, err := New(unclosed{m}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	var admitted, both, plains atomic.Int64
	var work sync.WaitGroup
	for g := range 12 {
		work.Go(func() {
			s := all[g%len(all)]
			results := make([]algo.Result, 3)
			for n := range 5000 {
				charges := []store.Charge{charge(c, "key", 1), charge(other, "key", 1), charge(plain, "key", 1)}[:1+n%3]
				now, ok := s.TakeNow(charges, results[:len(charges)])
				if !ok {
					var err error
					if now, err = s.Take(context.Background(), charges, results[:len(charges)]); err != nil {
						t.Error(err)
						return
					}
				}
				if now == 0 {
					t.Error("no instant")
				}
				if store.VerdictOf(charges, results[:len(charges)]).Denied() {
					continue
				}
				admitted.Add(1)
				if len(charges) > 1 {
					both.Add(1)
				}
				if len(charges) > 2 {
					plains.Add(1)
				}
			}
		})
	}
	work.Wait()
	lapsed := map[*rule.Counter]uint64{}
	for _, s := range all {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, n := range s.Stats().Limits {
			lapsed[n.Counter] += n.Lapsed
		}
		if st := s.Stats(); st.Left != 0 || st.Untold != 0 || st.Late != 0 {
			t.Errorf("%+v", st)
		}
	}
	if n := admitted.Load(); n > 10_000 {
		t.Errorf("%d admitted", n)
	}
	// The store knows every unit that was admitted, and no other but those whose time was over
	// before this process came to return them.
	for _, of := range []struct {
		c    store.Charge
		used int64
	}{{charge(c, "key", 0), admitted.Load()}, {charge(other, "key", 0), both.Load()},
		{charge(plain, "key", 0), plains.Load()}} {
		r, lost := take(t, m, of.c)[0], int64(lapsed[of.c.Counter])
		if used := r.Limit - r.Remaining; used < of.used || used > of.used+lost {
			t.Errorf("%d are used of %v, %d were admitted, %d have lapsed", used, of.c.Limit, of.used, lost)
		}
	}
}

// unclosed is a lender that is closed by the test.
type unclosed struct{ *memory.Store }

func (unclosed) Close() error { return nil }
