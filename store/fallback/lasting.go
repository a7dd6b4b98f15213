package fallback

import (
	"errors"
	"time"

	"github.com/weir-rl/weir/store"
)

const (
	// lastingFor is for how long Lasting returns a fault after it was last met, if no breaker has
	// closed since.
	lastingFor = 10 * time.Second
	// lastingEvery is how often Options.Lasting is called with the same fault at most.
	lastingEvery = time.Minute
)

// met is a fault of the primary that does not pass by itself.
type met struct {
	fault *store.LastingError
	at    time.Time // when it was last met; zero if it has passed
	told  time.Time // when Options.Lasting was last called with it
}

// meet takes note of an error of the primary, if that is one that does not pass by itself.
func (s *Store) meet(err error) {
	fault, ok := errors.AsType[*store.LastingError](err)
	if !ok {
		return
	}
	now := time.Now()
	next, last := &met{fault: fault, at: now, told: now}, s.lasting.Load()
	again := last != nil && last.fault.Advice == fault.Advice && now.Sub(last.told) < lastingEvery
	if again {
		next.told = last.told
	}
	if s.lasting.CompareAndSwap(last, next) && !again && s.o.Lasting != nil {
		s.o.Lasting(fault)
	}
}

// mended notes that the primary has come back.
func (s *Store) mended() {
	if last := s.lasting.Load(); last != nil {
		s.lasting.CompareAndSwap(last, &met{fault: last.fault, told: last.told})
	}
}

// Lasting returns the fault of the primary that does not pass by itself, and that a decision or a
// probe has met within the last ten seconds, if the primary has not come back since; nil if there
// is none.
func (s *Store) Lasting() *store.LastingError {
	if m := s.lasting.Load(); m != nil && time.Since(m.at) < lastingFor {
		return m.fault
	}
	return nil
}
