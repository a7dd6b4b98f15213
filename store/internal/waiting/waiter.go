package waiting

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/weir-rl/weir/store"
)

// Waiter waits for calls, as long as its caller does. Without Begin, the context alone bounds the
// wait.
type Waiter struct {
	Ctx context.Context
	// It gave up because a server was silent, or refused. Valid after Wait has returned the error
	// late.
	Silent bool

	late             error // of a wait that has ended
	begun            int64 // by store.Monotonic, in ns, as all of these
	minWait, maxWait int64 // durations
	stalled          int64 // for how long this process did not run meanwhile
	resumed          int64 // when it ran again; 0 if it never stood still
	waited           bool  // Wait was called before
	due              int64 // when to give up, as far as is known
	wake             int64 // when the timer fires: no later
	timer            *time.Timer
}

var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

// Begin bounds the wait: it lasts for at least minWait, then for as long as all servers show signs
// of life, and for at most maxWait. Then it ends with the error late. A server that takes no
// connections is not waited for beyond minWait, nor for longer than refusedWait. Call Finish in the
// end.
func (w *Waiter) Begin(minWait, maxWait time.Duration, late error) {
	w.begun, w.late = store.Monotonic(), late
	w.minWait, w.maxWait = int64(min(minWait, maxWait)), int64(maxWait)
	w.waited = false
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
		// The timer may have fired while nobody waited, which shows no stall.
		if w.waited {
			if now := store.Monotonic(); now >= w.wake {
				w.wake = now
				w.timer.Reset(0)
			}
		}
		w.waited = true
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
	refused := false
	for _, d := range servers { // all of which must answer
		if d.refuses() {
			refused = true
			end = min(end, max(w.begun, d.refusedAt.Load())+int64(refusedWait))
		}
	}
	// A timer that fires late shows that this process did not run. An answer may wait to be read.
	if late := now - w.wake; late > int64(time.Millisecond) {
		w.stalled += late
		end = max(end, now+min(late, w.minWait))
		if late > int64(longStall) {
			w.resumed = now
			for _, d := range servers {
				d.Resumed(w.wake, now)
			}
		}
	}
	silent := now
	if !refused {
		silent = w.silentUntil(now, servers)
	}
	w.Silent = silent <= now
	w.due = min(max(end, silent), w.begun+w.maxWait+w.stalled)
}

// silentUntil returns when the first of the servers that owe an answer will have been silent for
// too long, if it stays silent. Where none owes one, the call has yet to be sent.
func (w *Waiter) silentUntil(now int64, servers []*Detector) int64 {
	first, last := int64(math.MaxInt64), now
	for _, d := range servers {
		until := d.SilentUntil(now) + w.stalled
		if w.resumed != 0 && d.heedsStalls() {
			until = max(until, w.resumed+2*d.Patience())
		}
		if last = max(last, until); d.OldestUnanswered() != 0 {
			first = min(first, until)
		}
	}
	return min(first, last)
}

// Short returns a context for something that is not worth waiting for longer than minWait.
func (w *Waiter) Short() (context.Context, context.CancelFunc) {
	if w.timer == nil {
		return w.Ctx, func() {}
	}
	left := time.Duration(w.begun + w.minWait + w.stalled - store.Monotonic())
	return context.WithTimeoutCause(w.Ctx, left, w.late)
}
