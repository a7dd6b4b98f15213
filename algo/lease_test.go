package algo

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// loan is what one holder has of one generation.
type loan struct {
	end, left, used int64
	start           int64 // of the window, of a limit whose windows begin at the first request
}

// borrowers is a limit with holders of its units, and what they did.
type borrowers struct {
	t        *rapid.T
	l        *Limit
	s, lease State
	truth    State // each unit charged at the instant at which it was admitted
	now      int64
	loans    []loan
	past     []admitted
	where    string
	// N changes, and what is owed is charged: units may be used that there is no room for any more
	changing bool
	beyond   int64 // how much longer units may last that are lent beside those of longer generations
}

func (b *borrowers) fail(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf("%v at base + %d, %s\nlent: %+v; held %+v\n%s", b.l, b.now-base, b.where, b.l.lease.Lent(&b.lease),
		b.loans, fmt.Sprintf(format, args...))
}

// admit notes that a request was admitted now, by a holder or by the limit, which would have
// admitted it without leases.
func (b *borrowers) admit(cost int64, holder bool) {
	b.t.Helper()
	if cost <= 0 {
		return
	}
	b.past = append(b.past, admitted{at: b.now, cost: cost, l: b.l})
	if !b.l.first && !(holder && b.changing) && !b.l.Check(&b.truth, b.now, Ask{Cost: cost}).Allowed {
		b.fail("%d admitted, which would be too many without leases: %+v", cost,
			b.l.Check(&b.truth, b.now, Ask{Cost: cost}))
	}
	b.l.force(&b.truth, b.now, cost)
}

// window returns the beginning of the window from the first request, 0 for others.
func (b *borrowers) window() int64 {
	if !b.l.first || b.s.B == 0 {
		return 0
	}
	start, _, _, _ := b.l.current(&b.s, b.now, false)
	return start
}

// pass lets time go by. Units of windows that begin at the first request end in the same window.
func (b *borrowers) pass(d int64) {
	b.where = "time goes by"
	b.now = after(b.now, max(0, d))
	var ended []loan
	b.loans = slices.DeleteFunc(b.loans, func(o loan) bool {
		if o.end <= b.now {
			ended = append(ended, o)
		}
		return o.end <= b.now
	})
	for _, o := range ended {
		if start, end, _, _ := b.l.current(&b.s, o.end-1, false); b.l.first && o.left+o.used > 0 &&
			(start != o.start || end < o.end) {
			b.fail("units until %d of the window from %d count in that from %d to %d", o.end-base, o.start-base,
				start-base, end-base)
		}
	}
	b.l.Roll(&b.s, &b.lease, b.now)
}

// told takes what is to be told out of the books of a holder.
func (b *borrowers) told(i int, all bool) Told {
	o := &b.loans[i]
	t := Told{End: o.end, Used: o.used}
	o.used = 0
	if all {
		t.Returned, o.left = o.left, 0
	}
	return t
}

// ask is one call to the limit.
func (b *borrowers) ask(a Ask, h *Ahead) Result {
	b.t.Helper()
	b.where = fmt.Sprintf("%+v, %+v", a, *h)
	b.l.Learn(&b.s, &b.lease, b.now, h)
	was, wasLease := cloneState(b.s), b.lease
	checked := b.l.CheckWith(&b.s, &b.lease, b.now, a)
	if !same(was, b.s) || !same(wasLease, b.lease) {
		b.fail("CheckWith wrote")
	}
	b.asUsed(a, checked)
	*h = Ahead{Want: h.Want, First: h.First} // it is learnt
	r := b.l.TakeAhead(&b.s, &b.lease, b.now, a, h)
	b.where += fmt.Sprintf(" gives %+v, %+v", r, *h)
	if checked.Allowed != r.Allowed || !r.Allowed && checked.RetryAfter != r.RetryAfter {
		b.fail("CheckWith says %+v", checked)
	}
	if r.Allowed {
		b.admit(a.Cost, false)
	}
	n := b.l.lease.Lent(&b.lease)
	switch {
	case h.Out != n.Out():
		b.fail("%d are out", n.Out())
	case h.Got == 0:
	case h.Got < min(h.Want, 2) || h.Got > h.Want || !r.Allowed || n.Out() > b.l.lendable:
		b.fail("lent too much")
	case h.Until != n.End && h.Until != n.Last || h.Until <= b.now || h.Until > b.now+2*b.l.lease.w+b.beyond:
		b.fail("lent for too long")
	}
	if h.Got > 0 {
		b.loans = append(b.loans, loan{end: h.Until, left: h.Got, start: b.window()})
		if standing := b.l.CheckWith(&b.s, &b.lease, b.now, Ask{}); !standing.Allowed || standing.Soft {
			b.fail("I1: more than N is used or out: %+v", standing)
		}
	}
	// Units of a window from the first request that was not carried begin one when they end.
	if !r.Allowed && a.Cost > 0 && !(b.l.first && b.beyond > 0) {
		b.retry(a, r)
	}
	return r
}

