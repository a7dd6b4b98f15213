package store

import (
	"context"
	"errors"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Reserver is implemented by stores that hold reservations: charges whose real cost is known only
// afterwards. A reservation outlives the process that made it if the states do. The stores of this
// module are Reservers.
type Reserver interface {
	Store
	// Hold stores note under id, which must be new. Claim returns it once; if nobody claims it
	// within timeout, which is above 0, Expired returns it.
	Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error
	// Claim removes a note and returns it; ok is false if it was returned before, or never held.
	Claim(ctx context.Context, id string) (note []byte, ok bool, err error)
	// Expired removes up to n notes whose time-out has passed, and returns them.
	Expired(ctx context.Context, n int) (notes [][]byte, err error)
	// Settle makes settlements, each by itself. After an error the outcome of those that were not
	// made yet is unknown.
	Settle(ctx context.Context, settlements []Settlement) error
}

// Settlement replaces a charge that was admitted at the instant At by the real cost of the request.
// See algo.Limit.Settle.
type Settlement struct {
	Counter          *rule.Counter
	Limit            *algo.Limit // the numbers in force for this key
	Key              []byte      // valid during the call only
	At               int64       // instant of the charge, as Take returned it, µs
	Reserved, Actual int64       // units
}

// ErrNoReservations is the error of methods that need a Reserver if the Limiter's store is none and
// wraps none (see As).
var ErrNoReservations = errors.New("weir: the store cannot hold reservations: it is no store.Reserver")
