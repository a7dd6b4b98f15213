package redis

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	memory "github.com/weir-rl/weir/store/internal/refusals"
)

// refusals remembers what Redis has refused, and hears from other nodes what they gave back.
type refusals struct {
	*memory.Memory
	store       *Store
	longest     time.Duration
	invalidated chan string // keys whose refusals other nodes must forget
}

func newRefusals(s *Store, longest time.Duration) *refusals {
	return &refusals{memory.New(longest), s, longest, make(chan string, 1024)}
}

// invalidate forgets the refusal of a key that may admit earlier than was said, on this node and on
// all others.
func (r *refusals) invalidate(id uint64, key []byte) {
	r.Forget(id, key)
	select {
	case r.invalidated <- string(binary.BigEndian.AppendUint64(nil, id)) + string(key):
	default: // the other nodes forget it after a second at most
	}
}

func (s *Store) channel() string { return s.o.Prefix + formatVersion + "opened" }

// listen receives and publishes invalidations, until the store is closed.
func (r *refusals) listen(client rueidis.Client) {
	s := r.store
	s.background(func() {
		for {
			select {
			case <-s.ctx.Done():
				return
			case text := <-r.invalidated:
				ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
				_ = client.Do(ctx, client.B().Publish().Channel(s.channel()).Message(text).Build()).Error()
				cancel()
			}
		}
	})
	warned := false
	for s.ctx.Err() == nil {
		err := client.Receive(s.ctx, client.B().Subscribe().Channel(s.channel()).Build(), func(m rueidis.PubSubMessage) {
			if len(m.Message) >= 8 {
				r.Forget(binary.BigEndian.Uint64([]byte(m.Message[:8])), []byte(m.Message[8:]))
			}
		})
		r.ForgetAll() // a message may have been missed
		if e, refused := rueidis.IsRedisErr(err); refused && !warned {
			warned = true
			s.o.Logger.Warn(fmt.Sprintf("redis store: what other nodes give back is heard of only after %v: %v", r.longest, e))
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
