package algo

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHearGolden: what is heard counts from now on, and over is what went beyond N.
func TestHearGolden(t *testing.T) {
	for _, tc := range []struct {
		c          Config
		take, hear int64
		over, left int64
		// after half a window
		later int64
	}{
		{Config{Algorithm: FixedWindow, N: 10, Window: time.Minute}, 4, 5, 0, 1, 1},
		{Config{Algorithm: FixedWindow, N: 10, Window: time.Minute}, 4, 9, 3, 0, 0},
		{Config{Algorithm: FixedWindow, N: 10, Window: time.Minute, FirstRequest: true}, 0, 12, 2, 0, 0},
		{Config{Algorithm: FixedWindow, N: 10, Calendar: Day}, 4, 9, 3, 0, 0},
		{Config{Algorithm: FixedWindow, N: 10, Window: time.Minute, Soft: 50}, 10, 5, 5, 0, 0},
		{Config{Algorithm: SlidingLog, N: 10, Window: time.Minute}, 4, 9, 3, 0, 0},
		{Config{Algorithm: SlidingLog, N: 10, Window: time.Minute}, 4, 1_000_000, 999_994, 0, 0},
		{Config{N: 10, Window: time.Minute}, 4, 9, 3, 0, 0},
		{Config{N: 10, Window: time.Minute, Buckets: 6}, 4, 9, 3, 0, 0},
		{Config{Algorithm: TokenBucket, N: 10, Window: time.Minute, Burst: 20}, 4, 20, 4, 0, 5},
		{Config{Algorithm: TokenBucket, N: 10, Window: time.Minute, Burst: 20, RefillInterval: true}, 4, 20, 4, 0, 0},
		{Config{Algorithm: TokenBucket, N: 0, Window: time.Minute, Burst: 20}, 0, 3, 3, 0, 0},
		{Config{Algorithm: LeakyBucket, N: 10, Window: time.Minute}, 4, 9, 0, 7, 11},
		{Config{Algorithm: Concurrency, N: 10}, 4, 9, 0, 6, 10},
	} {
		l := must(t, tc.c)
		var s State
		now := at(12, 0, 0)
		l.Take(&s, now, Ask{Cost: tc.take, MaxDelay: -1, Slot: 1})
		over := l.Hear(&s, nil, now, tc.hear)
		left, later := l.Check(&s, now, Ask{}).Remaining, l.Check(&s, now+30*second, Ask{}).Remaining
		if over != tc.over || left != tc.left || later != tc.later {
			t.Errorf("%v: %d taken, %d heard: %d over, %d left, %d half a minute later; want %d, %d, %d",
				l, tc.take, tc.hear, over, left, later, tc.over, tc.left, tc.later)
		}
		was := cloneState(s)
		for _, none := range []int64{0, -1, -MaxCost} {
			if over := l.Hear(&s, nil, now, none); over != 0 || !same(was, s) {
				t.Errorf("%v: %d heard: %d over, and %+v became %+v", l, none, over, was, s)
			}
		}
	}
}

// TestHearModel: what is heard among requests and refunds counts as a model without any of this
// package's code counts it.
func TestHearModel(t *testing.T) {
	for _, k := range kinds {
		if k.c.Algorithm == LeakyBucket || k.c.Algorithm == Concurrency {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawConfig(t, k.c)
				l := compile(t, c)
				limit, _ := numbers(c)
				if limit > 1000 && c.Algorithm == SlidingLog {
					return // the model is a list
				}
				m := newModel(c)
				s, now, last := State{}, base+rapid.Int64Range(0, 400*day).Draw(t, "start"), Result{}
				for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
					now = after(now, step(t, l, last, false))
					if rapid.Bool().Draw(t, "ask") {
						a := drawAsk(t, l, i)
						last = l.Take(&s, now, a)
						if v := m.ask(l, now, a); v.allowed != last.Allowed || v.remaining != last.Remaining {
							t.Fatalf("%v: %+v is %+v, the model says %+v", l, a, last, v)
						}
						continue
					}
					units := rapid.SampledFrom([]int64{1, 2, 3, limit / 2, limit, 2*limit + 1, 1000}).Draw(t, "heard")
					before := m.ask(l, now, Ask{}).remaining
					over := l.Hear(&s, nil, now, units)
					if want := units - min(units, before); over != want {
						t.Fatalf("%v: %d of %d were over, want %d", l, over, units, want)
					}
					hearModel(m, l, now, units)
					last = l.Check(&s, now, Ask{})
					if v := m.ask(l, now, Ask{}); v.remaining != last.Remaining {
						t.Fatalf("%v: after %d heard %+v, the model says %+v", l, units, last, v)
					}
				}
			})
		})
	}
}

