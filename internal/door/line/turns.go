package line

import (
	"context"
	"math"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// standByTurn puts an admitted request in the line of the leaky bucket with the longest delay,
// by its turn there. If there is no room it gives the turn back, makes d a refusal, and returns
// false.
func (v *Visit) standByTurn(ctx context.Context, d *weir.Decision) bool {
	l := v.lines
	hit := 0
	for i := range d.Limits {
		if lr := &d.Limits[i]; lr.Mode != rule.Shadow && lr.Delay == d.Delay {
			hit = i
			break
		}
	}
	lr := &d.Limits[hit]
	v.name = appendName(v.name[:0], lr.Window.Counter.ID, d.Matches.Hits[hit].Key)
	if v.wake == nil {
		v.wake = make(chan struct{}, 1)
	}
	l.mu.Lock()
	l.take(&v.ticket)
	if l.room(l.lines[string(v.name)], math.MaxInt) {
		v.order = d.Time + d.Delay
		l.put(&v.ticket, v.name)
		l.mu.Unlock()
		return true
	}
	l.mu.Unlock()
	l.turnedAway.Add(1)
	v.giveBack(ctx, d)
	lr.Allowed, lr.RetryAfter, lr.Delay = false, d.Delay, 0
	d.Allowed, d.RetryAfter, d.Delay = false, lr.RetryAfter, 0
	return false
}

// awaitTurn waits until the turn has come and all with an earlier one have left.
func (v *Visit) awaitTurn(ctx context.Context, d *weir.Decision) error {
	timer := time.NewTimer(d.Wait())
	defer timer.Stop()
	for due := false; ; {
		select {
		case <-timer.C:
			due = true
		case <-v.wake:
		case <-ctx.Done():
			v.Left = v.lines.leave(&v.ticket)
			v.lines.hungUp.Add(1)
			v.HungUp = true
			v.giveBack(ctx, d)
			return ctx.Err()
		}
		if due && v.lines.first(&v.ticket) {
			return nil
		}
	}
}

func (v *Visit) giveBack(ctx context.Context, d *weir.Decision) {
	ctx, done := afterwards(ctx)
	defer done()
	if _, err := v.limiter.GiveBack(ctx, d); err != nil && v.Failed != nil {
		v.Failed(err)
	}
}