// asUsed compares an answer with the answer of a limit where all units out were used just now.
func (b *borrowers) asUsed(a Ask, r Result) {
	b.t.Helper()
	out := b.l.lease.Lent(&b.lease).Out()
	if out == 0 || a.Cost < 0 || !b.l.CheckWith(&b.s, &b.lease, b.now, Ask{}).Allowed {
		return
	}
	used := cloneState(b.s)
	b.l.force(&used, b.now, out)
	want := b.l.Check(&used, b.now, a)
	if r.Allowed != want.Allowed || r.Remaining != want.Remaining || r.Soft != want.Soft || r.Limit != want.Limit ||
		r.SoftLimit != want.SoftLimit {
		b.fail("CheckWith says %+v\nif all that is out were used, Check would say %+v", r, want)
	}
}

// retry holds a refusal's retry_after against whatever the holders may do.
func (b *borrowers) retry(a Ask, r Result) {
	b.t.Helper()
	if r.RetryAfter == Never {
		if a.Cost <= b.l.admit {
			b.fail("never?")
		}
		return
	}
	if r.RetryAfter <= 0 {
		b.fail("retry_after")
	}
	then := after(b.now, r.RetryAfter)
	n := b.l.lease.Lent(&b.lease)
	for _, what := range []string{"lapses", "is used and told at once", "is returned", "is told halfway"} {
		s, lease := cloneState(b.s), b.lease
		told := Ahead{Told: [2]Told{{End: n.End, Used: n.Older}, {End: n.Last, Used: n.Newer}}}
		switch what {
		case "is used and told at once":
			b.l.Learn(&s, &lease, b.now, &told)
		case "is returned":
			told.Told = [2]Told{{End: n.End, Returned: n.Older}, {End: n.Last, Returned: n.Newer}}
			b.l.Learn(&s, &lease, b.now, &told)
		case "is told halfway":
			b.l.Learn(&s, &lease, b.now+r.RetryAfter/2, &told)
		}
		if got := b.l.TakeWith(&s, &lease, then, a); !got.Allowed {
			b.fail("what is out %s: after retry_after %+v", what, got)
		}
	}
}

// TestLeaseWalks lets holders borrow, use, tell, return and forget, while others ask, in random
// order: I1 and I3 of docs/how-it-works/algorithms.md hold after each step, and the guarantee at
// the end.
func TestLeaseWalks(t *testing.T) {
	for _, k := range leasedKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				b := &borrowers{t: t, l: compile(t, drawLeased(t, k.c)),
					now: base + rapid.Int64Range(0, 2*day).Draw(t, "start")}
				last := Result{}
				for range rapid.IntRange(1, 60).Draw(t, "steps") {
					last = b.step(last)
				}
				b.guarantee()
			})
		})
	}
}

