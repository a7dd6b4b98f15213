package line

import (
	"context"
	"math/bits"
	"time"

	"github.com/weir-rl/weir"
)

// Visit decides one request after another, and holds those that must wait. Not safe for concurrent
// use. Make one with NewVisit.
type Visit struct {
	// Ready is asked each time before the request stands in a line or is charged, when d.Matches,
	// d.Priority and d.Exempt are known, and may wait. If it returns false the request ends there,
	// as by Veto. nil is always ready.
	Ready func(d *weir.Decision) bool
	// Veto is asked each time before the request is charged, when d.Matches, d.Priority and
	// d.Exempt are known; not while the request stands in line. If it returns true the request ends
	// there: see Vetoed. nil vetoes nothing.
	Veto func(d *weir.Decision) bool
	// Held is called when a request is about to be held, once for each. It may return another
	// context, whose end means that the client hung up, and a function that is called when the
	// request is held no more. nil leaves the context as it is.
	Held func(ctx context.Context) (context.Context, context.CancelFunc)
	// Failed is called when a turn or a slot could not be given back; nil means no calls.
	Failed func(err error)

	// Deadline is the instant from which on the client wants no answer any more; zero if the caller
	// does not know it. The context given to Decide may have another one. A request that is seen to
	// pass too late for either is refused at once.
	Deadline time.Time

	// Left is, after Decide, how many requests had left the lines when this one did, itself
	// included; it shows the order in which requests of one line went. 0 if it stood in none.
	Left int64
	// HungUp says, after Decide failed, that it was because the client is gone.
	HungUp bool
	// Vetoed says, after Decide returned nil, that Ready or Veto ended the request: d is not a
	// decision, and does not allow.
	Vetoed bool

	lines *Lines
	ticket

	// Of the request under way.
	limiter *weir.Limiter
	request *weir.Request
	wait
	freed []freed // the counts of Lines.freed for its keys when it asked
	name  []byte  // scratch
}

// wait is a Visit's knowledge of the wait of one request.
type wait struct {
	charged  bool      // it was charged before, and refused
	held     bool      // it was held at least once
	noTurn   bool      // there is no room to hold it until a leaky bucket's turn
	leaky    bool      // it meets a leaky bucket, which gives it a turn
	by       time.Time // when its client wants no answer any more; zero if nobody knows
	deadline time.Time // when its wait is over
	arrived  time.Time // when it was first refused, or stood behind others
	try      time.Time // when it asks again, if it is the first of its line
}

// freed is a count of Lines.freed.
type freed struct {
	shard uint8
	n     uint32
}

// NewVisit returns a Visit that holds requests in l.
func (l *Lines) NewVisit() *Visit { return &Visit{lines: l} }

// Decide decides r into d as weir.Limiter.Decide does, and returns when r may go, or is refused for
// good:
//
//   - A request that a leaky bucket delays is held until its turn, in the order of the turns.
//   - A request that enforcing limits refuse, all of whose rules have a Wait, stands in the line of
//     the limit that refuses longest, and asks again when it is the first of the line and the limit
//     admits. After the shortest Wait it is refused. It is refused at once if that is seen to be
//     too short, if the line has no room, or if a leaky bucket is among the limits that refuse.
//   - A request that would pass at or after the deadline of ctx, or v.Deadline, is refused at once,
//     as far as that is seen: no turn in a leaky bucket is taken for it, nor one in the last
//     thirty-second of its time. One that waits for a slot, or behind others, is held until ctx
//     ends.
//   - A request that meets a limit with a Wait for whose key there is a line already, joins that
//     line.
//
// An error comes from the store, or from ctx if the client hung up. In that case its turn was given
// back unless other requests stand behind it, and d.Limits names the slots that it holds, if any.
func (v *Visit) Decide(ctx context.Context, l *weir.Limiter, r *weir.Request, d *weir.Decision) error {
	return v.decide(ctx, l, r, d, wait{})
}

// WasHeld reports whether the request that was decided last had to wait.
func (v *Visit) WasHeld() bool { return v.wait.held }

// DecideAgain is Decide for a request that Decide refused before, and that waited since by other
// means than a line: see weir.Phases.ChargeAgain.
func (v *Visit) DecideAgain(ctx context.Context, l *weir.Limiter, r *weir.Request, d *weir.Decision) error {
	return v.decide(ctx, l, r, d, wait{charged: true})
}

