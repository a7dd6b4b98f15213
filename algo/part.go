package algo

// Each returns l with change made to it or, if it follows a schedule, to each limit of that. The
// limits that change returns must agree as Scheduled asks.
func (l *Limit) Each(change func(*Limit) (*Limit, error)) (*Limit, error) {
	if l.times == nil {
		return change(l)
	}
	return l.times.each(change)
}

// Resize returns l with other numbers: requests makes N of N and, in buckets, burst makes B of B
// (0 for NoBurst), in each limit of a schedule. Numbers above the largest are taken as that. If
// burst returns less than 0, nothing is admitted. All else stays, the percentage of a soft margin
// too, but a margin that rounds to nothing does not close. The state of a key may be used with both
// limits.
//
// A bucket may come out smaller than burst says, where exact arithmetic has no room for an odd
// window otherwise. Resize fails if no size is small enough.
func (l *Limit) Resize(requests, burst func(int64) int64) (*Limit, error) {
	return l.Each(func(l *Limit) (*Limit, error) { return l.resize(requests, burst) })
}

func (l *Limit) resize(requests, burst func(int64) int64) (*Limit, error) {
	c := l.cfg
	most := c.mostN()
	c.N = min(max(0, requests(c.N)), most)
	if c.Algorithm.HasBurst() {
		b := burst(max(0, c.Burst))
		if b < 0 {
			c.N = 0
		}
		if c.Burst = min(b, most); b <= 0 {
			c.Burst = NoBurst
		}
	}
	for {
		if margin(c.size(), c.Soft) == 0 {
			c.SoftFor = 0 // there is no margin that could close
		}
		s, err := New(c)
		// With fewer factors in common, N and an odd window may need larger numbers than a bucket
		// of this size has room for. A smaller one has.
		if err == nil || c.Burst <= 1 {
			return s, err
		}
		c.Burst /= 2
	}
}

// Part returns the limit that is num/den of l, rounded down: N, and how much a bucket holds, in
// each limit of a schedule. So the parts of a limit never add up to more than the limit, if their
// shares do not add up to more than 1. A part that comes to 0 admits nothing. The percentage of a
// soft margin stays. num must be 0 or more, and den above 0.
func (l *Limit) Part(num, den int64) *Limit {
	return l.Shared(func(n int64) int64 { return share(n, num, den) })
}

// Shared returns l with its numbers changed by part: N, and how much a bucket holds, which is one
// more than B in a leaky bucket, in each limit of a schedule. It is for parts of a limit that must
// not add up to more than the limit: it never comes out larger than part says, and where no limit
// is exact, it admits nothing.
func (l *Limit) Shared(part func(int64) int64) *Limit {
	burst := part
	if l.Delays() {
		burst = func(b int64) int64 { return part(b+1) - 1 }
	}
	of, err := l.Each(func(l *Limit) (*Limit, error) {
		if of, err := l.resize(part, burst); err == nil {
			return of, nil
		}
		nothing := func(int64) int64 { return 0 }
		return l.resize(nothing, nothing)
	})
	if err != nil {
		// Limits agree in all but their numbers, and one of 0 is always exact.
		panic("algo: a part of " + l.String() + ": " + err.Error())
	}
	return of
}
