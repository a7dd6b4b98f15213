//go:build !race

package h2

import "testing"

// TestPartsAllocs: a body that is read as it comes takes no memory of its own, whatever its frames.
func TestPartsAllocs(t *testing.T) {
	for _, frame := range []int{1, 50, minPart + 1, 8192, maxFrame} {
		st, b := newBody(New(Options{}))
		in, out := make([]byte, frame), make([]byte, frame)
		once := func() {
			b.c.feed(st, in)
			if n, err := b.Read(out); n != frame || err != nil {
				t.Fatal(n, err)
			}
		}
		if n := testing.AllocsPerRun(1000, once); n > 0 {
			t.Errorf("frames of %d bytes: %v allocations each", frame, n)
		}
	}
}
