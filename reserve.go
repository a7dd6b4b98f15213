package weir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// How long a reservation is held: by default, and at most if whoever asks says how long.
const (
	DefaultReservation = 5 * time.Minute
	MaxReservation     = time.Hour
)

// ErrNoReservations is the error of all that needs a Reserver if the Limiter's store is none, and does not wrap one (with a method
// Unwrap() Store). Those of store/memory, store/redis and store/fallback are.
var ErrNoReservations = errors.New("weir: the store cannot hold reservations: it is no weir.Reserver")

var (
	errEstimate = errors.New("weir: an estimate must be of 0 hits or more")
	errActual   = errors.New("weir: a request cannot have cost fewer than 0 hits")
)

// Reserve decides r into d as Decide does, r.Hits being an estimate of what the request will cost. If it is admitted it
// returns the id of a reservation, which holds the estimate until Commit says what the request really cost, or until
// the timeout: then the estimate is given back. See Decision.ReservationTimeout for how long that is.
//
// The id cannot be guessed, and tells nothing; whoever has it may commit. It is "" if there is nothing to settle: if d is
// a refusal, or if no limit was met whose charges can be changed afterwards. Those of a leaky_bucket, of concurrency, and
// of what a descriptor brings itself (a limit, hits of its own) cannot: they stay as they were charged.
//
// An estimate of 0 hits admits the request if the limits are not exceeded, and leaves all of the cost to Commit.
//
// If it returns an error there is no reservation, and d.Matches tells which rules were met, as after Decide.
func (l *Limiter) Reserve(ctx context.Context, r *Request, d *Decision, timeout time.Duration) (reservation string, err error) {
	store, ok := as[Reserver](l.store)
	switch {
	case !ok:
		return "", ErrNoReservations
	case r.Hits < 0:
		return "", errEstimate
	case timeout < 0 || timeout > MaxReservation:
		return "", fmt.Errorf("weir: a reservation is held for at most %v, not %v; 0 means %v", MaxReservation, timeout, DefaultReservation)
	}
	if err := l.Decide(ctx, r, d); err != nil || !d.Allowed {
		return "", err
	}
	note := d.note(r)
	if note == nil {
		return "", nil
	}
	timeout = d.ReservationTimeout(timeout)
	id := rand.Text()
	// Even if the client hangs up now: what is not held is not given back.
	afterwards, cancel := afterwards(ctx)
	defer cancel()
	if err := store.Hold(afterwards, id, note, timeout); err != nil {
		l.storeError(err)
		l.unreserve(afterwards, store, id, note, err)
		return "", err
	}
	l.reservations.made.Add(1)
	l.sweepIn(timeout)
	return id, nil
}

// ReservationTimeout returns for how long Reserve holds a reservation of d that was asked for with a timeout: no longer
// than the shortest cost_timeout of the rules that were met. A timeout of 0 stands for that, or for DefaultReservation if no rule says
// anything.
func (d *Decision) ReservationTimeout(timeout time.Duration) time.Duration {
	least := time.Duration(0)
	for i := range d.Matches.Hits {
		if t := d.Matches.Hits[i].Window.Rule.CostTimeout; t > 0 && (least == 0 || t < least) {
			least = t
		}
	}
	switch {
	case timeout > 0 && least > 0:
		return min(timeout, least)
	case timeout > 0:
		return timeout
	case least > 0:
		return least
	}
	return DefaultReservation
}

// unreserve gives back what was charged for a reservation that could not be held, where it is certain that nobody else will
// do so.
func (l *Limiter) unreserve(ctx context.Context, store Reserver, id string, note []byte, why error) {
	if !errors.Is(why, ErrNotCharged) {
		if held, ok, err := store.Claim(ctx, id); err != nil || !ok {
			return
		} else {
			note = held
		}
	}
	if _, err := l.settle(ctx, store, [][]byte{note}, giveAllBack); err != nil {
		l.storeError(err)
	}
}

// afterwards is a context for what must be done even if its client is gone.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// Commit settles a reservation: its request really cost so many hits, which are counted as the estimate was (a rule's cost is
// per hit). What was reserved too much is given back, as far as it has not lapsed by then; what is missing is charged
// even if there is no room for it, so that later requests make up for it. 0 hits cancel the reservation.
//
// ok is false if there is none of that id: it was committed before, it timed out, or it was never made. Limits that are no longer in
// force are passed over. After an error, what was not settled stays charged as it was.
func (l *Limiter) Commit(ctx context.Context, reservation string, hits int64) (ok bool, err error) {
	if hits < 0 {
		return false, errActual
	}
	return l.commit(ctx, reservation, func(_ *rule.Rule, n *noted) int64 { return cost(hits, n.each) })
}

