package waiting

import (
	"context"
	"sync"
	"time"

	"github.com/weir-rl/weir/store"
)

// Waiter waits for calls, as long as its caller does. Without Begin, the context alone bounds the
// wait.
type Waiter struct {
	Ctx    context.Context
	Silent bool // it gave up because a server was silent

	late             error // of a wait that has ended
	begun            int64 // by store.Monotonic, in ns, as all of these
	minWait, maxWait int64 // durations
	stalled          int64 // for how long this process did not run meanwhile
	due              int64 // when the timer fires
	timer            *time.Timer
}

var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

// Begin bounds the wait: it lasts for at least minWait, then for as long as the servers show signs
// of life, and for at most maxWait. Then it ends with the error late. Call Finish in the end.
func (w *Waiter) Begin(minWait, maxWait time.Duration, late error) {
	w.begun, w.late = store.Monotonic(), late
	w.minWait, w.maxWait = int64(min(minWait, maxWait)), int64(maxWait)
	w.due = w.begun + w.minWait
	w.timer = timers.Get().(*time.Timer)
	w.timer.Reset(time.Duration(w.minWait))
}

// Finish frees what Begin took.
func (w *Waiter) Finish() {
	w.timer.Stop()
	timers.Put(w.timer)
}

// Wait waits until done holds a value, or is closed, which the servers will do. Otherwise it
// returns the reason why it gave up.
func (w *Waiter) Wait(done <-chan struct{}, servers ...*Detector) error {
	var late <-chan time.Time
	if w.timer != nil {
		late = w.timer.C
	}
	for {
		select {
		case <-done:
			return nil
		case <-late:
			now := store.Monotonic()
			if w.reschedule(now, servers); w.due <= now {
				return w.late
			}
			w.timer.Reset(time.Duration(w.due - now))
		case <-w.Ctx.Done():
			return context.Cause(w.Ctx)
		}
	}
}

// reschedule computes, when the timer has fired, when to give up.
func (w *Waiter) reschedule(now int64, servers []*Detector) {
	end := w.begun + w.minWait
	// A timer that fires late shows that this process did not run. An answer may wait to be read.
	if late := now - w.due; late > int64(time.Millisecond) {
		w.stalled += min(late, int64(time.Second))
		end = now + min(late, w.minWait)
	}
	silent := now
	for _, d := range servers {
		silent = max(silent, d.SilentUntil(now)+w.stalled)
	}
	w.Silent = silent <= now
	w.due = min(max(end, silent), w.begun+w.maxWait+w.stalled)
}

// Short returns a context for something that is not worth waiting for longer than minWait.
func (w *Waiter) Short() (context.Context, context.CancelFunc) {
	if w.timer == nil {
		return w.Ctx, func() {}
	}
	left := time.Duration(w.begun + w.minWait + w.stalled - store.Monotonic())
	return context.WithTimeoutCause(w.Ctx, left, w.late)
}
