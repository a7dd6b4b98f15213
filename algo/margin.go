package algo

import (
	"fmt"
	"time"
)

// A soft margin that closes (Config.SoftFor) needs a second state for each key. It is kept next to
// the first one under a Limit of its own, Limit.Margin. State.A is the first use of the margin, and
// State.B the instant at which it opens again: W after the first state, left alone, would be back
// within N. State.B is computed again at each admission into the margin (and at each denied request
// that is counted while the state lasts); a refund does not bring it forward.
//
// While the margin is closed, the first state is read and kept as usual. Only the capacity is
// lower: Result.Limit.

// Margin is the algorithm of Limit.Margin; rule files cannot name it. Its Config has the Window and
// the SoftFor of the limit it belongs to, and Timeout is how far State.B may lie ahead of the
// clock.
const Margin Algorithm = 255

// Margin returns the limit under which to keep the state of the soft margin, for TakeWith; nil if
// the margin does not close. It supports only Fresh, Mend, Check (a peek, whose ResetAfter is the
// time until the margin opens again) and Carry.
func (l *Limit) Margin() *Limit { return l.margin }

// TakeWith is Take for a limit whose soft margin closes: margin is the key's state of l.Margin().
// For a limit that lends, margin is the key's state of l.Lease(): units that are out count as if
// they had just been used, and RetryAfter is how long the asker has to wait at most. With a nil
// margin, or for a limit that has no second state, it is Take. The result's ResetAfter describes s
// only.
func (l *Limit) TakeWith(s, margin *State, now int64, a Ask) (r Result) {
	l.decide(&r, s, margin, now, a, true)
	return r
}

// CheckWith is to Check what TakeWith is to Take.
func (l *Limit) CheckWith(s, margin *State, now int64, a Ask) (r Result) {
	l.decide(&r, s, margin, now, a, false)
	return r
}

// MendMargin is to TakeWith what Mend is to Take: it repairs margin, the key's state of l.Margin(),
// if that is impossible at now. The numbers in force at now say how far ahead it may lie, even if
// it was kept under others. Where a schedule has no margin in force, it stays as it is. A nil
// margin is none. It reports whether it changed margin.
func (l *Limit) MendMargin(margin *State, now int64) bool {
	now = max(now, 0)
	if l.times != nil {
		l = l.times.at(now).limit
	}
	return margin != nil && l != nil && l.margin != nil && l.margin.Mend(margin, now)
}

// size is the capacity that the soft margin is a percentage of.
func (c *Config) size() int64 {
	if !c.Algorithm.HasBurst() || c.Burst == 0 {
		return c.N
	}
	return max(0, c.Burst)
}

// check is Config.check for the algorithm Margin.
func (c *Config) checkMargin() error {
	if *c != (Config{Algorithm: Margin, Window: c.Window, SoftFor: c.SoftFor, Timeout: c.Timeout}) || c.Window <= 0 ||
		c.SoftFor <= 0 || c.Timeout <= 0 {
		return fmt.Errorf(
			"the state of a soft margin has a window, a time to stay open, and a time-out, and nothing else: %+v", *c)
	}
	return nil
}

// compileMargin prepares l for a soft margin that closes.
func (l *Limit) compileMargin() error {
	c := l.cfg
	c.SoftFor = 0
	var err error
	if l.hard, err = build(c); err != nil {
		return err
	}
	l.hard.restrict(l.limit)
	if l.within, err = build(c); err != nil {
		return err
	}
	// used + 1 ≤ limit + 1 means used ≤ limit.
	l.within.restrict(l.limit + 1)

	// The state may lie two windows ahead (a calendar's are a little longer than nominal), or as
	// far ahead as a bucket can, plus the time in which that drains.
	most := 5 * l.w
	if l.ahead < maxInt/4/l.unit {
		most += 2 * (l.ahead + 1) * l.unit
	} else {
		most = maxInt
	}
	l.margin, err = New(Config{Algorithm: Margin, Window: c.Window, SoftFor: l.cfg.SoftFor,
		Timeout: time.Duration(min(most, maxInt)) * time.Microsecond})
	return err
}

// use returns since when a margin is used and when it opens again, as the state counts at now; used
// is false if it is as good as fresh. far is true if that is because it lies further ahead than it
// ever could.
func (l *Limit) use(m *State, now int64) (first, reopens int64, used, far bool) {
	if m.B == 0 || now >= int64(m.B) {
		return now, 0, false, false
	}
	if int64(m.B)-now > l.w {
		return now, 0, false, true
	}
	return min(m.A, now), int64(m.B), true, false
}

// peekMargin answers a peek at the state of a margin.
func (l *Limit) peekMargin(r *Result, m *State, now int64, take bool) {
	r.Allowed = true
	_, reopens, used, far := l.use(m, now)
	if used {
		r.ResetAfter = reopens - now
	}
	if far && take {
		*m = State{}
	}
}

func (l *Limit) decideMargin(r *Result, s, m *State, now int64, a Ask, take bool) {
	first, reopens, used, far := l.margin.use(m, now)
	if far && take {
		*m = State{}
	}
	closes := first + l.cfg.SoftFor.Microseconds()
	in := l
	if used && now >= closes {
		in = l.hard
	}
	in.plain(r, s, now, a, take)
	if take && a.Cost > 0 && (r.Allowed && r.Soft || !r.Allowed && used && l.countDenied) {
		var calm Result
		l.within.plain(&calm, s, now, Ask{Cost: 1, MaxDelay: -1}, false)
		if !used {
			m.A = now
		}
		reopens = min(max(reopens, now+calm.RetryAfter+l.w), maxInt)
		m.B, m.C, m.Ext = uint64(reopens), 0, nil
	}
	if used && !r.Allowed && a.Cost > 0 {
		if !take {
			mended := in.mended(s, now)
			s = &mended
		}
		r.RetryAfter = l.retryMargin(s, now, closes, reopens, a, r.RetryAfter, in == l)
	}
}

// retryMargin returns how long after now a request is admitted that is denied now, while the margin
// is open (open) or closed: first the margin is open, from closes on it is not, from reopens on it
// is again. retry is as if it stayed as it is now.
func (l *Limit) retryMargin(s *State, now, closes, reopens int64, a Ask, retry int64, open bool) int64 {
	if open && (retry == Never || closes >= reopens || now+retry < closes || now+retry >= reopens) {
		return retry
	}
	if open {
		var r Result
		l.hard.plain(&r, s, closes, a, false)
		if retry = r.RetryAfter; retry != Never {
			retry += closes - now
		}
	}
	if retry != Never && now+retry < reopens {
		return retry
	}
	var r Result
	l.plain(&r, s, reopens, a, false)
	if r.RetryAfter == Never {
		return Never
	}
	return min(reopens-now+r.RetryAfter, maxInt)
}
