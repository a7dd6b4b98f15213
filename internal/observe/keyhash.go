package observe

import (
	"encoding/binary"
	"math/bits"
)

// HashKey hashes a key with a secret seed, for samples and tables of keys, in the manner of wyhash
// (Wang Yi 2019): 16 bytes are folded by one multiplication to 128 bits. Unlike hash/maphash its
// seed can be the same on all nodes, so that all of them sample the same keys; unlike xxhash it
// takes a seed, without which a client could choose keys that are never sampled, or that take the
// place of others; and it takes half as long as either on keys of a few bytes. Equal keys have
// equal hashes in each process and version.
func HashKey(seed uint64, key []byte) uint64 {
	const k0, k1, k2 = 0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3
	n := len(key)
	h := seed ^ k0
	for len(key) > 16 {
		h = fold(binary.LittleEndian.Uint64(key)^k1, binary.LittleEndian.Uint64(key[8:])^h)
		key = key[16:]
	}
	var a, b uint64
	switch {
	case len(key) >= 8:
		a, b = binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[len(key)-8:])
	case len(key) >= 4:
		a, b = uint64(binary.LittleEndian.Uint32(key)), uint64(binary.LittleEndian.Uint32(key[len(key)-4:]))
	case len(key) > 0:
		a = uint64(key[0])<<16 | uint64(key[len(key)>>1])<<8 | uint64(key[len(key)-1])
	}
	return fold(k2^uint64(n)^seed, fold(a^k1, b^h))
}

// fold multiplies to 128 bits, and folds them into 64.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
