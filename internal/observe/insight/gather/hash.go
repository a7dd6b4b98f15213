package gather

import (
	"math/bits"

	"github.com/weir-rl/weir/internal/observe"
)

// hashKey hashes a key with the seed that all nodes share.
func hashKey(seed uint64, key []byte) uint64 { return observe.HashKey(seed, key) }

// powerMask returns the bits that must be 0 in a random number so that one in 2^j events is taken.
func powerMask(j uint8) uint64 { return 1<<(j&31) - 1 }

// foldProduct multiplies to 128 bits, and folds them into 64.
func foldProduct(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
