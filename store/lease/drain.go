package lease

import (
	"context"
	"errors"
	"slices"
	"time"
)

// drainPatience is how long Drain tries while the primary is away: a process that has to end must
// not wait for it.
const drainPatience = 2 * time.Second

var errAway = errors.New("lease: the store that has lent units is away, so they cannot be given back")

// Drain reports all use to the primary, and returns all units that are left. It waits for calls
// under way. From then on, the primary decides every call exactly, as if nothing were ever leased:
// so a process that ends, or a user who turns leases off, leaves nothing out. It fails with ctx's
// error if that ends before, and if all calls fail for two seconds; unreported units then count as
// used when they end. Calls may go on meanwhile. The primary should not be closed before.
func (s *Store) Drain(ctx context.Context) error {
	s.drained.Store(true)
	pause := time.Millisecond
	worked := time.Now()
	for {
		s.returnAll()
		if s.manual {
			s.pump(ctx)
		}
		if s.empty() {
			return nil
		}
		if !slices.ContainsFunc(s.lanes, func(l *lane) bool { return l.failing.Load() }) {
			worked = time.Now()
		} else if time.Since(worked) > drainPatience {
			return errAway
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// returnAll hands all that is held to the lanes.
func (s *Store) returnAll() {
	at := s.at()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.each(func(_ uint32, sl *slot) {
			if left, used := sl.Holds(); left+used > 0 {
				sl.Stop()
				s.tell(sl, s.laneOf(sl.terms.counter, sh.keyOf(sl)), at, 0)
			}
		})
		sh.mu.Unlock()
	}
}

// empty reports whether nothing is held, and nothing on its way.
func (s *Store) empty() bool {
	if s.inFlight.Load() != 0 {
		return false
	}
	for _, l := range s.lanes {
		if !l.idle() {
			return false
		}
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		held := int64(0)
		sh.each(func(_ uint32, sl *slot) {
			left, used := sl.Holds()
			held += left + used
		})
		sh.mu.Unlock()
		if held > 0 {
			return false
		}
	}
	return true
}

// pump makes the calls that the lanes would make in the background.
func (s *Store) pump(ctx context.Context) {
	for _, l := range s.lanes {
		if l.own == nil {
			l.own = new(batch)
		}
		for l.send(ctx, l.own) {
		}
	}
}
