package redis

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// beatsMissed is after how many intervals without a heartbeat a node counts as gone.
const beatsMissed = 5

// Nodes returns how many nodes of this prefix were alive when Redis was last asked; 0 if that is not known.
func (s *Store) Nodes() int { return int(s.live.Load()) }

// beat tells that this node lives, until the store is closed.
func (s *Store) beat(client rueidis.Client) {
	// At first more often, since nodes are often started together, and each is to know of all.
	for wait := s.o.Heartbeat / 16; ; wait = min(2*wait, s.o.Heartbeat) {
		s.announce(s.ctx, client, beatsMissed*s.o.Heartbeat)
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// leave tells that this node goes.
func (s *Store) leave() {
	if c, err := s.connected(); err == nil && s.o.Heartbeat > 0 {
		s.announce(s.ctx, c.other, 0)
	}
}

func (s *Store) announce(ctx context.Context, client rueidis.Client, after time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	result, err := s.call(ctx, client, functionNodes, []string{s.partitions[0].prefix + "nodes"},
		[]string{s.virtualNow(), strconv.FormatInt(after.Microseconds(), 10), s.name})
	if err != nil {
		return
	}
	if n, err := result.ToInt64(); err == nil {
		s.live.Store(n)
	}
}
