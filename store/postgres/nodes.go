package postgres

import (
	"context"
	"time"

	"github.com/weir-rl/weir/store/internal/census"
)

// Nodes returns how many nodes of this schema were alive when PostgreSQL was last asked; 0 if that
// is not known.
func (s *Store) Nodes() int { return int(s.live.Load()) }

// beat sends heartbeats until the store is closed.
func (s *Store) beat() {
	census.Run(s.ctx, s.o.Heartbeat, &s.live, func() (int64, bool) {
		n, err := s.announce(s.ctx, census.Missed*s.o.Heartbeat)
		return n, err == nil
	})
}

// leave announces that this node leaves, if its heartbeats have been heard.
func (s *Store) leave() {
	if s.live.Load() > 0 {
		_, _ = s.announce(s.ctx, 0)
	}
}

// announce says that this node lives for so long.
func (s *Store) announce(ctx context.Context, lifetime time.Duration) (nodes int64, err error) {
	err = s.engine.callAgain(ctx, s.engine.text.beat, func(p *params) {
		s.virtual(p)
		p.text(s.name)
		p.int8(lifetime.Microseconds())
	}, func(columns [][]byte) error {
		nodes, err = number(columns[0])
		return err
	}, func() {})
	return nodes, err
}
