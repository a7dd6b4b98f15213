package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// populate makes entries of n keys of a limit that lends for so long.
func populate(t testing.TB, s *Store, n int, each time.Duration) *terms {
	t.Helper()
	c := counterOf(t, algo.Config{Algorithm: algo.TokenBucket, N: 1_000_000, Window: time.Hour, Lease: 5,
		LeaseFor: each})
	ts := s.terms.of(&store.Charge{Counter: c, Limit: c.Limit})
	for i := range n {
		key := fmt.Appendf(nil, "%d", i)
		h := s.hash(&store.Charge{Counter: c, Key: key})
		s.shard(h).add(s, h, ts, key, s.at())
		s.keys.Add(1)
	}
	return ts
}

// use has somebody ask for the keys with these terms.
func (s *Store) use(ts *terms) {
	for i := range s.shards {
		s.shards[i].each(func(_ uint32, sl *slot) {
			if sl.terms == ts {
				sl.Note(&ts.Terms, s.at(), 1)
			}
		})
	}
}

// TestVisits: an entry is visited as often as its own terms ask for, whatever else is in its shard.
func TestVisits(t *testing.T) {
	w := newWorld()
	s := newNode(t, w, newLender(t, w), Options{})
	long := populate(t, s, 2000, 2*time.Minute)
	short := populate(t, s, 500, 100*time.Millisecond)
	visits := map[*terms]int{}
	for range 1000 {
		w.advance(time.Millisecond)
		for i := range s.shards {
			sh := &s.shards[i]
			if sh.keys == 0 || w.at() < sh.due {
				continue
			}
			sh.eachDue(w.at(), func(n uint32, sl *slot) {
				visits[sl.terms]++
				sh.setPace(n, paceOf(&sl.terms.Terms))
			})
		}
	}
	for _, of := range []struct {
		what        string
		n           int
		least, most int
	}{
		{"2 min", visits[long], 0, 2000},
		{"100 ms", visits[short], 500 * 75, 500 * 250}, // of 12.5 ms, and no less than half of that
	} {
		if of.n < of.least || of.n > of.most {
			t.Errorf("entries that lend for %s were visited %d times in a second, expected %d to %d", of.what, of.n,
				of.least, of.most)
		}
	}
}

// TestVisitsAllocateNothing holds for entries of which there is nothing to tell.
func TestVisitsAllocateNothing(t *testing.T) {
	w := newWorld()
	s := newNode(t, w, newLender(t, w), Options{})
	ts := populate(t, s, 1000, time.Minute)
	s.tick(w.at())
	if got := testing.AllocsPerRun(20, func() {
		w.advance(8 * time.Second)
		s.use(ts)
		s.tick(w.at())
	}); got > 10 { // the readings of the clocks
		t.Errorf("%v allocations for a visit of 1000 keys", got)
	}
	if n := s.keys.Load(); n != 1000 {
		t.Errorf("%d keys are left", n)
	}
}

// BenchmarkTick is what looking after a full table costs: of keys that lend for long, and of a few
// that do not, which are asked for all the time.
func BenchmarkTick(b *testing.B) {
	w := newWorld()
	s := newNode(b, w, newLender(b, w), Options{})
	populate(b, s, 60_000, 2*time.Minute)
	short := populate(b, s, 600, 100*time.Millisecond)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		w.advance(13 * time.Millisecond)
		s.use(short)
		b.StartTimer()
		s.tick(w.at())
	}
}
