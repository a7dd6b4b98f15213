package lease

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// TestDrainAndCalls: whatever calls go on, after Drain nothing is held, and nothing comes to be.
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
		a, b := counterOf(t, wide), counterOf(t, wide)
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
						if _, err := s.Take(context.Background(), charges, results); err != nil {
							t.Error(err)
						}
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
