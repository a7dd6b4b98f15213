package algo

import (
	"bytes"
	"fmt"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"pgregory.net/rapid"
)

const base = int64(1_760_000_000_000_000)

func cloneState(s State) State {
	s.Ext = append([]byte(nil), s.Ext...)
	return s
}

func same(a, b State) bool {
	return a.A == b.A && a.B == b.B && a.C == b.C && bytes.Equal(a.Ext, b.Ext)
}

// kinds are the algorithms with their options that change how they count.
var kinds = []struct {
	name string
	c    Config
}{
	{"fixed_window", Config{Algorithm: FixedWindow}},
	{"fixed_window calendar", Config{Algorithm: FixedWindow, Calendar: Day}},
	{"fixed_window first request", Config{Algorithm: FixedWindow, FirstRequest: true}},
	{"sliding_log", Config{Algorithm: SlidingLog}},
	{"sliding_window", Config{Algorithm: SlidingWindow, Buckets: 1}},
	{"sliding_window buckets", Config{Algorithm: SlidingWindow, Buckets: 2}},
	{"token_bucket", Config{Algorithm: TokenBucket}},
	{"token_bucket interval", Config{Algorithm: TokenBucket, RefillInterval: true}},
	{"leaky_bucket", Config{Algorithm: LeakyBucket}},
	{"concurrency", Config{Algorithm: Concurrency}},
}

var zones = []string{"UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Europe/Berlin",
	"Africa/Cairo"}

