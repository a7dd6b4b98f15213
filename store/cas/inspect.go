package cas

import (
	"bytes"
	"context"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

var _ store.Inspector = (*Store)(nil)

// inspected is how many keys are read together.
const inspected = 256

// Inspect implements store.Inspector. Keys are read in groups, each at one instant.
func (s *Store) Inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	if v.Counter == nil {
		return nil
	}
	groups := map[uint64][][]byte{} // by place, where these cannot be read together
	for _, key := range keys {
		place := uint64(0)
		if !s.spans {
			place = placeOf(v.Counter, key)
		}
		groups[place] = append(groups[place], key)
	}
	for _, keys := range groups {
		for some := range slices.Chunk(keys, inspected) {
			if err := s.inspect(ctx, v, some, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// inspect reads keys that can be read together.
func (s *Store) inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	var charges []store.Charge
	for _, key := range keys {
		if l := v.Limit(key); l != nil {
			charges = append(charges, store.Charge{Counter: v.Counter, Limit: l, Key: key})
		}
	}
	if len(charges) == 0 {
		return nil
	}
	c := s.newCall(charges)
	defer s.putCall(c)
	names := make([]Key, len(c.names))
	for i, name := range c.names {
		names[i] = Key{c.places[i], name}
		c.entries = append(c.entries, &entry{name: name, place: c.places[i]})
	}
	var values []Value
	p := &plan{store: s, calls: []*call{c}}
	err := s.ask(ctx, func() (int64, error) {
		var err error
		values, p.now, err = s.engine.Read(ctx, names)
		return p.now, err
	})
	if err == nil && len(values) != len(names) {
		err = errAnswer
	}
	if err != nil {
		return s.wrap(err)
	}
	for i, e := range c.entries {
		e.data = values[i].Data
	}
	if s.o.Clock != nil {
		p.now = s.o.Clock()
	}
	p.open()
	p.find(c)
	for i := range c.charges {
		o, st := &c.charges[i], &c.states[i].St
		if o.Limit.Fresh(st, p.now) {
			continue
		}
		visit(v.State(o.Key, o.Limit, st, c.besides[i].In(), p.now))
	}
	return nil
}

// Scan implements store.Inspector: it scans the engine's values.
func (s *Store) Scan(ctx context.Context, v *store.View, from string, limit int,
	visit func(store.KeyState)) (store.Scanned, error) {
	var out store.Scanned
	if v.Counter == nil || v.Counter.Limit == nil {
		return out, nil
	}
	id := valueID(v.Counter, v.Counter.Limit)
	var keys [][]byte
	next, of, err := s.engine.Scan(ctx, from, max(1, limit), func(name []byte, _ Value) {
		out.Looked++
		if key, ok := keyOf(name, id); ok {
			keys = append(keys, bytes.Clone(key))
		}
	})
	s.stats.calls.Add(1)
	if err != nil {
		s.stats.failures.Add(1)
		return store.Scanned{}, s.wrap(err)
	}
	out.Next, out.Of = next, of
	return out, s.Inspect(ctx, v, keys, visit)
}

// Reset implements store.Inspector.
func (s *Store) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	if c == nil || c.Limit == nil {
		return false, nil
	}
	ok := new(bool) // not the result itself: a call that was given up may still be made
	err := s.change(ctx, []store.Charge{{Counter: c, Limit: c.Limit, Key: key}}, true, func(p *plan, call *call) {
		*ok = false
		for _, st := range p.statesOf(call) {
			*ok = *ok || !st.limit.Fresh(&st.St, p.now)
			st.St, st.write = algo.State{}, true
		}
	})
	if err != nil {
		return false, err
	}
	s.Forget(c, key)
	return *ok, nil
}

// statesOf returns all states that a call names, once find has found them.
func (p *plan) statesOf(c *call) []*planState {
	var list []*planState
	for i := range c.refs {
		if st := p.state(c, &c.refs[i]); !slices.Contains(list, st) {
			list = append(list, st)
		}
	}
	return list
}
