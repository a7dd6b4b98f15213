package algo

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		c    Config
		want string
	}{
		{Config{Algorithm: 17, N: 1, Window: time.Second}, "no algorithm 17"},
		{Config{N: -1, Window: time.Second}, "from 0 to 1000000000"},
		{Config{N: MaxN + 1, Window: time.Second}, "from 0 to 1000000000, or for fixed_window to 9007199254740990"},
		{Config{Algorithm: FixedWindow, N: MaxFixedN + 1, Window: time.Second}, "from 0 to 9007199254740990"},
		{Config{Algorithm: FixedWindow, N: MaxFixedN/2 + 1, Window: time.Second, Soft: 100}, "to at most 4503599627370495"},
		{Config{Algorithm: FixedWindow, N: MaxN + 1, Window: time.Second, Lease: 5}, "too many to be leased, at most 1000000000"},
		{Config{N: 1}, "window is 0s"},
		{Config{N: 1, Window: -time.Second}, "must be above 0"},
		{Config{N: 1, Window: 367 * 24 * time.Hour}, "at most 366 days"},
		{Config{N: 1, Window: 1500 * time.Nanosecond}, "whole number of microseconds"},
		{Config{Algorithm: SlidingLog, N: MaxLogN + 1, Window: time.Second}, "to at most 100000"},
		{Config{N: 1, Window: time.Second, Soft: -1}, "from 0% to 1000%"},
		{Config{N: 1, Window: time.Second, Soft: 1001}, "from 0% to 1000%"},
		{Config{N: MaxN, Window: time.Second, Soft: 400}, "lower the margin"},
		{Config{N: 1, Window: time.Second, Burst: 1}, "does not fit sliding_window"},
		{Config{Algorithm: TokenBucket, N: 1, Window: time.Second, Burst: -2}, "burst is -2"},
		{Config{Algorithm: TokenBucket, N: 1, Window: time.Second, Burst: MaxN + 1}, "burst is 1000000001"},
		{Config{N: 1, Window: time.Second, Buckets: 241}, "from 1 to 240"},
		{Config{N: 1, Window: time.Second, Buckets: 7}, "7 buckets do not divide"},
		{Config{Algorithm: SlidingLog, N: 1, Window: time.Second, Buckets: 1}, "do not fit sliding_log"},
		{Config{N: 1, Window: time.Second, Calendar: Day}, "do not fit sliding_window"},
		{Config{Algorithm: FixedWindow, N: 1, Calendar: 9}, "no calendar unit 9"},
		{Config{Algorithm: FixedWindow, N: 1, Calendar: Day, FirstRequest: true}, "not both"},
		{Config{N: 1, Window: time.Second, FirstRequest: true}, "do not fit sliding_window"},
		{Config{N: 1, Window: time.Second, RefillInterval: true}, "only token_bucket"},
		{Config{Algorithm: TokenBucket, N: 1, Window: time.Second, CountDenied: true}, "does not fit token_bucket"},
		{Config{N: 1, Window: time.Second, Timeout: time.Second}, "only concurrency"},
		{Config{Algorithm: Concurrency, N: 1, Window: time.Second}, "no window"},
		{Config{Algorithm: Concurrency, N: 1, Timeout: -time.Second}, "time-out is -1s"},
		{Config{Algorithm: TokenBucket, N: 999_999_937, Window: 365*24*time.Hour + time.Microsecond}, "lower the burst to at most"},
		{Config{Algorithm: LeakyBucket, N: 999_999_937, Window: 24*time.Hour + time.Millisecond}, "a multiple of whole seconds"},
		{Config{N: MaxN, Window: time.Hour + time.Microsecond}, "lower the number of requests to at most"},
	} {
		_, err := New(tc.c)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("New(%+v): %v, want it to say %q", tc.c, err, tc.want)
		}
	}
}

