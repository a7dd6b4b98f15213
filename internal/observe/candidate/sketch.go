package candidate

import (
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/weir-rl/weir/rule"
)

// refusedKeys estimates, in bounded memory, how many keys a candidate refuses and which of them it
// refuses most often. The zero value is ready. Safe for concurrent use.
type refusedKeys struct {
	distinct sketch
	top      heaviest
}

func (k *refusedKeys) add(v *veil, w *rule.Window, key []byte) {
	hash := maphash.Bytes(v.seed, key)
	k.distinct.add(hash)
	// A decision does not wait for the lock. Leaving out its refusal makes an estimate only a
	// little less exact.
	if k.top.mu.TryLock() {
		k.top.add(hash, w, key, v)
		k.top.mu.Unlock()
	}
}

// sketch estimates how many distinct hashes were added: HyperLogLog (Flajolet, Fusy, Gandouet,
// Meunier 2007) with 1,024 registers, which is a standard error of 3.25 %. The zero value is empty.
// Safe for concurrent use.
type sketch [registers / 4]atomic.Uint32 // four registers of a byte each in a word

const (
	registerBits = 10
	registers    = 1 << registerBits
	maxRank      = 64 - registerBits + 1
)

func (s *sketch) add(hash uint64) {
	i := hash >> (64 - registerBits)
	rank := uint32(min(bits.LeadingZeros64(hash<<registerBits)+1, maxRank))
	word, shift := &s[i/4], i%4*8
	for {
		old := word.Load()
		if old>>shift&0xff >= rank {
			return
		}
		if word.CompareAndSwap(old, old&^(0xff<<shift)|rank<<shift) {
			return
		}
	}
}

// estimate is the improved raw estimator of Ertl (2017, algorithm 6), which needs no corrections
// for small or large numbers.
func (s *sketch) estimate() uint64 {
	var count [maxRank + 1]float64
	for i := range s {
		word := s[i].Load()
		for range 4 {
			count[min(word&0xff, maxRank)]++
			word >>= 8
		}
	}
	const m = registers
	z := m * tau(1-count[maxRank]/m)
	for k := maxRank - 1; k >= 1; k-- {
		z = (z + count[k]) / 2
	}
	z += m * sigma(count[0]/m)
	return uint64(math.Round(m * m / (2 * math.Ln2 * z)))
}

func sigma(x float64) float64 {
	if x == 1 {
		return math.Inf(1)
	}
	y, z := 1.0, x
	for {
		x *= x
		before := z
		z += x * y
		y += y
		if z == before {
			return z
		}
	}
}

func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	y, z := 1.0, 1-x
	for {
		x = math.Sqrt(x)
		before := z
		y /= 2
		z -= (1 - x) * (1 - x) * y
		if z == before {
			return z / 3
		}
	}
}

// heaviest finds the keys that come most often, with Space-Saving (Metwally, Agrawal, El Abbadi
// 2005). A key that makes up more than one 32nd of all additions is certainly among them.
type heaviest struct {
	mu   sync.Mutex
	n    int // of keys
	keys [32]heavyKey
}

type heavyKey struct {
	hash  uint64
	count uint64 // at most
	over  uint64 // by how much count may be too large
	text  []byte
}

// maxHeavyText bounds the text that is kept of a key, in bytes.
const maxHeavyText = 192

// add counts a key. mu is held.
func (h *heaviest) add(hash uint64, w *rule.Window, key []byte, v *veil) {
	least := 0
	for i := range h.n {
		if h.keys[i].hash == hash {
			h.keys[i].count++
			return
		}
		if h.keys[i].count < h.keys[least].count {
			least = i
		}
	}
	k := &h.keys[least]
	if h.n < len(h.keys) {
		k = &h.keys[h.n]
		h.n++
	}
	k.over = k.count
	k.hash, k.count = hash, k.count+1
	k.text = w.AppendKeyText(k.text[:0], key, func(dst []byte, name string, at int) []byte { return v.edit(dst, name, at) })
	if len(k.text) > maxHeavyText {
		end := maxHeavyText
		for !utf8.RuneStart(k.text[end]) {
			end--
		}
		k.text = append(k.text[:end], "…"...)
	}
}
