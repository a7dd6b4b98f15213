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
	// At first more often: nodes are often started together, and each has to learn of all.
	var c census.Census
	for wait := s.o.Heartbeat / 16; ; wait = min(2*wait, s.o.Heartbeat) {
		if n, err := s.announce(s.ctx, census.Missed*s.o.Heartbeat); err == nil {
			s.live.Store(c.Believe(s.live.Load(), n))
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
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