func (v *Visit) decide(ctx context.Context, l *weir.Limiter, r *weir.Request, d *weir.Decision, w wait) error {
	v.limiter, v.request, v.wait = l, r, w
	v.by = v.Deadline
	if by, ok := ctx.Deadline(); ok && (v.by.IsZero() || by.Before(v.by)) {
		v.by = by
	}
	v.Left, v.HungUp, v.Vetoed = 0, false, false
	next, err := v.ask(ctx, d)
	if next != decided {
		err = v.hold(ctx, d, next)
	}
	v.limiter, v.request = nil, nil
	return err
}

// step is what follows when a request has asked.
type step uint8

const (
	decided   step = iota // nothing: Tell was called
	askAgain              // it stands in line, and asks again
	awaitTurn             // it is admitted, and stands in line for its turn
)

// ask asks once whether the request may go: it goes through the phases of weir.Limiter.Decide, and
// does between them what belongs to waiting.
func (v *Visit) ask(ctx context.Context, d *weir.Decision) (step, error) {
	p, r := v.limiter.Phases(), v.request
	next := decided
	if p.Match(r, d) {
		if v.Ready != nil && !v.Ready(d) {
			v.Vetoed, d.Allowed = true, false
			return decided, nil
		}
		switch v.place(d) {
		case behind:
			return askAgain, nil
		case refused:
			p.Tell(ctx, r, d)
			return decided, nil
		}
		if v.Veto != nil && v.Veto(d) {
			v.Vetoed, d.Allowed = true, false
			return decided, nil
		}
		err := v.charge(ctx, d)
		if d.WithoutStore != nil {
			err = ctx.Err() // a client that hung up is not admitted
		}
		if err != nil {
			v.HungUp = ctx.Err() != nil
			return decided, err
		}
		switch {
		case !d.Allowed && v.standAgain(d):
			return askAgain, nil
		case d.Allowed && d.Delay > 0 && v.standByTurn(ctx, d):
			next = awaitTurn
		}
	}
	p.Tell(ctx, r, d)
	return next, nil
}

// charge charges the limits that the request met.
func (v *Visit) charge(ctx context.Context, d *weir.Decision) error {
	p, r, maxDelay := v.limiter.Phases(), v.request, v.request.MaxDelay
	if v.noTurn {
		r.MaxDelay = 0
	}
	if v.leaky && !v.by.IsZero() {
		r.Within = coarse(time.Until(v.by))
	}
	var err error
	if v.charged {
		err = p.ChargeAgain(ctx, r, d)
	} else {
		err = p.Charge(ctx, r, d)
	}
	r.MaxDelay, v.charged = maxDelay, true
	return err
}

// coarse rounds the time that a client has left down, by a thirty-second of it at most and to 1 at
// least: the turn must come before its end, and requests with the same time-out are to ask the
// same, so that stores can merge their questions and remember the answers.
func coarse(left time.Duration) time.Duration {
	if left--; left <= 0 {
		return 1
	}
	drop := max(0, bits.Len64(uint64(left))-6)
	return left >> drop << drop
}

// hold sees a request through that stands in line.
func (v *Visit) hold(ctx context.Context, d *weir.Decision, next step) error {
	v.held = true
	v.lines.total.Add(1)
	if v.Held != nil {
		var cancel context.CancelFunc
		ctx, cancel = v.Held(ctx)
		defer cancel()
	}
	defer v.leave()
	for next == askAgain {
		// Limits in shadow may have given slots to the request, which does not go yet.
		v.Release(ctx, v.limiter, d)
		first, err := v.await(ctx, d)
		if err != nil {
			return err
		}
		if !first {
			v.limiter.Phases().Tell(ctx, v.request, d)
			return nil
		}
		if next, err = v.ask(ctx, d); err != nil {
			return err
		}
	}
	if next == awaitTurn {
		return v.awaitTurn(ctx, d)
	}
	return nil
}

// leave ends the wait of a request that was held.
func (v *Visit) leave() {
	if v.line != nil {
		v.Left = v.lines.leave(&v.ticket)
	}
	v.order = 0
	select { // a signal that is not for the next request
	case <-v.wake:
	default:
	}
}

// Release gives back the slots that d holds, and wakes the requests that wait for them.
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

// afterwards returns a context for work that must be done for a request even if its client is gone.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}