// drawConfig fills in the numbers of a kind.
func drawConfig(t *rapid.T, c Config) Config {
	c.N = rapid.SampledFrom([]int64{1, 2, 3, 5, 7, 10, 12, 0, 1000, 99_991}).Draw(t, "N")
	window := rapid.SampledFrom([]time.Duration{
		time.Minute, time.Second, 10 * time.Microsecond, 1001 * time.Microsecond, time.Hour, 999_983 * time.Microsecond,
		13 * 24 * time.Hour, 30 * 24 * time.Hour, time.Microsecond, 3 * time.Microsecond,
	}).Draw(t, "W")
	c.Soft = rapid.SampledFrom([]int{0, 0, 10, 50, 300}).Draw(t, "soft")
	switch {
	case c.Calendar != NoCalendar:
		c.Calendar = rapid.SampledFrom([]Calendar{Day, Week, Month, Year}).Draw(t, "calendar")
		c.Location = zone(t, rapid.SampledFrom(zones).Draw(t, "zone"))
	case c.Algorithm == Concurrency:
		c.Timeout = window
	default:
		c.Window = window
	}
	switch c.Algorithm {
	case TokenBucket, LeakyBucket:
		c.Burst = rapid.SampledFrom([]int64{0, NoBurst, 1, 2, 3, 4, 10, 100_003}).Draw(t, "B")
	case FixedWindow, SlidingLog:
		c.CountDenied = rapid.Bool().Draw(t, "count_denied")
	case SlidingWindow:
		c.CountDenied = rapid.Bool().Draw(t, "count_denied")
		if c.Buckets > 1 {
			c.Buckets = rapid.SampledFrom([]int{2, 3, 5, 10, 60, 240}).Draw(t, "K")
			if micros(c.Window)%int64(c.Buckets) != 0 {
				c.Window *= time.Duration(c.Buckets)
				for c.Window > MaxWindow {
					c.Window = time.Duration(c.Buckets) * time.Hour
				}
			}
		}
	}
	return c
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func zone(t fataler, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return loc
}

func compile(t fataler, c Config) *Limit {
	t.Helper()
	l, err := New(c)
	if err != nil {
		t.Fatalf("New(%+v): %v", c, err)
	}
	return l
}

// change draws other numbers under the same identity.
func change(t *rapid.T, c Config) Config {
	c.N = rapid.SampledFrom([]int64{c.N, c.N + 1, 2 * c.N, c.N / 2, 3, 7, 0}).Draw(t, "new N")
	c.N = min(c.N, MaxN)
	if c.Algorithm == SlidingLog {
		c.N = min(c.N, MaxLogN)
	}
	if c.Algorithm == TokenBucket || c.Algorithm == LeakyBucket {
		c.Burst = rapid.SampledFrom([]int64{c.Burst, NoBurst, 1, 3, 5, 12}).Draw(t, "new B")
	}
	return c
}

func span0(l *Limit) int64 {
	c := l.Config()
	return micros(max(c.Window, c.Timeout))
}

// step draws how much time goes by: often to just before or after something happens.
func step(t *rapid.T, l *Limit, last Result, back bool) int64 {
	w := span0(l)
	n := max(1, l.Config().N)
	switch rapid.IntRange(0, 9).Draw(t, "kind of step") {
	case 0, 1:
		return 0
	case 2:
		return rapid.Int64Range(0, 3).Draw(t, "µs")
	case 3:
		return max(0, last.RetryAfter+rapid.Int64Range(-1, 1).Draw(t, "around retry_after"))
	case 4:
		if last.ResetAfter < 50*w {
			return max(0, last.ResetAfter+rapid.Int64Range(-1, 1).Draw(t, "around reset_after"))
		}
		return w
	case 5:
		return w/n + rapid.Int64Range(0, 1).Draw(t, "around W/N")
	case 6:
		return rapid.Int64Range(0, 3*w).Draw(t, "up to 3W")
	case 7:
		if back {
			return -rapid.Int64Range(0, w/2).Draw(t, "back")
		}
		return rapid.Int64Range(0, w/n).Draw(t, "up to W/N")
	case 8:
		return max(0, w-base%w+rapid.Int64Range(-2, 2).Draw(t, "around W"))
	}
	return rapid.Int64Range(0, w).Draw(t, "up to W")
}

// after is now + d, but no later than time goes: a retry_after may lie further away.
func after(now, d int64) int64 {
	if d > maxInt-now {
		return now
	}
	return now + d
}

func drawAsk(t *rapid.T, l *Limit, i int) Ask {
	a := Ask{Cost: 1, MaxDelay: -1, Slot: uint64(i + 1)}
	_, capacity := numbers(l.Config())
	switch rapid.IntRange(0, 9).Draw(t, "kind of ask") {
	case 0:
		a.Cost = 0
	case 1:
		a.Cost = -rapid.Int64Range(1, 4).Draw(t, "refund")
	case 2:
		a.Cost = rapid.Int64Range(1, 5).Draw(t, "cost")
	case 3:
		a.Cost = rapid.SampledFrom([]int64{capacity, capacity + 1, capacity/2 + 1, capacity - 1, MaxCost}).Draw(t,
			"edge cost")
	case 4:
		if l.Algorithm() == LeakyBucket {
			a.MaxDelay = rapid.SampledFrom([]int64{0, span0(l), span0(l) / max(1, l.Config().N), 1}).Draw(t,
				"max delay")
		}
	}
	return a
}

// TestAgainstModel runs random asks through each algorithm and its model, while N and B change and
// the clock steps back, and probes every claim of every result.
func TestAgainstModel(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { against(t, drawConfig(t, k.c), 40) })
		})
	}
}

// TestLargeNumbers does the same where products come near 2^53 and time is counted in coarser
// units.
func TestLargeNumbers(t *testing.T) {
	effort.Fewer(t, 10)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := k.c
				c.N = rapid.SampledFrom([]int64{MaxN, 999_999_937, 999_999_999, 67_108_859, 1_000_003}).Draw(t, "N")
				window := time.Duration(rapid.SampledFrom(
					[]int64{1, 60, 24 * 60, 30 * 24 * 60, 365 * 24 * 60, 366 * 24 * 60}).Draw(
					t, "minutes")) * time.Minute
				c.Soft = rapid.SampledFrom([]int{0, 0, 10, 100}).Draw(t, "soft")
				switch c.Algorithm {
				case SlidingLog:
					c.N, c.Window = 99_991, window
				case Concurrency:
					c.Timeout = window
				case FixedWindow:
					if c.Calendar == NoCalendar {
						c.Window = window
					}
				case SlidingWindow:
					c.Window = window
					c.CountDenied = rapid.Bool().Draw(t, "count_denied")
				default:
					c.Window = window
					c.Burst = rapid.SampledFrom([]int64{0, MaxN, 999_999_929, 5}).Draw(t, "B")
				}
				against(t, c, 15)
			})
		})
	}
}

