package waiting

import (
	"context"
	"slices"
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
	resumed          int64 // when it ran again; 0 if it never stood still
	due              int64 // when to give up, as far as is known
	wake             int64 // when the timer fires: no later
	timer            *time.Timer
}

var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

// Begin bounds the wait: it lasts for at least minWait, then for as long as the servers show signs
// of life, and for at most maxWait. Then it ends with the error late. Servers that take no
// connections are not waited for beyond refusedWait. Call Finish in the end.
func (w *Waiter) Begin(minWait, maxWait time.Duration, late error) {
	w.begun, w.late = store.Monotonic(), late
	w.minWait, w.maxWait = int64(min(minWait, maxWait)), int64(maxWait)
	w.due = w.begun + w.minWait
	w.wake = w.begun + min(w.minWait, int64(refusedWait))
	w.timer = timers.Get().(*time.Timer)
	w.timer.Reset(time.Duration(w.wake - w.begun))
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
			// A server can be found to be away meanwhile.
			w.wake = min(w.due, now+int64(lookEvery))
			w.timer.Reset(time.Duration(w.wake - now))
		case <-w.Ctx.Done():
			return context.Cause(w.Ctx)
		}
	}
}

// lookEvery is how often a caller that waits looks how the server is. After a longStall an answer
// may have to be asked for again. refusedWait bounds the wait for a server that takes no
// connections, or does not decide.
const (
	lookEvery   = 20 * time.Millisecond
	longStall   = 100 * time.Millisecond
	refusedWait = 100 * time.Millisecond
)

// reschedule computes, when the timer has fired, when to give up.
func (w *Waiter) reschedule(now int64, servers []*Detector) {
	end := w.begun + w.minWait
	if len(servers) > 0 && !slices.ContainsFunc(servers, (*Detector).takesCalls) {
		end = w.begun + min(w.minWait, int64(refusedWait))
	}
	// A timer that fires late shows that this process did not run. An answer may wait to be read.
	if late := now - w.wake; late > int64(time.Millisecond) {
		w.stalled += late
		end = max(end, now+min(late, w.minWait))
		if late > int64(longStall) {
			w.resumed = now
		}
	}
	silent := now
	for _, d := range servers {
		if d.refuses() {
			continue
		}
		silent = max(silent, d.SilentUntil(now)+w.stalled)
		if w.resumed != 0 {
			silent = max(silent, w.resumed+2*d.Patience())
		}
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
