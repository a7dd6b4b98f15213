package algo

import "slices"

// How a limit that lends answers while units are out, and how what else changes a state goes round
// them.

// decideLease is decide for a limit that lends; lease has the units out.
func (l *Limit) decideLease(r *Result, s, lease *State, now int64, a Ask, take bool) {
	n := l.lease.Lent(lease)
	if lease.B != 0 && (now >= n.End || l.lease.farLease(lease, now)) {
		if take {
			l.roll(s, lease, now)
		} else {
			s, lease = l.rolled(s, lease, now)
		}
		n = l.lease.Lent(lease)
	}
	out := n.Out()
	if out == 0 {
		l.plain(r, s, now, a, take)
		return
	}
	var start int64
	if l.first && s.B != 0 {
		start, _, _, _ = l.current(s, now, false)
	}
	var with Result // as if the units out had been used
	l.plain(&with, s, now, Ask{Cost: max(a.Cost, 0) + out}, false)
	switch {
	case a.Cost > 0 && !with.Allowed:
		if take && l.countDenied {
			l.force(s, now, a.Cost)
		}
		l.plain(r, s, now, Ask{}, take)
		r.Allowed, r.Soft, r.RetryAfter = false, false, l.retryLease(s, &n, now, a.Cost, r.ResetAfter, with.RetryAfter)
	case a.Cost < 0:
		l.plain(r, s, now, a, take)
		if take && l.first && s.B == 0 && start > 0 {
			s.A, s.B = start, 1
			l.plain(r, s, now, Ask{}, false)
		}
		l.plain(&with, s, now, Ask{Cost: out}, false)
	default:
		l.plain(r, s, now, a, take)
		if a.Cost == 0 && l.n > 0 {
			r.Allowed = with.Allowed
		}
	}
	if l.n > 0 {
		r.Soft = r.Allowed && with.Allowed && (r.Soft || r.Remaining < out)
	}
	r.Remaining = max(0, r.Remaining-out)
}

// retryLease returns how long after now a request that is refused is certainly admitted, if nobody
// else comes in between: units that are out may be used as late as possible. reset is the time
// until s is fresh, and retry is how long the request waits if they stay out.
func (l *Limit) retryLease(s *State, n *Lent, now, c, reset, retry int64) int64 {
	if c > l.admit || l.n == 0 {
		return Never
	}
	switch {
	case l.algo == FixedWindow:
		_, end, _, _ := l.current(s, now, false)
		last := n.End
		if n.Newer > 0 {
			last = n.Last
		}
		if last > end { // the windows were changed while units were out
			end = last + 2*l.w
		}
		return min(end-now, maxInt)
	case retry != Never:
		return retry
	case l.algo == TokenBucket:
		return l.retryLeaseBucket(*s, n, now, c)
	}
	last := n.End - 1
	if c+n.Newer > l.admit {
		last = n.Last - 1
	}
	gone := last + l.w
	if l.algo == SlidingWindow {
		_, e := l.perW.divmod(uint64(last))
		gone = last - int64(e) + int64(l.k+1)*l.sub
	}
	return min(max(gone-now, reset), maxInt)
}

// retryLeaseBucket is retryLease where units that are out refuse the request for as long as they
// are.
func (l *Limit) retryLeaseBucket(s State, n *Lent, now, c int64) int64 {
	at := n.End
	if l.force(&s, at-1, n.Older); c+n.Newer > l.admit {
		l.force(&s, n.Last-1, n.Newer)
		at = n.Last
	} else {
		c += n.Newer
	}
	var r Result
	if l.plain(&r, &s, at, Ask{Cost: c}, false); r.RetryAfter == Never {
		return Never
	}
	return min(at-now+r.RetryAfter, maxInt)
}

// rolled returns copies of a state and its record as roll would leave them.
func (l *Limit) rolled(s, lease *State, now int64) (*State, *State) {
	state, record := *s, *lease
	state.Ext = slices.Clone(s.Ext)
	l.roll(&state, &record, now)
	return &state, &record
}

// settled returns a copy of s in which all that is out was used at the last instant.
func (l *Limit) settled(s, lease *State) State {
	state, record := *s, *lease
	state.Ext = slices.Clone(s.Ext)
	l.roll(&state, &record, l.lease.Lent(lease).Last)
	return state
}

// LentAt returns the units out at now by a record, which may be nil; zero if there are none.
func (l *Limit) LentAt(lease *State, now int64) Lent {
	if l.lease == nil || lease == nil || lease.B == 0 {
		return Lent{}
	}
	record := *lease
	now = max(now, 0)
	l.lease.mendLease(&record, now)
	n := l.lease.Lent(&record)
	for now >= n.End && n.Out() > 0 {
		n = Lent{Older: n.Newer, End: n.Last, Last: n.Last + l.lease.w}
	}
	if n.Out() == 0 {
		return Lent{}
	}
	return n
}

// Reset makes s a fresh state. Units that are out stay out: their holders go on using them.
func (l *Limit) Reset(s, lease *State, now int64) {
	l.beside(s, lease, now, func() { *s = State{} })
}

// beside rolls, and calls f, which changes s. A window from the first request stays where it is
// while units are out, since all of them are to be charged in it: one unit of it stays counted.
func (l *Limit) beside(s, lease *State, now int64, f func()) {
	if now = max(now, 0); lease == nil || l.lease == nil {
		f()
		return
	}
	l.Roll(s, lease, now)
	in := l.inForce(now)
	var start int64
	pinned := in.first && s.B != 0 && in.lease.Lent(lease).Out() > 0
	if pinned {
		start, _, _, _ = in.current(s, now, false)
	}
	f()
	if pinned && s.B == 0 {
		s.A, s.B = start, 1
	}
}