// CommitEach is Commit where the cost differs from rule to rule: actual is called for each limit of the reservation, with
// the units that were reserved, and returns the units that the request really cost; below 0 means 0.
func (l *Limiter) CommitEach(ctx context.Context, reservation string, actual func(r *rule.Rule, estimate int64) int64) (ok bool, err error) {
	return l.commit(ctx, reservation, func(r *rule.Rule, n *noted) int64 { return actual(r, n.reserved) })
}

func (l *Limiter) commit(ctx context.Context, reservation string, actual func(*rule.Rule, *noted) int64) (bool, error) {
	store, ok := as[Reserver](l.store)
	if !ok {
		return false, ErrNoReservations
	}
	if !validReservation(reservation) {
		return false, nil
	}
	// Once the note is claimed nobody else can settle it.
	ctx, cancel := afterwards(ctx)
	defer cancel()
	note, ok, err := store.Claim(ctx, reservation)
	if err != nil {
		l.storeError(err)
		return false, err
	}
	if !ok {
		return false, nil
	}
	if _, err := l.settle(ctx, store, [][]byte{note}, actual); err != nil {
		l.storeError(err)
		return false, err
	}
	l.reservations.committed.Add(1)
	return true, nil
}

// sweepBatch is how many notes are asked for at a time.
const sweepBatch = 128

// Sweep gives back the estimates of all reservations of the store whose timeout has passed, whoever made them, and
// returns how many there were. A Limiter that has made reservations calls it by itself; it is for those that outlive the
// process that made them.
func (l *Limiter) Sweep(ctx context.Context) (released int, err error) {
	store, ok := as[Reserver](l.store)
	if !ok {
		return 0, ErrNoReservations
	}
	for {
		notes, err := store.Expired(ctx, sweepBatch)
		if err != nil {
			l.storeError(err)
			return released, err
		}
		if len(notes) == 0 {
			return released, nil
		}
		// They have been handed out: nobody else will settle them.
		after, cancel := afterwards(ctx)
		n, err := l.settle(after, store, notes, giveAllBack)
		cancel()
		released += n
		l.reservations.expired.Add(uint64(n))
		if err != nil {
			l.storeError(err)
			return released, err
		}
		if len(notes) < sweepBatch {
			return released, nil
		}
	}
}

func giveAllBack(*rule.Rule, *noted) int64 { return 0 }

// settle makes the settlements of notes that were claimed, and returns how many of them could be read.
func (l *Limiter) settle(ctx context.Context, store Reserver, notes [][]byte, actual func(*rule.Rule, *noted) int64) (read int, err error) {
	var (
		list   []Settlement
		odd    error
		in     = l.rules.Load()
		charge = func(at int64, n *noted) {
			w := in.windowOf(n.counter, n.key)
			if w == nil {
				return
			}
			list = append(list, l.settlement(w, n.key, at, n.reserved, actual(w.Rule, n)))
		}
	)
	for _, note := range notes {
		begin := len(list)
		if err := readNote(note, charge); err != nil {
			list, odd = list[:begin], err
			continue
		}
		read++
	}
	if len(list) > 0 {
		if err := store.Settle(ctx, list); err != nil {
			return 0, err
		}
	}
	return read, odd
}

// Settle replaces what d charged by what the request really cost, where that is known to whoever decided it: actual is
// called for each limit that d charged, with the units that were charged, and returns the units that the request cost; ok is
// false to leave the limit as it was charged. What is said at Commit of giving back, and of limits, holds here.
//
// d must be an admitted decision of this Limiter that has not been reused. To be called once. No reservation is needed; if the
// process dies before it has called Settle, the estimate stays charged.
func (l *Limiter) Settle(ctx context.Context, d *Decision, actual func(r *rule.Rule, estimate int64) (units int64, ok bool)) error {
	if !d.Allowed {
		return nil
	}
	store, ok := as[Reserver](l.store)
	if !ok {
		return ErrNoReservations
	}
	var list []Settlement
	in := l.rules.Load()
	for i := range d.charges {
		c, h := &d.charges[i], &d.Matches.Hits[i]
		if !d.changeable(i) {
			continue
		}
		units, ok := actual(h.Window.Rule, c.Ask.Cost)
		if !ok {
			if h.Window.Rule.CostAfter != "" {
				l.reservations.unknown.Add(1)
			}
			continue
		}
		if w := in.windowOf(c.Counter.ID, c.Key); w != nil {
			list = append(list, l.settlement(w, c.Key, d.Time, c.Ask.Cost, units))
		}
	}
	if len(list) == 0 {
		return nil
	}
	if err := store.Settle(ctx, list); err != nil {
		l.storeError(err)
		return err
	}
	return nil
}

// changeable reports whether the i-th charge of an admitted decision was made, and may be changed afterwards.
func (d *Decision) changeable(i int) bool {
	c := &d.charges[i]
	if a := c.Limit.Algorithm(); a == algo.LeakyBucket || a == algo.Concurrency || c.Ask.Cost < 0 {
		return false
	}
	return d.results[i].Allowed || c.Limit.CountDenied()
}

