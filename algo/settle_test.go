package algo

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSettle: units that were reserved too much come back as if no more had been charged at first;
// for algorithms that count by instants exactly so, for buckets as far as they have not drained.
// Units that were reserved too little are charged, room or not.
func TestSettle(t *testing.T) {
	for _, cfg := range []Config{
		{Algorithm: FixedWindow, N: 20, Window: 10 * time.Second},
		{Algorithm: FixedWindow, N: 20, Window: 10 * time.Second, CountDenied: true},
		{Algorithm: FixedWindow, N: 20, Calendar: Day},
		{Algorithm: SlidingLog, N: 20, Window: 10 * time.Second},
		{Algorithm: SlidingLog, N: 20, Window: 10 * time.Second, Soft: 20},
		{N: 20, Window: 10 * time.Second},
		{N: 20, Window: 10 * time.Second, Buckets: 5},
		{Algorithm: TokenBucket, N: 20, Window: 10 * time.Second, Burst: 17},
		{Algorithm: TokenBucket, N: 3, Window: 10 * time.Second, Burst: 17, RefillInterval: true},
	} {
		l := must(t, cfg)
		t.Run(l.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var estimated, known, nothing State
				now, others := int64(1_000_000_000_000), 0
				step := func(n int) {
					for range n {
						now += rapid.Int64Range(0, 3_000_000).Draw(t, "µs")
						a := Ask{Cost: rapid.Int64Range(1, 3).Draw(t, "cost")}
						// Only what all admit, so that the charge makes no other difference.
						if l.Check(&estimated, now, a).Allowed && l.Check(&known, now, a).Allowed &&
							l.Check(&nothing, now, a).Allowed {
							others++
							l.Take(&estimated, now, a)
							l.Take(&known, now, a)
							l.Take(&nothing, now, a)
						}
					}
				}
				step(rapid.IntRange(0, 4).Draw(t, "before"))
				at := now
				reserved := rapid.Int64Range(1, 12).Draw(t, "reserved")
				actual := rapid.Int64Range(0, reserved).Draw(t, "actual")
				if !l.Take(&estimated, now, Ask{Cost: reserved}).Allowed {
					return
				}
				l.Take(&known, now, Ask{Cost: actual})
				step(rapid.IntRange(0, 5).Draw(t, "after"))
				l.Settle(&estimated, nil, now, at, reserved, actual)
				exact := cfg.Algorithm != TokenBucket || others == 0 && !cfg.RefillInterval || now == at
				for range 3 {
					got, want, most := l.Check(&estimated, now, Ask{}), sooner(l, &estimated, &known, now),
						sooner(l, &estimated, &nothing, now)
					if got.Remaining > want.Remaining || got.Remaining > most.Remaining {
						t.Fatalf("%d remain; with the actual charge at first %d, without any %d", got.Remaining,
							want.Remaining, most.Remaining)
					}
					if exact && got != want {
						t.Fatalf("%+v, with the actual charge at first %+v", got, want)
					}
					now += rapid.Int64Range(0, 4_000_000).Draw(t, "later")
				}
			})
			t.Run(l.String()+", up", func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					var s State
					now := int64(1_000_000_000_000)
					for range rapid.IntRange(0, 8).Draw(t, "before") {
						now += rapid.Int64Range(0, 3_000_000).Draw(t, "µs")
						l.Take(&s, now, Ask{Cost: rapid.Int64Range(1, 4).Draw(t, "cost")})
					}
					at, reserved := now, rapid.Int64Range(0, 5).Draw(t, "reserved")
					if !l.Take(&s, now, Ask{Cost: reserved}).Allowed {
						return
					}
					now += rapid.Int64Range(0, 3_000_000).Draw(t, "µs")
					more := rapid.SampledFrom([]int64{1, 3, 20, 1000, MaxCost}).Draw(t, "more")
					before := l.Check(&s, now, Ask{})
					if charged := cloneState(s); l.Take(&charged, now, Ask{Cost: more}).Allowed {
						l.Settle(&s, nil, now, at, reserved, reserved+more)
						if got, want := l.Check(&s, now, Ask{}), l.Check(&charged, now, Ask{}); got != want {
							t.Fatalf("%+v, as a charge it is %+v", got, want)
						}
						return
					}
					l.Settle(&s, nil, now, at, reserved, reserved+more)
					after := l.Check(&s, now, Ask{})
					if after.Remaining > max(0, before.Remaining-more) ||
						l.Check(&s, now, Ask{Cost: max(1, before.SoftLimit-before.Limit)}).Allowed {
						t.Fatalf("%d more: %+v, before %+v", more, after, before)
					}
					// And all is well again in time.
					if after.ResetAfter == Never || !l.Fresh(&s, now+after.ResetAfter) {
						t.Fatalf("%d more: %+v", more, after)
					}
				})
			})
		})
	}
}