// TestAdviceHolds: what an error about numbers that do not fit advises does load.
func TestAdviceHolds(t *testing.T) {
	w := 365*24*time.Hour + time.Microsecond
	for _, soft := range []int{0, 10} {
		most := lowered(maxInt/micros(w)-1, soft)
		must(t, Config{Algorithm: TokenBucket, N: 999_999_937, Window: w, Burst: most, Soft: soft})
		must(t, Config{Algorithm: LeakyBucket, N: 999_999_937, Window: w, Burst: most, Soft: soft})
		must(t, Config{N: most, Window: w, Soft: soft})
	}
}

// TestEverythingLoads: every N from 0 to 10^9 with every B and W up to a year, in whole minutes,
// and the soft margin.
func TestEverythingLoads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		edge := func(name string, least, most int64) int64 {
			if rapid.Bool().Draw(t, name+" at an edge") {
				return rapid.SampledFrom([]int64{least, most, most - 1, most - 63, most / 2, least + 1}).Draw(t, name)
			}
			return rapid.Int64Range(least, most).Draw(t, name)
		}
		c := Config{
			Algorithm: rapid.SampledFrom([]Algorithm{SlidingWindow, FixedWindow, TokenBucket, LeakyBucket}).Draw(t, "algorithm"),
			N:         edge("N", 0, MaxN),
			Window:    time.Duration(edge("minutes", 1, 366*24*60)) * time.Minute,
			Soft:      rapid.SampledFrom([]int{0, 10, 100, 300}).Draw(t, "soft"),
		}
		switch c.Algorithm {
		case TokenBucket, LeakyBucket:
			c.Burst = edge("B", NoBurst, MaxN)
			c.Soft = rapid.SampledFrom([]int{c.Soft, MaxSoft}).Draw(t, "more soft")
		case SlidingWindow:
			c.Buckets = rapid.IntRange(1, MaxK).Draw(t, "K")
			if c.Window%(time.Duration(c.Buckets)*time.Microsecond) != 0 {
				c.Buckets = 1
			}
			if c.Buckets > 1 {
				c.Window = c.Window / time.Duration(c.Buckets) / time.Minute * time.Minute * time.Duration(c.Buckets)
			}
			c.Window = max(c.Window, time.Duration(c.Buckets)*time.Minute)
		}
		l := compile(t, c)
		below := new(big.Int).SetInt64(1 << 53)
		fits := func(what string, a, b uint64) {
			if p := new(big.Int).Mul(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b)); p.Cmp(below) >= 0 {
				t.Fatalf("%v: %s is %v", l, what, p)
			}
		}
		switch c.Algorithm {
		case TokenBucket, LeakyBucket:
			fits("the full level", uint64(l.cap), l.token)
			if l.rate > 0 && l.full > 0 {
				fits("what drains before it is empty", l.full-1, l.rate)
			}
			for _, u := range units {
				if u < l.unit {
					w := uint64(micros(c.Window) / u)
					if p := new(big.Int).Mul(big.NewInt(l.cap), new(big.Int).SetUint64(w/gcd(w, uint64(c.N)))); p.Cmp(
						below) < 0 {
						t.Fatalf("%v: fits in %d µs, counts in %d µs", l, u, l.unit)
					}
				}
			}
		case SlidingWindow:
			fits("capacity × sub-window", uint64(l.cap+1), l.subU)
		}
		again := compile(t, l.Config())
		if again.Config() != l.Config() || again.cap != l.cap || again.limit != l.limit || again.unit != l.unit {
			t.Fatalf("%+v loaded again is %+v", l.Config(), again.Config())
		}
	})
}

func TestDivisor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Uint64Range(1, 1<<53).Draw(t, "d")
		x := rapid.Uint64Range(0, 1<<63-1).Draw(t, "x")
		if rapid.Bool().Draw(t, "near a multiple") {
			x = x/d*d + rapid.Uint64Range(0, 1).Draw(t, "more")
			x = min(x-min(x, rapid.Uint64Range(0, 1).Draw(t, "less")), 1<<63-1)
		}
		v := newDivisor(d)
		if q, r := v.divmod(x); q != x/d || r != x%d {
			t.Fatalf("%d / %d = %d rest %d, want %d rest %d", x, d, q, r, x/d, x%d)
		}
	})
}

