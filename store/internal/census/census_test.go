package census

import "testing"

func TestCensus(t *testing.T) {
	var c census
	n := int64(0)
	for i, step := range []struct{ told, want int64 }{
		{1, 1}, {3, 3}, // more are believed at once
		{1, 3}, {2, 3}, {1, 3}, {3, 3}, // fewer are not, if they come back
		// unless it stays so: then the most that were told
		{1, 3}, {2, 3}, {2, 3}, {2, 3}, {1, 3}, {2, 2},
		{1, 2}, {4, 4},
	} {
		if n = c.believe(n, step.told); n != step.want {
			t.Fatalf("step %d: %d nodes after being told of %d, want %d", i, n, step.told, step.want)
		}
	}
}
