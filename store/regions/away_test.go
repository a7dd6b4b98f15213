package regions

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// away is a store with several parts, one of which can be told nothing for a while.
type away struct {
	*memory.Store
	down  atomic.Bool
	tries atomic.Int64
}

func (*away) Parts() int { return 4 }

func (*away) PartOf(_ *rule.Counter, key []byte) int { return int(key[0]) % 4 }

func (s *away) Tell(_ context.Context, part int, told []store.Told) error {
	if told[0].Counter == 0 { // a greeting
		return nil
	}
	if part == 1 && s.down.Load() {
		s.tries.Add(1)
		return store.ErrNotCharged
	}
	return nil
}

// TestTellsLater: what cannot be told is told when it can be again, all of it and once. It takes no
// more room meanwhile than keys do, and is in the way of no other part.
func TestTellsLater(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 30 * 24 * time.Hour},
			rule.Regions{Over: 20, Tell: 1})
		c.Regions.Tell = 0 // each use is told at once
		own := &away{Store: newMemory(t)}
		s, err := New(own.Store, Options{Region: "eu", Table: three, Own: own, Rules: rulesOf(c)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		own.down.Store(true)
		used := uint64(0)
		use := func(rounds int) {
			for range rounds {
				for key := range 8 {
					ask(t, s, c, string(rune('a'+key)), 1)
					used++
				}
			}
		}
		told := func() uint64 { return s.Stats().Limits[testLimit].Told.Used }
		use(1)
		for i := range 3 {
			before := own.tries.Load()
			until(t, "it is tried again "+strconv.Itoa(i), func() bool { use(10); return own.tries.Load() > before+1 })
		}
		until(t, "the other parts are told", func() bool { return told() == used/4*3 })
		until(t, "what waits takes no more room than its keys", func() bool {
			waits := 0
			for i := range s.x.ledger.shards {
				g := &s.x.ledger.shards[i]
				g.mu.Lock()
				waits += len(g.out)
				g.mu.Unlock()
			}
			return waits <= 2
		})
		own.down.Store(false)
		until(t, "all is told", func() bool { return told() == used })
		if n := s.Stats().Untold; n != 0 {
			t.Errorf("%d are not told", n)
		}
	})
}
