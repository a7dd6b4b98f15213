package fallback

import (
	"context"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// The board is the primary's: what it holds cannot be known while that is away.
var (
	_ weir.Board     = (*Store)(nil)
	_ weir.Forgetter = (*Store)(nil)
	_ weir.Remote    = (*Store)(nil)
)

// Post implements weir.Board. If the primary is none the error is weir.ErrNoBoard, here as in the other methods.
func (s *Store) Post(ctx context.Context, kind string, facts []weir.Fact) error {
	if b, ok := s.primary.(weir.Board); ok {
		return b.Post(ctx, kind, facts)
	}
	return weir.ErrNoBoard
}

// Remove implements weir.Board.
func (s *Store) Remove(ctx context.Context, kind string, ids []string) error {
	if b, ok := s.primary.(weir.Board); ok {
		return b.Remove(ctx, kind, ids)
	}
	return weir.ErrNoBoard
}

// List implements weir.Board.
func (s *Store) List(ctx context.Context, kind string) ([]weir.Fact, error) {
	if b, ok := s.primary.(weir.Board); ok {
		return b.List(ctx, kind)
	}
	return nil, weir.ErrNoBoard
}

// Watch implements weir.Board.
func (s *Store) Watch(ctx context.Context, kind string, changed func(facts []weir.Fact, anew bool)) error {
	if b, ok := s.primary.(weir.Board); ok {
		return b.Watch(ctx, kind, changed)
	}
	return weir.ErrNoBoard
}

// Forget implements weir.Forgetter.
func (s *Store) Forget(c *rule.Counter, key []byte) {
	if f, ok := s.primary.(weir.Forgetter); ok {
		f.Forget(c, key)
	}
}

// Remote implements weir.Remote: it is what the primary is.
func (s *Store) Remote() bool {
	r, ok := s.primary.(weir.Remote)
	return ok && r.Remote()
}