func against(t *rapid.T, first Config, steps int) {
	l := compile(t, first)
	m := newModel(first)
	s, now, last := State{}, base+rapid.Int64Range(0, 400*day).Draw(t, "start"), Result{}
	changing, back := rapid.Bool().Draw(t, "changing"), rapid.Bool().Draw(t, "clock steps back")
	seen := now
	for i := range rapid.IntRange(1, steps).Draw(t, "steps") {
		if changing && rapid.IntRange(0, 5).Draw(t, "change") == 0 {
			l = compile(t, change(t, first))
		}
		now = after(now, step(t, l, last, back))
		seen = max(seen, now)
		if far(l, s, now) {
			now = seen
		}
		a := drawAsk(t, l, i)
		before := cloneState(s)
		checked := l.Check(&s, now, a)
		if !same(before, s) {
			t.Fatalf("Check wrote to the state")
		}
		r := l.Take(&s, now, a)
		where := fmt.Sprintf("%v at base + %d: %+v gives %+v", l, now-base, a, r)
		v := m.ask(l, now, a)
		if got := (verdict{r.Allowed, r.Soft, r.Remaining, r.Delay}); got != v {
			t.Fatalf("%s\nthe model says %+v", where, v)
		}
		if limit, capacity := numbers(l.Config()); r.Limit != limit || r.SoftLimit != capacity {
			t.Fatalf("%s\nthe capacity is %d, soft %d", where, limit, capacity)
		}
		if checked.Allowed != r.Allowed || checked.Delay != r.Delay {
			t.Fatalf("%s\nCheck says %+v", where, checked)
		}
		if a.Cost == 0 || !r.Allowed && !l.CountDenied() {
			// A change of the unit may leave a bucket less than a unit ahead, and that may be
			// further than it can be.
			if changing {
				l.Mend(&before, now)
			}
			if !same(before, s) {
				t.Fatalf("%s\nthe state was %+v and is %+v", where, before, s)
			}
			if checked != r {
				t.Fatalf("%s\nCheck says %+v", where, checked)
			}
		}
		probe(t, where, l, s, now, a, r)
		if r.Allowed && a.Cost > 0 {
			giveBack(t, where, l, before, s, now, a)
		}
		if sm, ok := m.(*slotModel); ok && rapid.IntRange(0, 3).Draw(t, "release") == 0 {
			id := uint64(rapid.IntRange(1, i+1).Draw(t, "slot"))
			got, want := l.Release(&s, now, id), sm.release(l, now, id)
			if got != want || l.Release(&s, now, id) {
				t.Fatalf("released slot %d: %v, want %v, and then no more", id, got, want)
			}
		}
		last = r
	}
}

// far reports whether s lies further ahead of now than it ever could: TestLeap is about that.
func far(l *Limit, s State, now int64) bool {
	c := cloneState(s)
	return l.Mend(&c, now)
}

