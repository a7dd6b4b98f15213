package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// day is the window of all limits of the matrix: no window turns while a test runs, or the test is
// run again.
const day = 24 * time.Hour

// cell is the expected outcome of one kind of throttling.
type cell struct {
	kind string
	soft int
	open time.Duration // SoftFor
	// made of one of 100; nil: itself
	limit func(t *testing.T, l *algo.Limit, now int64) *algo.Limit
	// after the first marked one
	waits func(t *testing.T, s store.Store, c *rule.Counter, first algo.Result)

	// of one after the other; a leaky_bucket admits one more, that leaves at once
	admitted, marked int64
	off              bool // there is no limit
}

var cells = []cell{
	{kind: "hard", admitted: 100},
	{kind: "soft", soft: 10, admitted: 110, marked: 10},
	{kind: "soft, open for an hour", soft: 10, open: time.Hour, admitted: 110, marked: 10},
	{kind: "soft, open for a moment", soft: 10, open: time.Microsecond, waits: aMoment, admitted: 101, marked: 1},
	{kind: "elastic at 100%", limit: scaled(100), admitted: 100},
	{kind: "elastic at 50%", limit: scaled(50), admitted: 50},
	{kind: "elastic at 200%", limit: scaled(200), admitted: 200},
	{kind: "elastic at 0%", limit: scaled(0)},
	{kind: "soft and elastic at 50%", soft: 10, limit: scaled(50), admitted: 55, marked: 5},
	{kind: "soft, open for a moment, and elastic at 50%", soft: 10, open: time.Microsecond, limit: scaled(50), waits: aMoment, admitted: 51, marked: 1},
	{kind: "scheduled, in a phase", limit: phased(-2 * time.Hour), admitted: 50},
	{kind: "scheduled, in no phase", limit: phased(2 * time.Hour), admitted: 100},
	{kind: "scheduled, off", limit: offNow, admitted: 1000, off: true},
	{kind: "scheduled and soft", soft: 10, limit: phased(-2 * time.Hour), admitted: 55, marked: 5},
	{kind: "scheduled and soft, open for a moment", soft: 10, open: time.Microsecond, limit: phased(-2 * time.Hour), waits: aMoment, admitted: 51, marked: 1},
}

// Matrix asks a store for limits of 100 of each algorithm under each kind of throttling, by the
// store's own clock, and counts the admitted and the marked requests. It leaves its keys in the
// store.
//
//	func TestMatrix(t *testing.T) { storetest.Matrix(t, newStore(t)) }
func Matrix(t *testing.T, store store.Store) {
	for _, c := range cells {
		t.Run(c.kind, func(t *testing.T) {
			for _, a := range algorithms {
				t.Run(a.String(), func(t *testing.T) { c.test(t, store, a) })
			}
		})
	}
	for _, a := range algorithms {
		t.Run("elastic, down and up/"+a.String(), func(t *testing.T) { testDownAndUp(t, store, a) })
	}
}

