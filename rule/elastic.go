package rule

import (
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
)

// Elastic makes the limits of a rule follow spare capacity (throttle: {elastic: …}).
type Elastic struct {
	Signal string  // name of the signal
	Curve  []Point // by ascending At; at least one
	Pos    Position
}

// Point says which share of a limit holds at a value of the signal.
type Point struct {
	At    int // value of the signal, 0 to 100 percent
	Share int // percent of N and B, 0 to 1000
}

// Share returns the share at a value of the signal as a fraction: on the line between the points
// next to it, and flat beyond the outermost ones.
func (e *Elastic) Share(value int) (num, den int64) {
	c := e.Curve
	if value <= c[0].At {
		return int64(c[0].Share), 100
	}
	for i := 1; i < len(c); i++ {
		a, b := c[i-1], c[i]
		if value <= b.At {
			return int64(a.Share)*int64(b.At-value) + int64(b.Share)*int64(value-a.At), 100 * int64(b.At-a.At)
		}
	}
	return int64(c[len(c)-1].Share), 100
}

// scaledLimits are a window's limits by the value of the signal, made when they are needed first.
type scaledLimits [101]atomic.Pointer[algo.Limit]

// Scaled returns the window's limit at a value of the rule's elastic signal, of 0 to 100 percent;
// Limit itself if the rule is not elastic. The same value always gives the same pointer. Safe for
// concurrent use.
func (w *Window) Scaled(value int) *algo.Limit {
	e := w.Rule.Elastic
	if e == nil || w.Limit == nil || w.scaled == nil {
		return w.Limit
	}
	at := &w.scaled[min(max(value, 0), 100)]
	if l := at.Load(); l != nil {
		return l
	}
	l, err := w.Limit.Scale(e.Share(min(max(value, 0), 100)))
	if err != nil {
		l = w.Limit // Load has tried all values
	}
	if !at.CompareAndSwap(nil, l) {
		l = at.Load()
	}
	return l
}
