package observe_test

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"testing"

	"github.com/weir-rl/weir/internal/observe"
)

// Keys of all lengths that differ in one bit, or in the seed, or in their length, have different
// hashes, half of whose bits differ.
func TestHashKey(t *testing.T) {
	differ, pairs := 0, 0
	for n := range 70 {
		key := bytes.Repeat([]byte{'k'}, n)
		sum := observe.HashKey(1, key)
		compare := func(what string, other uint64) {
			if other == sum {
				t.Errorf("%d bytes, %s: the same hash", n, what)
			}
			differ += bits.OnesCount64(sum ^ other)
			pairs++
		}
		compare("another seed", observe.HashKey(2, key))
		compare("one byte more", observe.HashKey(1, append(bytes.Clone(key), 'k')))
		for i := range 8 * n {
			other := bytes.Clone(key)
			other[i/8] ^= 1 << (i % 8)
			compare("another bit", observe.HashKey(1, other))
		}
	}
	if share := float64(differ) / float64(64*pairs); share < 0.49 || share > 0.51 {
		t.Errorf("%.3f of the bits differ", share)
	}
}

// The hash is the same in each process and version: nodes compare theirs.
func TestHashKeyStays(t *testing.T) {
	var all uint64
	for n := range 40 {
		all = observe.HashKey(all, bytes.Repeat([]byte{byte(n)}, n))
	}
	if want := uint64(0x2c6eff4f66c94db3); all != want {
		t.Errorf("%#x, want %#x", all, want)
	}
}

// Keys that are numbers fall evenly into places, by their upper bits and by their lower ones.
func TestHashKeySpreads(t *testing.T) {
	const keys, places = 1 << 16, 256
	for _, shift := range []int{0, 24, 56} {
		var n [places]float64
		for i := range keys {
			n[observe.HashKey(7, binary.BigEndian.AppendUint64(nil, uint64(i)))>>shift%places]++
		}
		χ2 := 0.0
		for _, n := range n {
			χ2 += (n - keys/places) * (n - keys/places) / (keys / places)
		}
		if χ2 > 400 { // 255 on average, with a standard deviation of 23
			t.Errorf("bits from %d on: χ² is %.0f", shift, χ2)
		}
	}
}

func BenchmarkHashKey(b *testing.B) {
	key := []byte("user-00000042")
	b.SetBytes(int64(len(key)))
	for b.Loop() {
		observe.HashKey(1, key)
	}
}
