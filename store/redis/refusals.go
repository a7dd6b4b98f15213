package redis

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	memory "github.com/weir-rl/weir/store/internal/refusals"
)

// refusals remembers the refusals of Redis, and hears from other nodes which keys they freed.
type refusals struct {
	*memory.Memory
	store       *Store
	longest     time.Duration
	invalidated chan invalid // refusals that other nodes must forget
	// settled says that this node hears of them, or has tried to. Nothing is remembered before: it
	// would miss keys that are freed while a node starts.
	settled atomic.Bool
}

// invalid is a key whose refusals ended.
type invalid struct {
	text string // the Counter's ID and the key
	at   int64  // by store.Monotonic
}

func newRefusals(s *Store, longest time.Duration) *refusals {
	return &refusals{Memory: memory.New(longest), store: s, longest: longest, invalidated: make(chan invalid, 1024)}
}

// remember keeps the refusals of a call that was sent at the instant asked of store.Monotonic.
func (r *refusals) remember(charges []store.Charge, results []algo.Result, now, asked int64) {
	if r.settled.Load() {
		r.Remember(charges, results, now, asked)
	}
}

// invalidate forgets the refusal of a key that may admit earlier than was said, on this node and on
// all others.
func (r *refusals) invalidate(id uint64, key []byte) {
	r.Forget(id, key)
	select {
	case r.invalidated <- invalid{string(binary.BigEndian.AppendUint64(nil, id)) + string(key), store.Monotonic()}:
	default: // the other nodes forget it after a second at most
	}
}

func (s *Store) channel() string { return s.o.Prefix + formatVersion + "opened" }

// publish notifies the other nodes of a key. It tries again while Redis cannot be reached, as long
// as one of them may remember an earlier refusal. A server that answers with an error would do so
// again.
func (r *refusals) publish(client rueidis.Client, key invalid) {
	s := r.store
	for {
		ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
		err := client.Do(ctx, client.B().Publish().Channel(s.channel()).Message(key.text).Build()).Error()
		cancel()
		if _, refused := rueidis.IsRedisErr(err); err == nil || refused ||
			store.Monotonic()-key.at >= int64(r.longest) {
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(listenAgain):
		}
	}
}

// listenAgain is the pause before the next try to listen, or to publish.
const listenAgain = 100 * time.Millisecond

// listen receives and publishes invalidations, until the store is closed.
func (r *refusals) listen(client rueidis.Client) {
	s := r.store
	s.background(func() {
		for {
			select {
			case <-s.ctx.Done():
				return
			case key := <-r.invalidated:
				r.publish(client, key)
			}
		}
	})
	listening := rueidis.WithOnSubscriptionHook(s.ctx, func(rueidis.PubSubSubscription) {
		r.ForgetAll() // what came before was not heard
		r.settled.Store(true)
	})
	warned := false
	for s.ctx.Err() == nil {
		err := client.Receive(listening, client.B().Subscribe().Channel(s.channel()).Build(),
			func(m rueidis.PubSubMessage) {
				if len(m.Message) >= 8 {
					r.Forget(binary.BigEndian.Uint64([]byte(m.Message[:8])), []byte(m.Message[8:]))
				}
			})
		r.ForgetAll() // a message may have been missed
		// A server, or a proxy before it, that takes no subscription is no reason to ask it more.
		r.settled.Store(true)
		if e, refused := rueidis.IsRedisErr(err); refused && !warned {
			warned = true
			s.o.Logger.Warn(fmt.Sprintf("redis store: what other nodes give back is heard of only after %v: %v",
				r.longest, e))
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}
