//go:build !race

// The race detector allocates, needs memory, and makes a flood slow in which nothing can race.

package lease

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

func TestNoAllocations(t *testing.T) {
	for _, n := range []int{1, 2, 8} {
		s, charges := holding(t, n)
		results := make([]algo.Result, n)
		if got := testing.AllocsPerRun(1000, func() {
			if _, ok := s.TakeNow(charges, results); !ok {
				t.Fatal("not decided here")
			}
		}); got != 0 {
			t.Errorf("%d charges: %v allocations", n, got)
		}
	}
}

// TestBytesPerKey: what a key with a lease costs, beside the bytes of the key.
func TestBytesPerKey(t *testing.T) {
	w := newWorld()
	s := newNode(t, w, newLender(t, w), Options{})
	c := counterOf(t, wide)
	ts := s.terms.of(&store.Charge{Counter: c, Limit: c.Limit})
	const length = 16
	keys := make([][]byte, DefaultMaxKeys)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%0*d", length, i)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what pools hold goes with the second one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for _, key := range keys {
		h := s.hash(&store.Charge{Counter: c, Key: key})
		sh := s.shard(h)
		sh.knock(h, ts.E, w.at())
		sh.add(s, h, ts, key, w.at())
	}
	each := float64(heap()-before) / float64(len(keys))
	runtime.KeepAlive(s)
	runtime.KeepAlive(keys)
	if t.Logf("%.1f bytes a key", each-length); each-length > 128 {
		t.Errorf("%.1f bytes a key, beside its own", each-length)
	}
}

// TestFlood: a key that begins to be asked for often while others come twice each, more of them
// than there is room for, leases units, and goes on to.
func TestFlood(t *testing.T) {
	w := newWorld()
	s := newNode(t, w, newLender(t, w), Options{})
	c := counterOf(t, wide)
	asked, here := 0, 0
	s.decided = func(c *store.Charge, _ *algo.Result, _ int64) {
		if string(c.Key) == "hot" {
			here++
		}
	}
	for i := range 2 * DefaultMaxKeys {
		key := fmt.Sprint("flood ", i)
		take(t, s, charge(c, key, 1))
		take(t, s, charge(c, key, 1))
		w.advance(10 * time.Microsecond)
		if i > DefaultMaxKeys && i%50 == 0 {
			take(t, s, charge(c, "hot", 1))
			asked++
		}
		if i%10_000 == 0 {
			s.step(t.Context())
		}
	}
	if here < asked*9/10 {
		t.Errorf("%d of %d requests for the hot key were decided here", here, asked)
	}
	if n := s.Stats().Keys; n != DefaultMaxKeys {
		t.Errorf("%d keys, of %d at most", n, DefaultMaxKeys)
	}
	// What holds units does not make room.
	few := newNode(t, w, newLender(t, w), Options{MaxKeys: 1})
	for range 10 {
		take(t, few, charge(c, "first", 1))
	}
	left := few.Stats().Left
	for i := range 1000 {
		take(t, few, charge(c, fmt.Sprint(i), 1))
		take(t, few, charge(c, fmt.Sprint(i), 1))
	}
	if st := few.Stats(); left == 0 || st.Left != left || st.Keys != 1 {
		t.Errorf("%+v, %d units were left", st, left)
	}
}
