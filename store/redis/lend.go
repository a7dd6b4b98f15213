package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// Units that are lent ahead. lease.lua lends them, together with the decision. This node repeats
// that on the states that the reply brings, as it does every decision. Calls that Lua leaves to the
// node lend in swapPlan.decide.

var _ store.Lender = (*Store)(nil)

// TakeAhead implements store.Lender. minWait and maxWait are as for TakeWithin. An error is a
// store.Pending unless it is store.ErrNotCharged.
//
// Where the charges are of several partitions, each of them lends by itself. Units lent are
// returned, in the background, if another one denies or fails.
func (s *Store) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	for i := range ahead {
		ahead[i].Got, ahead[i].Until, ahead[i].Out = 0, 0, 0
	}
	if len(charges) != len(ahead) {
		return 0, 0, errLengths
	}
	if err := checkCharges(charges, results); err != nil {
		return 0, 0, err
	}
	if len(charges) == 0 {
		asked = store.Monotonic()
		now, err = s.timeWithin(ctx, maxWait)
		return now, asked, err
	}
	now, asked, err = s.takeAnywhere(ctx, minWait, maxWait, charges, ahead, results)
	if err != nil {
		for i := range ahead {
			ahead[i].Got, ahead[i].Until, ahead[i].Out = 0, 0, 0
		}
		return 0, 0, err
	}
	return now, asked, nil
}

// aheadOf returns the report and the wish of a call for an operand's limit.
func (c *call) aheadOf(op *operand) *algo.Ahead {
	if len(c.ahead) == 0 {
		return &algo.Ahead{}
	}
	return &c.ahead[op.charge]
}

// learn ends the generations that are over, and takes down a call's reports.
func (p *partition) learn(c *call, now int64) {
	for j := range c.operands {
		op := &c.operands[j]
		if op.record == nil {
			continue
		}
		h, record, l := &p.states[j], &p.states[j-1].state, c.charges[op.charge].Limit
		if !h.tallied {
			l.Learn(&h.state, record, now, c.aheadOf(op))
			continue
		}
		l.Learn(nil, record, now, c.aheadOf(op)) // the tally is that after it
		h.out = l.LentAt(record, now)
	}
}

// lend repeats what Lua has lent to a call that was admitted.
func (p *partition) lend(c *call, now int64) {
	for j := range c.operands {
		op := &c.operands[j]
		if op.record == nil {
			continue
		}
		r, a, h, record, l := &c.results[op.charge], &c.ahead[op.charge], &p.states[j], &p.states[j-1].state,
			c.charges[op.charge].Limit
		switch {
		case !r.Allowed || r.Off:
		case h.tallied:
			l.LendOf(max(0, op.codec.idle.Limit-h.used(op.codec, cost(&c.charges[op.charge]))), record, now, a)
		default:
			l.Lend(&h.state, record, now, a)
		}
		if a.Got != h.lent {
			p.store.disagreeOn(fmt.Sprintf("Redis lent %d units, and this node would have lent %d", h.lent, a.Got))
			a.Got = min(a.Got, h.lent) // no more than both
		}
	}
}

// outOf returns how many units are out that count against the capacity; of a state that is tallied.
func (h *replayState) outOf(t *codec) int64 {
	if t.lease == nil || t.numbers[1] == 0 { // without requests there is nothing to weigh them against
		return 0
	}
	return h.out.Out()
}

// lentResult changes the result of a log, whose used units are counted, into the result that algo
// returns while units are out.
func (h *replayState) lentResult(r *algo.Result, t *codec, cost, used, now int64) {
	out := h.outOf(t)
	if !r.Allowed {
		r.Soft = false
		if cost > 0 {
			r.RetryAfter = h.retryLent(t, cost, now, r.ResetAfter)
		}
	} else {
		r.Soft = used+out <= r.SoftLimit && (r.Soft || r.Remaining < out)
	}
	r.Remaining = max(0, r.Remaining-out)
}

// retryLent is retryLease of package algo for a log.
func (h *replayState) retryLent(t *codec, cost, now, reset int64) int64 {
	switch {
	case cost > h.capacity:
		return algo.Never
	case cost+h.out.Out() <= h.capacity:
		return h.tally.pivot + t.w - now
	}
	last := h.out.End - 1
	if cost+h.out.Newer > h.capacity {
		last = h.out.Last - 1
	}
	return min(max(last+t.w-now, reset), 1<<53-1)
}

// returnLent gives back, in the background, units lent to a call that was denied elsewhere.
func (s *Store) returnLent(p *partition, c *store.Charge, h *algo.Ahead) {
	told := algo.Ahead{Told: [2]algo.Told{{End: h.Until, Returned: h.Got}}}
	of := store.Charge{Counter: c.Counter, Limit: c.Limit, Key: c.Key}
	h.Out -= h.Got
	h.Got, h.Until = 0, 0
	s.background(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
		defer cancel()
		_ = p.swap(ctx, func(plan *swapPlan) func(int64) {
			at := plan.addCharges([]store.Charge{of})[0]
			return func(now int64) {
				if record := plan.lentOf(at); record != nil {
					of.Limit.Learn(&plan.states[at].St, record, now, &told)
					plan.markWritten(at, of.Limit)
				}
			}
		})
	})
}
