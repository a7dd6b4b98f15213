package algo

import "encoding/binary"

// GiveBack undoes a charge of cost that was admitted at the instant at, as far as this lets no more
// through than the limit: units that others have used since stay used, and units that have lapsed
// since are not given back twice. Stores call it when they charge in several places and one of them
// refuses; a caller's refund is an Ask with a negative Cost. A LeakyBucket gives turns back by
// Ask.LastEnds, a Concurrency by Release. lease is the key's state of l.Lease(), as for TakeWith;
// nil or anything for a limit that lends nothing.
func (l *Limit) GiveBack(s, lease *State, now, at, cost int64) {
	l.beside(s, lease, now, func() { l.giveBack(s, now, at, cost) })
}

func (l *Limit) giveBack(s *State, now, at, cost int64) {
	now, at = max(now, 0), max(at, 0)
	if s.B == 0 || cost <= 0 {
		return
	}
	times := l.times
	l = l.inForce(now)
	switch l.algo {
	case FixedWindow:
		if start, end, _, _ := l.current(s, now, false); at >= start && at < end {
			l.Take(s, now, Ask{Cost: -cost})
		}
	case SlidingLog:
		l.giveBackLog(s, now, at, cost)
	case SlidingWindow:
		l.giveBackWindow(s, now, at, cost)
	case TokenBucket:
		if l.interval {
			// The tokens refilled since then may have been the charge's own.
			if anchor, _, _ := l.missing(s, now); at >= anchor {
				l.Take(s, now, Ask{Cost: -cost})
			}
			return
		}
		t, level, _ := l.level(s, now)
		if times != nil {
			// It may have been refilled at any rate of the schedule since.
			fastest := l.n
			for _, other := range times.limits {
				fastest = max(fastest, other.n)
			}
			if drained, ok := mulDiv(uint64(max(0, now-at)), uint64(fastest), uint64(l.w), true); ok && now >= at {
				l.keepLevel(s, t, monus(level, monus(uint64(min(cost, l.cap)), drained)*l.token))
			}
			return
		}
		if drained := (t - at/l.unit); drained >= 0 && uint64(drained) < l.full {
			back := monus(uint64(min(cost, l.cap))*l.token, uint64(drained)*l.rate)
			l.keepLevel(s, t, monus(level, back))
		}
	}
}

// giveBackLog removes the units of the instant at.
func (l *Limit) giveBackLog(s *State, now, at, cost int64) {
	r := l.ring(s, now)
	first := r.dead(at - 1)
	last := first
	for last < r.n && int64(last-first) < cost && r.at(last) == at {
		last++
	}
	if last == first {
		return
	}
	for i := last; i < r.n; i++ {
		r.put(first+i-last, r.at(i))
	}
	r.n -= last - first
	if r.n > 0 {
		r.ref = r.at(r.n - 1)
	}
	r.save(s)
}

// giveBackWindow takes from the sub-window of the instant at.
func (l *Limit) giveBackWindow(s *State, now, at, cost int64) {
	l.Take(s, now, Ask{}) // carried, if it was kept with another K
	_, e := l.perW.divmod(uint64(at))
	age := (s.A - (at - int64(e))) / l.sub
	if s.B == 0 || s.A < at-int64(e) || age > int64(l.k) {
		return
	}
	if l.k == 1 {
		shift := 32 * (1 - uint(age))
		s.B -= min(uint64(cost), s.B>>shift&maxCount) << shift
		return
	}
	b := l.age(s, int(age))
	n := l.count(s, int(age))
	less := min(uint64(cost), n)
	binary.LittleEndian.PutUint32(b, uint32(n-less))
	if s.B -= less; s.B == 0 {
		*s = State{}
	}
}