// sooner is a peek at s; of a bucket refilled at intervals, which begin at its first use, at the
// instant at which s has as many of them behind it as a bucket has now that was used sooner. A
// charge that turns out to be nothing is a use all the same.
func sooner(l *Limit, used, s *State, now int64) Result {
	if l.interval && used.B != 0 && s.B != 0 {
		w := span0(l)
		now += ((s.A-used.A)%w + w) % w
	}
	return l.Check(s, now, Ask{})
}

// An interval begins with a charge that turns out to be nothing: what others took since comes back
// at its end, and no sooner.
func TestSettledAsNothing(t *testing.T) {
	l := must(t, Config{Algorithm: TokenBucket, N: 3, Window: 10 * time.Second, Burst: 17, RefillInterval: true})
	var s State
	l.Take(&s, base, Ask{Cost: 1})
	for range 4 {
		l.Take(&s, base+270_226, Ask{Cost: 1})
	}
	l.Settle(&s, nil, base+3_270_226, base, 1, 0)
	for after, want := range map[int64]int64{3_270_226: 13, 9_999_999: 13, 10_000_000: 16, 19_999_999: 16,
		20_000_000: 17} {
		if r := l.Check(&s, base+after, Ask{}); r.Remaining != want {
			t.Errorf("after %d µs %d remain, want %d", after, r.Remaining, want)
		}
	}
}

// TestSettleLeavesTurns: a queue and slots stay as they are; and so does everything in time that
// has passed.
func TestSettleLeavesTurns(t *testing.T) {
	now := at(12, 0, 0)
	for _, l := range []*Limit{
		must(t, Config{Algorithm: LeakyBucket, N: 10, Window: time.Minute}),
		must(t, Config{Algorithm: Concurrency, N: 10}),
	} {
		for _, actual := range []int64{0, 2, 9, -5} {
			var s State
			l.Take(&s, now, Ask{Cost: 2, MaxDelay: -1, Slot: 7})
			was := cloneState(s)
			if l.Settle(&s, nil, now+1, now, 2, actual); !same(was, s) {
				t.Errorf("%v: settled at %d, %+v became %+v", l, actual, was, s)
			}
		}
	}
	for _, k := range kinds[:6] {
		c := k.c
		if c.N = 10; c.Calendar == NoCalendar {
			c.Window = time.Minute
		}
		l := must(t, c)
		var s State
		l.Take(&s, now, Ask{Cost: 10})
		then := now + 3*day
		l.Take(&s, then, Ask{Cost: 4})
		if l.Settle(&s, nil, then, now, 10, 0); l.Check(&s, then, Ask{}).Remaining != 6 {
			t.Errorf("%v: %+v after a charge of three days ago came back", l, l.Check(&s, then, Ask{}))
		}
	}
}

// TestSettleScheduled: a charge is settled whatever the schedule says by then.
func TestSettleScheduled(t *testing.T) {
	c := Config{Algorithm: SlidingLog, N: 10, Window: 4 * time.Hour}
	wide := c
	wide.N = 20
	l := scheduled(t, must(t, c), nil, Phase{From: clockTime(12, 0), Until: clockTime(13, 0), Limit: must(t, wide)},
		Phase{From: clockTime(13, 0), Until: clockTime(14, 0)})
	for _, hour := range []int64{11, 12, 13} {
		for actual, left := range map[int64]int64{0: 10, 2: 8, 5: 5, 9: 1, 30: 0} {
			var s State
			l.Take(&s, at(11, 0, 0), Ask{Cost: 5})
			l.Settle(&s, nil, at(hour, 30, 0), at(11, 0, 0), 5, actual)
			if r := l.Check(&s, at(14, 30, 0), Ask{}); r.Remaining != left {
				t.Errorf("settled to %d at %d:30: %d left, want %d", actual, hour, r.Remaining, left)
			}
		}
	}
}

