package holder

import (
	"math"

	"github.com/weir-rl/weir/algo"
)

// Answer says when a call was made: when it was sent and its answer came, by the holder's clock,
// and when it was decided, by the store's.
type Answer struct{ Asked, At, Now int64 }

// Heard is what an answer taught besides.
type Heard struct {
	Lapsed int64 // units whose generation has ended before they were told of
	// Late are those of them that were used, and perhaps after their end: this holder could still
	// use them by its own clock, so one of the clocks is wrong.
	Late int64
	// WhileOut says that the request was refused, and would not have been if nothing were out.
	WhileOut bool
}

// Hear takes in an answer to a call that Ask prepared: r is the result for a request of a cost, and
// h as the store filled it in. It makes r say what this holder knows: units that it holds are left
// for it, and what it will refuse for a while it says so.
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
	e.remaining = int32(r.Remaining - h.Got)
	e.resetAt = after(a.Now, r.ResetAfter)
	switch {
	case cost <= 0:
	case r.Allowed:
		e.refused = 0
	case cost <= math.MaxUint16:
		e.refused = uint16(cost)
		e.retryAt = after(a.Now, r.RetryAfter)
		e.quiet = max(e.quiet, a.Asked+t.Pause)
		if t.Limit.Algorithm() == algo.FixedWindow && r.RetryAfter <= t.Pause/1000 {
			e.quiet = min(e.quiet, a.At+r.RetryAfter*1000) // the window turns, and all of it is free
		}
		e.flags &^= covered
		if cost <= r.Remaining+h.Out {
			e.flags |= covered
			out.WhileOut = true
		}
		r.RetryAfter = e.retry(a.At, a.Now)
	}
	r.Remaining = min(r.Limit, r.Remaining+e.Left(a.At)-h.Got)
	return out
}

// lend takes in what was lent. It returns how many units of it are of no use.
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
	if e.retryAt == math.MaxInt64 {
		return algo.Never
	}
	return max(1, e.retryAt-now, (e.quiet-at+999)/1000)
}

// Refuses reports whether a request is refused without asking, because the store has just refused
// one of that cost, and whether it would have passed if no units were out.
func (e *Entry) Refuses(at, cost int64) (refuses, whileOut bool) {
	return e.refused != 0 && cost == int64(e.refused) && at < e.quiet, e.flags&covered != 0
}

// Forget forgets that a request was refused, since the key may be admitted earlier.
func (e *Entry) Forget() {
	if e.refused != 0 {
		e.refused, e.quiet = 0, math.MinInt64
	}
}

// Admitted fills in the result of a request that was admitted here.
func (e *Entry) Admitted(t *Terms, at, now, cost int64, r *algo.Result) {
	n := t.in(now)
	if n == nil {
		*r = algo.Result{Allowed: true, Off: true}
		return
	}
	e.refused = 0 // it would have to wait longer now
	switch t.Limit.Algorithm() {
	case algo.TokenBucket:
		if e.resetAt != math.MaxInt64 {
			if e.resetAt = max(e.resetAt, now) + int64(math.Ceil(float64(cost)*n.perUnit)); n.perUnit == 0 {
				e.resetAt = math.MaxInt64
			}
		}
	case algo.SlidingWindow:
		e.resetAt = max(e.resetAt, now-now%n.sub+n.span)
	case algo.SlidingLog:
		e.resetAt = max(e.resetAt, now+t.w)
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
