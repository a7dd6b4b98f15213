package server

import (
	"math"
	"testing"
)

// TestAutoMemory: limits.memory follows the memory that the process may have, unless it is set.
func TestAutoMemory(t *testing.T) {
	for _, c := range []struct {
		size  uint64
		limit int64
		want  int64
	}{
		{0, math.MaxInt64, 256 << 20},
		{0, 1 << 30, 128 << 20},
		{256 << 20, math.MaxInt64, 64 << 20},
		{2 << 30, math.MaxInt64, 256 << 20},
		{64 << 30, math.MaxInt64, 1 << 30},
		{64 << 30, 4 << 30, 512 << 20},
	} {
		if got := autoMemory(c.size, c.limit); got != c.want {
			t.Errorf("of %d MiB, GOMEMLIMIT %d MiB: %d MiB, want %d", c.size>>20, c.limit>>20, got>>20, c.want>>20)
		}
	}
	if c := mustConfig(t, "", nil, []string{"--limits-memory=64MiB"}); c.limits.mostMemory() != 64<<20 {
		t.Errorf("%d", c.limits.mostMemory())
	}
	c := mustConfig(t, "", nil, []string{"--limits-memory=auto"})
	if n := c.limits.mostMemory(); n < 64<<20 || n > 1<<30 {
		t.Errorf("%d", n)
	}
}
