//go:build !race

// The race detector allocates, and needs memory.

package lease

import (
	"fmt"
	"runtime"
	"testing"

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
