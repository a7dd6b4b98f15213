package algo

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCarry(t *testing.T) {
	for _, tc := range []struct {
		name     string
		old, new Config
		taken    []int64 // when, in seconds, one unit each
		at       int64
		want     int64 // used at that time
		reset    int64 // s
	}{
		{"fixed window into a longer one", Config{Algorithm: FixedWindow, N: 9, Window: time.Minute}, Config{Algorithm: FixedWindow, N: 9, Window: time.Hour},
			[]int64{3605, 3610}, 3620, 2, 3580},
		{"fixed window that began before the new one", Config{Algorithm: FixedWindow, N: 9, Window: time.Hour}, Config{Algorithm: FixedWindow, N: 9, Window: time.Minute},
			[]int64{3605, 3670}, 3671, 0, 0},
		{"fixed window that is over", Config{Algorithm: FixedWindow, N: 9, Window: time.Minute}, Config{Algorithm: FixedWindow, N: 9, Window: time.Hour},
			[]int64{3605}, 3680, 0, 0},
		{"fixed window from the first request", Config{Algorithm: FixedWindow, N: 9, Window: time.Minute, FirstRequest: true}, Config{Algorithm: FixedWindow, N: 9, Window: time.Hour, FirstRequest: true},
			[]int64{3625, 3630}, 3650, 2, 3575},
		{"log into a longer one", Config{Algorithm: SlidingLog, N: 9, Window: time.Minute}, Config{Algorithm: SlidingLog, N: 9, Window: 20 * 24 * time.Hour},
			[]int64{10, 50, 60}, 80, 2, 20*86400 - 20},
		{"log into a shorter one", Config{Algorithm: SlidingLog, N: 9, Window: 20 * 24 * time.Hour}, Config{Algorithm: SlidingLog, N: 2, Window: time.Minute},
			[]int64{10, 50, 60, 70}, 80, 3, 50},
		{"sliding window, more buckets", Config{N: 99, Window: time.Hour}, Config{N: 99, Window: time.Hour, Buckets: 60},
			// What was counted in the hour before counts as of its end, the rest as of now.
			[]int64{10, 3500, 3700, 4000}, 4000, 4, 3600 + 20},
		{"sliding window, fewer buckets", Config{N: 99, Window: time.Hour, Buckets: 60}, Config{N: 99, Window: time.Hour},
			// Three quarters of two, and one.
			[]int64{3000, 3500, 4000}, 4500, 2, 2*3600 - 900},
		{"sliding window, longer", Config{N: 99, Window: time.Minute}, Config{N: 99, Window: time.Hour, Buckets: 60},
			[]int64{3000, 3050, 3070}, 3100, 3, 3600 + 20},
		{"sliding window, shorter", Config{N: 99, Window: time.Hour}, Config{N: 99, Window: time.Minute},
			[]int64{3000, 3700, 3710}, 3840, 2, 120},
		{"token bucket", Config{Algorithm: TokenBucket, N: 60, Window: time.Minute, Burst: 10}, Config{Algorithm: TokenBucket, N: 60, Window: time.Hour, Burst: 10},
			[]int64{100, 100, 100}, 101, 2, 120},
		{"token bucket, smaller", Config{Algorithm: TokenBucket, N: 1, Window: time.Minute, Burst: 10}, Config{Algorithm: TokenBucket, N: 1, Window: time.Second, Burst: 2},
			[]int64{100, 100, 100, 100, 100}, 101, 2, 2},
		{"token bucket at intervals", Config{Algorithm: TokenBucket, N: 2, Window: time.Minute, Burst: 10, RefillInterval: true}, Config{Algorithm: TokenBucket, N: 2, Window: time.Hour, Burst: 10, RefillInterval: true},
			[]int64{100, 100, 100, 100, 100}, 161, 3, 2 * 3600},
		{"token bucket to intervals", Config{Algorithm: TokenBucket, N: 2, Window: time.Minute, Burst: 10}, Config{Algorithm: TokenBucket, N: 2, Window: time.Hour, Burst: 10, RefillInterval: true},
			[]int64{100, 100, 100, 100, 100}, 145, 4, 2 * 3600},
		{"token bucket from intervals", Config{Algorithm: TokenBucket, N: 2, Window: time.Minute, Burst: 10, RefillInterval: true}, Config{Algorithm: TokenBucket, N: 2, Window: time.Hour, Burst: 10},
			[]int64{100, 100, 100, 100, 100}, 161, 3, 3 * 1800},
		{"leaky bucket", Config{Algorithm: LeakyBucket, N: 1, Window: time.Second, Burst: 10}, Config{Algorithm: LeakyBucket, N: 1, Window: time.Minute, Burst: 10},
			[]int64{100, 100, 100}, 101, 2, 120},
		{"another algorithm", Config{Algorithm: FixedWindow, N: 9, Window: time.Hour}, Config{N: 9, Window: time.Hour},
			[]int64{100, 100, 100}, 101, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, l, s := must(t, tc.old), must(t, tc.new), State{}
			zero := at(0, 0, 0)
			for _, sec := range tc.taken {
				if r := old.Take(&s, zero+sec*second, Ask{Cost: 1, MaxDelay: -1}); !r.Allowed {
					t.Fatalf("at %d: %+v", sec, r)
				}
			}
			now := zero + tc.at*second
			l.Carry(old, &s, now)
			r := l.Check(&s, now, Ask{})
			used := r.Limit - r.Remaining
			if want := min(tc.want, r.Limit); used != want || r.ResetAfter != tc.reset*second {
				t.Errorf("used %d, reset_after %d µs, want %d, %d s", used, r.ResetAfter, want, tc.reset)
			}
			probe(t, tc.name, l, s, now, Ask{Cost: 1, MaxDelay: -1}, l.Check(&s, now, Ask{Cost: 1, MaxDelay: -1}))
		})
	}
}

