package algo

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A peek that asks for room gets the verdict of one unit, and charges nothing.
func TestRoom(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawConfig(t, k.c)
				l := compile(t, c)
				var s State
				now := base
				var last Result
				for i := range rapid.IntRange(1, 30).Draw(t, "steps") {
					now += step(t, l, last, false)
					a := drawAsk(t, l, i)
					last = l.Take(&s, now, a)
					checkRoom(t, l, &s, nil, now)
				}
			})
		})
	}
}

// The same beside the state of a soft margin that closes, and under a schedule.
func TestRoomBeside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		soft := compile(t, Config{N: 10, Window: time.Minute, Soft: 20, SoftFor: 30 * time.Second})
		night := compile(t, Config{N: 2, Window: time.Minute})
		day := compile(t, Config{N: 10, Window: time.Minute})
		timed := scheduled(t, day, nil, Phase{From: clockTime(20, 0), Until: clockTime(8, 0), Limit: night})
		l, beside := timed, (*State)(nil)
		if rapid.Bool().Draw(t, "soft") {
			l, beside = soft, &State{}
		}
		var s State
		now := base
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.Int64Range(0, 20_000_000).Draw(t, "µs")
			l.TakeWith(&s, beside, now, Ask{Cost: rapid.Int64Range(0, 4).Draw(t, "cost")})
			checkRoom(t, l, &s, beside, now)
		}
	})
}

// checkRoom asks for room, and holds the answer against what a cost of 1 says.
func checkRoom(t *rapid.T, l *Limit, s, beside *State, now int64) {
	t.Helper()
	want := l.CheckWith(s, beside, now, Ask{Cost: 1, MaxDelay: -1, Slot: 1})
	ask := Ask{Room: true, MaxDelay: -1}
	if got := l.CheckWith(s, beside, now, ask); got != want {
		t.Fatalf("%v: a look for room says %+v, a unit %+v", l, got, want)
	}
	before := cloneState(*s)
	l.Mend(&before, now)
	if got := l.TakeWith(s, beside, now, ask); got != want {
		t.Fatalf("%v: room is %+v, a unit %+v", l, got, want)
	}
	if !same(*s, before) {
		t.Fatalf("%v: to ask for room changed %+v into %+v", l, before, *s)
	}
	if needs := (&Ask{Room: true}).Needs(); needs != 1 {
		t.Fatalf("it needs %d", needs)
	}
}
