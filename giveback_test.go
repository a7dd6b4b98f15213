package weir_test

import (
	"testing"
	"time"

	weir "github.com/weir-rl/weir"
)

// A turn goes back only if it is the last, and only while it is to come; nothing else is refunded.
func TestGiveBack(t *testing.T) {
	c := newClock()
	l := newLimiter(t, c, weir.WithRules(load(t, `
limits:
  - {name: queue, algorithm: leaky_bucket, allow: {rate: 3/s, burst: 10}}
  - {name: dark, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 10}, on_limit: shadow}
  - {name: day, algorithm: sliding_log, allow: 100/day}
`)))
	ask := func() *weir.Decision {
		t.Helper()
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Hits: 1, MaxDelay: weir.AnyDelay}, &d); err != nil {
			t.Fatal(err)
		}
		return &d
	}
	giveBack := func(d *weir.Decision, want int) {
		t.Helper()
		if got, err := l.GiveBack(t.Context(), d); err != nil || got != want {
			t.Errorf("gave %d turns back (%v), want %d", got, err, want)
		}
	}
	ask()
	second := ask()
	c.wait(100 * time.Millisecond)
	giveBack(second, 2)
	if again := ask(); again.Delay != 233_334 || again.Time+again.Delay != second.Time+second.Delay {
		t.Errorf("the free turn was not taken again: delay %d", again.Delay)
	}
	third := ask()
	fourth := ask()
	giveBack(third, 0) // fourth stands behind
	giveBack(fourth, 2)
	if d := ask(); d.Time+d.Delay != fourth.Time+fourth.Delay {
		t.Errorf("the turn of the last is not free: %d, want %d", d.Time+d.Delay, fourth.Time+fourth.Delay)
	} else if used := d.Limits[2].Limit - d.Limits[2].Remaining; used != 6 {
		t.Errorf("the log counts %d, want all 6", used)
	}
}
