package store

import (
	"context"
	"errors"
	"time"
)

// Board is implemented by stores that share facts between their nodes. A fact belongs to a kind,
// and expires by the board's own clock. A board is bounded: if it is full, the fact that expires
// first is dropped. Implementations are safe for concurrent use.
type Board interface {
	// Post publishes facts. Each replaces the fact of the same ID.
	Post(ctx context.Context, kind string, facts []Fact) error
	// Remove removes facts, and ignores ids that the board does not hold.
	Remove(ctx context.Context, kind string, ids []string) error
	// List returns the facts in force, in no particular order.
	List(ctx context.Context, kind string) ([]Fact, error)
	// Watch calls changed with all facts in force, and then with each change, at once or within a
	// second, until ctx ends; it returns ctx's error then. While the board cannot be reached, Watch
	// tries again. It may tell a change twice. changed is called from one goroutine. anew is true
	// at the first call, and when the board was found to have lost its facts: then facts is the
	// complete list.
	Watch(ctx context.Context, kind string, changed func(facts []Fact, anew bool)) error
}

// Fact is a small piece of data that all nodes of a store share for a time.
type Fact struct {
	ID   string        // unique in its kind; 1 to MaxFactID bytes, any
	Data []byte        // at most MaxFactData bytes; empty if Removed
	TTL  time.Duration // time until it expires; above 0
	// Age is the time since it was posted, or removed, by the board's clock. Post ignores it.
	Age time.Duration
	// Removed marks a fact that was removed before it expired. The board keeps the mark until it
	// would have expired.
	Removed bool
}

// Bounds of a Fact.
const (
	MaxFactID   = 8 << 10
	MaxFactData = 16 << 10
)

// ErrNoBoard is the error of a Board whose wrapped store is none.
var ErrNoBoard = errors.New("weir: this store shares no facts between nodes")
