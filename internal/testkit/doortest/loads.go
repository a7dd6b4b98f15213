package doortest

import (
	"slices"
	"sync"
	"time"
)

// Loads is an overload.Load that records its calls. The zero value is ready for use. Safe for
// concurrent use.
type Loads struct {
	mu       sync.Mutex
	inside   int
	answered []time.Duration
}

// Told returns how many requests are inside, and the latencies so far.
func (l *Loads) Told() (inside int, answered []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inside, slices.Clone(l.answered)
}

// Enter implements overload.Load.
func (l *Loads) Enter() { l.mu.Lock(); l.inside++; l.mu.Unlock() }

// Leave implements overload.Load.
func (l *Loads) Leave() { l.mu.Lock(); l.inside--; l.mu.Unlock() }

// Answered implements overload.Load.
func (l *Loads) Answered(d time.Duration) {
	l.mu.Lock()
	l.answered = append(l.answered, d)
	l.mu.Unlock()
}