func TestNames(t *testing.T) {
	for a := SlidingWindow; a <= Concurrency; a++ {
		if got, ok := ParseAlgorithm(a.String()); !ok || got != a {
			t.Errorf("%v parses as %v, %v", a, got, ok)
		}
	}
	if _, ok := ParseAlgorithm("token bucket"); ok {
		t.Error("\"token bucket\" is no algorithm")
	}
	for want, c := range map[string]Config{
		"sliding_window, 10 per 1m0s":                               {N: 10, Window: time.Minute},
		"sliding_window, 10 per 1m0s, 60 buckets":                   {N: 10, Window: time.Minute, Buckets: 60},
		"token_bucket, 10 per 1m0s, burst 10":                       {Algorithm: TokenBucket, N: 10, Window: time.Minute},
		"token_bucket, 10 per 1m0s, burst 0, refilled at intervals": {Algorithm: TokenBucket, N: 10, Window: time.Minute, Burst: NoBurst, RefillInterval: true},
		"leaky_bucket, 1 per 1s, queue 4, soft 25%":                 {Algorithm: LeakyBucket, N: 1, Window: time.Second, Burst: 4, Soft: 25},
		"fixed_window, 5 per month in UTC, denied requests count":   {Algorithm: FixedWindow, N: 5, Calendar: Month, CountDenied: true},
		"fixed_window, 5 per 1h0m0s, from the first request":        {Algorithm: FixedWindow, N: 5, Window: time.Hour, FirstRequest: true},
		"concurrency, 3 in flight, time-out 30s":                    {Algorithm: Concurrency, N: 3},
	} {
		if got := must(t, c).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestNoAllocation: nothing on the deciding path allocates once a key's state has grown.
func TestNoAllocation(t *testing.T) {
	for _, k := range kinds {
		c := k.c
		c.N = 50
		switch {
		case c.Algorithm == Concurrency:
			c.Timeout = time.Second
		case c.Calendar == NoCalendar:
			c.Window = time.Second
		}
		l, s, now := must(t, c), State{}, at(0, 0, 0)
		take := func() {
			now += 11_000
			a := Ask{Cost: 1, MaxDelay: -1, Slot: 1}
			if l.Check(&s, now, a).Allowed {
				l.Take(&s, now, a)
			}
			l.Fresh(&s, now)
			l.Take(&s, now-1000, a)
			l.Take(&s, now, Ask{Cost: 5, Slot: 2})
		}
		for range 1000 {
			take()
		}
		if n := testing.AllocsPerRun(1000, take); n != 0 {
			t.Errorf("%s: %v allocations", k.name, n)
		}
	}
}

// TestSizes: a log of N units takes at most 5 bytes a unit, 6 where the window is longer than 12
// days; a sliding window takes what K asks for, whatever N is; the others take nothing beyond the
// three words.
func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		c    Config
		want int
	}{
		{Config{Algorithm: SlidingLog, N: 500, Window: time.Hour}, 2500},
		{Config{Algorithm: SlidingLog, N: 60, Window: 12 * 24 * time.Hour}, 300},
		{Config{Algorithm: SlidingLog, N: 60, Window: 12*24*time.Hour + time.Microsecond}, 360},
		{Config{Algorithm: SlidingLog, N: 100, Window: time.Hour, CountDenied: true}, 505},
		{Config{N: 1000, Window: time.Hour, Buckets: 60}, 244},
		{Config{N: 1000, Window: time.Hour}, 0},
		{Config{Algorithm: FixedWindow, N: 1000, Window: time.Hour}, 0},
		{Config{Algorithm: TokenBucket, N: 1000, Window: time.Hour}, 0},
		{Config{Algorithm: LeakyBucket, N: 1000, Window: time.Hour}, 0},
	} {
		l, s := must(t, tc.c), State{}
		for i := range int64(3000) {
			l.Take(&s, at(0, 0, 0)+i, Ask{Cost: 1, MaxDelay: -1})
		}
		if cap(s.Ext) != tc.want {
			t.Errorf("%v: %d bytes, want %d", l, cap(s.Ext), tc.want)
		}
	}
}

