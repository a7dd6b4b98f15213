package fallback

import (
	"fmt"
	"sync/atomic"
	"time"
)

// State is the state of the circuit breaker.
type State uint8

const (
	// Closed: the primary decides.
	Closed State = iota
	// Open: the primary is away.
	Open
	// HalfOpen: the primary is away, but has answered the last probes.
	HalfOpen
)

// States is how many there are.
const States = 3

// String returns "there", "away" or "returning", as metrics and logs call it: an operator asks
// where the store is, not where the breaker is.
func (s State) String() string {
	switch s {
	case Closed:
		return "there"
	case Open:
		return "away"
	case HalfOpen:
		return "returning"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// When the breaker changes state. From the moment the primary is back it takes at most lastWait, a
// few firstWait and the probes' own time until the breaker closes.
const (
	tripAfter  = 5                      // failures in a row
	closeAfter = 3                      // probes in a row that are answered
	firstWait  = 100 * time.Millisecond // before a probe, doubled after each that fails
	lastWait   = time.Second
	// after an outage sooner than this, the wait for the next probe does not restart at firstWait
	calm = 10 * time.Second
)

// run counts consecutive failures. Of several concurrent calls only one counts, because one slow
// answer may fail all the calls that wait for it.
type run struct {
	n       atomic.Uint32
	answers atomic.Uint64 // that the primary had got at the last of them
}

// begin returns the argument for failed if the call that begins now fails.
func (r *run) begin() uint32 { return r.n.Load() }

// succeeded ends the run. answers, unless nil, returns how many answers have come from the primary
// itself. If none has come since the last failure, this success came from a cached refusal and does
// not show that the primary is back.
func (r *run) succeeded(answers func() uint64) {
	if r.n.Load() != 0 && (answers == nil || answers() != r.answers.Load()) {
		r.n.Store(0)
	}
}

// failed reports whether this failure is one too many.
func (r *run) failed(began uint32, answers func() uint64) bool {
	if answers != nil {
		r.answers.Store(answers())
	}
	return r.n.CompareAndSwap(began, began+1) && began+1 >= tripAfter
}

// breaker is the circuit breaker at one instant: a value without clock, lock or goroutine. Its
// methods return the next one.
type breaker struct {
	state   State
	since   time.Time // when the primary went away (Closed: came back)
	cause   error     // the last failure; nil if Closed
	refusal error     // the error of Take for a rule that wants refusal; nil if Closed
	waits   int       // how often the wait for a probe was doubled
	passed  int       // probes in a row that were answered
}

// trip opens a closed breaker.
func (b breaker) trip(now time.Time, cause error) breaker {
	waits := b.waits
	if now.Sub(b.since) >= calm {
		waits = 0
	}
	return breaker{state: Open, since: now, cause: cause, refusal: refuse(cause), waits: waits}
}

// probed returns the breaker after a probe, which failed if err is not nil.
func (b breaker) probed(now time.Time, err error) breaker {
	if err != nil {
		b.state, b.cause, b.refusal, b.passed = Open, err, refuse(err), 0
		if b.wait() < lastWait {
			b.waits++
		}
		return b
	}
	if b.passed++; b.passed >= closeAfter {
		return breaker{state: Closed, since: now, waits: b.waits}
	}
	b.state = HalfOpen
	return b
}

// wait is how long to wait before the next probe, at most.
func (b breaker) wait() time.Duration {
	if b.state == HalfOpen {
		return firstWait
	}
	return min(firstWait<<b.waits, lastWait)
}

func refuse(cause error) error { return fmt.Errorf("%w: %w", ErrUnavailable, cause) }
