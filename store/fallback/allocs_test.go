//go:build !race

package fallback

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Under the race detector a sync.Pool drops what it holds at random.

func TestTakeAllocatesNothing(t *testing.T) {
	p := &primary{Store: newMemory(t, nil)}
	closed := newOver(t, &punctual{Store: p}, Options{})
	away := func(context.Context) error { return errDown } // however long the measurements take
	open := newOver(t, p, Options{FixedNodes: 2, Probe: away})
	cut(t, open, p, refuses)
	p.set(none)
	charges, results := []store.Charge{charge(perHour(t, 1_000_000), "k", 1), charge(perHour(t, 1_000_000), "l", 1)},
		make([]algo.Result, 2)
	charges[1].OnStoreError = rule.AllowAll
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for name, s := range map[string]*Store{"closed": closed, "open": open} {
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := s.Take(ctx, charges, results); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
	}
	memory := newMemory(t, nil)
	at := newOver(t, &quick{Store: memory, Prompt: memory.(store.Prompt)}, Options{})
	for name, s := range map[string]*Store{"the primary": at, "open": open} {
		if n := testing.AllocsPerRun(1000, func() {
			if _, ok := s.TakeNow(charges, results); !ok {
				t.Fatal("not now")
			}
		}); n != 0 {
			t.Errorf("now, %s: %v allocations a call", name, n)
		}
	}
}
