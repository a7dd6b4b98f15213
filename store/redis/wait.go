package redis

import (
	"context"
	"sync"
	"time"
)

// waiter waits for calls, as long as its caller does.
type waiter struct {
	ctx              context.Context
	store            *Store
	begun            int64 // by the store's monotonic clock, in ns, as all of these
	minWait, maxWait int64 // durations; maxWait is 0 if there is no deadline but ctx's
	stalled          int64 // for how long this process did not run meanwhile
	silent           bool  // it gave up because a server was silent
	due              int64 // when the timer fires
	timer            *time.Timer
}

var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

func (w *waiter) begin(s *Store, minWait, maxWait time.Duration) {
	w.store, w.begun = s, s.monotonic()
	w.minWait, w.maxWait = int64(min(minWait, maxWait)), int64(maxWait)
	w.due = w.begun + w.minWait
	w.timer = timers.Get().(*time.Timer)
	w.timer.Reset(time.Duration(w.minWait))
}

func (w *waiter) finish() {
	w.timer.Stop()
	timers.Put(w.timer)
}

// wait waits until done holds a value, or is closed, which the partitions will do. Otherwise it
// returns the reason why it gave up.
func (w *waiter) wait(done <-chan struct{}, parts ...*partition) error {
	var late <-chan time.Time
	if w.timer != nil {
		late = w.timer.C
	}
	for {
		select {
		case <-done:
			return nil
		case <-late:
			now := w.store.monotonic()
			if w.reschedule(now, parts); w.due <= now {
				return ErrDeadline
			}
			w.timer.Reset(time.Duration(w.due - now))
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
	}
}

// reschedule computes, when the timer has fired, when to give up.
func (w *waiter) reschedule(now int64, parts []*partition) {
	end := w.begun + w.minWait
	// A timer that fires late shows that this process did not run. An answer may wait to be read.
	if late := now - w.due; late > int64(time.Millisecond) {
		w.stalled += min(late, int64(time.Second))
		end = now + min(late, w.minWait)
	}
	silent := now
	for _, p := range parts {
		silent = max(silent, p.detector.silentUntil(now)+w.stalled)
	}
	w.silent = silent <= now
	w.due = min(max(end, silent), w.begun+w.maxWait+w.stalled)
}

// shortContext returns a context for something that is not worth waiting for longer than minWait.
func (w *waiter) shortContext() (context.Context, context.CancelFunc) {
	if w.timer == nil {
		return w.ctx, func() {}
	}
	end := w.store.begun.Add(time.Duration(w.begun + w.minWait + w.stalled))
	return context.WithDeadlineCause(w.ctx, end, ErrDeadline)
}
