package store

import (
	"context"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Forgetter is implemented by stores that remember refusals and repeat them without a new decision.
// Forget drops the refusals of a key, on all nodes, because the key may be admitted earlier than
// they said.
type Forgetter interface {
	Forget(c *rule.Counter, key []byte)
}

// Remote is implemented by stores that may answer over a network. If Remote returns true, the
// Limiter counts denials for bans after it has answered, not before.
type Remote interface {
	Remote() bool
}

// Prompt is implemented by stores that can decide some calls without waiting for anything. Doors
// ask them on the goroutine that reads the connection, and hand a call to another one only if it
// has to wait. TakeNow is safe for concurrent use, and so quick that others may wait for it. A
// store that wraps a Prompt has to be one itself: it is not looked for with As.
type Prompt interface {
	// TakeNow is Take for a call that can be decided at once. If ok is false, it cannot: nothing
	// was charged, the results are not valid, and Take is to be called. now is as with Take.
	TakeNow(charges []Charge, results []algo.Result) (now int64, ok bool)
}

// Deadliner is implemented by stores that keep a deadline by themselves, without the allocations of
// a context with a time-out: all stores over a network here, and store/lease. store/fallback and
// store/lease ask it of the store that they wrap; of one that is no Deadliner they call Take, with
// a context that ends after minWait. A store that wraps a Deadliner has to be one itself: it is not
// looked for with As.
type Deadliner interface {
	// TakeWithin is Take with a deadline. It waits for an answer for at least minWait. After that,
	// it fails with an error that is context.DeadlineExceeded as soon as the store seems to be
	// away, and after maxWait in any case. A maxWait of 0 sets no deadline: only ctx ends the wait.
	// Time in which this process did not run need not count. TakeWithin must not touch charges and
	// results after it has returned. It is safe for concurrent use.
	//
	// remembered reports that the decision was made in this process, from memory. It then shows
	// nothing about whether the store is there, and the results of limits that did not refuse may
	// be old.
	TakeWithin(
		ctx context.Context, minWait, maxWait time.Duration, charges []Charge, results []algo.Result,
	) (now int64, remembered bool, err error)
}

// Parted is implemented by stores whose keys lie in parts that can be away one by one, such as the
// servers of a cluster: all stores over a network here, even if they have one part. store/fallback
// gives each part a circuit breaker, and store/lease asks each part for units by itself. A store
// that is not Parted is one part. Parts are numbered from 0, and their number and all that lies in
// them never change. The methods are safe for concurrent use.
type Parted interface {
	// Parts returns the number of parts, at least 1.
	Parts() int
	// PartOf returns the part of a counter's key.
	PartOf(c *rule.Counter, key []byte) int
	// PartOfID returns the part of a reservation (see Reserver).
	PartOfID(id string) int
	// PingPart asks a part whether it decides. It changes no state of any key.
	PingPart(ctx context.Context, part int) error
	// Answers returns how many decisions a part has made for this process. While the number stands
	// still, answers come from memory, and do not show that the part is there.
	Answers(part int) uint64
}

// PartError is implemented by errors of a Parted store that some of the parts are to blame for,
// and of a Deadliner after a deadline. Only the breakers of these parts count the failure. An error
// that is no PartError is due to every part that was asked. Ask for it with errors.As.
type PartError interface {
	error
	// Failed reports whether a part is to blame.
	Failed(part int) bool
	// Silent reports, after a deadline, that the parts to blame had been silent for too long. If
	// it is false, the caller was in a hurry, and nothing is known about the parts.
	Silent() bool
}

// Wrapper is implemented by stores that wrap another one, so that As finds what that one can do.
type Wrapper interface {
	// Unwrap returns the store that is wrapped. It is always the same one.
	Unwrap() Store
}

// ReserverWrapper is implemented by Wrappers that have the methods of Reserver even if the store
// that they wrap is none: store/fallback. A Limiter asks it before it holds a reservation.
type ReserverWrapper interface {
	Reserver
	// Reserves reports whether the store that is wrapped is a Reserver. If not, the methods of
	// Reserver fail with ErrNoReservations.
	Reserves() bool
}

// As returns s as a T (a Reserver, a Board, …), or else the first T among the stores that s
// wraps (see Wrapper). ok is false if there is none.
func As[T any](s Store) (t T, ok bool) {
	for s != nil {
		if t, ok = s.(T); ok {
			return t, true
		}
		w, wraps := s.(Wrapper)
		if !wraps {
			break
		}
		s = w.Unwrap()
	}
	return t, false
}
