package algo

// Used returns how many units are used at now, units lent to holders included. More may be used
// than the limit admits, after a Settle, a Hear or lower numbers; a SlidingLog keeps one unit more
// than its capacity, and reports no more than that. lease is as in TakeWith. Used is for display,
// and costs more than a decision.
func (l *Limit) Used(s, lease *State, now int64) int64 {
	now = max(now, 0)
	in := l.inForce(now)
	var out int64
	if in.lease != nil && lease != nil {
		s, lease = in.rolled(s, lease, now)
		out = in.lease.Lent(lease).Out()
	}
	if in.n == 0 && in.algo.HasBurst() {
		return in.limit + out // it never has a token
	}
	c := in.cfg
	c.SoftFor, c.Lease, c.LeaseFor = 0, 0, 0
	wide, err := build(c)
	if err != nil {
		return out // never: in was built with these numbers
	}
	wide.limit = maxInt // a Result counts down from it
	var r Result
	wide.plain(&r, s, now, Ask{MaxDelay: -1}, false)
	return maxInt - r.Remaining + out
}