// step is one thing that happens.
func (b *borrowers) step(last Result) Result {
	t := b.t
	t.Helper()
	switch rapid.IntRange(0, 5).Draw(t, "what") {
	case 0:
		if n := b.l.lease.Lent(&b.lease); b.lease.B != 0 && rapid.Bool().Draw(t, "around an end") {
			b.pass(rapid.SampledFrom([]int64{n.End, n.Last}).Draw(t, "end") - b.now +
				rapid.Int64Range(-1, 1).Draw(t, "around"))
		} else {
			b.pass(step(t, b.l, last, false))
		}
	case 1, 2:
		if len(b.loans) > 0 {
			o := &b.loans[rapid.IntRange(0, len(b.loans)-1).Draw(t, "holder")]
			if units := min(o.left, rapid.Int64Range(1, 5).Draw(t, "units")); units > 0 {
				b.where = fmt.Sprintf("%d units of %+v are used", units, *o)
				o.left, o.used = o.left-units, o.used+units
				b.admit(units, true)
			}
		}
	case 3:
		if len(b.loans) > 0 {
			h := Ahead{Want: rapid.Int64Range(0, 20).Draw(t, "want")}
			h.Told[0] = b.told(rapid.IntRange(0, len(b.loans)-1).Draw(t, "holder"), rapid.Bool().Draw(t, "returns"))
			if other := rapid.IntRange(0, len(b.loans)-1).Draw(t, "other"); b.loans[other].end != h.Told[0].End {
				h.Told[1] = b.told(other, rapid.Bool().Draw(t, "returns"))
			}
			return b.ask(Ask{Cost: rapid.SampledFrom([]int64{0, 0, 1, 2}).Draw(t, "cost")}, &h)
		}
	default:
		cost := rapid.SampledFrom([]int64{1, 1, 1, 2, 5, 0, b.l.limit, b.l.cap, b.l.cap + 1}).Draw(t, "cost")
		h := Ahead{Want: rapid.SampledFrom([]int64{0, 2, 5, 50, 1000}).Draw(t, "want"),
			First: rapid.Bool().Draw(t, "first")}
		return b.ask(Ask{Cost: cost}, &h)
	}
	return last
}

// guarantee holds all that was admitted against the definition of the algorithm.
func (b *borrowers) guarantee() {
	b.t.Helper()
	c, w := b.l.Config(), span0(b.l)
	for i, first := range b.past {
		windowEnd := first.at + w
		if c.Algorithm == FixedWindow && !c.FirstRequest {
			windowEnd = b.l.spanAt(first.at, false).end
		}
		sum := int64(0)
		for _, a := range b.past[i:] {
			sum += a.cost
			most := b.l.cap
			switch {
			case c.Algorithm == TokenBucket:
				most += (a.at/b.l.unit - first.at/b.l.unit) * b.l.unit * c.N / w
			case c.FirstRequest || c.Algorithm == SlidingWindow:
				return // see pass, and admit
			case a.at >= windowEnd:
				most = maxInt
			}
			if sum > most {
				b.fail("%d admitted from %d to %d", sum, first.at-base, a.at-base)
			}
		}
	}
}

// TestLeaseChanges mixes borrowing with all else that changes a state: refunds, settlements, undone
// charges, resets, and other numbers. A bucket's numbers stay, since it drains at the rate that is
// in force when it is looked at.
func TestLeaseChanges(t *testing.T) {
	for _, k := range leasedKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawLeased(t, k.c)
				limits := []*Limit{compile(t, c)}
				if c.Algorithm != TokenBucket && rapid.Bool().Draw(t, "changing") {
					for _, n := range []int64{c.N / 2, 2 * c.N, 0} {
						other := c
						other.N = n
						limits = append(limits, compile(t, other))
					}
				}
				b := &borrowers{t: t, l: limits[0], now: base + rapid.Int64Range(0, 2*day).Draw(t, "start"),
					changing: true}
				// Refunds take back what came last, and undone charges what came when they did: who
				// does both may take back a charge twice.
				refunds := rapid.Bool().Draw(t, "refunds")
				var charges []admitted
				last := Result{}
				for range rapid.IntRange(1, 60).Draw(t, "steps") {
					b.l = limits[rapid.IntRange(0, len(limits)-1).Draw(t, "limit")]
					switch rapid.IntRange(0, 6).Draw(t, "step") {
					case 0:
						if refunds {
							back := rapid.Int64Range(1, 6).Draw(t, "refund")
							b.ask(Ask{Cost: -back}, &Ahead{})
							b.l.Take(&b.truth, b.now, Ask{Cost: -back})
						}
					case 1:
						if !refunds && len(charges) > 0 {
							i := rapid.IntRange(0, len(charges)-1).Draw(t, "charge")
							back := rapid.Int64Range(1, charges[i].cost).Draw(t, "back")
							b.where = fmt.Sprintf("%d of %+v is given back", back, charges[i])
							b.l.Settle(&b.s, &b.lease, b.now, charges[i].at, charges[i].cost, charges[i].cost-back)
							b.l.Settle(&b.truth, nil, b.now, charges[i].at, charges[i].cost, charges[i].cost-back)
							charges = slices.Delete(charges, i, i+1)
						}
					case 2:
						if rapid.IntRange(0, 3).Draw(t, "reset") == 0 {
							b.where = "a reset"
							b.l.Reset(&b.s, &b.lease, b.now)
							b.truth, charges = State{}, nil
						}
					case 3:
						cost := rapid.Int64Range(1, 4).Draw(t, "cost")
						if last = b.ask(Ask{Cost: cost}, &Ahead{}); last.Allowed {
							charges = append(charges, admitted{at: b.now, cost: cost})
						}
						b.pass(1) // what is told now is not given back
					default:
						last = b.step(last)
					}
					b.covers()
				}
			})
		})
	}
}

