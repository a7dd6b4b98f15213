package algo

// Settle replaces a charge of reserved, which was admitted at the instant at, by one of actual: what was reserved too much
// goes back as GiveBack does it; what is missing is charged whether there is room for it or not, so that later requests make
// up for it. A bucket holds no more than it can: its debt ends where it is empty. LeakyBucket and Concurrency leave s as
// it is: their turns and slots cannot be changed afterwards.
func (l *Limit) Settle(s *State, now, at, reserved, actual int64) {
	now, reserved, actual = max(now, 0), max(reserved, 0), min(max(actual, 0), MaxCost)
	if l.times != nil {
		if l = l.times.at(now).limit; l == nil {
			return
		}
	}
	if actual < reserved {
		l.GiveBack(s, now, at, reserved-actual)
		return
	}
	more := actual - reserved
	if more == 0 {
		return
	}
	switch l.algo {
	case FixedWindow, SlidingWindow, SlidingLog:
		// A limit that counts denied requests charges without asking.
		c := l.cfg
		c.CountDenied, c.SoftFor = true, 0
		if all, err := New(c); err == nil {
			all.Take(s, now, Ask{Cost: more})
		}
	case TokenBucket:
		var r Result
		if l.plain(&r, s, now, Ask{Cost: more}, true); r.Allowed {
			return
		}
		if l.interval {
			_, missing, _ := l.missing(s, now)
			l.plain(&r, s, now, Ask{Cost: l.cap - missing}, true)
			return
		}
		t, _, _ := l.level(s, now)
		l.keepLevel(s, t, l.capLevel)
	}
}
