// Package sparselog keeps a log readable where clients decide how often something happens: a Line
// is written once in a while, and counts the lines left out.
package sparselog

import (
	"sync"
	"time"
)

// Line is one line of a log. The zero value is ready. Safe for concurrent use.
type Line struct {
	mu     sync.Mutex
	last   time.Time
	events int
}

// Due counts an event. It returns 0 if the line was written less than every ago. Else the line is
// to be written, and the result is how many events there were since it was written last.
func (l *Line) Due(every time.Duration) (events int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now() // under the lock: never before the last one
	l.events++
	if !l.last.IsZero() && now.Sub(l.last) < every {
		return 0
	}
	events = l.events
	l.last, l.events = now, 0
	return events
}
