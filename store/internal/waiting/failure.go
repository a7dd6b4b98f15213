package waiting

import (
	"slices"

	"github.com/weir-rl/weir/store"
)

// Failure is the error of a call that was given up, or that failed in one part of several. It is a
// store.Pending and a store.PartError.
type Failure struct {
	Err       error
	Part      int   // number of the part; below 0: none
	Others    []int // further parts
	IsSilent  bool
	OnOutcome func(f func([]store.Outcome)) // nil: nothing is known
}

var (
	_ store.Pending   = (*Failure)(nil)
	_ store.PartError = (*Failure)(nil)
)

func (e *Failure) Error() string { return e.Err.Error() }
func (e *Failure) Unwrap() error { return e.Err }

// Failed implements store.PartError.
func (e *Failure) Failed(part int) bool { return part == e.Part || slices.Contains(e.Others, part) }

// Silent implements store.PartError.
func (e *Failure) Silent() bool { return e.IsSilent }

// Outcome implements store.Pending.
func (e *Failure) Outcome(f func(outcomes []store.Outcome)) {
	if e.OnOutcome == nil {
		f(nil)
		return
	}
	e.OnOutcome(f)
}
