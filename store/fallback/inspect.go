package fallback

import (
	"context"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Inspection reads the primary: its contents cannot be known while it is away.
var _ store.Inspector = (*Store)(nil)

// Inspect implements store.Inspector. If the primary cannot be inspected, Inspect and the other
// methods fail with store.ErrNoInspector.
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

// Reset implements store.Inspector. It also forgets the units that this node counted while the
// primary was away.
func (s *Store) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	i, ok := store.As[store.Inspector](s.primary)
	if !ok {
		return false, store.ErrNoInspector
	}
	there, err := i.Reset(ctx, c, key)
	if err != nil {
		return false, err
	}
	s.Forget(c, key)
	s.known.forget(c, key)
	if local, ok := s.o.Local.(store.Inspector); ok {
		here, err := local.Reset(ctx, c, key)
		return there || here, err
	}
	return there, nil
}
