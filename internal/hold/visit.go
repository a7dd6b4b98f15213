package hold

import (
	"context"
	"errors"
	"math"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Visit decides one request after another, holding those that must wait. Not safe for concurrent use. Make one with NewVisit.
type Visit struct {
	// Held is called when a request is about to be held, once for each, and may return another context, by which it is seen that
	// the client hung up; what it returns beside is called when the request is held no more. nil leaves the context as it is.
	Held func(ctx context.Context) (context.Context, context.CancelFunc)
	// Failed is told that a turn or a slot could not be given back; nil means nobody.
	Failed func(err error)

	// Left is, after Decide, how many requests had left the lines when this one did, itself included: the order in which those of
	// one line went. 0 if it stood in none.
	Left int64
	// HungUp says, after Decide failed, that it was because the client is gone.
	HungUp bool

	lines *Lines
	met   func(*weir.Decision) error // v.meet
	waits func(*weir.Decision) bool  // v.standAgain
	ticket

	// Of the request under way.
	limiter  *weir.Limiter
	request  *weir.Request
	next     func(*weir.Decision) error // the request's own Met
	maxDelay time.Duration              // the request's own
	freed    []freed                    // how much had been given back to its keys when it asked
	held     bool                       // it was held at least once
	stands   bool                       // it was refused just now, and stands in line to ask again
	deadline time.Time                  // when its wait is over
	arrived  time.Time                  // when it was first refused, or stood behind others
	try      time.Time                  // when it asks again, if it is the first
	name     []byte                     // scratch
}

// freed is a count of Lines.freed.
type freed struct {
	shard uint8
	n     uint32
}

// NewVisit returns a Visit that holds requests in l.
func (l *Lines) NewVisit() *Visit {
	v := &Visit{lines: l}
	v.met, v.waits = v.meet, v.standAgain
	return v
}

// What Visit.meet fails with, and Decide never.
var (
	errStand = errors.New("hold: stands behind others")
	errAway  = errors.New("hold: refused without asking")
)

// Decide decides r into d as Limiter.Decide does, and returns when r may go, or is refused for good:
//
//   - a request that a leaky bucket delays is held until its turn, in the order of the turns;
//   - one that enforcing limits refuse, all of whose rules have a Wait, stands in the line of the one that refuses longest,
//     and asks again when it is the first and the limit admits; at most for the shortest Wait, then it is refused. It is
//     refused at once if it can be seen that this is too short, if the line has no room, or if a leaky bucket is among those that refuse;
//   - one that meets a limit with a Wait for whose key there is a line already, stands behind it.
//
// r.Met is called before each time that the request asks, but not for one that stands in line. An error is the store's, or
// ctx's if the client hung up; its turn was given back then where nobody stands behind it, and d.Limits names the slots that it
// holds, if it does.
func (v *Visit) Decide(ctx context.Context, l *weir.Limiter, r *weir.Request, d *weir.Decision) error {
	v.limiter, v.request, v.next, v.maxDelay, v.HungUp = l, r, r.Met, r.MaxDelay, false
	v.Left = 0
	r.Met, r.Waits, v.stands = v.met, v.waits, false
	err := l.Decide(ctx, r, d)
	if err != nil || !d.Allowed || d.Delay > 0 {
		err = v.hold(ctx, d, err)
	}
	r.Met, r.MaxDelay, r.Waits, r.Again = v.next, v.maxDelay, nil, false
	v.limiter, v.request, v.next = nil, nil, nil
	return err
}

// Release gives back the slots that d holds, and wakes who waits for them.
func (v *Visit) Release(ctx context.Context, l *weir.Limiter, d *weir.Decision) {
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Slot == "" {
			continue
		}
		ctx, done := afterwards(ctx)
		_, err := l.Release(ctx, lr.Slot)
		done()
		if err != nil && v.Failed != nil {
			v.Failed(err)
		}
		lr.Slot = ""
		v.lines.Freed(lr.Window.Counter.ID, d.Matches.Hits[i].Key)
	}
}

// afterwards is a context for what must be done for a request even if its client is gone.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// waitable reports whether a limit that refuses may be waited for by asking again.
func waitable(w *rule.Window, mode rule.Mode) bool {
	return mode == rule.Enforce && w.Rule.Wait > 0 && w.Counter.Limit.Algorithm() != algo.LeakyBucket
}

