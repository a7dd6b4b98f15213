package hold

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// How often the first of a line asks again. What a limit says of the time at which it will admit is exact, but for slots, which
// may be released on another node at any time; and anywhere a refund, a reset or new rules may come before it.
const (
	pollLeast = 50 * time.Millisecond // for slots: something between these, so that nodes do not ask in step
	pollMost  = 200 * time.Millisecond
	lookAgain = time.Second // for all else
)

// standAgain puts a refused request in the line of the limit that refuses longest; false if it is not to wait.
func (v *Visit) standAgain(d *weir.Decision) bool {
	if v.request.Hits <= 0 || d.Banned.Rule != nil {
		return false
	}
	l := v.lines
	var (
		hit            = -1
		longest, exact int64 // µs: the retry_after by which the line is chosen; until when it is refused for certain
		slots          bool  // the line is one for slots
		wait           = time.Duration(math.MaxInt64)
	)
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Mode == rule.Shadow || lr.Allowed {
			continue
		}
		if !waitable(lr.Window, lr.Mode) || lr.RetryAfter == algo.Never {
			return false
		}
		wait = min(wait, lr.Window.Rule.Wait)
		after, isSlots := lr.RetryAfter, lr.Window.Counter.Limit.Algorithm() == algo.Concurrency
		if isSlots {
			after = min(after, int64((pollLeast+rand.N(pollMost-pollLeast))/time.Microsecond))
		} else {
			exact = max(exact, after)
		}
		if hit < 0 || after > longest {
			hit, longest, slots = i, after, isSlots
		}
	}
	if hit < 0 {
		return false
	}
	now := time.Now()
	v.waitAtMost(wait)
	left := v.deadline.Sub(now)
	if left <= 0 || time.Duration(exact)*time.Microsecond > left {
		if v.held {
			l.expired.Add(1)
		}
		return false
	}
	lr := &d.Limits[hit]
	name := appendName(v.name[:0], lr.Window.Counter.ID, d.Matches.Hits[hit].Key)
	l.mu.Lock()
	at := l.lines[string(name)]
	if l.shut.Load() || (at == nil || at != v.line) && !v.roomFor(at, queue(lr.Window.Rule)) {
		l.mu.Unlock()
		l.turnedAway.Add(1)
		return false
	}
	at = v.move(name)
	at.last, at.told, at.clock, at.until = *lr, now, d.Time, time.Time{}
	if !slots {
		at.until = now.Add(time.Duration(longest) * time.Microsecond)
	}
	l.mu.Unlock()
	v.try = now.Add(min(time.Duration(longest)*time.Microsecond, lookAgain))
	for _, f := range v.freed {
		if l.freed[f.shard].Load() != f.n {
			v.try = now
		}
	}
	v.stands = true
	return true
}

// roomFor is lines.room for a request that may stand in another line, which it leaves. lines.mu is held.
func (v *Visit) roomFor(at *line, queue int) bool {
	if v.line != nil && at == nil {
		return true
	}
	return v.lines.room(at, queue)
}

// await waits until the request, which stands in line to ask again, is to ask; false if it is refused for good, or err is its
// context's.
func (v *Visit) await(ctx context.Context, d *weir.Decision) (ask bool, err error) {
	l := v.lines
	timer := time.NewTimer(v.until())
	defer timer.Stop()
	for {
		woken := false
		select {
		case <-v.wake:
			woken = true
		case <-timer.C:
		case <-ctx.Done():
			l.hungUp.Add(1)
			return false, ctx.Err()
		}
		now := time.Now()
		over := !now.Before(v.deadline)
		l.mu.Lock()
		first := v.prev == nil
		if l.shut.Load() || over && !first {
			v.refuseHere(d)
			l.mu.Unlock()
			if over {
				l.expired.Add(1)
			} else {
				l.turnedAway.Add(1)
			}
			return false, nil
		}
		l.mu.Unlock()
		if first && (woken || over || !now.Before(v.try)) {
			return true, nil
		}
		timer.Reset(v.until())
	}
}

// until is how long the request sleeps if nobody wakes it.
func (v *Visit) until() time.Duration {
	at := v.deadline
	if v.lines.first(&v.ticket) && !v.try.IsZero() && v.try.Before(at) {
		at = v.try
	}
	return time.Until(at)
}

// refuseHere makes d a refusal by the limit in whose line the request stands. lines.mu is held.
func (v *Visit) refuseHere(d *weir.Decision) {
	for i := range d.Matches.Hits {
		h := &d.Matches.Hits[i]
		if v.name = appendName(v.name[:0], h.Window.Counter.ID, h.Key); string(v.name) == v.line.name {
			v.refuse(d, v.line, i)
			return
		}
	}
}
