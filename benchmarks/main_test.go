package benchmarks

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

var sink atomic.Uint64

// full is the contestant that was filled last: a benchmark function is called several times, and
// for each number of CPUs.
var full struct {
	name     string
	deciders func() Decider
}

// filled returns a contestant with a million keys. It outlives the benchmark.
func filled(b *testing.B, c Contestant, keys []byte) func() Decider {
	if full.name == c.Name {
		return full.deciders
	}
	full.name, full.deciders = "", nil
	runtime.GC()
	deciders := c.makes(lasting{b}, Limit{1000, time.Hour}, len(keys)/keyLength)
	decide := deciders()
	for k := 0; k < len(keys); k += keyLength {
		decide(keys[k:][:keyLength])
	}
	runtime.GC()
	full.name, full.deciders = c.Name, deciders
	return deciders
}

// lasting is a testing.TB whose cleanups never run.
type lasting struct{ testing.TB }

func (lasting) Cleanup(func()) {}

// TestBytes measures the heap of each contestant with a million keys, and says how much it is for a
// key beyond the key's 16 bytes.
func TestBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("a million keys for each contestant")
	}
	const n = 1_000_000
	keys := randomKeys(n)
	for _, c := range Contestants {
		before := heapInUse()
		deciders := c.makes(t, Limit{1000, time.Hour}, n)
		decide := deciders()
		for k := 0; k < len(keys); k += keyLength {
			decide(bytes.Clone(keys[k:][:keyLength])) // kept by those that keep the string
		}
		used := (heapInUse() - before) / n
		runtime.KeepAlive(deciders)
		t.Logf("%-26s %4d bytes a key", c.Name, used-keyLength)
	}
	runtime.KeepAlive(keys)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
