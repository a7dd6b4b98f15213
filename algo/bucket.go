package algo

import "fmt"

// Buckets with continuous refill keep how much is missing (token bucket) or queued (leaky bucket)
// as a level: State.B is the level in 1/W' tokens at the time State.A, and N' of it drain in each
// unit of time, where N'/W' is N per W in that unit, reduced. This is GCRA (ITU-T I.371) with its
// theoretical arrival time split in two, which keeps fractions exact. State.C remembers N and the
// unit under which the level was kept, so that N may change under live states.
//
// A leaky bucket is the same with a capacity of B + 1 (the one that leaves at once and B that
// queue). Its delay is the time until the level before has drained.

// intervalTag in State.C marks the state of a bucket refilled at intervals.
const intervalTag = ^uint32(0)

func (l *Limit) compileBucket() error {
	size := max(0, l.cfg.Burst)
	l.limit, l.cap = size, size+margin(size, l.cfg.Soft)
	if l.algo == LeakyBucket {
		l.limit, l.cap = l.limit+1, l.cap+1
	}
	n, size := uint64(l.n), l.cap
	if l.interval {
		l.perW = newDivisor(uint64(l.w))
		l.tag = intervalTag
		l.ahead = l.w
		if n > 0 {
			if ahead, ok := mulDiv(uint64(l.cap), uint64(l.w), n, false); ok && ahead < maxInt {
				l.ahead = int64(ahead)
			} else {
				l.ahead = maxInt
			}
		}
		return nil
	}
	for i, u := range units {
		if l.w%u != 0 {
			w := uint64(l.w / units[i-1])
			return fmt.Errorf(
				"a burst of %d%s at %d per %v does not fit exact arithmetic: lower the burst to at most %d, or make the window a multiple of whole %s",
				max(0, l.cfg.Burst), softly(l.cfg.Soft), l.n, l.cfg.Window,
				lowered(int64(maxInt/(w/gcd(w, n)))-1, l.cfg.Soft), unitNames[i])
		}
		w := uint64(l.w / u)
		g := gcd(w, n)
		if uint64(size) <= maxInt/(w/g) {
			l.unit, l.rate, l.token = u, n/g, w/g
			l.tag = uint32(n)<<2 | uint32(i)
			break
		}
	}
	l.perU = newDivisor(uint64(l.unit))
	l.perToken = newDivisor(l.token)
	l.capLevel = uint64(l.cap) * l.token
	if l.rate == 0 {
		l.full, l.ahead = maxInt, l.w/l.unit
		return nil
	}
	l.perRate = newDivisor(l.rate)
	l.full = l.perRate.ceil(l.capLevel)
	waiting := l.capLevel
	if l.algo == LeakyBucket {
		waiting -= l.token
	}
	q, _ := l.perRate.divmod(waiting)
	l.ahead = int64(q)
	return nil
}

// micros returns how long after now the unit of time t + x begins, in µs.
func (l *Limit) micros(t int64, x uint64, now int64) int64 {
	if l.unit != 1 && x > maxInt/uint64(l.unit) {
		return maxInt
	}
	return min((t+int64(x))*l.unit-now, maxInt)
}

// level brings s up to date: it returns the instant from which it counts, in the limit's unit of
// time, and the level then. odd is true if s lies further ahead than it could, or was kept by a
// bucket that is refilled at intervals.
func (l *Limit) level(s *State, now int64) (t int64, level uint64, odd bool) {
	t = now
	if l.unit != 1 {
		q, _ := l.perU.divmod(uint64(now))
		t = int64(q)
	}
	if s.B == 0 {
		return t, 0, false
	}
	if s.C != l.tag || s.A > t {
		return l.levelSlow(s, t, now)
	}
	return t, l.drain(min(s.B, l.capLevel), t-s.A), false
}

// drain returns a level of at most capLevel after x units.
func (l *Limit) drain(level uint64, x int64) uint64 {
	if uint64(x) >= l.full {
		return 0
	}
	return monus(level, uint64(x)*l.rate)
}

func (l *Limit) levelSlow(s *State, t, now int64) (int64, uint64, bool) {
	if s.C == intervalTag {
		asInterval := Limit{n: l.n, w: l.w, cap: l.cap, ahead: l.ahead * l.unit}
		asInterval.perW = newDivisor(uint64(l.w))
		anchor, missing, _ := asInterval.missing(s, now)
		if anchor > now {
			return (anchor + l.unit - 1) / l.unit, uint64(missing) * l.token, true
		}
		return t, uint64(missing) * l.token, true
	}
	last, level := s.A, s.B
	if s.C != l.tag {
		unit, token := l.scale(s.C)
		last = min(last, maxInt/unit) * unit
		last = (last + l.unit - 1) / l.unit
		level = l.rescale(level, token)
	}
	level = min(level, l.capLevel)
	switch {
	case last <= t:
		return t, l.drain(level, t-last), false
	case last > t+l.ahead:
		return t + l.ahead, level, true
	}
	return last, level, false
}

