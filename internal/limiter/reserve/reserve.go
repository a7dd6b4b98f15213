// Package reserve settles charges whose real cost is known only after the request: reservations,
// which a store holds under an id until somebody commits them or their time is up, and charges that
// are settled by the process that made them.
//
// Begin at Reservations. A store keeps a note of each reservation (note.go), so that any node can
// settle it.
package reserve

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

var errActual = errors.New("weir: a request cannot have cost fewer than 0 hits")

// settlePatience bounds the time for work that must be done even if its client is gone.
const settlePatience = 5 * time.Second

// Config is what Reservations need.
type Config struct {
	Store store.Store
	// Window returns the limit of a counter that is in force for a key; nil if there is none.
	Window func(counter uint64, key []byte) *rule.Window
	// Limit returns the numbers of a window that are in force for a key.
	Limit func(w *rule.Window, key []byte) *algo.Limit
	// Failed is called when the store failed.
	Failed func(err error)
}

// Reservations holds and settles reservations. Safe for concurrent use. Make one with New.
type Reservations struct {
	c Config

	made, committed, expired atomic.Uint64

	mu      sync.Mutex
	timer   *time.Timer // pending unless at is zero
	at      time.Time   // when the timer fires
	until   time.Time   // the last time-out of those that were made here
	failing int         // sweeps that have failed in a row
}

// New returns Reservations over a store.
func New(c Config) *Reservations { return &Reservations{c: c} }

// Able returns store.ErrNoReservations if the store cannot hold reservations.
func (r *Reservations) Able() error {
	_, err := r.store()
	return err
}

func (r *Reservations) store() (store.Reserver, error) {
	s, ok := store.As[store.Reserver](r.c.Store)
	if w, wraps := store.As[store.ReserverWrapper](r.c.Store); !ok || wraps && !w.Reserves() {
		return nil, store.ErrNoReservations
	}
	return s, nil
}

// afterwards returns a context for work that must be done even if its client is gone.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
}

// Hold holds the note of an admitted decision until it is committed, or until the timeout, and
// returns the id of the reservation. If that fails, the charges are given back where it is certain
// that nobody else will do so.
func (r *Reservations) Hold(ctx context.Context, note []byte, timeout time.Duration) (id string, err error) {
	s, err := r.store()
	if err != nil {
		return "", err
	}
	id = rand.Text()
	// Even if the client hangs up now: a reservation that is not held is not given back.
	ctx, cancel := afterwards(ctx)
	defer cancel()
	if err := s.Hold(ctx, id, note, timeout); err != nil {
		r.c.Failed(err)
		r.unhold(ctx, s, id, note, err)
		return "", err
	}
	r.made.Add(1)
	r.sweepIn(timeout)
	return id, nil
}

// unhold gives back the charges of a reservation that could not be held, where it is certain that
// nobody else will do so.
func (r *Reservations) unhold(ctx context.Context, s store.Reserver, id string, note []byte, why error) {
	if !errors.Is(why, store.ErrNotCharged) {
		held, ok, err := s.Claim(ctx, id)
		if err != nil || !ok {
			return
		}
		note = held
	}
	if _, err := r.settle(ctx, s, [][]byte{note}, giveAllBack); err != nil {
		r.c.Failed(err)
	}
}

// actualCost returns the units that a request really cost under a rule, for which c was charged.
type actualCost func(r *rule.Rule, c *Charge) int64

func giveAllBack(*rule.Rule, *Charge) int64 { return 0 }

// Commit settles a reservation: its request really cost so many hits. ok is false if there is none
// of that id.
func (r *Reservations) Commit(ctx context.Context, id string, hits int64) (ok bool, err error) {
	if hits < 0 {
		return false, errActual
	}
	return r.commit(ctx, id, func(_ *rule.Rule, c *Charge) int64 { return algo.Cost(hits, c.Each) })
}

