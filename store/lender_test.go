package store_test

import (
	"testing"

	"github.com/weir-rl/weir/store"
)

// TestMonotonic: it runs on, and never back.
func TestMonotonic(t *testing.T) {
	last := store.Monotonic()
	for range 1000 {
		now := store.Monotonic()
		if now < last || last < 0 {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}
}
