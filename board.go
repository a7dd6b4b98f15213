package weir

import (
	"context"
	"errors"
	"time"

	"github.com/weir-rl/weir/rule"
)

// Fact is something small that all nodes of a store are to know for a time.
type Fact struct {
	ID   string        // unique in its kind; 1 to MaxFactID bytes, any
	Data []byte        // at most MaxFactData bytes; empty if Removed
	TTL  time.Duration // how much longer it holds; above 0
	// Age is how long ago it was posted, or removed, by the board's clock. Post ignores it.
	Age time.Duration
	// Removed: it held, and was removed. The board keeps it in mind as long as it would have held.
	Removed bool
}

// Bounds of a Fact.
const (
	MaxFactID   = 8 << 10
	MaxFactData = 16 << 10
)

// Kinds of facts that a Limiter posts.
const (
	kindBan   = "ban"
	kindGrant = "grant"
)

// Board is what a Store may be beside: a place for facts of several kinds that all its nodes see, which expire by its own clock.
// A board is bounded: where it is full, the fact that ends first goes. Implementations are safe for concurrent use.
type Board interface {
	// Post makes facts known, each in place of what the board held under its ID.
	Post(ctx context.Context, kind string, facts []Fact) error
	// Remove removes facts; those that the board does not hold are passed over.
	Remove(ctx context.Context, kind string, ids []string) error
	// List returns the facts that hold, in no order.
	List(ctx context.Context, kind string) ([]Fact, error)
	// Watch tells what the board holds, and then each change within a second (at once where all is well), until ctx ends; it returns
	// ctx's error then. A board that cannot be reached is asked until it can. changed is called from one goroutine. anew is
	// true when the board was read for the first time, and when it was found to have lost what it held: then facts is all.
	Watch(ctx context.Context, kind string, changed func(facts []Fact, anew bool)) error
}

// ErrNoBoard is the error of a Board that wraps a store which is none.
var ErrNoBoard = errors.New("weir: this store shares no facts between nodes")

// ErrNotShared is what an error of Ban, Unban, Grant or Revoke is, by errors.Is, when the change is in force on this node, and the
// others have not been told: they will be, while Follow runs, as soon as the store can be reached.
var ErrNotShared = errors.New("weir: the other nodes do not know of it yet")

// Forgetter is a Store that remembers what it refused. Forget makes it forget a key's refusals, here and on all nodes, since
// the key may be admitted earlier than was said.
type Forgetter interface {
	Forget(c *rule.Counter, key []byte)
}

// Remote is a Store that may be far away. What need not be known before an answer is given is then told to it in the background.
type Remote interface {
	Remote() bool
}

// as returns what a store is beside a Store, looking through wrappers that have a method Unwrap.
func as[T any](s Store) (t T, ok bool) {
	for s != nil {
		if t, ok = s.(T); ok {
			return t, true
		}
		w, wraps := s.(interface{ Unwrap() Store })
		if !wraps {
			break
		}
		s = w.Unwrap()
	}
	return t, false
}
