package algo

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// admitted is one admitted request, with the limit that was in force.
type admitted struct {
	at    int64
	cost  int64
	delay int64
	l     *Limit
}

// history runs random asks, no refunds, under one limit or several that take turns.
func history(t *rapid.T, limits []*Limit, steps int) (past []admitted) {
	var s State
	l := limits[0]
	now, last := base+rapid.Int64Range(0, 2*day).Draw(t, "start"), Result{}
	for i := range steps {
		if len(limits) > 1 && rapid.IntRange(0, 3).Draw(t, "change") == 0 {
			l = rapid.SampledFrom(limits).Draw(t, "limit")
		}
		now = after(now, step(t, l, last, false))
		a := Ask{Cost: rapid.SampledFrom([]int64{1, 1, 1, 2, 3, 7}).Draw(t, "cost"), MaxDelay: -1, Slot: uint64(i + 1)}
		if last = l.Take(&s, now, a); last.Allowed {
			past = append(past, admitted{now, a.Cost, last.Delay, l})
		}
	}
	return past
}

func drawLimits(t *rapid.T, kind Config) []*Limit {
	c := drawConfig(t, kind)
	c.CountDenied = false
	limits := []*Limit{compile(t, c)}
	if rapid.Bool().Draw(t, "changing") {
		for range rapid.IntRange(1, 3).Draw(t, "others") {
			limits = append(limits, compile(t, change(t, c)))
		}
	}
	return limits
}

// TestWindowGuarantee: no aligned window, and no half-open window that ends with an admission,
// admits more than the limit in force at that admission.
func TestWindowGuarantee(t *testing.T) {
	for _, k := range kinds[:4] {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				past := history(t, drawLimits(t, k.c), rapid.IntRange(1, 60).Draw(t, "steps"))
				opened := int64(0) // a window from the first request
				for j, last := range past {
					c := last.l.Config()
					if c.FirstRequest && (j == 0 || last.at >= opened+micros(c.Window)) {
						opened = last.at
					}
					sum := int64(0)
					for _, a := range past[:j+1] {
						in := a.at > last.at-micros(c.Window)
						switch {
						case c.FirstRequest:
							in = a.at >= opened
						case c.Algorithm == FixedWindow:
							in = windowStart(c, a.at) == windowStart(c, last.at)
						}
						if in {
							sum += a.cost
						}
					}
					if sum > last.l.cap {
						t.Fatalf("%v: %d in the window of %d", last.l, sum, last.at-base)
					}
				}
			})
		})
	}
}

// TestBucketGuarantee: any interval of length d admits at most B + floor(d × N / W). While N and B
// change: the most that flowed in since, with the N in force at each admission, and what a smaller
// B forgave.
func TestBucketGuarantee(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := drawLimits(t, Config{Algorithm: TokenBucket})
		past := history(t, limits, rapid.IntRange(1, 60).Draw(t, "steps"))
		for i := range past {
			sum, flow, forgiven, most := int64(0), new(big.Rat), int64(0), int64(0)
			for j := i; j < len(past); j++ {
				a := past[j]
				u := a.l.unit
				if j > i {
					// Time counts in the coarser unit of the two.
					was := past[j-1].l.unit
					d := a.at/u - (past[j-1].at/was*was+u-1)/u
					flow.Add(flow, new(big.Rat).Mul(perUnit(a.l), new(big.Rat).SetInt64(max(0, d))))
				}
				sum += a.cost
				forgiven += max(0, most-a.l.cap)
				most = max(a.l.cap, most-max(0, most-a.l.cap))
				if sum > a.l.cap+forgiven+floor(flow) {
					t.Fatalf("%v: %d admitted from %d to %d", a.l, sum, past[i].at-base, a.at-base)
				}
			}
		}
	})
}

// TestQueueGuarantee: k departures span at least floor((k − 1) × W/N), in order, and none lies
// further ahead than the queue is long.
func TestQueueGuarantee(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t, Config{Algorithm: LeakyBucket})
		l := compile(t, c)
		past := history(t, []*Limit{l}, rapid.IntRange(1, 60).Draw(t, "steps"))
		for i, first := range past {
			if first.delay == maxInt {
				return
			}
			turns := int64(0)
			gap := new(big.Rat).Inv(perUnit(l))
			for _, a := range past[i:] {
				spanned := (a.at+a.delay)/l.unit - (first.at+first.delay)/l.unit
				if a.delay < maxInt && spanned < floor(new(big.Rat).Mul(gap, new(big.Rat).SetInt64(turns))) {
					t.Fatalf("%v: %d turns within %d, from %d on", l, turns+1, spanned, first.at-base)
				}
				turns += a.cost
			}
			longest := new(big.Rat).Mul(gap, new(big.Rat).SetInt64(l.cap-1))
			if (first.at+first.delay)/l.unit-first.at/l.unit > ceil(longest) {
				t.Fatalf("%v: a delay of %d", l, first.delay)
			}
		}
	})
}

// TestPace takes as fast as it is let for a long time: what gets through is the definition, to the
// last one.
func TestPace(t *testing.T) {
	for _, c := range []Config{
		{Algorithm: TokenBucket, N: 333, Window: time.Second, Burst: 2},
		{Algorithm: TokenBucket, N: 7, Window: time.Minute, Burst: 3},
		{Algorithm: LeakyBucket, N: 333, Window: time.Second, Burst: 5},
		{Algorithm: SlidingLog, N: 3, Window: time.Second},
		{Algorithm: FixedWindow, N: 3, Window: time.Second},
		{Algorithm: TokenBucket, N: 3, Window: time.Second, RefillInterval: true},
	} {
		l, s, now := must(t, c), State{}, at(0, 0, 0)
		var n int64
		end := now + 200*micros(c.Window)
		for now < end {
			if r := l.Take(&s, now, Ask{Cost: 1, MaxDelay: -1}); r.Allowed {
				n++
			} else {
				now += r.RetryAfter
			}
		}
		want := 200 * c.N
		if (c.Algorithm == TokenBucket || c.Algorithm == LeakyBucket) && !c.RefillInterval {
			want = l.cap + (end-1-at(0, 0, 0))*c.N/micros(c.Window)
		}
		if n != want {
			t.Errorf("%v: %d in 200 windows, want %d", l, n, want)
		}
	}
}
