package fallback

import (
	"context"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// The board is the primary's: its contents cannot be known while the primary is away.
var (
	_ store.Board     = (*Store)(nil)
	_ store.Forgetter = (*Store)(nil)
	_ store.Remote    = (*Store)(nil)
)

// Post implements store.Board. If the primary has no board, Post and the other methods fail with
// store.ErrNoBoard.
func (s *Store) Post(ctx context.Context, kind string, facts []store.Fact) error {
	if b, ok := store.As[store.Board](s.primary); ok {
		return b.Post(ctx, kind, facts)
	}
	return store.ErrNoBoard
}

// Remove implements store.Board.
func (s *Store) Remove(ctx context.Context, kind string, ids []string) error {
	if b, ok := store.As[store.Board](s.primary); ok {
		return b.Remove(ctx, kind, ids)
	}
	return store.ErrNoBoard
}

// List implements store.Board.
func (s *Store) List(ctx context.Context, kind string) ([]store.Fact, error) {
	if b, ok := store.As[store.Board](s.primary); ok {
		return b.List(ctx, kind)
	}
	return nil, store.ErrNoBoard
}

// Watch implements store.Board.
func (s *Store) Watch(ctx context.Context, kind string, changed func(facts []store.Fact, anew bool)) error {
	if b, ok := store.As[store.Board](s.primary); ok {
		return b.Watch(ctx, kind, changed)
	}
	return store.ErrNoBoard
}

// Forget implements store.Forgetter. The units that the key has used stay counted.
func (s *Store) Forget(c *rule.Counter, key []byte) {
	s.known.reopen(c, key)
	if f, ok := store.As[store.Forgetter](s.primary); ok {
		f.Forget(c, key)
	}
}

// Remote implements store.Remote. It reports the same as the primary does.
func (s *Store) Remote() bool {
	r, ok := store.As[store.Remote](s.primary)
	return ok && r.Remote()
}
