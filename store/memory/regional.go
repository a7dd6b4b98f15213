package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Regions of one process each, as in tests and simulations: the log and the positions live as long
// as the store, and are in no snapshot.

var _ store.Regional = (*Store)(nil)

// The log holds no more of either.
const (
	maxToldEntries = 1 << 14
	maxToldUnits   = 1 << 17
)

// regional is the store's data for other regions.
type regional struct {
	mu        sync.Mutex
	log       [][]store.Told // entries, oldest first
	first     uint64         // number of the first entry of log; they are numbered from 1
	told      int            // in all entries of log
	name      string         // of the log, which is another one in another process
	wake      chan struct{}  // closed when an entry is added; nil: nobody waits
	positions map[string]string
	leads     map[string]lead
}

type lead struct {
	holder string
	end    int64 // µs
}

// begin makes the log. The lock is held.
func (r *regional) begin() {
	if r.name == "" {
		r.name, r.first = strconv.FormatUint(newSlot(), 36), 1
		r.positions, r.leads = map[string]string{}, map[string]lead{}
	}
}

// last is the number of the newest entry ever; 0 for none.
func (r *regional) last() uint64 { return r.first + uint64(len(r.log)) - 1 }

func (r *regional) position(n uint64) string { return r.name + "-" + strconv.FormatUint(n, 10) }

// Parts implements store.Regional: there is one part.
func (s *Store) Parts() int { return 1 }

// PartOf implements store.Regional.
func (s *Store) PartOf(*rule.Counter, []byte) int { return 0 }

// Tell implements store.Regional. The log holds up to 16,384 entries. It returns no error.
func (s *Store) Tell(_ context.Context, _ int, told []store.Told) error {
	if len(told) == 0 {
		return nil
	}
	entry := make([]store.Told, len(told))
	for i := range told {
		entry[i] = told[i]
		entry[i].Key = bytes.Clone(told[i].Key)
	}
	r := &s.regional
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin()
	r.log = append(r.log, entry)
	r.told += len(entry)
	for len(r.log) > maxToldEntries || r.told > maxToldUnits && len(r.log) > 1 {
		r.told -= len(r.log[0])
		r.log[0] = nil
		r.log = r.log[1:]
		r.first++
	}
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
	return nil
}

// Told implements store.Regional. It fails only if ctx ends while it waits.
func (s *Store) Told(
	ctx context.Context, _ int, after string, limit int, wait time.Duration,
) (told []store.Told, next string, gap bool, now int64, err error) {
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(wait, cancel).Stop()
	}
	for {
		var wake <-chan struct{}
		told, next, gap, wake = s.regional.read(after, limit)
		if wake == nil || wait <= 0 {
			return told, next, gap, s.now(), nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			wait = 0
		}
	}
}

// read reads what there is. wake is nil unless there is nothing to read yet.
func (r *regional) read(after string, limit int) (told []store.Told, next string, gap bool, wake <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin()
	switch {
	case after == "", after == store.Oldest && len(r.log) == 0:
		return nil, r.position(r.last()), false, nil
	case after == store.Oldest:
		after = r.position(r.first - 1)
	}
	name, number, _ := strings.Cut(after, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	switch {
	case err != nil || name != r.name || n > r.last():
		gap, n = true, r.first-1
	case n+1 < r.first:
		gap, n = true, r.first-1
	}
	from := int(n + 1 - r.first)
	to := min(from+max(limit, 0), len(r.log))
	for _, entry := range r.log[from:to] {
		for _, t := range entry {
			t.Key = bytes.Clone(t.Key)
			told = append(told, t)
		}
	}
	if from == len(r.log) && !gap {
		if r.wake == nil {
			r.wake = make(chan struct{})
		}
		return nil, after, false, r.wake
	}
	return told, r.position(r.first + uint64(to) - 1), gap, nil
}

// Position implements store.Regional. Positions do not expire. It returns no error.
func (s *Store) Position(_ context.Context, _ int, log string) (string, error) {
	r := &s.regional
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.positions[log], nil
}

// Change implements store.Regional. All errors but store.ErrMoved are store.ErrNotCharged.
func (s *Store) Change(
	_ context.Context, _ int, log, from, to string, changes []store.Change, done []store.Changed,
) (now int64, err error) {
	if err := store.CheckChanges(changes, done); err != nil {
		return 0, fmt.Errorf("memory store: %w: %w", err, store.ErrNotCharged)
	}
	r := &s.regional
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin()
	if log != "" && r.positions[log] != from {
		return 0, store.ErrMoved
	}
	now = s.now()
	for i := range changes {
		if done[i], now, err = s.change(&changes[i], now); err != nil {
			return 0, err // never: one charge fits itself
		}
	}
	if log != "" {
		r.positions[log] = to
	}
	return now, nil
}

// change makes a change at now, or later if the state was decided on later.
func (s *Store) change(c *store.Change, now int64) (store.Changed, int64, error) {
	if !c.Due(now) {
		return store.Changed{}, now, nil // nor is the state carried over
	}
	charges := []store.Charge{{Counter: c.Counter, Limit: c.Limit, Key: c.Key}}
	sc := s.scratch.Get().(*scratch)
	defer s.putScratch(sc)
	if err := sc.collect(s, charges); err != nil {
		return store.Changed{}, now, err
	}
	sc.locked.lock(s)
	defer sc.locked.unlock(s)
	now = s.read(sc, charges, nil, now)
	w, m := &sc.works[sc.ofs[0]], sc.beside(0)
	var lease *algo.State
	if m.lends() {
		lease = &m.st
	}
	own := w.at >= 0 || w.reserved
	if !own && w.cell == nil && c.Units > 0 {
		s.room(w, now)
		own = w.reserved
	}
	var changed store.Changed
	if own || w.cell != nil && c.Units > 0 {
		w.charged = true
		changed = c.Apply(&w.st, lease, now)
	} else {
		var none algo.State // nothing goes back on a cell that is shared with other keys
		changed = c.Apply(&none, nil, now)
	}
	s.commit(sc, now)
	return changed, now, nil
}

// Lead implements store.Regional.
func (s *Store) Lead(_ context.Context, task, holder string, term time.Duration) (leads bool, err error) {
	if task == "" || holder == "" || term < 0 {
		return false, errors.New("memory store: to lead needs a task, a holder, and a term that is not below 0")
	}
	now := s.now()
	r := &s.regional
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin()
	if is, ok := r.leads[task]; ok && is.holder != holder && now < is.end {
		return false, nil
	}
	if term == 0 {
		delete(r.leads, task)
		return false, nil
	}
	r.leads[task] = lead{holder, now + term.Microseconds()}
	return true, nil
}
