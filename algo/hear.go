package algo

// Hear charges units that were used where this state was not asked, as in another region: at now,
// whether there is room or not. It returns how many of them found no room within the limit, beside
// the units used and lent. A soft margin is no room for them; nor is its state touched if it
// closes. As with Settle, a bucket's debt ends where the bucket is empty, a SlidingLog keeps at
// most one unit more than its capacity, and while a schedule sets no limit, s is charged under one
// of its limits; none of the units is over then. LeakyBucket and Concurrency leave s as it is:
// turns and slots that others hand out do not stand in this queue. lease is as in GiveBack; its
// ended generations are charged first.
func (l *Limit) Hear(s, lease *State, now, units int64) (over int64) {
	now, units = max(now, 0), min(max(units, 0), MaxCost)
	l.Roll(s, lease, now)
	in := l.inForce(now)
	if units == 0 || !in.Settles() {
		return 0
	}
	if r := l.CheckWith(s, lease, now, Ask{}); !r.Off {
		over = units - min(units, r.Remaining)
	}
	in.charge(s, now, units)
	return over
}

// charge charges c units at now, whether there is room or not. Unlike force it takes any number of
// units: a log keeps no more than it takes to refuse.
func (l *Limit) charge(s *State, now, c int64) {
	switch l.algo {
	case FixedWindow, SlidingWindow, SlidingLog:
		var r Result
		l.charging().plain(&r, s, now, Ask{Cost: c}, true)
	case TokenBucket:
		if l.interval {
			anchor, missing, _ := l.missing(s, now)
			if missing == 0 {
				anchor = now
			}
			if missing = min(missing+c, l.cap); missing > 0 {
				s.A, s.B, s.C = anchor, uint64(missing), intervalTag
			}
			return
		}
		t, level, _ := l.level(s, now)
		l.keepLevel(s, t, min(level+uint64(min(c, l.cap))*l.token, l.capLevel))
	}
}

// charging returns l in a form that also charges requests it denies. It is made when it is first
// needed.
func (l *Limit) charging() *Limit {
	switch {
	case l.countDenied:
		return l
	case l.all != nil:
		return l.all
	}
	if all := l.charges.Load(); all != nil {
		return all
	}
	c := l.cfg
	c.CountDenied, c.SoftFor = true, 0
	all, err := build(c)
	if err != nil {
		return l // never: l itself was built with these numbers
	}
	l.charges.Store(all)
	return all
}
