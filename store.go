package weir

import (
	"context"
	"errors"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Charge asks a Store to charge one counter.
type Charge struct {
	Counter *rule.Counter // whose state; Counter.ID and Key together name the state
	Limit   *algo.Limit   // the numbers in force for this key
	Key     []byte        // valid during the call only
	Ask     algo.Ask      // Slot is filled in by the store when it admits a Concurrency charge
	Mode    rule.Mode
	// OnStoreError is what the rule wants while the store cannot be reached; for stores that wrap another.
	OnStoreError rule.StoreErrorPolicy
}

// ErrNotCharged is what an error of Store.Take is, by errors.Is, if it is certain that nothing was charged.
var ErrNotCharged = errors.New("weir: nothing was charged")

// Store keeps the states of all keys and decides charges on them. Implementations are safe for concurrent use.
type Store interface {
	// Take decides all charges as one, at one instant of the store's own clock, and fills results[i] for charges[i]
	// (len(results) == len(charges)). It is all or nothing: if an Enforce charge is denied, or if there are Quota
	// charges and all of them are denied, then no Enforce or Quota charge is made (but those whose Limit counts denied
	// requests, which are always made), and every result tells its own limit's verdict and its fields as they are then.
	// Shadow charges go by their own verdict alone. A charge that names the same state as an earlier one of the same
	// call sees what that one took. Peeks, and refunds without Ask.LastEnds, are always admitted.
	//
	// It returns the instant of the decision in µs since the Unix epoch. An error means that nothing is known of the
	// outcome, but if it is ErrNotCharged; then results are not valid. A denial is no error.
	Take(ctx context.Context, charges []Charge, results []algo.Result) (now int64, err error)
	// Release gives back the slots that a Concurrency charge took under slot; ok is false if they are gone.
	Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (ok bool, err error)
	// Close stops what the store runs in the background, and writes what it has to keep.
	Close() error
}

// Settlement replaces a charge that was admitted at the instant At by what the request really cost. See algo.Limit.Settle.
type Settlement struct {
	Counter          *rule.Counter
	Limit            *algo.Limit // the numbers in force for this key
	Key              []byte      // valid during the call only
	At               int64       // of the charge: what Take returned, µs
	Reserved, Actual int64       // units
}

// Reserver is a Store that can hold reservations: charges of which the real cost is known only afterwards. The stores of this
// module are. A reservation outlives the process that made it where the states do.
type Reserver interface {
	Store
	// Hold keeps a note under an id that nobody else uses until it is claimed. After the time-out, which is above 0, Expired hands it
	// out.
	Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error
	// Claim hands out a note once; ok is false if it was handed out before, or never held.
	Claim(ctx context.Context, id string) (note []byte, ok bool, err error)
	// Expired hands out, once each and as Claim does, up to n notes whose time-out has passed.
	Expired(ctx context.Context, n int) (notes [][]byte, err error)
	// Settle makes settlements, each by itself. An error means that nothing is known of those that were not made yet.
	Settle(ctx context.Context, settlements []Settlement) error
}
