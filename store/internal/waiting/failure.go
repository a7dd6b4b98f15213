package waiting

import (
	"slices"

	"github.com/weir-rl/weir/store"
)

// Failure is the error of a call that was given up, or that failed in one part of several. It is a
// store.Pending, and shows package fallback which parts of the store are to blame.
type Failure struct {
	Err       error
	Part      int   // number of the part; below 0: none
	Others    []int // further parts
	IsSilent  bool
	OnOutcome func(f func([]store.Outcome)) // nil: nothing is known
}

var _ store.Pending = (*Failure)(nil)

func (e *Failure) Error() string { return e.Err.Error() }
func (e *Failure) Unwrap() error { return e.Err }

// Failed reports whether it was that part which failed.
func (e *Failure) Failed(part int) bool { return part == e.Part || slices.Contains(e.Others, part) }

// Silent reports whether the call was given up because the server had been silent too long, rather
// than because the caller's deadline came first.
func (e *Failure) Silent() bool { return e.IsSilent }

// Outcome implements store.Pending.
func (e *Failure) Outcome(f func(outcomes []store.Outcome)) {
	if e.OnOutcome == nil {
		f(nil)
		return
	}
	e.OnOutcome(f)
}
