package lessee

import (
	"cmp"
	"math"

	"github.com/weir-rl/weir/algo"
)

// Answer says when a call was made: when it was sent and its answer came, by the holder's clock,
// and when it was decided, by the store's.
type Answer struct{ Asked, At, Now int64 }

// Heard holds further facts from an answer.
type Heard struct {
	Lapsed int64 // units whose generation ended before their use was reported
	// Late are those units of Lapsed that were used, perhaps after their end: this holder could
	// still use them by its own clock, so one of the clocks is wrong.
	Late int64
	// WhileOut says that the request was refused, and would not have been if nothing were out.
	WhileOut bool
}

// Hear takes in an answer to a call that Ask prepared: r is the result for a request of a cost, and
// h as the store filled it in. It adds this holder's knowledge to r: the units that it holds are
// left for it, and r says for how long it will refuse.
func (e *Entry) Hear(t *Terms, a Answer, cost int64, r *algo.Result, h *algo.Ahead) (out Heard) {
	for i := range e.held {
		g := &e.held[i]
		if g.end == 0 || a.Now < g.end {
			continue
		}
		if a.At < g.deadline {
			out.Late += int64(g.used)
		}
		out.Lapsed += int64(g.left + g.used)
		*g = held{}
	}
	out.Lapsed += e.lend(t, a, h)
	if h.Want > 0 {
		e.flags &^= asking
		if r.Allowed && h.Got < min((h.Want+1)/2, worthwhile) {
			e.pause(t, a.At)
		}
	}
	if r.Off {
		return out
	}
	if e.refused != 0 && a.At >= e.quiet {
		e.refused, e.instant = 0, 0
	}
	order := e.compare(t, a)
	remaining, resetAt := int32(r.Remaining-h.Got), after(a.Now, r.ResetAfter)
	switch {
	case e.refused == 0 && order > 0:
		e.remaining, e.resetAt, e.instant = remaining, resetAt, a.Now
	case e.refused != 0 && order > 0 && r.Allowed && (cost > 0 || h.Got > 0):
		e.refused, e.instant = 0, a.Now
		fallthrough
	case order >= 0:
		e.remaining, e.resetAt = min(e.remaining, remaining), max(e.resetAt, resetAt)
	}
	if cost > 0 && cost <= math.MaxUint16 && !r.Allowed {
		out.WhileOut = cost <= r.Remaining+h.Out
		if e.refused != 0 || order >= 0 {
			e.refuse(t, a, cost, r, out.WhileOut)
		}
	}
	r.Remaining = min(r.Limit, int64(e.remaining)+e.Left(a.At))
	return out
}

// compare sets an answer beside the state: it was decided later (1), earlier (-1), or, as far as is
// known, at the same time (0). Answers are heard in any order, and those to one call of the store
// have one instant. While a refusal is remembered there is no place for its instant, so the
// holder's own clock orders the questions; answers heard meanwhile may lower remaining, and the
// first answer after that raises it.
func (e *Entry) compare(t *Terms, a Answer) int {
	if e.refused == 0 {
		return cmp.Compare(a.Now, e.instant)
	}
	order := cmp.Compare(a.Asked+t.Pause, e.quiet)
	if e.instant > a.Now && e.instant-a.Now <= t.Pause/1000 && t.Limit.ResetsAtOnce() {
		return min(order, 0) // quiet may say when the window turns, in place of when it was asked
	}
	return order
}

// refuse remembers a refusal, and says when to come back.
func (e *Entry) refuse(t *Terms, a Answer, cost int64, r *algo.Result, whileOut bool) {
	if e.refused == 0 {
		e.quiet = math.MinInt64 // from here on it says when this was asked, see compare
	}
	e.refused, e.instant = uint16(cost), after(a.Now, r.RetryAfter)
	e.quiet = max(e.quiet, a.Asked+t.Pause)
	if t.Limit.ResetsAtOnce() && r.RetryAfter <= t.Pause/1000 {
		e.quiet = min(e.quiet, a.At+r.RetryAfter*1000) // the window turns, and all of it is free
	}
	e.flags &^= covered
	if whileOut {
		e.flags |= covered
	}
	r.RetryAfter = e.retry(a.At, a.Now)
}

