package algo

import (
	"testing"
	"time"
)

// A margin that closes: 100 with 10 % for 5 minutes, by the definition in
// docs/how-it-works/algorithms.md.
func TestMarginCloses(t *testing.T) {
	l, err := New(Config{Algorithm: FixedWindow, N: 100, Window: time.Minute, Soft: 10, SoftFor: 150 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var s, m State
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, minute := range []struct{ at, most int }{{0, 110}, {60, 110}, {120, 110}, {179, 0}, {180, 100}, {240, 110}} {
		now := start.Add(time.Duration(minute.at) * time.Second).UnixMicro()
		admitted := 0
		for range 200 {
			if l.TakeWith(&s, &m, now, Ask{Cost: 1}).Allowed {
				admitted++
			}
		}
		if admitted != minute.most {
			t.Errorf("%d: at %d s: %d admitted, want %d", i, minute.at, admitted, minute.most)
		}
	}
}