// scaled makes a limit of a share.
func scaled(percent int64) func(*testing.T, *algo.Limit, int64) *algo.Limit {
	return func(t *testing.T, l *algo.Limit, _ int64) *algo.Limit {
		t.Helper()
		s, err := l.Scale(percent, 100)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// phased makes a limit that is a half for four hours of the day, from some time before or after
// now.
func phased(from time.Duration) func(*testing.T, *algo.Limit, int64) *algo.Limit {
	return func(t *testing.T, l *algo.Limit, now int64) *algo.Limit {
		t.Helper()
		return inPhase(t, l, now, from, scaled(50)(t, l, now))
	}
}

// offNow makes a limit that there is not just now.
func offNow(t *testing.T, l *algo.Limit, now int64) *algo.Limit {
	t.Helper()
	return inPhase(t, l, now, -2*time.Hour, nil)
}

func inPhase(t *testing.T, otherwise *algo.Limit, now int64, from time.Duration, l *algo.Limit) *algo.Limit {
	t.Helper()
	begins := (time.Duration(now)*time.Microsecond%day + from + day) % day
	s, err := algo.Scheduled(otherwise, []algo.Phase{{From: begins, Until: (begins + 4*time.Hour) % day, Limit: l}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// aMoment lets the store's clock go on.
func aMoment(t *testing.T, s store.Store, c *rule.Counter, _ algo.Result) {
	t.Helper()
	_, now := take(t, s)
	for then := now; then < now+2; {
		_, then = take(t, s)
	}
}

func configOf(a algo.Algorithm) algo.Config {
	cfg := algo.Config{Algorithm: a, N: 100, Window: day}
	if a == algo.Concurrency {
		cfg.Window, cfg.Timeout = 0, day
	}
	return cfg
}

func (c *cell) test(t *testing.T, s store.Store, a algo.Algorithm) {
	cfg := configOf(a)
	cfg.Soft, cfg.SoftFor = c.soft, c.open
	base, err := algo.New(cfg)
	if a == algo.Concurrency && c.open > 0 {
		if err == nil {
			t.Error("slots have a margin that closes")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	want := c.admitted
	if a == algo.LeakyBucket && want > 0 && !c.off {
		want++
	}
	for tries := 0; ; tries++ {
		_, began := take(t, s)
		limit := base
		if c.limit != nil {
			limit = c.limit(t, base, began)
		}
		admitted, marked, never, ended := c.count(t, s, counterFor(limit), want)
		if _, until := limit.At(began); began/day.Microseconds() != ended/day.Microseconds() || ended >= until {
			if tries < 3 {
				continue // a window has turned, or a phase
			}
			t.Fatal("it takes too long")
		}
		if admitted != want || marked != c.marked {
			t.Errorf("%v: %d admitted, %d of them marked; want %d and %d", limit, admitted, marked, want, c.marked)
		}
		if zero := want == 0; never != zero {
			t.Errorf("%v: never again: %v", limit, never)
		}
		return
	}
}

// count asks one after the other until some were refused. never is true if they will never be
// admitted.
func (c *cell) count(t *testing.T, s store.Store, counter *rule.Counter, want int64) (admitted, marked int64,
	never bool, ended int64) {
	t.Helper()
	const refusals = 10
	for range want {
		r, _ := take(t, s, charge(counter, "matrix", 1))
		switch {
		case r[0].Off != c.off:
			t.Fatalf("%+v", r[0])
		case !r[0].Allowed:
			t.Errorf("refused after %d: %+v", admitted, r[0])
			return admitted, marked, false, ended
		}
		admitted++
		if !r[0].Soft {
			continue
		}
		if marked++; marked == 1 && c.waits != nil {
			c.waits(t, s, counter, r[0])
		}
	}
	for range refusals {
		var r []algo.Result
		r, ended = take(t, s, charge(counter, "matrix", 1))
		switch {
		case c.off:
		case r[0].Allowed:
			admitted++
		default:
			if never = r[0].RetryAfter == algo.Never; r[0].RetryAfter == 0 {
				t.Errorf("refused until now: %+v", r[0])
			}
		}
	}
	return admitted, marked, never, ended
}

// testDownAndUp changes the share under one key: the used units stay used, at any share.
func testDownAndUp(t *testing.T, s store.Store, a algo.Algorithm) {
	for {
		_, began := take(t, s)
		full := mustLimit(t, configOf(a))
		c := counterFor(full)
		extra := int64(0)
		if a == algo.LeakyBucket {
			extra = 1
		}
		var wrong []string
		ended := began
		for _, step := range [][2]int64{{25, 25 + extra}, {50, 25}, {25, 0}, {0, 0}, {10, 0}, {100, 50}, {50, 0},
			{200, 100}} {
			percent, want, admitted := step[0], step[1], int64(0)
			limit := scaled(percent)(t, full, 0)
			for range want + 5 {
				ask := charge(c, "share", 1)
				ask.Limit = limit
				var r []algo.Result
				if r, ended = take(t, s, ask); r[0].Allowed {
					admitted++
				}
			}
			if admitted != want {
				wrong = append(wrong, fmt.Sprintf("%v at %d%%: %d admitted, want %d", full, percent, admitted, want))
			}
		}
		if ended/day.Microseconds() != began/day.Microseconds() {
			continue // a window has turned
		}
		for _, w := range wrong {
			t.Error(w)
		}
		return
	}
}
