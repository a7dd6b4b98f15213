package reserve

import (
	"context"
	"time"
)

// sweepBatch is how many notes are asked for at a time.
const sweepBatch = 128

// How often expired reservations are looked for while there may be some. One that was made here is
// looked for sweepLonger past its time-out, since the store's clock may be behind.
const (
	sweepEvery   = time.Second
	sweepLonger  = 3 * time.Second
	sweepFailing = 6 // at most 2^6 times as seldom while the store fails
)

// Sweep gives back the estimates of all reservations of the store whose timeout has passed, no
// matter which process made them, and returns how many there were.
func (r *Reservations) Sweep(ctx context.Context) (released int, err error) {
	s, err := r.store()
	if err != nil {
		return 0, err
	}
	for {
		notes, err := s.Expired(ctx, sweepBatch)
		if err != nil {
			r.c.Failed(err)
			return released, err
		}
		if len(notes) == 0 {
			return released, nil
		}
		// The store has handed them out: nobody else will settle them.
		after, cancel := afterwards(ctx)
		n, err := r.settle(after, s, notes, giveAllBack)
		cancel()
		released += n
		r.expired.Add(uint64(n))
		if err != nil {
			r.c.Failed(err)
			return released, err
		}
		if len(notes) < sweepBatch {
			return released, nil
		}
	}
}

// sweepIn sees to it that Sweep is called when a reservation made now has timed out.
func (r *Reservations) sweepIn(timeout time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Now().Add(timeout)
	if at.After(r.until) {
		r.until = at
	}
	r.schedule(at)
}

// schedule makes the timer fire at the given time, or earlier. mu must be held.
func (r *Reservations) schedule(at time.Time) {
	if !r.at.IsZero() && !r.at.After(at) {
		return
	}
	r.at = at
	if r.timer == nil {
		r.timer = time.AfterFunc(time.Until(at), r.sweepInBackground)
	} else {
		r.timer.Reset(time.Until(at))
	}
}

func (r *Reservations) sweepInBackground() {
	r.mu.Lock()
	r.at = time.Time{}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	_, err := r.Sweep(ctx)
	cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failing++; err == nil {
		r.failing = 0
	}
	if now := time.Now(); now.Before(r.until.Add(sweepLonger)) {
		r.schedule(now.Add(sweepEvery << min(r.failing, sweepFailing)))
	}
}
