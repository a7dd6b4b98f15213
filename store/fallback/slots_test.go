package fallback

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// TestSlots: a slot goes back to the store that gave it, whatever has happened since.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{FixedNodes: 2})
		c := counter(t, algo.Config{Algorithm: algo.Concurrency, N: 6, Timeout: time.Hour})
		get := func() uint64 {
			t.Helper()
			charges, results := []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1)
			if _, err := s.Take(t.Context(), charges, results); err != nil {
				t.Fatal(err)
			}
			if results[0].Allowed != (charges[0].Ask.Slot != 0) {
				t.Fatalf("slot %d of %+v", charges[0].Ask.Slot, results[0])
			}
			return charges[0].Ask.Slot
		}
		put := func(slot uint64, want bool) {
			t.Helper()
			if ok, err := s.Release(t.Context(), c, []byte("k"), slot); ok != want || err != nil {
				t.Errorf("Release: %v, %v; want %v", ok, err, want)
			}
		}
		held := func(ofPrimary, ofLocal int64) {
			t.Helper()
			if a, b := used(t, p.Store, c, "k"), used(t, s.o.Local, c, "k"); a != ofPrimary || b != ofLocal {
				t.Errorf("%d slots of the primary and %d of Local are held, want %d and %d", a, b, ofPrimary, ofLocal)
			}
		}
		p1, p2, p3 := get(), get(), get()
		put(p1, true)
		put(p1, false)
		held(2, 0)

		cut(t, s, p, hangs)
		l1, l2 := get(), get()
		if get() != 0 {
			t.Error("more slots than this node's half of the 4 that were left")
		}
		asked := p.releases.Load()
		put(l1, true)
		put(p2, true) // taken on trust
		put(p2, true)
		put(0, false)
		if p.releases.Load() != asked {
			t.Error("the primary was asked while it is away")
		}
		held(2, 1)

		mend(t, s, p)
		held(1, 1)
		asked = p.releases.Load()
		put(l2, true)
		if p.releases.Load() != asked {
			t.Error("the primary was asked for a slot of Local")
		}
		held(1, 0)

		// A release whose answer is lost is made again: that harms nobody.
		p.set(hangs)
		put(p3, true)
		mend(t, s, p)
		held(0, 0)
		put(p3, false)
	})
}

// TestSlotsAreKept until the primary is there for good, and it is not asked while it is away.
func TestSlotsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var alive atomic.Bool // it answers probes, but does nothing else
		s, p := newTest(t, Options{Probe: func(context.Context) error {
			if alive.Load() {
				return nil
			}
			return errDown
		}})
		c := counter(t, algo.Config{Algorithm: algo.Concurrency, N: settleBatch, Timeout: time.Hour})
		var slots []uint64
		for range settleBatch {
			charges := []store.Charge{charge(c, "k", 1)}
			if _, err := s.Take(t.Context(), charges, make([]algo.Result, 1)); err != nil {
				t.Fatal(err)
			}
			slots = append(slots, charges[0].Ask.Slot)
		}
		cut(t, s, p, refuses)
		for _, slot := range slots {
			if ok, err := s.Release(t.Context(), c, []byte("k"), slot); !ok || err != nil {
				t.Fatalf("Release: %v, %v", ok, err)
			}
		}
		alive.Store(true)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if n, trips := p.releases.Load(), s.Stats().Trips; n != tripAfter*int64(trips-1) || trips < 2 {
			t.Errorf("%d attempts to give slots back, %d trips", n, trips)
		}
		mend(t, s, p)
		if n := used(t, p.Store, c, "k"); n != 0 {
			t.Errorf("%d slots are still held", n)
		}
	})
}
