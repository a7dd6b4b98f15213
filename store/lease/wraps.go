package lease

import (
	"context"
	"errors"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// The optional interfaces of a store: methods that change a key first report its unreported use.
var (
	_ store.Reserver  = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Forgetter = (*Store)(nil)
)

// Hold implements store.Reserver. If the primary holds no reservations, Hold and the other methods
// fail with store.ErrNoReservations.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	if r, ok := store.As[store.Reserver](s.primary); ok {
		return r.Hold(ctx, id, note, timeout)
	}
	return store.ErrNoReservations
}

// Claim implements store.Reserver.
func (s *Store) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	if r, is := store.As[store.Reserver](s.primary); is {
		return r.Claim(ctx, id)
	}
	return nil, false, store.ErrNoReservations
}

// Expired implements store.Reserver.
func (s *Store) Expired(ctx context.Context, n int) ([][]byte, error) {
	if r, ok := store.As[store.Reserver](s.primary); ok {
		return r.Expired(ctx, n)
	}
	return nil, store.ErrNoReservations
}

// Settle implements store.Reserver. It first reports the unreported use of a key that leases to the
// primary: the charge that is settled may be among it. Units that go back then do so as from a
// charge at the instant of the request; under a limit with a log, which
// stamps units when they are reported, units that were used here do not go back.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	r, ok := store.As[store.Reserver](s.primary)
	if !ok {
		return store.ErrNoReservations
	}
	var charges []store.Charge
	for i := range settlements {
		e := &settlements[i]
		if c := (store.Charge{Counter: e.Counter, Limit: e.Limit, Key: e.Key}); e.Actual < e.Reserved && lends(&c) {
			charges = append(charges, c)
		}
	}
	s.tellNow(ctx, charges)
	return r.Settle(ctx, settlements)
}

// tellNow reports the unreported use of the keys of peeks. If it fails, less goes back than could.
func (s *Store) tellNow(ctx context.Context, charges []store.Charge) {
	if len(charges) == 0 {
		return
	}
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	if s.drained.Load() { // as in ask
		return
	}
	c := s.calls.Get().(*call)
	defer s.putCall(c)
	s.gather(c, charges, 0)
	at := s.at()
	if s.prepare(c, at) {
		_, _ = s.lend(ctx, 0, 0, c)
	}
}

// Inspect implements store.Inspector. Units that were used here, and not reported yet, are shown
// among the units out. If the primary cannot be inspected, Inspect and the other methods fail with
// store.ErrNoInspector.
func (s *Store) Inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	if i, ok := store.As[store.Inspector](s.primary); ok {
		return i.Inspect(ctx, v, keys, visit)
	}
	return store.ErrNoInspector
}

// Scan implements store.Inspector.
func (s *Store) Scan(ctx context.Context, v *store.View, from string, most int,
	visit func(store.KeyState)) (store.Scanned, error) {
	if i, ok := store.As[store.Inspector](s.primary); ok {
		return i.Scan(ctx, v, from, most, visit)
	}
	return store.Scanned{}, store.ErrNoInspector
}

// Reset implements store.Inspector. Units that were used here until then are reported first, and so
// forgotten too. Units that are held here, and on other nodes, can still be used.
func (s *Store) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	i, ok := store.As[store.Inspector](s.primary)
	if !ok {
		return false, store.ErrNoInspector
	}
	if c == nil {
		return false, errors.New("lease: Reset needs a Counter")
	}
	s.tellNow(ctx, s.held(c, key))
	there, err := i.Reset(ctx, c, key)
	s.forget(c, key)
	return there, err
}

// Forget implements store.Forgetter.
func (s *Store) Forget(c *rule.Counter, key []byte) {
	s.forget(c, key)
	if f, ok := store.As[store.Forgetter](s.primary); ok {
		f.Forget(c, key)
	}
}

func (s *Store) forget(c *rule.Counter, key []byte) {
	h := s.hash(&store.Charge{Counter: c, Key: key})
	sh := s.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sl := sh.find(h, c.ID, key); sl != nil {
		sl.Forget()
	}
}

// held returns a peek at a key under the limit under which it leases; nothing if it does not.
func (s *Store) held(c *rule.Counter, key []byte) []store.Charge {
	h := s.hash(&store.Charge{Counter: c, Key: key})
	sh := s.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sl := sh.find(h, c.ID, key)
	if sl == nil {
		return nil
	}
	return []store.Charge{{Counter: sl.terms.counter, Limit: sl.terms.Limit, Key: key}}
}
