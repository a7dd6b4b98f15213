package preview

import (
	"context"
	"errors"
	"time"
)

const (
	// pauseEvery is how many requests are replayed between two pauses.
	pauseEvery = 32
	// mostBusy bounds the processor time of a replay.
	mostBusy = 10 * time.Second
)

// mostTested bounds the processor time of all tests of rules together. Tests set it.
var mostTested = mostBusy

// errTooLong says that something has used the processor for longer than it may.
var errTooLong = errors.New("it took too long")

// meter measures how long something uses the processor, and lets others go first.
type meter struct {
	most  time.Duration
	spent func() time.Duration // of the processor; nil: the time between pauses counts
	begun time.Duration        // what was spent before
	used  time.Duration
	at    time.Time // the end of the last pause
}

// newMeter returns a meter that starts now.
func (t *task) newMeter(most time.Duration) *meter {
	m := &meter{most: most, spent: t.spent, at: time.Now()}
	if m.spent != nil {
		m.begun = m.spent()
	}
	return m
}

// pause must be called every few requests. Its error is errTooLong or the error of ctx.
func (m *meter) pause(ctx context.Context) error {
	if m.used += time.Since(m.at); m.spent != nil {
		m.used = m.spent() - m.begun
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.used > m.most {
		return errTooLong
	}
	yield() // decisions go first
	m.at = time.Now()
	return nil
}
