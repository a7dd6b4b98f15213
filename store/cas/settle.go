package cas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/store"
)

// How calls go on whose answer was lost, or whose connection broke.

// ErrBroken marks an error of an engine that is no answer of the database: a connection broke, or
// there is none just now, so that the same call may succeed over another one, at once or within
// moments. Ask for it with errors.Is.
var ErrBroken = errors.New("the connection broke")

// Where connections break, a call is sent again: some times at once, since other connections that
// are kept may be broken as well, and then after pauses.
const (
	atOnce       = 16
	firstPause   = time.Millisecond
	longestPause = 20 * time.Millisecond
)

// pauseBefore returns how long to wait before a call is sent again, that was so often already.
func pauseBefore(tries int) time.Duration {
	if tries < atOnce {
		return 0
	}
	return min(firstPause<<min(tries-atOnce, 10), longestPause)
}

// notMade has calls decided again that certainly changed nothing, if a connection broke and the
// database has answered a moment ago. Else they fail.
func (w *worker) notMade(calls []*call, err error) {
	s, now := w.store, store.Monotonic()
	heard := s.server.heard.Load()
	again := errors.Is(err, ErrBroken) && heard != 0 && now-heard < int64(s.o.Timeout) && s.ctx.Err() == nil
	for _, c := range calls {
		if c.broken == 0 {
			c.since = now
		}
		if !again || now-c.since >= int64(s.o.Timeout) {
			c.err = s.notCharged(err)
			w.ready = append(w.ready, c)
			continue
		}
		w.rests = max(w.rests, pauseBefore(c.broken))
		c.broken++
		w.again = append(w.again, c)
	}
}

// settle learns the outcome of groups that ended with an error that does not show it: it sends them
// again, the same versions in place of the same. If one was made, the version that was drawn for it
// is there, or the values show that others have replaced it; if not, it is made now, or others were
// quicker and it is decided anew. That goes on for as long as a call may take.
func (w *worker) settle() {
	s := w.store
	writes := w.unsure[:0]
	for _, i := range w.unsure {
		g := &w.groups[i]
		if !slices.ContainsFunc(g.Changes, func(c Change) bool { return !c.Keep }) {
			w.notMade(w.plans[i].calls, g.Err)
			continue
		}
		g.Done, g.Values = false, nil
		writes = append(writes, i)
	}
	if w.unsure = writes; len(writes) == 0 {
		return
	}
	// The time of the batch may be over.
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
	defer cancel()
	for tries := 0; len(w.unsure) > 0 && ctx.Err() == nil; tries++ {
		if pause := pauseBefore(tries); pause > 0 {
			wait(ctx, pause)
		}
		w.sendAgain(ctx)
	}
	for _, i := range w.unsure {
		w.lost(i)
	}
	w.unsure = w.unsure[:0]
}

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sendAgain sends the groups with an unknown outcome once more, and keeps in w.unsure those whose
// outcome is still unknown after that.
func (w *worker) sendAgain(ctx context.Context) {
	s := w.store
	w.resent = w.resent[:0]
	for _, i := range w.unsure {
		w.resent = append(w.resent, Group{Changes: w.groups[i].Changes})
	}
	s.stats.resent.Add(uint64(len(w.unsure)))
	var clock int64
	err := s.ask(ctx, func() (at int64, err error) {
		clock, err = s.engine.Swap(ctx, w.base, w.resent)
		return clock, err
	})
	left, late := w.unsure[:0], false
	for k, i := range w.unsure {
		g, p := &w.resent[k], w.plans[i]
		if g.Err == nil {
			g.Err = err
		}
		switch {
		case g.Err != nil || !g.Done && len(g.Values) != len(g.Changes):
			left = append(left, i)
			continue
		case g.Done:
			s.stats.learned.Add(1)
			w.made(p)
			continue
		}
		switch s.versions.fateOf(g, store.Monotonic()-w.asked) {
		case made:
			s.stats.learned.Add(1)
			w.madeBefore(p, g)
		case notMade:
			w.conflict(p, g)
		case open:
			// The engine found the decision too old to be made now. It may still be at making it
			// the first time, unless it has another clock than it had then.
			if off := clock - w.base; w.base != 0 && (off > sameClock || off < -sameClock) {
				w.conflict(p, g)
				continue
			}
			left, late = append(left, i), true
		case untold:
			w.groups[i].Values = g.Values
			w.lost(i)
		}
	}
	clear(w.resent)
	if w.unsure = left; late {
		w.base = 0 // decisions on the present values hold, however late it is
	}
}

// sameClock is how far an engine's clock may be from the instant of a decision for the engine to be
// the one that was asked to make it, in µs.
const sameClock = 10 * MaxSkew

// fate is the fate of a group that was sent before, by the present values.
type fate int

const (
	open    fate = iota // it was not made so far
	made                // it was
	notMade             // it was not, and will not be
	untold
)

// fateOf returns the fate of a group that was first sent some time ago, in ns. Values are the
// present ones: not all are as expected.
func (v *versions) fateOf(g *Group, ago int64) fate {
	still, before, gone, told := true, false, true, false
	for i := range g.Changes {
		c, now := &g.Changes[i], &g.Values[i]
		still = still && now.Version == c.Was
		if c.Keep {
			continue
		}
		before = before || now.Version == c.Was
		gone = gone && c.Version == 0 && now.Version == 0
		if c.Version == 0 || now.Version == c.Was {
			continue
		}
		if now.Version == c.Version {
			return made
		}
		_, records, ok := openValue(now.Data)
		t := traceOf(records)
		if t.has(c.Version) {
			return made
		}
		// Others have changed it. If this version had been written, the trace would name it, unless
		// the node that replaced it keeps no trace, or too many others have written since.
		told = told || ok && t.whole() && (now.Version == 0 || marked(now.Version)) && ago < traceFor/2*1000
	}
	switch {
	case still:
		return open
	case gone:
		return made // the values to delete are gone
	case before, told:
		// All of a group is made, or nothing, and a version that is gone does not come back.
		return notMade
	}
	return untold
}

// madeBefore notes that a plan was made, though what lies there now may be of others.
func (w *worker) madeBefore(p *plan, g *Group) {
	for i, at := range p.changed {
		c, v := &p.changes[i], &g.Values[i]
		if c.Keep || v.Version != c.Version {
			p.values[at].e.set(v.Version, v.Data)
			c.Keep = true
		}
	}
	w.made(p)
}

// lost notes that the outcome of a group is unknown, and stays so.
func (w *worker) lost(i int) {
	s, p, g := w.store, w.plans[i], &w.groups[i]
	known := len(g.Values) == len(g.Changes)
	for j, at := range p.changed {
		if e := p.values[at].e; known {
			e.set(g.Values[j].Version, g.Values[j].Data)
		} else {
			e.forget()
		}
	}
	s.stats.lost.Add(1)
	err := g.Err
	if err == nil {
		err = errUntold
	}
	w.failed(p, s.wrap(err))
}

var errUntold = fmt.Errorf("the answer was lost, and nothing tells whether it was made: %w", ErrBroken)
