package server

import (
	"testing"
)

// TestShareFiles: all doors together take no more files than there are, and each has some.
func TestShareFiles(t *testing.T) {
	for _, c := range []struct{ files, most, doors, want int }{
		{0, 10_000, 5, 10_000}, {1 << 20, 10_000, 5, 10_000}, {1024, 10_000, 4, 240}, {1024, 100, 4, 100}, {16, 10_000, 4, 2}, {1, 10_000, 9, 1},
	} {
		if got := shareFiles(c.files, c.most, c.doors); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}