// scale returns the unit and the levels of a token under which a state with the tag was kept.
func (l *Limit) scale(tag uint32) (unit int64, token uint64) {
	unit = units[tag&3]
	w := uint64(max(1, l.w/unit))
	return unit, w / gcd(w, uint64(tag>>2))
}

// rescale returns a level of another scale in l's, rounded up.
func (l *Limit) rescale(level, token uint64) uint64 {
	if token == l.token {
		return level
	}
	if v, ok := mulDiv(level, l.token, token, true); ok {
		return v
	}
	return l.capLevel
}

func (l *Limit) bucket(r *Result, s *State, now int64, a *Ask, take bool) {
	c, maxDelay := a.Cost, a.MaxDelay
	t, level, odd := l.level(s, now)
	if odd && take {
		l.keepLevel(s, t, level)
	}
	r.Limit, r.SoftLimit, r.Allowed = l.limit, l.admit, true
	switch {
	case c > 0:
		if c > l.admit || l.n == 0 {
			r.Allowed, r.RetryAfter = false, Never
			break
		}
		if l.algo == LeakyBucket && level > 0 {
			r.Delay = l.micros(t, l.perRate.ceil(level), now)
			if maxDelay >= 0 && r.Delay > maxDelay {
				if r.Allowed, r.RetryAfter = false, r.Delay-maxDelay; r.Delay == maxInt {
					r.RetryAfter = maxInt
				}
			}
			if !r.Allowed {
				r.Delay = 0
			}
		}
		after := level + uint64(c)*l.token
		if after > l.admitLevel {
			r.Allowed, r.Delay = false, 0
			r.RetryAfter = max(r.RetryAfter, l.micros(t, l.perRate.ceil(after-l.admitLevel), now))
		}
		if take && r.Allowed {
			level = after
			s.A, s.B, s.C = t, level, l.tag
		}
	case c < 0 && a.LastEnds != 0 && l.algo == LeakyBucket && !l.drainsAt(t, level, now, a.LastEnds):
		r.Allowed, r.RetryAfter = false, Never
	case c < 0:
		if take && s.B != 0 {
			if back := uint64(-c); back < maxInt/l.token {
				level = monus(level, back*l.token)
			} else {
				level = 0
			}
			l.keepLevel(s, t, level)
		}
	default:
		r.Allowed = level <= l.admitLevel
	}
	if level > 0 {
		q, rest := l.perToken.divmod(level)
		if rest > 0 {
			q++
		}
		used := int64(q)
		r.Soft = r.Allowed && used > l.limit && used <= l.admit
		r.Remaining = max(0, l.limit-used)
		r.ResetAfter = Never
		if l.rate > 0 {
			r.ResetAfter = l.micros(t, l.perRate.ceil(level), now)
		}
	} else {
		r.Remaining = l.limit
	}
	if l.n == 0 {
		r.Remaining = 0
	}
}

// drainsAt reports whether the level at t has drained at the instant end, and not before.
func (l *Limit) drainsAt(t int64, level uint64, now, end int64) bool {
	return level > 0 && l.rate > 0 && now+l.micros(t, l.perRate.ceil(level), now) == end
}

func (l *Limit) keepLevel(s *State, t int64, level uint64) {
	if level == 0 {
		*s = State{}
		return
	}
	s.A, s.B, s.C = t, level, l.tag
}

// carryBucket keeps the tokens that are missing now.
func (l *Limit) carryBucket(old *Limit, s *State, now int64) {
	if old.interval {
		_, missing, _ := old.missing(s, now)
		l.keepMissing(s, now, missing)
		return
	}
	_, level, _ := old.level(s, now)
	if l.interval {
		l.keepMissing(s, now, int64(old.perToken.ceil(level)))
		return
	}
	t := now / l.unit
	l.keepLevel(s, t, min(l.rescale(level, old.token), l.capLevel))
}

// keepMissing makes s a state in which tokens are missing at now.
func (l *Limit) keepMissing(s *State, now, missing int64) {
	missing = min(missing, l.cap)
	switch {
	case missing == 0:
		*s = State{}
	case l.interval:
		s.A, s.B, s.C = now, uint64(missing), intervalTag
	default:
		s.A, s.B, s.C = now/l.unit, uint64(missing)*l.token, l.tag
	}
}
