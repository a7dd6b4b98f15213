package weir_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// A turn goes back only if it is the last, and only while it is to come; nothing else is refunded.
func TestGiveBack(t *testing.T) {
	c := newClock()
	l := newLimiter(t, c, weir.WithRules(load(t, `
limits:
  - {name: queue, algorithm: leaky_bucket, allow: {rate: 3/s, burst: 10}}
  - {name: dark, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 10}, on_limit: shadow}
  - {name: day, algorithm: sliding_log, allow: 100/day}
`)))
	ask := func() *weir.Decision {
		t.Helper()
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Hits: 1, MaxDelay: weir.AnyDelay}, &d); err != nil {
			t.Fatal(err)
		}
		return &d
	}
	giveBack := func(d *weir.Decision, want int) {
		t.Helper()
		if got, err := l.GiveBack(t.Context(), d); err != nil || got != want {
			t.Errorf("gave %d turns back (%v), want %d", got, err, want)
		}
	}
	ask()
	second := ask()
	c.wait(100 * time.Millisecond)
	giveBack(second, 2)
	if again := ask(); again.Delay != 233_334 || again.Time+again.Delay != second.Time+second.Delay {
		t.Errorf("the free turn was not taken again: delay %d", again.Delay)
	}
	third := ask()
	fourth := ask()
	giveBack(third, 0) // fourth stands behind
	giveBack(fourth, 2)
	if d := ask(); d.Time+d.Delay != fourth.Time+fourth.Delay {
		t.Errorf("the turn of the last is not free: %d, want %d", d.Time+d.Delay, fourth.Time+fourth.Delay)
	} else if used := d.Limits[2].Limit - d.Limits[2].Remaining; used != 6 {
		t.Errorf("the log counts %d, want all 6", used)
	}
}

// countingStore counts the calls of Take.
type countingStore struct {
	store.Store
	takes atomic.Int64
}

// Take implements weir.Store.
func (s *countingStore) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	s.takes.Add(1)
	return s.Store.Take(ctx, charges, results)
}

// Those who come while others give their turns back never share a turn: a turn goes back in one
// step of the store.
func TestGiveBackIsOneStep(t *testing.T) {
	c := newClock()
	inner, err := memory.New(memory.Options{Clock: c.read})
	if err != nil {
		t.Fatal(err)
	}
	store := &countingStore{Store: inner}
	l, err := weir.New(store,
		weir.WithRules(load(t, `limits: [{name: queue, algorithm: leaky_bucket, allow: {rate: 10/s, burst: 100000}}]`)))
	if err != nil {
		t.Fatal(err)
	}
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		turns = map[int64]int{}
		back  atomic.Int64
	)
	const askers, rounds = 8, 500
	for i := range askers {
		all.Add(1)
		go func() {
			defer all.Done()
			for range rounds {
				var d weir.Decision
				if err := l.Decide(context.Background(), &weir.Request{Hits: 1, MaxDelay: weir.AnyDelay}, &d); err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					n, err := l.GiveBack(context.Background(), &d)
					if err != nil {
						t.Error(err)
					}
					if back.Add(int64(n)); n == 1 {
						continue
					}
				}
				mu.Lock()
				turns[d.Time+d.Delay]++
				mu.Unlock()
			}
		}()
	}
	all.Wait()
	for turn, n := range turns {
		if n > 1 {
			t.Errorf("%d requests share the turn at %d", n, turn)
		}
	}
	if want := askers*rounds - int(back.Load()); len(turns) != want {
		t.Errorf("%d turns, want %d", len(turns), want)
	}
	if n := store.takes.Load(); n != askers*rounds*3/2 {
		t.Errorf("the store was asked %d times, want %d: once a decision, and once a turn given back", n,
			askers*rounds*3/2)
	}
}

// A reused decision that met nothing gives nothing back of the one before.
func TestGiveBackOfReusedDecision(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits: [{name: q, when: {path: /slow}, allow: {rate: 1/s, burst: 4}, algorithm: leaky_bucket}]
`)))
	var d weir.Decision
	decide := func(path string) {
		t.Helper()
		r := weir.Request{Attributes: weir.Map{"path": path}, Hits: 1, MaxDelay: weir.AnyDelay}
		if err := l.Decide(t.Context(), &r, &d); err != nil || !d.Allowed {
			t.Fatal(err, d.Allowed)
		}
	}
	decide("/slow")
	decide("/quick")
	if turns, err := l.GiveBack(t.Context(), &d); turns != 0 || err != nil {
		t.Fatalf("%d turns given back, %v", turns, err)
	}
	if decide("/slow"); d.Delay != 1e6 {
		t.Fatalf("the turn before went back: delay %d", d.Delay)
	}
}
