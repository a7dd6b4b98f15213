// Package store is the contract between a weir.Limiter and a store, which keeps the counters, as
// database/sql/driver is between database/sql and a driver. A program that only uses Weir does not
// need it: it opens a store (package store/memory, store/redis or store/fallback) and passes it to
// weir.New.
//
// The author of a store begins at Store, and then runs the tests of package store/storetest, which
// check the whole contract; the example of Store is the smallest store that passes them. Verdict
// holds the rule by which a call with several charges is decided.
//
// A store can do more by implementing further interfaces. A Reserver holds reservations, a Board
// shares bans and grants between nodes, an Inspector shows keys to an operator, a Lender lends
// units ahead, a Regional store shares its use with other regions, a Forgetter remembers refusals,
// a Prompt store can decide some calls without waiting, a Deadliner keeps deadlines by itself, a
// Remote store answers over a network, and the keys of a Parted store lie in parts that can be away
// one by one. As finds most of these also in a store that wraps another (Wrapper).
package store

import (
	"context"
	"errors"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Store keeps the states of all keys, and decides charges on them. Implementations are safe for
// concurrent use.
type Store interface {
	// Take decides all charges of a call together, at one instant of the store's own clock, and
	// sets results[i] for charges[i]. The two have the same length.
	//
	// A call is all or nothing. It is denied if an Enforce charge is denied, or if there are Quota
	// charges and all of them are denied (see Verdict). Then no Enforce and no Quota charge is
	// made, except those whose Limit counts denied requests, which are always made. A Shadow charge
	// depends on its own verdict alone. Each result holds the verdict of its own limit, and the
	// state of that limit after the call.
	//
	// A charge that names the same state as an earlier one of the call sees the units that that one
	// took. Peeks are always admitted, and so are refunds without Ask.LastEnds. If a charge of a
	// Concurrency limit is admitted, the store sets its Ask.Slot.
	//
	// now is the instant of the decision, in µs since the Unix epoch. A denial is not an error. An
	// error means that the results are not valid and that the outcome is unknown, unless it is
	// ErrNotCharged; it may be a Pending, and a LastingError if it does not pass by itself.
	Take(ctx context.Context, charges []Charge, results []algo.Result) (now int64, err error)
	// Release gives back the slots that a Concurrency charge took under slot; ok is false if they
	// are no longer held.
	Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (ok bool, err error)
	// Close stops the store's goroutines, and saves the data that the store has to keep.
	Close() error
}

// Charge asks a Store to charge one counter.
type Charge struct {
	Counter *rule.Counter // Counter.ID and Key together name the state
	Limit   *algo.Limit   // the numbers in force for this key
	Key     []byte        // valid during the call only
	Ask     algo.Ask      // the store sets Slot when it admits a charge of a Concurrency limit
	Mode    rule.Mode
	// OnStoreError is the rule's policy while the store is unavailable. It is for stores that wrap
	// another one.
	OnStoreError rule.StoreErrorPolicy
}

// ErrNotCharged marks an error of Store.Take after which certainly nothing was charged. Ask for it
// with errors.Is.
var ErrNotCharged = errors.New("weir: nothing was charged")

// Pending is an error of Store.Take whose outcome may become known later. Ask for it with
// errors.As.
type Pending interface {
	error
	// Outcome calls f once, with one Outcome for each charge, as soon as all are known that ever
	// will be: at once, or later from another goroutine. An empty list means that nothing is known.
	// f must be quick. Outcome may be called once.
	Outcome(f func(outcomes []Outcome))
}

// Outcome is the outcome of one charge of a call that failed without ErrNotCharged.
type Outcome struct {
	Known  bool        // false: the answer will never come, and the other fields are not valid
	Made   bool        // it was charged
	Slot   uint64      // of a charge of a Concurrency limit that was made: holds its slots
	Now    int64       // the instant of the decision; 0 if nothing was decided
	Result algo.Result // valid if Now is not 0
}
