package cas

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-rl/weir/store"
)

// worker is one connection to the engine.
type worker struct {
	store   *Store
	batch   []*call
	entries []*entry // those that it owns

	// working memory
	plans        []*plan
	groups       []Group
	parents      []int32 // of calls: another one of the same group, or itself
	planOf       []int32 // of calls that stand for a group
	keys         []Key
	unsure       []int // groups whose outcome is unknown
	resent       []Group
	base, asked  int64 // when the groups were decided, by the engine's clock and by the monotonic one
	ready, again []*call
	took         time.Duration // by the last Swap
	rests        time.Duration // for how long it keeps its keys, so that other nodes come through
}

// run works off the queue, until the store is closed.
func (w *worker) run() {
	for w.flush() {
	}
	for range w.store.wake {
		for w.flush() {
		}
	}
}

// flush sends one batch, and reports whether there was one.
func (w *worker) flush() bool {
	s := w.store
	s.gather()
	lock := s.take(w)
	if len(w.batch) == 0 {
		s.finish(w, nil)
		return false
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
	w.rests = 0
	w.decide(ctx, lock)
	cancel()
	s.deliver(w.ready)
	if w.rests > 0 {
		w.rest()
	}
	s.finish(w, w.again)
	clear(w.batch)
	clear(w.ready)
	clear(w.again)
	w.ready, w.again = w.ready[:0], w.again[:0]
	return true
}

// decide decides the batch, and sorts its calls into those that are ready and those that are to be
// decided again.
func (w *worker) decide(ctx context.Context, lock bool) {
	s := w.store
	if !s.clock.known.Load() && !lock {
		if err := w.readAll(ctx); err != nil {
			w.notMade(w.batch, err)
			return
		}
	}
	if lock {
		w.decideLocked(ctx)
		return
	}
	w.split()
	w.asked = store.Monotonic()
	w.base = w.planAll(w.asked)
	s.stats.groups.Add(uint64(len(w.groups)))
	if s.o.Clock != nil {
		w.base = 0
	}
	err := s.ask(ctx, func() (at int64, err error) {
		return s.engine.Swap(ctx, w.base, w.groups)
	})
	w.took = time.Duration(store.Monotonic() - w.asked)
	conflicts := 0
	w.unsure = w.unsure[:0]
	for i, p := range w.plans[:len(w.groups)] {
		g := &w.groups[i]
		if g.Err == nil {
			g.Err = err
		} else if isOverslept(err) {
			g.Err = oversleptError{g.Err}
		}
		switch {
		case isNotCharged(g.Err):
			w.notMade(p.calls, g.Err)
		case g.Err != nil:
			w.unsure = append(w.unsure, i)
		case g.Done:
			w.made(p)
		default:
			w.conflict(p, g)
			conflicts++
		}
	}
	w.settle()
	if s.locker == nil && (err == nil || isNotCharged(err)) {
		w.share(w.asked, conflicts)
	}
}

// ask asks the engine, and takes note of its clock and of how long it took.
func (s *Store) ask(ctx context.Context, f func() (clock int64, err error)) error {
	sent := store.Monotonic()
	p := &s.server
	p.sent(sent)
	clock, err := f()
	answered := store.Monotonic()
	s.stats.calls.Add(1)
	if err != nil {
		s.stats.failures.Add(1)
		return p.lost(ctx, answered, sent, err)
	}
	p.answered(answered, answered-sent)
	s.clock.note(clock, sent, answered)
	return nil
}

// readAll reads what lies under the keys of the batch.
func (w *worker) readAll(ctx context.Context) error {
	s := w.store
	w.keys = w.keys[:0]
	for _, e := range w.entries {
		w.keys = append(w.keys, Key{e.place, e.name})
	}
	var values []Value
	err := s.ask(ctx, func() (clock int64, err error) {
		values, clock, err = s.engine.Read(ctx, w.keys)
		return clock, err
	})
	if err != nil {
		return err
	}
	if len(values) != len(w.keys) {
		return errAnswer
	}
	for i, e := range w.entries {
		e.set(values[i].Version, values[i].Data)
	}
	return nil
}

// split makes groups of the calls that share keys, in their order.
func (w *worker) split() {
	w.parents, w.planOf = w.parents[:0], w.planOf[:0]
	for i := range w.batch {
		w.parents, w.planOf = append(w.parents, int32(i)), append(w.planOf, -1)
	}
	for i, c := range w.batch {
		for _, e := range c.entries {
			if e.group < 0 {
				e.group = int32(i)
				continue
			}
			// The first call of two groups stands for both.
			a, b := w.root(int32(i)), w.root(e.group)
			w.parents[max(a, b)] = min(a, b)
		}
	}
	n := 0
	for i, c := range w.batch {
		root := w.root(int32(i))
		at := w.planOf[root]
		if at < 0 {
			at = int32(n)
			w.planOf[root] = at
			w.begin(n)
			n++
		}
		w.plans[at].calls = append(w.plans[at].calls, c)
	}
	w.sized(n)
}

func (w *worker) root(i int32) int32 {
	for w.parents[i] != i {
		w.parents[i] = w.parents[w.parents[i]]
		i = w.parents[i]
	}
	return i
}

// begin makes the plan at an index an empty one.
func (w *worker) begin(at int) {
	if at == len(w.plans) {
		w.plans = append(w.plans, &plan{store: w.store})
	}
	w.plans[at].reset()
}

// sized makes room for the changes of n groups, and drops plans that are not needed often.
func (w *worker) sized(n int) {
	if cap(w.groups) < n {
		w.groups = make([]Group, n, 2*n)
	}
	w.groups = w.groups[:n]
	if len(w.plans) > 2*n+16 {
		clear(w.plans[2*n+16:])
		w.plans = w.plans[:2*n+16]
	}
}

// planAll decides all groups, and returns the engine's clock as it is estimated.
func (w *worker) planAll(asked int64) (base int64) {
	s := w.store
	base = s.clock.instant(asked, 0)
	for i, p := range w.plans[:len(w.groups)] {
		least := p.open()
		if p.now = base; s.o.Clock != nil {
			p.now = s.o.Clock()
		} else if least > base {
			p.now = s.clock.instant(asked, least)
		}
		p.decide(asked)
		p.commit()
		w.groups[i] = Group{Changes: p.changes}
		if p.stale > 0 {
			s.damaged(p.stale)
		}
	}
	return base
}

// made notes that a plan was made.
func (w *worker) made(p *plan) {
	s := w.store
	s.stats.decisions.Add(uint64(len(p.calls)))
	for i, at := range p.changed {
		c, v := &p.changes[i], &p.values[at]
		switch {
		case !c.Keep:
			v.e.set(c.Version, v.next)
		case !v.e.known:
			v.e.set(0, nil)
		}
	}
	s.server.answers.Add(uint64(len(p.calls)))
	w.ready = append(w.ready, p.calls...)
}

// conflict notes that somebody else has changed the values that a plan was decided on.
func (w *worker) conflict(p *plan, g *Group) {
	s := w.store
	if len(g.Values) != len(g.Changes) {
		w.failed(p, s.notCharged(errAnswer))
		return
	}
	// A group whose every difference is a value that was not known has met nobody. One that also
	// holds a busy key has: each group of that key may bring a new client, and so be unknown in
	// part again and again.
	quicker := !p.unknown
	for i, at := range p.changed {
		e := p.values[at].e
		if v := g.Values[i]; !e.known || e.version != v.Version {
			quicker = quicker || e.known
			e.set(v.Version, v.Data)
		}
	}
	if quicker {
		s.stats.conflicts.Add(1)
	} else {
		s.stats.unknown.Add(1)
	}
	w.retry(p, quicker)
}

// retry has the calls of a plan decided again. quicker says that somebody else was.
func (w *worker) retry(p *plan, quicker bool) {
	for _, c := range p.calls {
		if quicker {
			c.attempts++
		}
		if c.attempts >= maxAttempts {
			c.err = w.store.notCharged(errConflict)
			w.ready = append(w.ready, c)
			continue
		}
		w.again = append(w.again, c)
	}
}

// failed gives the calls of a plan an error.
func (w *worker) failed(p *plan, err error) {
	for _, c := range p.calls {
		c.err = err
	}
	w.ready = append(w.ready, p.calls...)
}

// decideLocked decides the batch, as one group, on values that nobody else can change meanwhile.
func (w *worker) decideLocked(ctx context.Context) {
	s := w.store
	w.begin(0)
	p := w.plans[0]
	p.calls = append(p.calls, w.batch...)
	w.keys = w.keys[:0]
	for _, e := range w.entries {
		w.keys = append(w.keys, Key{e.place, e.name})
	}
	slices.SortFunc(w.keys, func(a, b Key) int { return compareKeys(&a, &b) })
	var values []Value
	var l Lock
	err := s.ask(ctx, func() (clock int64, err error) {
		l, values, clock, err = s.locker.Lock(ctx, w.keys)
		return clock, err
	})
	if err == nil && len(values) != len(w.keys) {
		_ = l.Unlock(ctx, nil)
		err = errAnswer
	}
	if err != nil {
		w.notMade(p.calls, err)
		return
	}
	s.stats.locks.Add(1)
	s.mu.Lock()
	for i := range w.keys {
		if e := s.known.m[string(w.keys[i].Name)]; e != nil {
			e.set(values[i].Version, values[i].Data)
		}
	}
	s.mu.Unlock()
	w.sized(1)
	w.asked = store.Monotonic()
	if w.base = w.planAll(w.asked); s.o.Clock != nil {
		w.base = 0
	}
	g := &w.groups[0]
	s.stats.groups.Add(1)
	var changes []Change
	for i := range g.Changes {
		if !g.Changes[i].Keep {
			changes = append(changes, g.Changes[i])
		}
	}
	sent := store.Monotonic()
	server := &s.server
	server.sent(sent)
	err = l.Unlock(ctx, changes)
	answered := store.Monotonic()
	s.stats.calls.Add(1)
	switch {
	case err == nil:
		server.answered(answered, answered-sent)
		w.made(p)
	case isNotCharged(err):
		w.notMade(p.calls, server.lost(ctx, answered, sent, err))
	default:
		g.Err = server.lost(ctx, answered, sent, err)
		w.unsure = append(w.unsure[:0], 0)
		w.settle()
	}
}

// Where nothing can be locked, the node that is nearest to the database is quicker than all others,
// again and again: it knows the version that it wrote, and by the time that they have learned it,
// there is another one. So it rests after some writes, as long as a write of another node may take,
// and sometimes longer, for one that is further away. Calls that came meanwhile go as one write
// then.
const (
	shortRun    = 8  // writes, before a rest of two of them
	longRun     = 64 // writes, before a rest of eight
	longestRest = 50 * time.Millisecond
	// attempts from which on it is fewer nodes at a time that are wanted, rather than turns
	manyAttempts = 100
)

// share returns how long the worker rests after a Swap that began at asked, and in which some
// groups found a conflict.
func (w *worker) share(asked int64, conflicts int) {
	now := store.Monotonic()
	for _, e := range w.entries {
		switch {
		case conflicts > 0 || asked-e.wrote > int64(w.took):
			e.run = 0
		default:
			e.run++
		}
		switch {
		case e.run >= longRun:
			e.run, w.rests = 0, 8*w.took
		case e.run > 0 && e.run%shortRun == 0:
			w.rests = max(w.rests, 2*w.took)
		}
	}
	if conflicts == len(w.groups) {
		attempts := 0
		for _, c := range w.again {
			attempts = max(attempts, c.attempts)
		}
		if attempts > manyAttempts {
			w.rests = rand.N(min(4*w.took+1, longestRest))
		}
	}
	w.rests = min(w.rests, longestRest)
	for _, e := range w.entries {
		e.wrote = now + int64(w.rests) // that it rests itself is no break
	}
}

// rest waits.
func (w *worker) rest() {
	timer := time.NewTimer(w.rests)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.store.ctx.Done():
	}
}
