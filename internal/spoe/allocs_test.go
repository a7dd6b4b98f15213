//go:build unix && !race

package spoe

import "testing"

// TestNotifyAllocatesNothing: a request that passes is decided and answered without allocating.
func TestNotifyAllocatesNothing(t *testing.T) {
	a := New(newLimiter(t, benchRules), Options{})
	c := newCall(a)
	f, ok := parseFrame(string(question(7)[4:]))
	if !ok {
		t.Fatal("no frame")
	}
	ask := func() {
		messages, ok := c.attributes.parse(f.payload)
		if !ok || messages != 1 {
			t.Fatal("no message")
		}
		c.out = c.answer(t.Context(), messages, f.stream, f.id, false, c.out[:0], 16380)
	}
	ask()
	if n := testing.AllocsPerRun(1000, ask); n > 0 {
		t.Errorf("%v allocations a request", n)
	}
	if c.decision.Nearest() == nil {
		t.Error("the request meets no limit")
	}
}
