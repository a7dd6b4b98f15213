package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// TestDrainAndCalls: whatever calls go on, after Drain nothing is held, and nothing comes to be.
// The store has charged what was admitted, and nothing else but what has lapsed.
func TestDrainAndCalls(t *testing.T) {
	for range 3 {
		m, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		year := algo.Config{Algorithm: algo.SlidingWindow, N: 1_000_000_000, Window: 365 * 24 * time.Hour, Lease: 90,
			LeaseFor: 2 * time.Minute}
		a, b := counterOf(t, year), counterOf(t, year)
		var ofA, ofB atomic.Int64
		stop, began := make(chan struct{}), new(sync.WaitGroup)
		var work sync.WaitGroup
		for i := range 4 {
			began.Add(1)
			work.Go(func() {
				charges := []store.Charge{charge(a, "key", 100)}
				if i%2 == 0 {
					charges = append(charges, charge(b, "key", 1))
				}
				results := make([]algo.Result, len(charges))
				for n := 0; ; n++ {
					if n == 50 {
						began.Done()
					}
					select {
					case <-stop:
						return
					default:
						if _, err := s.Take(context.Background(), charges, results); err != nil ||
							store.VerdictOf(charges, results).Denied() {
							t.Error("not admitted:", err)
							continue
						}
						ofA.Add(100)
						ofB.Add(int64(len(charges) - 1))
					}
				}
			})
		}
		began.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := s.Drain(ctx); err != nil {
			t.Fatalf("Drain: %v", err)
		}
		for range 100 {
			if st := s.Stats(); st.Left+st.Untold != 0 {
				t.Fatalf("%d units are held after Drain, %d not told", st.Left, st.Untold)
			}
		}
		close(stop)
		work.Wait()
		cancel()
		lapsed, local := map[*rule.Counter]uint64{}, uint64(0)
		for _, n := range s.Stats().Limits {
			lapsed[n.Counter], local = n.Lapsed, local+n.Local
		}
		for c, admitted := range map[*rule.Counter]int64{a: ofA.Load(), b: ofB.Load()} {
			r, lost := take(t, m, charge(c, "key", 0))[0], int64(lapsed[c])
			if used := r.Limit - r.Remaining; used < admitted || used > admitted+lost {
				t.Errorf("%d units are used, %d were admitted, %d have lapsed", used, admitted, lost)
			}
		}
		if local == 0 {
			t.Error("nothing was decided here")
		}
		s.Close()
	}
}

// TestDrainStopsAsking: a call that has looked before Drain began leases nothing any more.
func TestDrainStopsAsking(t *testing.T) {
	w := newWorld()
	s := newNode(t, w, newLender(t, w), Options{})
	c := counterOf(t, wide)
	charges := []store.Charge{charge(c, "key", 100)}
	results := make([]algo.Result, 1)
	for range 3 {
		take(t, s, charges[0])
	}
	if err := s.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.ask(context.Background(), 0, 0, charges, results); err != nil { // which TakeWithin was about to call
		t.Fatal(err)
	}
	if st := s.Stats(); st.Left+st.Untold != 0 {
		t.Errorf("%d units are held after Drain, %d not told", st.Left, st.Untold)
	}
}

// TestDrainWithoutPrimary: Drain does not wait for a primary that is away, but does for one that
// fails now and then.
func TestDrainWithoutPrimary(t *testing.T) {
	for _, of := range []struct {
		name  string
		away  time.Duration
		fails bool
	}{{"away", time.Hour, true}, {"back in a second", time.Second, false}} {
		t.Run(of.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				primary := newLender(t, w)
				s := newNode(t, w, primary, Options{})
				c := charge(counterOf(t, wide), "key", 100)
				for range 3 {
					take(t, s, c)
				}
				began := time.Now()
				primary.fail = func() (error, bool) {
					if time.Since(began) < of.away {
						return store.ErrNotCharged, false
					}
					return nil, false
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := s.Drain(ctx); (err != nil) != of.fails {
					t.Errorf("Drain: %v", err)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("Drain took %v", took)
				}
			})
		})
	}
}
