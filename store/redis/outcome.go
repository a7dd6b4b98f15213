package redis

import (
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/deciding"
)

// outcomes returns waiting.Failure.OnOutcome for a call that was given up after it was sent.
func (c *call) outcomes(p *partition) func(f func([]store.Outcome)) {
	return func(f func([]store.Outcome)) {
		p.mu.Lock()
		if c.stage == abandoned {
			c.onOutcome = f
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		f(c.outcome())
	}
}

// outcome returns the outcomes of the charges of a finished call.
func (c *call) outcome() []store.Outcome {
	return deciding.Outcomes(c.charges, c.results, c.now, c.err, c.undecided)
}

// outcomes returns waiting.Failure.OnOutcome for a call that was given up.
func (o *swapCall) outcomes(s *Store) func(f func([]store.Outcome)) {
	return func(f func([]store.Outcome)) {
		if !s.background(func() {
			<-o.done
			f(deciding.Outcomes(o.charges, o.results, o.now, o.err, false))
		}) {
			f(make([]store.Outcome, len(o.charges)))
		}
	}
}
