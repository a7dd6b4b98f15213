package algo

import (
	"testing"
	"time"
)

// TestUsed: what is used is told also where it is more than the limit.
func TestUsed(t *testing.T) {
	const now = int64(1_000_000_000_000)
	for _, test := range []struct {
		config Config
		want   int64 // after 130 were charged in place of 90
	}{
		{Config{Algorithm: FixedWindow, N: 100, Window: time.Hour}, 130},
		{Config{Algorithm: FixedWindow, N: 100, Window: time.Hour, FirstRequest: true}, 130},
		{Config{Algorithm: FixedWindow, N: 100, Calendar: Month}, 130},
		{Config{Algorithm: FixedWindow, N: 100, Window: time.Hour, Soft: 10}, 130},
		{Config{Algorithm: FixedWindow, N: 100, Window: time.Hour, Soft: 10, SoftFor: time.Minute}, 130},
		{Config{Algorithm: FixedWindow, N: 100, Window: time.Hour, Lease: 10}, 130},
		{Config{N: 100, Window: time.Hour}, 130},
		{Config{N: 100, Window: time.Hour, Buckets: 60}, 130},
		{Config{Algorithm: SlidingLog, N: 100, Window: time.Hour}, 101}, // it keeps no more
		{Config{Algorithm: TokenBucket, N: 100, Window: time.Hour}, 100},
		{Config{Algorithm: TokenBucket, N: 100, Window: time.Hour, RefillInterval: true}, 100},
		{Config{Algorithm: LeakyBucket, N: 100, Window: time.Hour}, 90},
	} {
		l := must(t, test.config)
		var s, beside State
		if used := l.Used(&s, &beside, now); used != 0 {
			t.Errorf("%v: %d used of a fresh state", l, used)
		}
		if r := l.TakeWith(&s, &beside, now, Ask{Cost: 90, MaxDelay: -1}); !r.Allowed {
			t.Fatalf("%v: %+v", l, r)
		}
		if used := l.Used(&s, &beside, now); used != 90 {
			t.Errorf("%v: %d used, want 90", l, used)
		}
		l.Settle(&s, &beside, now, now, 90, 130)
		was := s
		if used := l.Used(&s, &beside, now); used != test.want {
			t.Errorf("%v: %d used, want %d", l, used, test.want)
		}
		if s.A != was.A || s.B != was.B || s.C != was.C {
			t.Errorf("%v: the state was changed", l)
		}
		fewer := test.config
		if fewer.N, fewer.Burst = 10, 0; test.config.Algorithm != TokenBucket && test.config.Algorithm != LeakyBucket {
			if used := must(t, fewer).Used(&s, &beside, now); used != test.want {
				t.Errorf("%v, of which 10 are left by a lower number: %d used, want %d", l, used, test.want)
			}
		}
	}
}

// TestUsedAndLent: units that are out are used, and those that have ended are charged.
func TestUsedAndLent(t *testing.T) {
	const now = int64(1_000_000_000_000)
	l := must(t, Config{Algorithm: FixedWindow, N: 100, Window: time.Hour, Lease: 50, LeaseFor: time.Second})
	var s, lease State
	h := Ahead{Want: 30}
	if r := l.TakeAhead(&s, &lease, now, Ask{Cost: 40}, &h); !r.Allowed || h.Got != 30 {
		t.Fatalf("%+v, %+v", r, h)
	}
	l.Settle(&s, &lease, now, now, 40, 90)
	for _, at := range []int64{now, h.Until - 1, h.Until, h.Until + 1e6} {
		if used := l.Used(&s, &lease, at); used != 120 {
			t.Errorf("%d µs later: %d used, want 120", at-now, used)
		}
	}
}

// TestUsedBySchedule: what is used does not depend on the numbers in force.
func TestUsedBySchedule(t *testing.T) {
	const now = int64(1_000_000_000_000)
	day := must(t, Config{Algorithm: FixedWindow, N: 100, Window: time.Hour})
	night := must(t, Config{Algorithm: FixedWindow, N: 10, Window: time.Hour})
	for _, first := range []*Limit{day, night, nil} {
		l, err := Scheduled(day, []Phase{{From: 0, Until: 24 * time.Hour, Limit: first}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var s State
		day.Take(&s, now, Ask{Cost: 90})
		if used := l.Used(&s, nil, now); used != 90 {
			t.Errorf("%v: %d used, want 90", first, used)
		}
	}
}
