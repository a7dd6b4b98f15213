package regions

import (
	"github.com/weir-rl/weir/algo"
)

// fold makes r, the result of the limit l at now, from the ceiling's result, own, and the result
// for the use of all regions, all; all is nil if that has no say. r must be neither of them.
func (d *derivedCounters) fold(r *algo.Result, l *algo.Limit, own, all *algo.Result, now int64) {
	*r = *own
	switch {
	case own.Off:
		return
	case all != nil:
		r.Limit, r.SoftLimit = all.Limit, all.SoftLimit
		r.Remaining = min(own.Remaining, all.Remaining)
		r.Allowed = own.Allowed && all.Allowed
		r.RetryAfter = laterOf(own.RetryAfter, all.RetryAfter) // 0 of one that admits
		r.ResetAfter = laterOf(own.ResetAfter, all.ResetAfter)
		r.Soft = r.Allowed && (own.Soft || all.Soft)
		if !r.Allowed {
			r.Delay = 0
		}
	case !l.Scheduled():
		r.Limit, r.SoftLimit = d.limit, d.soft
	default:
		whole := l.Check(&algo.State{}, now, algo.Ask{})
		r.Limit, r.SoftLimit = whole.Limit, whole.SoftLimit
	}
	if all == nil && d.closes && own.SoftLimit == own.Limit {
		r.SoftLimit = r.Limit // closed
	}
}

// laterOf returns the later of two times of a Result; algo.Never is after all others.
func laterOf(a, b int64) int64 {
	if a == algo.Never || b == algo.Never {
		return algo.Never
	}
	return max(a, b)
}