// TestCarryLocksOut: whatever was kept, no key waits longer under the new definition than that
// alone could make it, and a carried state is as good as any: its claims hold.
func TestCarryLocksOut(t *testing.T) {
	for _, k := range kinds[:len(kinds)-1] {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				first, second := drawConfig(t, k.c), drawConfig(t, k.c)
				second.N = max(1, second.N)
				if second.Burst > 1000 {
					second.Burst = 20
				}
				old, l := compile(t, first), compile(t, second)
				var s State
				now, last := base+rapid.Int64Range(0, 400*day).Draw(t, "start"), Result{}
				for i := range rapid.IntRange(1, 20).Draw(t, "steps") {
					a := drawAsk(t, old, i)
					a.Cost = max(0, min(a.Cost, 5000))
					last = old.Take(&s, now, a)
					now = after(now, step(t, old, last, false))
				}
				l.Carry(old, &s, now)
				fill := span0(l)
				switch second.Algorithm {
				case SlidingWindow:
					fill += l.sub
				case TokenBucket, LeakyBucket:
					fill = (l.cap+l.n-1)/l.n*fill + l.unit
				case FixedWindow:
					fill = fill * 11 / 10
				}
				for _, cost := range []int64{1, l.cap} {
					a := Ask{Cost: cost, MaxDelay: -1}
					r := l.Check(&s, now, a)
					if cost > 0 && cost <= l.cap && (r.RetryAfter < 0 || r.RetryAfter > fill) {
						t.Fatalf("%v after %v: %+v", l, old, r)
					}
					probe(t, l.String()+" after "+old.String(), l, s, now, a, r)
				}
			})
		})
	}
}

