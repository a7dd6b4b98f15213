package memory

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// hashSeed is the seed with which a store hashes keys. A snapshot holds it, so that each shard
// finds its keys together in the file. That is why it is not hash/maphash, whose hash is another
// one in each process. It is drawn at random and goes nowhere else, so nobody can choose keys that
// collide.
type hashSeed [4]uint64

func newHashSeed() (s hashSeed) {
	for i := range s {
		s[i] = rand.Uint64() | 1
	}
	return s
}

func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

// sum is the hash that Go's own maps use where the processor has no instructions for one (wyhash by
// Wang Yi).
func (h *hashSeed) sum(key []byte) uint64 {
	le := binary.LittleEndian
	n, seed := len(key), h[0]
	var a, b uint64
	switch {
	case n > 16:
		rest := key
		for ; len(rest) > 16; rest = rest[16:] {
			seed = mix(le.Uint64(rest)^h[1], le.Uint64(rest[8:])^seed)
		}
		a, b = le.Uint64(key[n-16:]), le.Uint64(key[n-8:])
	case n >= 8:
		a, b = le.Uint64(key), le.Uint64(key[n-8:])
	case n >= 4:
		a, b = uint64(le.Uint32(key)), uint64(le.Uint32(key[n-4:]))
	case n > 0:
		a = uint64(key[0]) | uint64(key[n>>1])<<8 | uint64(key[n-1])<<16
	}
	return mix(h[3]^uint64(n), mix(a^h[2], b^seed))
}