func TestScale(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawConfig(t, k.c)
				l := compile(t, c)
				num, den := rapid.Int64Range(0, 100_000).Draw(t, "num"),
					rapid.SampledFrom([]int64{1, 3, 100, 4500, 10_000}).Draw(t, "den")
				if num > 10*den { // no curve goes above ten times
					num = 10 * den
				}
				s, err := l.Scale(num, den)
				if err != nil {
					t.Fatalf("%v by %d/%d: %v", l, num, den, err)
				}
				was, is := l.Config(), s.Config()
				want := func(n int64) int64 {
					if n <= 0 {
						return n
					}
					q := new(big.Int).Mul(big.NewInt(n), big.NewInt(num))
					n = max(1, q.Div(q, big.NewInt(den)).Int64())
					if c.Algorithm == SlidingLog {
						n = min(n, MaxLogN)
					}
					return min(n, MaxN)
				}
				if num == 0 {
					if is.N != 0 || is.Burst != was.Burst {
						t.Fatalf("%v by nothing is %v", l, s)
					}
					var st State
					if r := s.Check(&st, base, Ask{Cost: 1, MaxDelay: -1}); r.Allowed || r.RetryAfter != Never {
						t.Fatalf("%v by nothing: %+v", l, r)
					}
				} else if is.N != want(was.N) || is.Burst != want(was.Burst) {
					t.Fatalf("%v by %d/%d is %v", l, num, den, s)
				}
				is.N, is.Burst = was.N, was.Burst
				if is != was {
					t.Fatalf("%+v by %d/%d is %+v", was, num, den, is)
				}
				if _, capacity := numbers(s.Config()); num > 0 && s.n > 0 && capacity <= 100_000 {
					var st State
					if r := s.Take(&st, base, Ask{Cost: capacity, MaxDelay: -1, Slot: 1}); !r.Allowed && capacity > 0 {
						t.Fatalf("%v: %+v", s, r)
					}
					if r := s.Take(&st, base, Ask{Cost: 1, MaxDelay: -1, Slot: 1}); r.Allowed {
						t.Fatalf("%v: one more than %d", s, capacity)
					}
				}
			})
		})
	}
}

func TestScaleEdges(t *testing.T) {
	l := must(t, Config{N: 100, Window: time.Minute, Soft: 10, SoftFor: time.Minute})
	for _, tc := range []struct{ num, den, n int64 }{{25, 100, 25}, {1, 1000, 1}, {999, 1000, 99}, {2, 1, 200},
		{1, 1, 100}} {
		s, err := l.Scale(tc.num, tc.den)
		if err != nil || s.Config().N != tc.n {
			t.Errorf("by %d/%d: %v, %v", tc.num, tc.den, s, err)
			continue
		}
		if (s.Margin() != nil) != (tc.n >= 10) {
			t.Errorf("by %d/%d: %v, its margin closes: %v", tc.num, tc.den, s, s.Margin() != nil)
		}
	}
	for _, bad := range [][2]int64{{-1, 1}, {1, 0}, {1, -1}} {
		if _, err := l.Scale(bad[0], bad[1]); err == nil {
			t.Errorf("by %d/%d: no error", bad[0], bad[1])
		}
	}
	// All phases of a schedule are scaled.
	day, night := must(t, Config{Algorithm: TokenBucket, N: 100, Window: time.Minute}),
		must(t, Config{Algorithm: TokenBucket, N: 10, Window: time.Minute, Burst: 3})
	s, err := scheduled(t, day, nil, Phase{From: clockTime(20, 0), Until: clockTime(8, 0), Limit: night},
		Phase{Days: weekdays(time.Sunday)}).Scale(50, 100)
	if err != nil {
		t.Fatal(err)
	}
	in, _ := s.At(instant(t, "2026-01-02T12:00:00Z"))
	if in.Config().N != 50 || in.Config().Burst != 50 {
		t.Errorf("by day %v", in)
	}
	if in, _ = s.At(instant(t, "2026-01-02T21:00:00Z")); in.Config().N != 5 || in.Config().Burst != 1 {
		t.Errorf("by night %v", in)
	}
	if in, _ = s.At(instant(t, "2026-01-04T12:00:00Z")); in != nil {
		t.Errorf("on Sunday %v", in)
	}
}