// meet is the request's Met: it makes who would overtake a line stand behind it, and lets no leaky bucket give a turn to who
// could not wait for it here.
func (v *Visit) meet(d *weir.Decision) error {
	v.request.MaxDelay, v.freed = v.maxDelay, v.freed[:0]
	if v.request.Hits > 0 {
		waits := false
		for i := range d.Matches.Hits {
			h := &d.Matches.Hits[i]
			switch a := h.Window.Counter.Limit.Algorithm(); {
			case h.Cost <= 0:
			case a == algo.LeakyBucket:
				waits = waits || h.Mode == rule.Enforce
			case waitable(h.Window, h.Mode):
				waits = true
				shard := v.lines.shard(h.Window.Counter.ID, h.Key)
				v.freed = append(v.freed, freed{shard, v.lines.freed[shard].Load()})
			}
		}
		if waits && (v.lines.held.Load() > 0 || v.lines.shut.Load()) {
			if err := v.stand(d); err != nil {
				return err
			}
		}
	}
	if v.next != nil {
		return v.next(d)
	}
	return nil
}

// stand puts the request behind the line that it must not overtake, if there is one.
func (v *Visit) stand(d *weir.Decision) error {
	l := v.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	var at *line
	hit := 0
	for i := range d.Matches.Hits {
		h := &d.Matches.Hits[i]
		leaky := h.Window.Counter.Limit.Algorithm() == algo.LeakyBucket && h.Mode == rule.Enforce
		if h.Cost <= 0 || !leaky && !waitable(h.Window, h.Mode) {
			continue
		}
		v.name = appendName(v.name[:0], h.Window.Counter.ID, h.Key)
		other := l.lines[string(v.name)]
		switch {
		case leaky:
			if l.shut.Load() || !l.room(other, math.MaxInt) {
				v.request.MaxDelay = 0
			}
		case other != nil && (v.order == 0 || other.head.order < v.order) && (at == nil || other.until.After(at.until)):
			at, hit = other, i
		}
	}
	if at == nil {
		return nil
	}
	r := d.Matches.Hits[hit].Window.Rule
	v.waitAtMost(r.Wait)
	switch {
	case at.until.After(v.deadline):
		v.refuse(d, at, hit)
		if v.held {
			l.expired.Add(1)
		}
		return errAway
	case at != v.line && !l.room(at, queue(r)) || l.shut.Load():
		v.refuse(d, at, hit)
		l.turnedAway.Add(1)
		return errAway
	}
	v.move(appendName(v.name[:0], d.Matches.Hits[hit].Window.Counter.ID, d.Matches.Hits[hit].Key))
	return errStand
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

// move makes the request stand in the line of that name, by the order of its arrival. lines.mu is held.
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

// refuse makes d a refusal by what the limit of a line said last: d was not decided, or too long ago. lines.mu is held.
func (v *Visit) refuse(d *weir.Decision, at *line, hit int) {
	h := d.Matches.Hits[hit]
	d.Matches.Hits[0] = h
	d.Matches.Hits = d.Matches.Hits[:1] // one for each of d.Limits
	elapsed := time.Since(at.told).Microseconds()
	r := at.last
	r.Window, r.Mode, r.Descriptor = h.Window, h.Mode, h.Descriptor
	r.RetryAfter = max(1, r.RetryAfter-elapsed)
	if r.ResetAfter > 0 {
		r.ResetAfter = max(0, r.ResetAfter-elapsed)
	}
	d.Limits = append(d.Limits[:0], r)
	d.Allowed, d.Delay, d.RetryAfter, d.Time = false, 0, r.RetryAfter, at.clock+elapsed
	d.ID = 0
}

// hold sees a request through that could not go at once; err is what the first Decide came to.
func (v *Visit) hold(ctx context.Context, d *weir.Decision, asked error) (err error) {
	cancel := func() {}
	err = asked
	defer func() {
		if v.line != nil {
			v.Left = v.lines.leave(&v.ticket)
		}
		v.HungUp = err != nil && ctx.Err() != nil
		cancel()
		v.order, v.held, v.arrived, v.deadline, v.try = 0, false, time.Time{}, time.Time{}, time.Time{}
		select { // what the next request must not hear
		case <-v.wake:
		default:
		}
	}()
	for {
		switch {
		case err == errAway:
			v.limiter.Refused(v.request, d)
			return nil
		case err == errStand:
		case err != nil:
			return err
		case d.Allowed && d.Delay > 0:
			if !v.standByTurn(ctx, d) {
				return nil
			}
		case d.Allowed:
			return nil
		case !v.stands:
			return nil
		default:
			// Limits in shadow are charged by their own verdicts, and may have given slots to a request that does not go yet.
			v.Release(ctx, v.limiter, d)
			v.request.Again = true
		}
		if !v.held {
			v.held = true
			v.lines.total.Add(1)
			if v.Held != nil {
				ctx, cancel = v.Held(ctx)
			}
		}
		if err == nil && d.Allowed {
			return v.awaitTurn(ctx, d)
		}
		if ask, err := v.await(ctx, d); !ask {
			if err == nil {
				v.limiter.Refused(v.request, d)
			}
			return err
		}
		v.stands = false
		err = v.limiter.Decide(ctx, v.request, d)
	}
}
