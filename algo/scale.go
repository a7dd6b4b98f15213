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
	if num == 0 {
		return l.Resize(func(int64) int64 { return 0 }, func(b int64) int64 { return b })
	}
	scale := func(n int64) int64 {
		if n == 0 {
			return 0
		}
		return max(1, share(n, num, den))
	}
	return l.Resize(scale, scale)
}

// share is num/den of n, rounded down, at most MaxFixedN.
func share(n, num, den int64) int64 {
	q, ok := mulDiv(uint64(n), uint64(num), uint64(den), false)
	if !ok || q > MaxFixedN {
		return MaxFixedN
	}
	return int64(q)
}
