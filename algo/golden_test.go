package algo

import (
	"slices"
	"testing"
	"time"
)

const (
	second = int64(1e6)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// at is a time of day on a day that is a multiple of every window used here.
func at(h, m, s int64) int64 { return 20_000*day + h*hour + m*minute + s*second }

func must(t testing.TB, c Config) *Limit {
	t.Helper()
	l, err := New(c)
	if err != nil {
		t.Fatalf("New(%+v): %v", c, err)
	}
	return l
}

// ask is one step of a golden case.
type ask struct {
	at    int64
	cost  int64
	allow bool
	retry int64 // -1 never; 0 if allowed
	delay int64
}

func yes(at int64) ask          { return ask{at: at, cost: 1, allow: true} }
func no(at, retry int64) ask    { return ask{at: at, cost: 1, retry: retry} }
func waits(at, delay int64) ask { return ask{at: at, cost: 1, allow: true, delay: delay} }

func times(n int, a ask) []ask { return slices.Repeat([]ask{a}, n) }

func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		name  string
		c     Config
		steps []ask
	}{
		{
			"fixed window", Config{Algorithm: FixedWindow, N: 2, Window: time.Minute},
			[]ask{yes(at(0, 0, 40)), yes(at(0, 0, 50)), yes(at(0, 1, 10)), yes(at(0, 1, 20)),
				no(at(0, 1, 40), 20*second)},
		},
		{
			"fixed window, the known weakness", Config{Algorithm: FixedWindow, N: 5, Window: time.Minute},
			[]ask{
				yes(at(2, 0, 30)), yes(at(2, 0, 37)), yes(at(2, 0, 44)), yes(at(2, 0, 51)), yes(at(2, 0, 59)),
				yes(at(2, 1, 0)), yes(at(2, 1, 7)), yes(at(2, 1, 14)), yes(at(2, 1, 21)), yes(at(2, 1, 29)),
				no(at(2, 1, 29), 31*second),
			},
		},
		{
			"sliding log", Config{Algorithm: SlidingLog, N: 2, Window: time.Minute},
			[]ask{yes(at(0, 0, 40)), yes(at(0, 0, 50)), no(at(0, 1, 10), 30*second), no(at(0, 1, 20), 20*second),
				yes(at(0, 1, 40))},
		},
		{
			"sliding window", Config{N: 7, Window: time.Minute},
			slices.Concat(
				times(5, yes(at(0, 0, 10))), times(3, yes(at(0, 1, 12))),
				// 3 + 5 × 0.7 = 6.5: one more, then no more until 4 + 5 × rest < 7, a µs after
				// 24 s.
				times(1, yes(at(0, 1, 18))), []ask{no(at(0, 1, 18), 6*second+1)},
			),
		},
		{
			"token bucket", Config{Algorithm: TokenBucket, N: 4, Window: time.Minute, Burst: 4},
			slices.Concat(times(4, yes(at(0, 0, 0))),
				[]ask{no(at(0, 0, 0), 15*second), yes(at(0, 0, 15)), no(at(0, 0, 15), 15*second)}),
		},
		{
			"leaky bucket", Config{Algorithm: LeakyBucket, N: 1, Window: time.Second, Burst: 4},
			[]ask{
				waits(at(0, 0, 0), 0), waits(at(0, 0, 0), second), waits(at(0, 0, 0), 2*second),
				waits(at(0, 0, 0), 3*second),
				waits(at(0, 0, 0), 4*second), no(at(0, 0, 0), second),
			},
		},
		{
			"no requests at all", Config{Algorithm: TokenBucket, N: 0, Window: time.Second, Burst: 4},
			[]ask{no(at(0, 0, 0), Never), {at: at(0, 0, 1), allow: true}},
		},
		{
			"soft margin", Config{Algorithm: FixedWindow, N: 100, Window: time.Minute, Soft: 10},
			slices.Concat(times(110, yes(at(0, 0, 0))), []ask{no(at(0, 0, 30), 30*second)}),
		},
		{
			"from the first request", Config{Algorithm: FixedWindow, N: 2, Window: time.Minute, FirstRequest: true},
			[]ask{
				yes(at(0, 0, 40)), yes(at(0, 0, 50)), no(at(0, 1, 10), 30*second), yes(at(0, 1, 45)),
				{at: at(0, 1, 50), cost: -1, allow: true}, yes(at(0, 2, 0)), yes(at(0, 2, 40)), no(at(0, 2, 41), 19*second),
			},
		},
		{
			"refill at intervals", Config{Algorithm: TokenBucket, N: 4, Window: time.Minute, Burst: 6, RefillInterval: true},
			slices.Concat(
				times(6, yes(at(0, 0, 10))), []ask{no(at(0, 1, 9), second)}, times(4, yes(at(0, 1, 10))),
				[]ask{no(at(0, 1, 30), 40*second)},
				// Full again at 3:10: the next use sets the boundaries anew.
				times(6, yes(at(0, 3, 30))), []ask{no(at(0, 4, 10), 20*second)},
			),
		},
		{
			"denied requests count", Config{Algorithm: SlidingLog, N: 2, Window: time.Minute, CountDenied: true},
			[]ask{
				yes(at(0, 0, 0)), yes(at(0, 0, 10)), no(at(0, 0, 20), 50*second), no(at(0, 0, 30), 50*second),
				no(at(0, 1, 15), 15*second),
			},
		},
		{
			"slots", Config{Algorithm: Concurrency, N: 2},
			[]ask{yes(at(0, 0, 0)), yes(at(0, 0, 10)), no(at(0, 0, 20), 10*second), yes(at(0, 0, 30)),
				{at: at(0, 0, 30), cost: 2, retry: 30 * second}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, s := must(t, tc.c), State{}
			for i, a := range tc.steps {
				r := l.Take(&s, a.at, Ask{Cost: a.cost, MaxDelay: -1, Slot: uint64(i + 1)})
				if r.Allowed != a.allow || r.RetryAfter != a.retry || r.Delay != a.delay {
					t.Fatalf("step %d, %+v: got %+v", i, a, r)
				}
			}
		})
	}
}

func BenchmarkTake(b *testing.B) {
	for _, bc := range []struct {
		name string
		c    Config
	}{
		{"token_bucket", Config{Algorithm: TokenBucket, N: 1000, Window: time.Second}},
		{"token_bucket_interval", Config{Algorithm: TokenBucket, N: 1000, Window: time.Second, RefillInterval: true}},
		{"leaky_bucket", Config{Algorithm: LeakyBucket, N: 1000, Window: time.Second}},
		{"fixed_window", Config{Algorithm: FixedWindow, N: 1000, Window: time.Second}},
		{"fixed_window_day", Config{Algorithm: FixedWindow, N: 1000, Calendar: Day}},
		{"sliding_window", Config{N: 1000, Window: time.Second}},
		{"sliding_window_50", Config{N: 1000, Window: time.Second, Buckets: 50}},
		{"sliding_log", Config{Algorithm: SlidingLog, N: 1000, Window: time.Second}},
		{"concurrency", Config{Algorithm: Concurrency, N: 1000}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			l, s, now := must(b, bc.c), State{}, at(0, 0, 0)
			b.ReportAllocs()
			allowed := 0
			for b.Loop() {
				now += 700
				if l.Take(&s, now, Ask{Cost: 1, MaxDelay: -1, Slot: 1}).Allowed {
					allowed++
				}
			}
		})
	}
}