// lend takes in the units that were lent. It returns how many of them are of no use.
func (e *Entry) lend(t *Terms, a Answer, h *algo.Ahead) (lapsed int64) {
	if h.Until <= a.Now {
		return h.Got
	}
	g := e.generation(h.Until)
	span := (h.Until - a.Now) * 1000
	deadline := a.Asked + span - span/rateMargin - fixedMargin
	if g == nil {
		// There are two generations at a time. A third one is over, unless the length was changed.
		g = &e.held[0]
		if other := &e.held[1]; g.end > other.end {
			g = other
		}
		if g.end > h.Until {
			return h.Got
		}
		lapsed = int64(g.left + g.used)
		*g = held{end: h.Until, deadline: deadline}
		e.flags &^= last
		if span <= t.E {
			e.flags |= last
		}
	}
	g.deadline = min(g.deadline, deadline)
	g.left += int32(h.Got)
	return lapsed
}

// after is an instant d µs after now; algo.Never is the end of time.
func after(now, d int64) int64 {
	if d == algo.Never || d > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + d
}

// until is the inverse of after.
func until(now, instant int64) int64 {
	if instant == math.MaxInt64 {
		return algo.Never
	}
	return max(0, instant-now)
}

// retry is in how many µs a request that is refused now may come back.
func (e *Entry) retry(at, now int64) int64 {
	if e.instant == math.MaxInt64 {
		return algo.Never
	}
	return max(1, e.instant-now, (e.quiet-at+999)/1000)
}

// Refuses reports whether a request is refused without asking, because the store has just refused
// one of that cost, and whether it would have passed if no units were out.
func (e *Entry) Refuses(at, cost int64) (refuses, whileOut bool) {
	return e.refused != 0 && cost == int64(e.refused) && at < e.quiet, e.flags&covered != 0
}

// Forget forgets that a request was refused, since the key may be admitted earlier.
func (e *Entry) Forget() {
	if e.refused != 0 {
		e.refused, e.instant, e.quiet = 0, 0, math.MinInt64
	}
}

// Admitted fills in the result of a request that was admitted here. A refusal that is remembered
// stays so: the store had counted the units out as used, and later loans have ended it.
func (e *Entry) Admitted(t *Terms, at, now, cost int64, r *algo.Result) {
	n := t.in(now)
	if n == nil {
		*r = algo.Result{Allowed: true, Off: true}
		return
	}
	switch {
	case n.refills:
		if e.resetAt != math.MaxInt64 {
			if e.resetAt = max(e.resetAt, now) + int64(math.Ceil(float64(cost)*n.perUnit)); n.perUnit == 0 {
				e.resetAt = math.MaxInt64
			}
		}
	case n.sub > 0:
		e.resetAt = max(e.resetAt, now-now%n.sub+n.span)
	default:
		if e.resetAt <= now {
			_, e.resetAt, _ = t.Limit.Span(now)
		}
	}
	e.Standing(t, at, now, r)
}

// Standing fills in the result of a request that is admitted here, but not charged.
func (e *Entry) Standing(t *Terms, at, now int64, r *algo.Result) {
	n := t.in(now)
	if n == nil {
		*r = algo.Result{Allowed: true, Off: true}
		return
	}
	*r = algo.Result{
		Limit: n.limit, SoftLimit: n.soft, Allowed: true,
		Remaining: min(n.limit, int64(e.remaining)+e.Left(at)), ResetAfter: until(now, e.resetAt),
	}
}

// Refused fills in the result of a request that is refused here.
func (e *Entry) Refused(t *Terms, at, now int64, r *algo.Result) {
	if e.Standing(t, at, now, r); r.Off {
		return
	}
	r.Allowed, r.RetryAfter = false, e.retry(at, now)
}