// TestLeaseCarries changes W, K and the length of generations while units are out: also units of
// generations that have ended since the last call. No unit out is lost, and I3 holds from then on,
// also when holders report on units that they got before.
func TestLeaseCarries(t *testing.T) {
	for _, k := range leasedKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawLeased(t, k.c)
				next := drawLeased(t, k.c)
				next.N, next.Burst = c.N, c.Burst
				if c.Calendar != NoCalendar {
					next.Calendar = rapid.SampledFrom([]Calendar{Day, Week, Month}).Draw(t, "calendar")
				}
				if c.Buckets > 0 {
					next.Buckets = rapid.SampledFrom([]int{1, 4}).Draw(t, "K")
				}
				b := &borrowers{t: t, l: compile(t, c), now: base + rapid.Int64Range(0, 2*day).Draw(t, "start"),
					changing: true}
				last := Result{}
				for range rapid.IntRange(1, 20).Draw(t, "steps before") {
					last = b.step(last)
				}
				old, l := b.l, compile(t, next)
				b.now = after(b.now, rapid.SampledFrom([]int64{0, 1, old.lease.w, 2 * old.lease.w, old.w}).Draw(t,
					"since"))
				b.loans = slices.DeleteFunc(b.loans, func(o loan) bool { return o.end <= b.now || old.first })
				old.Roll(&b.s, &b.lease, b.now)
				out := old.lease.Lent(&b.lease).Out()
				l.Carry(old, &b.s, b.now)
				l.Carry(old, &b.truth, b.now)
				l.lease.Carry(old.lease, &b.lease, b.now)
				b.beyond = 2 * old.lease.w
				b.l, b.where, last = l, fmt.Sprintf("carried from %v", old), Result{}
				if n := l.lease.Lent(&b.lease); n.Out() != out {
					b.fail("%d were out", out)
				}
				for _, o := range b.loans {
					if n := l.lease.Lent(&b.lease); o.left+o.used > 0 && o.end > n.End &&
						(o.end > n.Last || n.Newer == 0) {
						b.fail("units end before their holder stops: %+v", o)
					}
				}
				b.covers()
				for range rapid.IntRange(1, 20).Draw(t, "steps after") {
					last = b.step(last)
					b.covers()
				}
			})
		})
	}
}

// covers is I3: at every later instant, what is charged and what is out count for no less than what
// was admitted.
func (b *borrowers) covers() {
	b.t.Helper()
	if b.l.first {
		return
	}
	w := span0(b.l)
	for _, d := range []int64{0, 1, w / 3, w / 2, w, 3 * w / 2, b.lease.A - b.now, b.lease.A - b.now + w} {
		if d < 0 {
			continue
		}
		s, lease := cloneState(b.s), b.lease
		b.l.Roll(&s, &lease, b.now+d)
		for cost := int64(1); cost <= b.l.cap; cost = cost*2 + 1 {
			if b.l.CheckWith(&s, &lease, b.now+d, Ask{Cost: cost}).Allowed &&
				!b.l.Check(&b.truth, b.now+d, Ask{Cost: cost}).Allowed {
				b.fail("I3: after %d a cost of %d is admitted, which would be too much without leases", d, cost)
			}
		}
	}
}
