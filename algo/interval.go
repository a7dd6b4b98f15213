package algo

// A token bucket refilled at intervals keeps in State.A the last interval boundary, in µs, and in
// State.B the tokens that are missing. A full one keeps nothing: the next use sets a new boundary.

// missing brings s up to date: it returns the last boundary and the tokens missing. odd is true if
// s lies further ahead than it could, or was kept by a bucket that is refilled continuously.
func (l *Limit) missing(s *State, now int64) (anchor, missing int64, odd bool) {
	if s.B == 0 {
		return now, 0, false
	}
	if s.C != intervalTag {
		return l.missingSlow(s, now)
	}
	anchor, missing = s.A, min(int64(s.B), l.cap)
	if anchor > now {
		if anchor > now+l.ahead {
			return now + l.ahead, missing, true
		}
		return anchor, missing, false
	}
	k, r := l.perW.divmod(uint64(now - anchor))
	anchor = now - int64(r)
	if k == 0 || l.n == 0 {
		return anchor, missing, false
	}
	if k >= uint64(missing) {
		return anchor, 0, false
	}
	return anchor, max(0, missing-int64(k)*l.n), false
}

func (l *Limit) missingSlow(s *State, now int64) (anchor, missing int64, odd bool) {
	unit, token := l.scale(s.C)
	last := min(s.A, maxInt/unit) * unit
	level := s.B
	if most, ok := mulDiv(uint64(l.cap), token, 1, false); ok {
		level = min(level, most)
	}
	if last <= now {
		// Drained continuously up to now: N tokens per W.
		if d, ok := mulDiv(uint64(now-last)/uint64(unit), uint64(l.n), uint64(l.w/unit), false); !ok {
			level = 0
		} else if whole, ok := mulDiv(d, token, 1, false); !ok || whole >= level {
			level = 0
		} else {
			level -= whole
		}
		last = now
	}
	return min(last, now+l.ahead), int64((level + token - 1) / token), true
}

func (l *Limit) intervals(r *Result, s *State, now, c int64, take bool) {
	anchor, missing, odd := l.missing(s, now)
	if odd && take {
		s.A, s.B, s.C = anchor, uint64(missing), intervalTag
		if missing == 0 {
			*s = State{}
		}
	}
	r.Limit, r.SoftLimit, r.Allowed = l.limit, l.admit, true
	if missing == 0 {
		anchor = now
	}
	switch {
	case c > l.admit || c > 0 && l.n == 0:
		r.Allowed, r.RetryAfter = false, Never
	case c > 0 && missing+c > l.admit:
		r.Allowed, r.RetryAfter = false, l.boundary(anchor, missing+c-l.admit, now)
	case c != 0 && take && (c > 0 || s.B != 0):
		if missing = max(0, missing+c); missing == 0 {
			*s = State{}
		} else {
			s.A, s.B, s.C = anchor, uint64(missing), intervalTag
		}
	case c == 0:
		r.Allowed = missing <= l.admit
	}
	r.Soft = r.Allowed && missing > l.limit && missing <= l.admit
	if l.n > 0 {
		r.Remaining = max(0, l.limit-missing)
	}
	if missing > 0 {
		r.ResetAfter = Never
		if l.n > 0 {
			r.ResetAfter = l.boundary(anchor, missing, now)
		}
	}
}

// boundary returns how long after now the boundary lies that completes the refill of some tokens.
func (l *Limit) boundary(anchor, tokens, now int64) int64 {
	j := (tokens + l.n - 1) / l.n
	if j > maxInt/l.w {
		return maxInt
	}
	return min(anchor+j*l.w-now, maxInt)
}