// hearModel is Hear of a model.
func hearModel(m model, l *Limit, now, units int64) {
	if units <= 0 {
		return
	}
	_, capacity := numbers(l.Config())
	switch m := m.(type) {
	case *tokenModel:
		at, missing := m.at(l, now)
		missing.Add(missing, new(big.Rat).SetInt64(units))
		if most := new(big.Rat).SetInt64(capacity); missing.Cmp(most) > 0 {
			missing = most
		}
		m.last, m.missing = at*l.unit, missing
	case *intervalModel:
		w, n := micros(l.Config().Window), l.Config().N
		for n > 0 && m.missing > 0 && m.anchor+w <= now {
			m.anchor += w
			m.missing = max(0, m.missing-n)
		}
		if n == 0 && now > m.anchor {
			m.anchor += (now - m.anchor) / w * w
		}
		if m.missing == 0 {
			m.anchor = now
		}
		m.missing = min(m.missing+units, capacity)
	default:
		c := l.Config()
		c.CountDenied = true // which charges whether there is room or not
		all, err := New(c)
		if err != nil {
			panic(err)
		}
		m.ask(all, now, Ask{Cost: units})
	}
}

// TestHearIsSettling: to hear units is to settle a charge of nothing at as many, and what is lent
// is out of reach of both.
func TestHearIsSettling(t *testing.T) {
	for _, c := range []Config{
		{Algorithm: FixedWindow, N: 40}, {Algorithm: FixedWindow, N: 40, CountDenied: true}, {Algorithm: FixedWindow, N: 40, FirstRequest: true},
		{Algorithm: SlidingLog, N: 40}, {N: 40}, {N: 40, Buckets: 5}, {Algorithm: TokenBucket, N: 40, Burst: 60}, {N: 40, Soft: 50},
	} {
		c.Window, c.Lease, c.LeaseFor = 10*time.Second, 50, time.Second
		l := must(t, c)
		t.Run(l.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var s, lease State
				now := base
				for range rapid.IntRange(1, 30).Draw(t, "steps") {
					now += rapid.Int64Range(0, 900_000).Draw(t, "µs")
					if rapid.Bool().Draw(t, "ask") {
						h := Ahead{Want: rapid.Int64Range(0, 9).Draw(t, "want")}
						l.TakeAhead(&s, &lease, now, Ask{Cost: rapid.Int64Range(0, 4).Draw(t, "cost")}, &h)
						continue
					}
					units := rapid.Int64Range(1, 50).Draw(t, "heard")
					settled, record := cloneState(s), lease
					l.Settle(&settled, &record, now, now, 0, units)
					room := l.CheckWith(&s, &lease, now, Ask{}).Remaining
					out := l.LentAt(&lease, now).Out()
					over := l.Hear(&s, &lease, now, units)
					if !same(s, settled) || !same(lease, record) {
						t.Fatalf("%+v, %+v; settled %+v, %+v", s, lease, settled, record)
					}
					if over != units-min(units, room) || l.LentAt(&lease, now).Out() != out {
						t.Fatalf("%d of %d over with room for %d; %d out, before %d", over, units, room,
							l.LentAt(&lease, now).Out(), out)
					}
				}
			})
		})
	}
}

// TestHearScheduled: the limit in force at now says how many are over; where there is none, no unit
// is, and all count when there is one again.
func TestHearScheduled(t *testing.T) {
	c := Config{Algorithm: SlidingLog, N: 10, Window: 4 * time.Hour}
	wide := c
	wide.N = 20
	l := scheduled(t, must(t, c), nil, Phase{From: clockTime(12, 0), Until: clockTime(13, 0), Limit: must(t, wide)},
		Phase{From: clockTime(13, 0), Until: clockTime(14, 0)})
	for hour, over := range map[int64]int64{11: 5, 12: 0, 13: 0} {
		var s State
		l.Take(&s, at(11, 0, 0), Ask{Cost: 5})
		if got := l.Hear(&s, nil, at(hour, 30, 0), 10); got != over {
			t.Errorf("heard at %d:30: %d over, want %d", hour, got, over)
		}
		if r := l.Check(&s, at(14, 30, 0), Ask{}); r.Remaining != 0 {
			t.Errorf("heard at %d:30: %+v at 14:30", hour, r)
		}
	}
}

// TestHearAllocatesNothing but a log's ring, after the first time.
func TestHearAllocatesNothing(t *testing.T) {
	for _, c := range []Config{{N: 10}, {Algorithm: FixedWindow, N: 10}, {Algorithm: TokenBucket, N: 10},
		{N: 10, Buckets: 5, Soft: 10, SoftFor: time.Minute}} {
		c.Window = time.Minute
		l := must(t, c)
		var s State
		l.Hear(&s, nil, base, 1)
		if n := testing.AllocsPerRun(100, func() { l.Hear(&s, nil, base, 3) }); n > 0 {
			t.Errorf("%v: %v allocations", l, n)
		}
	}
}
