package leasecheck

import (
	"math/big"

	"github.com/weir-rl/weir/algo"
)

// plainly returns by how much a history goes beyond a limit at worst, in the most literal way; 0 or
// less if it does not. All spans begin and end with an admission's bounds, as the others hold no
// more.
func plainly(c algo.Config, most int64, past []Admission) int64 {
	w := c.Window.Microseconds()
	worst := int64(-1)
	for _, last := range past {
		switch c.Algorithm {
		case algo.FixedWindow:
			if c.FirstRequest {
				if last.Ends != 0 {
					worst = max(worst, within(past, last.Ends-w, last.Ends-1)-most)
				}
				continue
			}
			start := last.Lo / w * w
			worst = max(worst, within(past, start, start+w-1)-most)
		case algo.SlidingLog:
			worst = max(worst, within(past, last.Hi-w+1, last.Hi)-most)
		case algo.SlidingWindow:
			worst = max(worst, estimate(c, past, last.Hi)-most)
		default:
			for _, first := range past {
				if d := last.Hi - first.Lo; d >= 0 {
					flow := new(big.Int).Mul(big.NewInt(d), big.NewInt(c.N))
					flow.Div(flow, big.NewInt(w))
					worst = max(worst, within(past, first.Lo, last.Hi)-most-flow.Int64())
				}
			}
		}
	}
	return worst
}

// within sums up what lies in a span, both ends inclusive.
func within(past []Admission, from, to int64) (sum int64) {
	for _, a := range past {
		if a.Lo >= from && a.Hi <= to {
			sum += a.Cost
		}
	}
	return sum
}

// estimate is the estimate of docs/how-it-works/algorithms.md: sub-windows that the window's old
// edge cuts count for the part that is still in it.
func estimate(c algo.Config, past []Admission, x int64) int64 {
	k := int64(max(1, c.Buckets))
	sub := c.Window.Microseconds() / k
	whole, cut := int64(0), int64(0)
	for _, a := range past {
		switch age := x/sub - a.Lo/sub; {
		case a.Hi > x:
		case age < k:
			whole += a.Cost
		case age == k:
			cut += a.Cost
		}
	}
	part := new(big.Rat).Mul(big.NewRat(cut, 1), big.NewRat(sub-x%sub, sub))
	return whole + new(big.Int).Quo(part.Num(), part.Denom()).Int64()
}