// windowOf returns the limit of a counter that is in force for a key; nil if there is none.
func (f *inForce) windowOf(counter uint64, key []byte) *rule.Window {
	if f == nil {
		return nil
	}
	f.byCounterOnce.Do(func() {
		f.byCounter = make(map[uint64]*rule.Rule, len(f.counters))
		add := func(r *rule.Rule, windows []*rule.Window) {
			for _, w := range windows {
				if w.Counter != nil {
					f.byCounter[w.Counter.ID] = r
				}
			}
		}
		for _, r := range f.set.Rules() {
			add(r, r.Windows)
			for i := range r.Overrides {
				add(r, r.Overrides[i].Windows)
			}
		}
	})
	r := f.byCounter[counter]
	if r == nil {
		return nil
	}
	return r.WindowFor(counter, key)
}

// settlement settles one charge. A token bucket whose rate may have been another one since gets nothing back: what it has refilled
// meanwhile, and others have used, would be given twice.
func (l *Limiter) settlement(w *rule.Window, key []byte, at, reserved, actual int64) Settlement {
	s := Settlement{Counter: w.Counter, Limit: l.limitOf(w, key), Key: key, At: at, Reserved: reserved, Actual: withinCost(max(0, actual))}
	if s.Actual < reserved && s.Limit.Algorithm() == algo.TokenBucket && (w.Rule.Elastic != nil || s.Limit != w.Limit) {
		s.Actual = reserved
	}
	return s
}

// limitOf returns the numbers of a window that are in force for a key.
func (l *Limiter) limitOf(w *rule.Window, key []byte) *algo.Limit {
	if l.grants.table.n.Load() > 0 {
		if g, _, ok := l.grants.table.find(w.Counter.Keys, key, l.bans.now()); ok {
			for i := range g.limits {
				if g.limits[i].counter == w.Counter.ID {
					return g.limits[i].limit
				}
			}
		}
	}
	if e := w.Rule.Elastic; e != nil && l.signals != nil {
		if value, ok := l.signals.Signal(e.Signal); ok {
			return w.Scaled(value)
		}
	}
	return w.Limit
}

func (l *Limiter) storeError(err error) {
	if l.hooks.StoreError != nil {
		l.hooks.StoreError(err)
	}
}

// reservations is what a Limiter knows of reservations. The zero value is ready.
type reservations struct {
	made, committed, expired, unknown atomic.Uint64

	mu      sync.Mutex
	timer   *time.Timer // pending unless at is zero
	at      time.Time   // when the timer fires
	until   time.Time   // the last time-out of those that this Limiter has made
	failing int         // sweeps that have failed in a row
}

// ReservationStats counts what became of reservations at this Limiter.
type ReservationStats struct {
	Made      uint64 // reservations made
	Committed uint64 // reservations committed or cancelled, whoever made them
	Expired   uint64 // reservations whose estimate was given back after their timeout, whoever made them
	Unknown   uint64 // charges of rules with cost_after that stay as they were, since the cost could not be told from the response
}

// ReservationStats returns the counts since the Limiter was made.
func (l *Limiter) ReservationStats() ReservationStats {
	r := &l.reservations
	return ReservationStats{Made: r.made.Load(), Committed: r.committed.Load(), Expired: r.expired.Load(), Unknown: r.unknown.Load()}
}

// How often expired reservations are looked for while there may be some, and how long one that was made here is looked for
// after its time-out: the store's clock may be behind.
const (
	sweepEvery   = time.Second
	sweepLonger  = 3 * time.Second
	sweepFailing = 6 // at most 2^6 times as seldom while the store fails
)

// sweepIn sees to it that Sweep is called when a reservation made now has timed out.
func (l *Limiter) sweepIn(timeout time.Duration) {
	r := &l.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Now().Add(timeout)
	if at.After(r.until) {
		r.until = at
	}
	l.schedule(at)
}

// schedule makes the timer fire at the given time, or earlier. r.mu is held.
func (l *Limiter) schedule(at time.Time) {
	r := &l.reservations
	if !r.at.IsZero() && !r.at.After(at) {
		return
	}
	r.at = at
	if r.timer == nil {
		r.timer = time.AfterFunc(time.Until(at), l.sweepInBackground)
	} else {
		r.timer.Reset(time.Until(at))
	}
}

func (l *Limiter) sweepInBackground() {
	r := &l.reservations
	r.mu.Lock()
	r.at = time.Time{}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	_, err := l.Sweep(ctx)
	cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failing++; err == nil {
		r.failing = 0
	}
	if now := time.Now(); now.Before(r.until.Add(sweepLonger)) {
		l.schedule(now.Add(sweepEvery << min(r.failing, sweepFailing)))
	}
}
