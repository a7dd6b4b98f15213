package regions

import (
	"context"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Hold implements store.Reserver. If the wrapped store holds no reservations, Hold and the other
// methods fail with store.ErrNoReservations.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	if r, ok := store.As[store.Reserver](s.inner); ok {
		return r.Hold(ctx, id, note, timeout)
	}
	return store.ErrNoReservations
}

// Claim implements store.Reserver.
func (s *Store) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	if r, is := store.As[store.Reserver](s.inner); is {
		return r.Claim(ctx, id)
	}
	return nil, false, store.ErrNoReservations
}

// Expired implements store.Reserver.
func (s *Store) Expired(ctx context.Context, n int) ([][]byte, error) {
	if r, ok := store.As[store.Reserver](s.inner); ok {
		return r.Expired(ctx, n)
	}
	return nil, store.ErrNoReservations
}

// Settle implements store.Reserver: a charge under the ceiling and to all regions is settled in
// both.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	r, ok := store.As[store.Reserver](s.inner)
	if !ok {
		return store.ErrNoReservations
	}
	var inner []store.Settlement
	found := false
	for i := range settlements {
		e := settlements[i]
		if e.Counter == nil || e.Counter.Regions == nil || e.Limit == nil {
			inner = append(inner, e)
			continue
		}
		found = true
		if e.Counter.Regions.Sync {
			inner = append(inner, e)
			continue
		}
		d := s.ceilings.of(e.Limit, e.Counter.Regions.Over)
		own := e
		own.Limit = d.own
		inner = append(inner, own)
		if all := heardCounter(e.Counter.Regions, e.Limit); all != nil {
			e.Counter, e.Limit = all, d.all
			inner = append(inner, e)
		}
	}
	if !found {
		return r.Settle(ctx, settlements)
	}
	if err := r.Settle(ctx, inner); err != nil {
		return err
	}
	if s.hooks.told == nil {
		return nil
	}
	for i := range settlements {
		e := &settlements[i]
		if e.Counter == nil || e.Counter.Regions == nil || e.Limit == nil || e.Actual == e.Reserved {
			continue
		}
		if !e.Limit.Settles() {
			continue // they are left as they are
		}
		units, now := max(e.Actual, 0)-max(e.Reserved, 0), max(s.clock.now(), e.At)
		if _, until := windowSpan(e.Limit, e.At); units < 0 && now >= until {
			continue // they do not count any more, here or there
		}
		s.hooks.told(e.Counter, e.Limit, e.Key, units, now, nil)
	}
	return nil
}

// Forget implements store.Forgetter.
func (s *Store) Forget(c *rule.Counter, key []byte) {
	f, ok := store.As[store.Forgetter](s.inner)
	if !ok {
		return
	}
	f.Forget(c, key)
	if c != nil && c.Regions != nil && c.Regions.All != nil {
		f.Forget(c.Regions.All, key)
	}
}

// Inspect implements store.Inspector. A limit that holds over regions is shown as one: Used is the
// use of all regions, as far as they have reported it, or this region's where that has no say; Lent
// is the ceiling's. If the wrapped store cannot be inspected, Inspect and the other methods fail
// with store.ErrNoInspector.
func (s *Store) Inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	i, ok := store.As[store.Inspector](s.inner)
	if !ok {
		return store.ErrNoInspector
	}
	if !anyDivided(v) {
		return i.Inspect(ctx, v, keys, s.whole(v, visit))
	}
	own, err := gatherStates(ctx, i, s.ownView(v), keys)
	if err != nil {
		return err
	}
	return s.visit(ctx, i, v, keys, own, visit)
}

// Scan implements store.Inspector. It finds the keys that were used in this region.
func (s *Store) Scan(ctx context.Context, v *store.View, from string, limit int,
	visit func(store.KeyState)) (store.Scanned, error) {
	i, ok := store.As[store.Inspector](s.inner)
	if !ok {
		return store.Scanned{}, store.ErrNoInspector
	}
	if !anyDivided(v) {
		return i.Scan(ctx, v, from, limit, s.whole(v, visit))
	}
	own := map[string]store.KeyState{}
	var keys [][]byte
	scanned, err := i.Scan(ctx, s.ownView(v), from, limit, func(k store.KeyState) {
		key := append([]byte(nil), k.Key...)
		k.Key = key
		own[string(key)] = k
		keys = append(keys, key)
	})
	if err != nil {
		return scanned, err
	}
	return scanned, s.visit(ctx, i, v, keys, own, visit)
}