// TestCountDenied: fields of a denied request that was counted speak of the state after it.
func TestCountDenied(t *testing.T) {
	for _, tc := range []struct {
		c     Config
		retry []int64 // of requests at 0:10, 0:20, … of which two are admitted
	}{
		{Config{Algorithm: FixedWindow, N: 2, Window: time.Minute, CountDenied: true}, []int64{0, 0, 30, 20, 10}},
		{Config{Algorithm: SlidingLog, N: 2, Window: time.Minute, CountDenied: true}, []int64{0, 0, 50, 50, 50}},
	} {
		l, s := must(t, tc.c), State{}
		for i, want := range tc.retry {
			r := l.Take(&s, at(0, 0, int64(10*(i+1))), Ask{Cost: 1})
			if r.Allowed != (want == 0) || r.RetryAfter != want*second {
				t.Errorf("%v: request %d: %+v, want retry_after %d s", l, i, r, want)
			}
		}
	}
	// Admitted here but denied by another limit: Take is what counts it.
	l, s := must(t, Config{Algorithm: FixedWindow, N: 2, Window: time.Minute, CountDenied: true}), State{}
	for range 5 {
		l.Take(&s, at(0, 0, 0), Ask{Cost: 1})
	}
	if got := l.Check(&s, at(0, 0, 0), Ask{}); got.Allowed || got.Remaining != 0 || got.RetryAfter != 0 {
		t.Errorf("a peek above the limit: %+v", got)
	}
	l.Take(&s, at(0, 0, 0), Ask{Cost: -4})
	if got := l.Check(&s, at(0, 0, 0), Ask{}); !got.Allowed || got.Remaining != 1 {
		t.Errorf("after a refund of 4 of 5: %+v", got)
	}
	// A count that has come to its end stays there.
	w, s := must(t, Config{N: 2, Window: time.Minute, CountDenied: true}), State{}
	for range 5 {
		w.Take(&s, at(0, 0, 0), Ask{Cost: MaxCost})
	}
	if cur := s.B >> 32; cur != maxCount {
		t.Errorf("counted %d", cur)
	}
	if r := w.Take(&s, at(0, 0, 0), Ask{Cost: 1}); r.Allowed ||
		!w.Check(&s, at(0, 0, 0)+r.RetryAfter, Ask{Cost: 1}).Allowed ||
		w.Check(&s, at(0, 0, 0)+r.RetryAfter-1, Ask{Cost: 1}).Allowed {
		t.Errorf("retry_after of a full count: %+v", r)
	}
}

func TestMaxDelay(t *testing.T) {
	l, s, now := must(t, Config{Algorithm: LeakyBucket, N: 1, Window: time.Second, Burst: 4}), State{}, at(0, 0, 0)
	l.Take(&s, now, Ask{Cost: 3, MaxDelay: -1})
	for _, tc := range []struct{ max, retry, delay int64 }{
		{0, 3 * second, 0}, {second, 2 * second, 0}, {3*second - 1, 1, 0}, {3 * second, 0, 3 * second}, {-1, 0, 3 * second},
	} {
		r := l.Check(&s, now, Ask{Cost: 1, MaxDelay: tc.max})
		if r.Allowed != (tc.retry == 0) || r.RetryAfter != tc.retry || r.Delay != tc.delay || r.Remaining != 2 {
			t.Errorf("max delay %d: %+v", tc.max, r)
		}
	}
	// Too many turns and too late: the later of the two counts.
	if r := l.Check(&s, now, Ask{Cost: 5, MaxDelay: second}); r.RetryAfter != 3*second {
		t.Errorf("%+v", r)
	}
	if r := l.Check(&s, now, Ask{Cost: 6, MaxDelay: 0}); r.RetryAfter != Never {
		t.Errorf("%+v", r)
	}
}
