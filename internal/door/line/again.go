package line

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// How often the first of a line asks again. A limit says exactly when it will admit, except for
// slots, which may be released on another node at any time. A refund, a reset or new rules may come
// before that instant, too.
const (
	// for slots: something between these, so that nodes do not ask in step
	pollLeast = 50 * time.Millisecond
	pollMost  = 200 * time.Millisecond
	lookAgain = time.Second // for all else
)

// waitable reports whether a limit that refuses may be waited for by asking again.
func waitable(w *rule.Window, mode rule.Mode) bool {
	return mode == rule.Enforce && w.Rule.Wait > 0 && !w.Counter.Limit.Delays()
}

// place is where a request finds itself that is about to be charged.
type place uint8

const (
	free    place = iota // it is in nobody's way
	behind               // it has joined the line that it must not overtake
	refused              // it cannot join that line
)

// place finds out whether the request would overtake a line, and makes it join that line. A request
// that cannot be held here is given no turn by a leaky bucket.
func (v *Visit) place(d *weir.Decision) place {
	v.noTurn, v.leaky, v.freed = false, false, v.freed[:0]
	if v.request.Cost() <= 0 {
		return free
	}
	waits := false
	for i := range d.Matches.Hits {
		h := &d.Matches.Hits[i]
		switch {
		case h.Cost <= 0:
		case h.Window.Counter.Limit.Delays():
			v.leaky = true
			waits = waits || h.Mode == rule.Enforce
		case waitable(h.Window, h.Mode):
			waits = true
			shard := v.lines.shard(h.Window.Counter.ID, h.Key)
			v.freed = append(v.freed, freed{shard, v.lines.freed[shard].Load()})
		}
	}
	if waits && (v.lines.held.Load() > 0 || v.lines.shut.Load()) {
		return v.join(d)
	}
	return free
}

// join puts the request behind the line that it must not overtake, if there is one: of several, the
// one whose limit refuses longest.
func (v *Visit) join(d *weir.Decision) place {
	l := v.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	var at *line
	hit := 0
	for i := range d.Matches.Hits {
		h := &d.Matches.Hits[i]
		leaky := h.Window.Counter.Limit.Delays() && h.Mode == rule.Enforce
		if h.Cost <= 0 || !leaky && !waitable(h.Window, h.Mode) {
			continue
		}
		v.name = appendName(v.name[:0], h.Window.Counter.ID, h.Key)
		other := l.lines[string(v.name)]
		switch {
		case leaky:
			v.noTurn = v.noTurn || l.shut.Load() || !l.room(other, math.MaxInt)
		case other != nil && (v.order == 0 || other.head.order < v.order) && (at == nil || other.until.After(at.until)):
			at, hit = other, i
		}
	}
	if at == nil {
		return free
	}
	h := &d.Matches.Hits[hit]
	v.waitAtMost(h.Window.Rule.Wait)
	switch {
	case v.tooLate(at.until):
		if v.held {
			l.expired.Add(1)
		}
	case at != v.line && !l.room(at, queue(h.Window.Rule)) || l.shut.Load():
		l.turnedAway.Add(1)
	default:
		v.move(appendName(v.name[:0], h.Window.Counter.ID, h.Key))
		return behind
	}
	v.refuse(d, at, hit)
	return refused
}

// waitAtMost bounds the wait, counted from when it began.
func (v *Visit) waitAtMost(wait time.Duration) {
	if v.arrived.IsZero() {
		v.arrived = time.Now()
		v.deadline = v.arrived.Add(wait)
	}
	if by := v.arrived.Add(wait); by.Before(v.deadline) {
		v.deadline = by
	}
}

// tooLate reports whether the request is not to wait until an instant: its wait is over before, or
// its client wants no answer any more by then.
func (v *Visit) tooLate(at time.Time) bool {
	return at.After(v.deadline) || !v.by.IsZero() && !at.Before(v.by)
}

// move makes the request stand in the line of that name, by the order of its arrival. lines.mu is
// held.
func (v *Visit) move(name []byte) *line {
	v.name = name
	if v.line != nil && v.line.name == string(name) {
		return v.line
	}
	l := v.lines
	if v.order == 0 {
		l.seq++
		v.order = l.seq
	}
	if v.wake == nil {
		v.wake = make(chan struct{}, 1)
	}
	l.take(&v.ticket)
	return l.put(&v.ticket, name)
}

// refuse makes d a refusal with the last result of the limit of a line, which may have been for
// another request or a while ago. lines.mu is held.
func (v *Visit) refuse(d *weir.Decision, at *line, hit int) {
	elapsed := time.Since(at.told).Microseconds()
	r := at.last
	r.RetryAfter = max(1, r.RetryAfter-elapsed)
	if r.ResetAfter > 0 {
		r.ResetAfter = max(0, r.ResetAfter-elapsed)
	}
	v.limiter.Phases().RefuseBy(d, hit, r, at.clock+elapsed)
}

// standAgain puts a refused request in the line of the limit that refuses longest. It returns false
// if the request is not to wait.
func (v *Visit) standAgain(d *weir.Decision) bool {
	if v.request.Cost() <= 0 {
		return false
	}
	l := v.lines
	var (
		hit = -1
		// µs: the retry_after by which the line is chosen; until when it is refused for certain
		longest, exact int64
		slots          bool // the line is one for slots
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
		after, isSlots := lr.RetryAfter, lr.Window.Counter.Limit.HasSlots()
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
	if !now.Before(v.deadline) || v.tooLate(now.Add(time.Duration(exact)*time.Microsecond)) {
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
	return true
}

// roomFor is lines.room for a request that may stand in another line, which it leaves. lines.mu is
// held.
func (v *Visit) roomFor(at *line, queue int) bool {
	if v.line != nil && at == nil {
		return true
	}
	return v.lines.room(at, queue)
}

// await waits until the request, which stands in line, is the first and is to ask again. If it
// returns false it has made d a refusal: the wait is over, or the lines are shut. An error is
// ctx's.
func (v *Visit) await(ctx context.Context, d *weir.Decision) (first bool, err error) {
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
			v.HungUp = true
			return false, ctx.Err()
		}
		now := time.Now()
		over := !now.Before(v.deadline)
		l.mu.Lock()
		first = v.prev == nil
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
