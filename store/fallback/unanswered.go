package fallback

import (
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// Unanswered counts the decisions that this node made by itself while the primary counted as there:
// a part of it did not answer in time, or failed a call, and its circuit breaker was closed. They
// may admit beyond a limit though nothing shows that the primary is away.
type Unanswered struct {
	Decisions uint64 // all of them, refusals too
	Units     uint64 // admitted by them on this node's share
	Since     time.Time
	Cause     error // of the last one
}

// unanswered counts these decisions, and reports them. Safe for concurrent use.
type unanswered struct {
	report func(Unanswered)

	reportLock sync.Mutex // held while report is called; taken before mu
	mu         sync.Mutex
	all        Unanswered // since New
	fresh      Unanswered // not reported yet
	reporting  bool
	closed     bool
	timer      *time.Timer
	last       time.Time // of the last report
}

// note counts a decision, which admitted units.
func (u *unanswered) note(units uint64, cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all.Decisions++
	u.all.Units += units
	if u.report == nil || u.closed {
		return
	}
	if u.fresh.Decisions == 0 {
		u.fresh.Since = time.Now()
	}
	u.fresh.Decisions++
	u.fresh.Units += units
	u.fresh.Cause = cause
	if !u.reporting {
		u.reporting = true
		wait := max(firstReport, time.Until(u.last.Add(nextReport)))
		u.timer = time.AfterFunc(wait, u.reportNew)
	}
}

// reportNew reports what there was since the last report.
func (u *unanswered) reportNew() {
	u.reportLock.Lock()
	defer u.reportLock.Unlock()
	u.mu.Lock()
	fresh := u.fresh
	u.fresh, u.reporting, u.last = Unanswered{}, false, time.Now()
	u.mu.Unlock()
	if fresh.Decisions > 0 {
		u.report(fresh)
	}
}

// close makes the last report.
func (u *unanswered) close() {
	u.mu.Lock()
	u.closed = true
	if u.timer != nil {
		u.timer.Stop()
	}
	u.mu.Unlock()
	u.reportNew()
}

func (u *unanswered) reading() (decisions, units uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all.Decisions, u.all.Units
}

// unheard counts a decision that was made without the primary, which was asked and failed with
// cause.
func (s *Store) unheard(charges []store.Charge, results []algo.Result, admitted bool, cause error) {
	units := uint64(0)
	for i := range charges {
		if c, r := &charges[i], &results[i]; admitted && c.Ask.Cost > 0 && r.Allowed && !r.Off {
			units += uint64(c.Ask.Cost)
		}
	}
	s.unanswered.note(units, cause)
}
