package algo

import "math/bits"

// ClampCost keeps a cost within ±MaxCost, which is above every capacity.
func ClampCost(n int64) int64 { return min(max(n, -MaxCost), MaxCost) }

// Cost returns hits × each within ±MaxCost; each below 0 counts as 0.
func Cost(hits, each int64) int64 {
	hits, each = ClampCost(hits), ClampCost(max(each, 0))
	hi, lo := bits.Mul64(uint64(max(hits, -hits)), uint64(each))
	if hi != 0 {
		lo = MaxCost
	}
	lo = min(lo, MaxCost)
	if hits < 0 {
		return -int64(lo)
	}
	return int64(lo)
}