// TestOtherOptions: options that are not part of a state's identity may change under it.
func TestOtherOptions(t *testing.T) {
	now := at(0, 0, 0) + 10*second
	used := func(l *Limit, s *State, now int64) int64 {
		r := l.Check(s, now, Ask{})
		return r.Limit - r.Remaining
	}
	t.Run("buckets", func(t *testing.T) {
		few, many := must(t, Config{N: 99, Window: time.Minute}),
			must(t, Config{N: 99, Window: time.Minute, Buckets: 6})
		var s State
		few.Take(&s, now, Ask{Cost: 7})
		before := cloneState(s)
		if got := used(many, &s, now+second); got != 7 || !same(before, s) {
			t.Errorf("%d used", got)
		}
		many.Take(&s, now+second, Ask{Cost: 2})
		if got := used(many, &s, now+55*second); got != 9 {
			t.Errorf("%d used", got)
		}
		if got := used(few, &s, now+55*second); got != 8 { // 9 × 55/60
			t.Errorf("%d used", got)
		}
		if !few.Mend(&s, now+55*second) || s.Ext != nil || few.Mend(&s, now+55*second) {
			t.Errorf("%+v", s)
		}
	})
	t.Run("refill", func(t *testing.T) {
		steady := must(t, Config{Algorithm: TokenBucket, N: 60, Window: time.Minute, Burst: 100})
		stepwise := must(t, Config{Algorithm: TokenBucket, N: 60, Window: time.Minute, Burst: 100,
			RefillInterval: true})
		var s State
		stepwise.Take(&s, now, Ask{Cost: 90})
		if got := used(steady, &s, now+59*second); got != 90 {
			t.Errorf("%d used", got)
		}
		if got := used(steady, &s, now+60*second); got != 30 {
			t.Errorf("%d used", got)
		}
		steady.Mend(&s, now+59*second)
		if got := used(steady, &s, now+61*second); got != 88 {
			t.Errorf("%d used", got)
		}
		if got := used(stepwise, &s, now+62*second); got != 87 {
			t.Errorf("%d used", got)
		}
		stepwise.Mend(&s, now+62*second)
		if got := used(stepwise, &s, now+100*second); got != 87 {
			t.Errorf("%d used", got)
		}
		if got := used(stepwise, &s, now+122*second); got != 27 {
			t.Errorf("%d used", got)
		}
	})
	t.Run("alignment", func(t *testing.T) {
		own := must(t, Config{Algorithm: FixedWindow, N: 9, Window: time.Minute, FirstRequest: true})
		aligned := must(t, Config{Algorithm: FixedWindow, N: 9, Window: time.Minute})
		var s State
		own.Take(&s, now, Ask{Cost: 3})
		if got := used(aligned, &s, now+30*second); got != 3 {
			t.Errorf("%d used", got)
		}
		if got := used(aligned, &s, now+51*second); got != 0 {
			t.Errorf("%d used", got)
		}
	})
	t.Run("time-out", func(t *testing.T) {
		long, short := must(t, Config{Algorithm: Concurrency, N: 9, Timeout: time.Hour}),
			must(t, Config{Algorithm: Concurrency, N: 9, Timeout: time.Second})
		var s State
		long.Take(&s, now, Ask{Cost: 3, Slot: 1})
		if got := used(long, &s, now+second); got != 3 {
			t.Errorf("%d held", got)
		}
		if got := used(short, &s, now+second); got != 0 {
			t.Errorf("%d held", got)
		}
	})
}

// TestShrinkAndGrow: what was consumed stays consumed when N goes down and up again.
func TestShrinkAndGrow(t *testing.T) {
	for _, k := range kinds {
		c := k.c
		if c.Algorithm == TokenBucket || c.Algorithm == LeakyBucket {
			continue // a bucket cannot miss more than its size
		}
		c.N = 100
		if c.Algorithm != Concurrency && c.Calendar == NoCalendar {
			c.Window = time.Minute
		}
		large := must(t, c)
		c.N = 10
		small := must(t, c)
		var s State
		now := at(0, 0, 0)
		large.Take(&s, now, Ask{Cost: 60, Slot: 1})
		if r := small.Take(&s, now+second, Ask{Cost: 1, Slot: 2}); r.Allowed || r.Remaining != 0 || r.RetryAfter <= 0 {
			t.Errorf("%v: %+v", small, r)
		}
		if r := small.Take(&s, now+second, Ask{}); r.Allowed {
			t.Errorf("%v: a peek says %+v", small, r)
		}
		if r := large.Take(&s, now+2*second, Ask{Cost: 40, Slot: 3}); !r.Allowed || r.Remaining != 0 {
			t.Errorf("%v: %+v", large, r)
		}
	}
	// The log of a limit that counts what it denies forgets nothing that was admitted, and gives
	// room back later.
	large := must(t, Config{Algorithm: SlidingLog, N: 100, Window: time.Minute, CountDenied: true})
	small := must(t, Config{Algorithm: SlidingLog, N: 10, Window: time.Minute, CountDenied: true})
	var s State
	now := at(0, 0, 0)
	large.Take(&s, now, Ask{Cost: 60})
	for range 100 {
		small.Take(&s, now+second, Ask{Cost: 1})
	}
	if r := large.Check(&s, now+second, Ask{}); r.Remaining != 40 {
		t.Errorf("%+v", r)
	}
	for i := range int64(5) {
		small.Take(&s, now+(i+2)*minute, Ask{Cost: 1})
	}
	if len(s.Ext) > 2*11*5 {
		t.Errorf("%d bytes for 11 units", len(s.Ext))
	}
}
