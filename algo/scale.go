package algo

import "errors"

var errScale = errors.New("a limit is scaled by a share of 0 or more")

// Scale returns the limit with num/den of its numbers (N, and B of a bucket), rounded down. A
// number that was at least 1 stays at least 1, unless num is 0: then nothing is admitted. The state
// of a key may be used with both limits. Scale fails if num or den is below 0 or den is 0.
func (l *Limit) Scale(num, den int64) (*Limit, error) {
	if num < 0 || den <= 0 {
		return nil, errScale
	}
	if l.times != nil {
		return l.times.each(func(l *Limit) (*Limit, error) { return l.Scale(num, den) })
	}
	c := l.cfg
	most := int64(MaxN)
	if c.Algorithm == SlidingLog {
		most = MaxLogN
	}
	scale := func(n int64) int64 {
		if n <= 0 || num == 0 {
			return min(n, 0)
		}
		q, ok := mulDiv(uint64(n), uint64(num), uint64(den), false)
		if !ok || q > uint64(most) {
			return most
		}
		return max(1, int64(q))
	}
	if c.N = scale(c.N); num == 0 {
		c.N = 0
	} else {
		c.Burst = scale(c.Burst)
	}
	for {
		if margin(c.size(), c.Soft) == 0 {
			c.SoftFor = 0 // there is no margin that could close
		}
		s, err := New(c)
		if err == nil || c.Burst <= 1 {
			return s, err
		}
		// With fewer factors in common, N and an odd window may need larger numbers than a bucket
		// of this size has room for.
		c.Burst /= 2
	}
}