// Reset implements store.Inspector: for a limit that holds over regions it resets this region's own
// counts, and the use it has heard of. Others go on counting the use that they have heard of.
func (s *Store) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	i, ok := store.As[store.Inspector](s.inner)
	if !ok {
		return false, store.ErrNoInspector
	}
	there, err := i.Reset(ctx, c, key)
	if err != nil || c == nil || c.Regions == nil || c.Regions.All == nil {
		return there, err
	}
	heard, err := i.Reset(ctx, c.Regions.All, key)
	return there || heard, err
}

// anyDivided reports whether the keys of a view have a ceiling.
func anyDivided(v *store.View) bool {
	return v != nil && v.Counter != nil && v.Limit != nil && v.Counter.Regions != nil && !v.Counter.Regions.Sync
}

// whole returns visit for the keys of a view that have no ceiling: of a limit with sync one state
// counts what all regions used.
func (s *Store) whole(v *store.View, visit func(store.KeyState)) func(store.KeyState) {
	if v == nil || v.Counter == nil || v.Counter.Regions == nil {
		return visit
	}
	return func(k store.KeyState) {
		k.Regions = &store.KeyRegions{Region: s.ceilings.name(), All: useOf(&k)}
		visit(k)
	}
}

func useOf(k *store.KeyState) *store.KeyUse {
	return &store.KeyUse{Used: k.Used, Limit: k.Result.Limit}
}

// ownView is the view of the ceiling's counters.
func (s *Store) ownView(v *store.View) *store.View {
	own := *v
	own.Limit = func(key []byte) *algo.Limit {
		if l := v.Limit(key); l != nil {
			return s.ceilings.of(l, v.Counter.Regions.Over).own
		}
		return nil
	}
	return &own
}

// allView is the view of the use of all regions; nil if that has no say.
func (s *Store) allView(v *store.View) *store.View {
	if v.Counter.Regions.All == nil {
		return nil
	}
	all := *v
	all.Counter = v.Counter.Regions.All
	all.Limit = func(key []byte) *algo.Limit {
		if l := v.Limit(key); l != nil && heardCounter(v.Counter.Regions, l) != nil {
			return s.ceilings.of(l, v.Counter.Regions.Over).all
		}
		return nil
	}
	return &all
}

// gatherStates returns the states of keys, without the fresh ones.
func gatherStates(ctx context.Context, i store.Inspector, v *store.View, keys [][]byte) (map[string]store.KeyState,
	error) {
	states := map[string]store.KeyState{}
	err := i.Inspect(ctx, v, keys, func(k store.KeyState) {
		k.Key = append([]byte(nil), k.Key...)
		states[string(k.Key)] = k
	})
	return states, err
}

// visit folds the ceiling's states of keys, own, with the states of the use of all regions, and
// visits the keys with a state that is not fresh, in order.
func (s *Store) visit(
	ctx context.Context, i store.Inspector, v *store.View, keys [][]byte, own map[string]store.KeyState,
	visit func(store.KeyState),
) error {
	var all map[string]store.KeyState
	ownView, allView := s.ownView(v), s.allView(v)
	if allView != nil {
		var err error
		if all, err = gatherStates(ctx, i, allView, keys); err != nil {
			return err
		}
	}
	now := s.clock.now()
	if now == 0 {
		now = time.Now().UnixMicro()
	}
	for _, key := range keys {
		o, used := own[string(key)]
		a, heard := all[string(key)]
		if !used && !heard {
			continue
		}
		delete(own, string(key)) // a key that stands twice is visited once
		delete(all, string(key))
		l := v.Limit(key)
		if l == nil {
			continue
		}
		if !used {
			o = ownView.State(key, ownView.Limit(key), &algo.State{}, &algo.State{}, now)
		}
		k, d := o, s.ceilings.of(l, v.Counter.Regions.Over)
		k.Regions = &store.KeyRegions{Region: s.ceilings.name(), Own: useOf(&o)}
		if allView == nil || allView.Limit(key) == nil {
			d.fold(&k.Result, l, &o.Result, nil, now)
			d.fold(&k.Next, l, &o.Next, nil, now)
		} else {
			if !heard {
				a = allView.State(key, d.all, &algo.State{}, &algo.State{}, now)
			}
			d.fold(&k.Result, l, &o.Result, &a.Result, now)
			d.fold(&k.Next, l, &o.Next, &a.Next, now)
			k.Used, k.Regions.All = a.Used, useOf(&a)
		}
		visit(k)
	}
	return nil
}
