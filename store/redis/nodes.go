package redis

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/store/internal/census"
)

// Nodes returns how many nodes of this prefix were alive when Redis was last asked; 0 if that is
// not known.
func (s *Store) Nodes() int { return int(s.live.Load()) }

// beat sends heartbeats until the store is closed.
func (s *Store) beat(client rueidis.Client) {
	census.Run(s.ctx, s.o.Heartbeat, &s.live, func() (int64, bool) {
		return s.announce(s.ctx, client, census.Missed*s.o.Heartbeat)
	})
}

// leave announces that this node leaves.
func (s *Store) leave() {
	if c, err := s.connected(); err == nil && s.o.Heartbeat > 0 {
		s.announce(s.ctx, c.other, 0)
	}
}

func (s *Store) announce(ctx context.Context, client rueidis.Client, after time.Duration) (nodes int64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	result, err := s.call(ctx, client, lua().nodes, []string{s.nodesKey()},
		[]string{s.virtualNow(), strconv.FormatInt(after.Microseconds(), 10), s.name})
	if err != nil {
		return 0, false
	}
	nodes, err = result.ToInt64()
	return nodes, err == nil
}
