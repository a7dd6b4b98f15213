package redis

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"
)

// Client returns the store's connection, for other uses of the same Redis: not for decisions, which
// have one of their own. It is the store's: it must not be closed, and not be kept, since it may be
// another one later. The error says why there is none.
func (s *Store) Client() (rueidis.Client, error) {
	c, err := s.connected()
	if err != nil {
		return nil, err
	}
	return c.other, nil
}

// Name returns the name under which this node sends heartbeats: unique, and new at each start.
func (s *Store) Name() string { return s.name }

// NodeNames returns the names of the nodes of this prefix that are alive, in no particular order:
// of those that sent a heartbeat in the last five intervals.
func (s *Store) NodeNames(ctx context.Context) ([]string, error) {
	c, err := s.connected()
	if err != nil {
		return nil, err
	}
	names, err := c.other.Do(ctx, c.other.B().Zrange().Key(s.nodesKey()).Min("0").Max("-1").Build()).AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	return names, nil
}

// nodesKey is where the nodes are registered: a sorted set of names, by the last heartbeat.
func (s *Store) nodesKey() string { return s.partitions[0].prefix + "nodes" }
