package algo

// A fixed window keeps in State.A the beginning of the window, in µs, and in State.B the units
// counted. Whatever the windows' alignment, a count lives as long as its beginning lies in the
// window of now: a limit may change its alignment or its time zone under live states.

// span is a window [start, end) and the one after it, [end, next).
type span struct{ start, end, next int64 }

// spanAt returns the window that holds now. keep caches the window of a calendar; callers set it
// when now is the present, and not when they look ahead.
func (l *Limit) spanAt(now int64, keep bool) span {
	if l.cfg.Calendar == NoCalendar {
		_, r := l.perW.divmod(uint64(now))
		start := now - int64(r)
		return span{start, start + l.w, start + 2*l.w}
	}
	if p := l.cal.Load(); p != nil && now >= p.start && now < p.end {
		return *p
	}
	v := calendarSpan(l.cfg.Calendar, l.cfg.Location, now)
	if keep {
		l.cal.Store(&span{v.start, v.end, v.next})
	}
	return v
}

// current returns the window in which a request at now counts, and the count so far. far is true if
// the state lay further ahead than it could and was taken for one of the next window.
func (l *Limit) current(s *State, now int64, keep bool) (start, end, used int64, far bool) {
	if l.first {
		if s.B == 0 || now >= s.A+l.w {
			return now, now + l.w, 0, false
		}
		start, far = s.A, s.A > now+l.w
		if far {
			start = now + l.w
		}
		return start, start + l.w, int64(s.B), far
	}
	v := l.spanAt(now, keep)
	switch {
	case s.B == 0 || s.A < v.start:
		return v.start, v.end, 0, false
	case s.A < v.end:
		return v.start, v.end, int64(s.B), false
	}
	return v.end, v.next, int64(s.B), s.A >= v.next
}

func (l *Limit) fixed(r *Result, s *State, now, c int64, take bool) {
	start, end, used, far := l.current(s, now, take)
	if far && take {
		s.A = start
	}
	ok := true
	switch {
	case c > 0:
		ok = used <= l.admit-c
		if take && (ok || l.countDenied) {
			used = min(used+c, maxInt)
			s.A, s.B = start, uint64(used)
		}
	case c < 0:
		if take {
			if used = max(0, used+c); used == 0 {
				*s = State{}
			} else {
				s.A, s.B = start, uint64(used)
			}
		}
	default:
		ok = used <= l.admit || l.n == 0 && !l.countDenied
	}
	l.counted(r, used, ok)
	if used > 0 {
		r.ResetAfter = end - now
	}
	if !ok && c != 0 {
		r.RetryAfter = end - now
		if c > l.admit {
			r.RetryAfter = Never
		}
	}
}

// carryFixed keeps a count whose window began within the window of now.
func (l *Limit) carryFixed(old *Limit, s *State, now int64) {
	start, _, used, _ := old.current(s, now, false)
	if used == 0 {
		*s = State{}
		return
	}
	s.A = start
	if _, _, used, _ = l.current(s, now, false); used == 0 {
		*s = State{}
	}
}