// CommitEach is Commit where actual returns the real cost for each limit, in units.
func (r *Reservations) CommitEach(ctx context.Context, id string,
	actual func(r *rule.Rule, estimate int64) int64) (ok bool, err error) {
	return r.commit(ctx, id, func(r *rule.Rule, c *Charge) int64 { return actual(r, c.Reserved) })
}

func (r *Reservations) commit(ctx context.Context, id string, actual actualCost) (bool, error) {
	s, err := r.store()
	if err != nil {
		return false, err
	}
	if !validID(id) {
		return false, nil
	}
	// Once the note is claimed nobody else can settle it.
	ctx, cancel := afterwards(ctx)
	defer cancel()
	note, ok, err := s.Claim(ctx, id)
	if err != nil {
		r.c.Failed(err)
		return false, err
	}
	if !ok {
		return false, nil
	}
	if _, err := r.settle(ctx, s, [][]byte{note}, actual); err != nil {
		r.c.Failed(err)
		return false, err
	}
	r.committed.Add(1)
	return true, nil
}

// settle makes the settlements of notes that were claimed, and returns how many notes could be
// read.
func (r *Reservations) settle(ctx context.Context, s store.Reserver, notes [][]byte,
	actual actualCost) (read int, err error) {
	var (
		list       []store.Settlement
		unreadable error
	)
	add := func(at int64, c *Charge) {
		if w := r.c.Window(c.Counter, c.Key); w != nil {
			list = append(list, r.settlement(w, c.Key, at, c.Reserved, actual(w.Rule, c)))
		}
	}
	for _, note := range notes {
		begin := len(list)
		if err := readNote(note, add); err != nil {
			list, unreadable = list[:begin], err
			continue
		}
		read++
	}
	if len(list) > 0 {
		if err := s.Settle(ctx, list); err != nil {
			return 0, err
		}
	}
	return read, unreadable
}

// settlement settles one charge. A token bucket whose rate may have changed since gets nothing
// back: units that it has refilled meanwhile, and others have used, would be given twice.
func (r *Reservations) settlement(w *rule.Window, key []byte, at, reserved, actual int64) store.Settlement {
	s := store.Settlement{
		Counter: w.Counter, Limit: r.c.Limit(w, key), Key: key,
		At: at, Reserved: reserved, Actual: algo.ClampCost(max(0, actual)),
	}
	if s.Actual < reserved && s.Limit.Algorithm().Refills() && (w.Rule.Elastic != nil || s.Limit != w.Limit) {
		s.Actual = reserved
	}
	return s
}

// Settlements collects what charges of one decision really cost.
type Settlements struct {
	r    *Reservations
	at   int64
	list []store.Settlement
}

// Settlements returns an empty collection for a decision that was made at an instant, in µs.
func (r *Reservations) Settlements(at int64) *Settlements { return &Settlements{r: r, at: at} }

// Add adds a charge: units that were charged, and that the request really cost. A limit that is no
// longer in force is passed over.
func (s *Settlements) Add(counter uint64, key []byte, charged, actual int64) {
	if w := s.r.c.Window(counter, key); w != nil {
		s.list = append(s.list, s.r.settlement(w, key, s.at, charged, actual))
	}
}

// Settle makes the settlements that were added.
func (s *Settlements) Settle(ctx context.Context) error {
	if len(s.list) == 0 {
		return nil
	}
	to, err := s.r.store()
	if err != nil {
		return err
	}
	if err := to.Settle(ctx, s.list); err != nil {
		s.r.c.Failed(err)
		return err
	}
	return nil
}

// Stats counts reservations and their fates here since New.
type Stats struct {
	Made      uint64 // reservations made
	Committed uint64 // reservations committed or cancelled, also other processes'
	Expired   uint64 // reservations given back after their timeout, also other processes'
}

// Stats returns a reading.
func (r *Reservations) Stats() Stats {
	return Stats{Made: r.made.Load(), Committed: r.committed.Load(), Expired: r.expired.Load()}
}