// probe asks copies of the state around the instants and the costs that a result names.
func probe(t fataler, where string, l *Limit, s State, now int64, a Ask, r Result) {
	t.Helper()
	ask := func(at int64, a Ask) Result {
		c := cloneState(s)
		return l.Take(&c, at, a)
	}
	c := l.Config()

	if r.Allowed || a.Cost == 0 {
		if r.RetryAfter != 0 {
			t.Fatalf("%s\nretry_after of an admitted one or a peek", where)
		}
	} else if r.RetryAfter == Never {
		for _, d := range []int64{1, span0(l), 400 * day, 100 * 365 * day} {
			if ask(now+d, a).Allowed {
				t.Fatalf("%s\nadmitted after %d", where, d)
			}
		}
	} else if r.RetryAfter < maxInt {
		if r.RetryAfter <= 0 || !ask(now+r.RetryAfter, a).Allowed {
			t.Fatalf("%s\nnot admitted after retry_after: %+v", where, ask(now+r.RetryAfter, a))
		}
		for _, d := range []int64{1, 2, r.RetryAfter / 2, r.RetryAfter / 3, r.RetryAfter} {
			if d > 0 && d <= r.RetryAfter && ask(now+r.RetryAfter-d, a).Allowed {
				t.Fatalf("%s\nadmitted %d before retry_after", where, d)
			}
		}
	}

	free := Ask{MaxDelay: -1, Slot: 1 << 60}
	if free.Cost = r.Remaining; free.Cost > 0 {
		if got := ask(now, free); !got.Allowed || got.Soft {
			t.Fatalf("%s\nremaining is not admitted: %+v", where, got)
		}
	}
	if free.Cost++; free.Cost <= MaxCost {
		if got := ask(now, free); got.Allowed && !got.Soft {
			t.Fatalf("%s\nmore than remaining is admitted: %+v", where, got)
		}
	}

	fresh := l.Fresh(&s, now)
	switch {
	case fresh != (r.ResetAfter == 0):
		t.Fatalf("%s\nfresh: %v", where, fresh)
	case r.ResetAfter == Never:
		later := now + 100*365*day
		if c.N != 0 || l.Fresh(&s, later) {
			t.Fatalf("%s\nnever reset?", where)
		}
	case r.ResetAfter < maxInt:
		then := now + r.ResetAfter
		if !l.Fresh(&s, then) {
			t.Fatalf("%s\nnot fresh after reset_after", where)
		}
		for _, cost := range []int64{0, 1, r.SoftLimit, r.SoftLimit + 1} {
			var zero State
			a := Ask{Cost: cost, MaxDelay: -1, Slot: 1}
			if got, want := ask(then, a), l.Take(&zero, then, a); got != want {
				t.Fatalf("%s\nafter reset_after a cost of %d gives %+v, on a fresh state %+v", where, cost, got, want)
			}
		}
		if r.ResetAfter > 0 {
			if l.Fresh(&s, then-1) {
				t.Fatalf("%s\nfresh before reset_after", where)
			}
			// A sliding window may round what is left of its last sub-window to nothing.
			if got := ask(then-1, Ask{}); c.N > 0 && l.Algorithm() != SlidingWindow && l.limit > 0 &&
				got.Remaining >= got.Limit {
				t.Fatalf("%s\nas good as fresh before reset_after: %+v", where, got)
			}
		}
	}
}

// giveBack refunds what was just taken: the state must again be what it was.
func giveBack(t fataler, where string, l *Limit, before, after State, now int64, a Ask) {
	t.Helper()
	c, before := cloneState(after), cloneState(before)
	l.Mend(&before, now)
	if l.Algorithm() == Concurrency {
		l.Release(&c, now, a.Slot)
	} else {
		l.Take(&c, now, Ask{Cost: -a.Cost})
	}
	w := span0(l)
	for _, d := range []int64{0, 1, w / max(1, l.n), w / 2, w, w + 1, 2 * w} {
		b := cloneState(before)
		for _, cost := range []int64{0, 1, 2, l.cap} {
			ask := Ask{Cost: cost, MaxDelay: -1, Slot: 1 << 60}
			if got, want := l.Check(&c, now+d, ask), l.Check(&b, now+d, ask); got != want {
				t.Fatalf("%s\ngiven back, a cost of %d after %d gives %+v, before it gave %+v", where, cost, d, got,
					want)
			}
		}
	}
}
