// Package cas keeps counters in a database that can read values, compare them, and write them: any
// database with a conditional write is enough. Algorithms run in Go, on the values read; one
// conditional write brings all of a decision back, or nothing of it.
//
// The author of an engine begins at Engine, and then runs the tests of storetest.Engine and
// storetest.Run. Its package embeds *Store, which does the rest.
//
// A decision takes this way; each step names its file:
//
//   - Take checks whether a refusal of one of the keys is remembered, and answers from memory if so
//     (take.go). A call over several places of an engine that does not span them asks each place,
//     and gives back what must not stay charged (across.go).
//   - The charges become a call, with the names of the values that hold their states (call.go).
//     Small states of one subject lie in one value (codec.go).
//   - The call joins the queue, and its caller waits for as long as the database shows signs of
//     life. A connection that is free takes all calls whose keys no other connection is at
//     (queue.go).
//   - The worker of that connection makes groups of the calls that share keys (worker.go). It
//     decides each group on what this node last saw of the keys (known.go), by package algo, at the
//     instant that the engine's clock is estimated to show (clock.go). A value that it does not
//     know it takes to be absent. The outcome is a list of changes (plan.go).
//   - One Swap compares and writes all groups. A group that finds that others were quicker goes
//     back to the head of the queue, and is decided anew on the values that came back; after two
//     times the keys are locked, if the engine is a Locker.
//   - If the answer is lost, the worker reads the keys: a version that it drew shows that the group
//     was made. A group whose outcome stays unknown counts as charged.
//
// Beside that: settlements and slots that are given back (take.go), key inspection (inspect.go).
package cas

import "context"

// Engine is a database, as seen by Store: values under keys, each with a version. Implementations
// are safe for concurrent use. When a call returns, with any error or none, its arguments belong to
// the caller again, and its results belong to the caller, too.
//
// An error that is ErrBroken says that a connection broke, or that there is none just now. The
// Store asks again then, for as long as a call may take; of an error that is store.ErrNotCharged
// too, only if the engine has answered within the time of one call. An error that does not pass by
// itself is a store.LastingError.
type Engine interface {
	// Read returns the values under keys, in their order, all of them as they were at one instant.
	// All keys have one Place unless the engine Spans. clock is the engine's clock.
	Read(ctx context.Context, keys []Key) (values []Value, clock int64, err error)

	// Swap makes the changes of each group if all that the group compares is still as it was, or
	// else none of that group. It sets Done, Values and Err of each. No two groups of a call share
	// a key. Groups may be of several places, each in itself of one unless the engine Spans.
	//
	// now is the instant, by the engine's clock as this node estimates it, at which the changes
	// were decided. An engine whose clock differs from that by more than MaxSkew swaps nothing:
	// then no group is Done, their Values are valid, and the caller decides anew by the clock
	// returned. now is 0 for changes that no decision at an instant has made.
	//
	// An error says that nothing was heard of the database. It is the error of the groups, too,
	// that have no Err. One says that the outcome is unknown, unless it is store.ErrNotCharged:
	// then certainly nothing was written. Where it is unknown, the Store sends the same groups
	// again.
	Swap(ctx context.Context, now int64, groups []Group) (clock int64, err error)

	// Scan visits values from a position on, "" being the beginning, about limit of them, in any
	// order that is the same each time. next is the position to go on from; "" at the end. of is
	// about how many values there are. What exists all the while is visited at least once.
	Scan(
		ctx context.Context, from string, limit int, visit func(name []byte, v Value),
	) (next string, of int, err error)

	// Spans reports whether one Group, and one Read, may hold keys of several places.
	Spans() bool

	// Close frees the engine's resources.
	Close() error
}

// MaxSkew is how far the instant of a decision may be from the engine's clock when that is asked to
// write it, in µs. It is no bound on a network's delay that the estimate does not see: an instant
// is never estimated to be later than it is, and is as much earlier as an answer takes.
const MaxSkew = 1_000_000

// Key is where a value lies.
type Key struct {
	// Place is the same for all values that can be read and changed together with the key's: a hash
	// of the subject, a client. It is a function of Name.
	Place uint64
	Name  []byte // unique; 1 to MaxName bytes, any; valid during the call only
}

// MaxName bounds Key.Name, in bytes.
const MaxName = 4 << 10

// Value is what lies under a key.
type Value struct {
	// Version is another one after each change. 0 means that there is no value. The writer draws
	// it, so that it also shows who wrote a value.
	Version uint64
	Data    []byte
}

// Group holds changes that a Swap compares, and makes together.
type Group struct {
	Changes []Change // ordered by Place and Name, each of them once

	// Set by Swap.
	Done bool // all changes were made
	// Values are, if the group is neither Done nor failed, what lies under the keys of Changes now.
	Values []Value
	// Err says that this group failed where others did not. It is as the error of Swap.
	Err error
}

// Change compares one value, and replaces it.
type Change struct {
	Key
	Was uint64 // the version that is expected; 0: there is no value
	// Keep leaves the value as it is: it is only compared. The engine sees to it that a group is as
	// if it was compared and changed at one instant.
	Keep    bool
	Version uint64 // the new version; 0 deletes the value
	Data    []byte // the new value
	// Until is the instant of the engine's clock, in µs, from which on the value may be forgotten;
	// after it the engine does so in a while. It is above 0 where there is a new value.
	Until int64
}

// Locker is implemented by engines that can hold values against the changes of others, for keys
// that many nodes change at the same time: then a conditional write would fail again and again.
type Locker interface {
	// Lock waits until nobody else holds one of the keys, and returns their values as Read does.
	// Until Unlock, no change of theirs by others is made. ctx bounds the wait.
	Lock(ctx context.Context, keys []Key) (l Lock, values []Value, clock int64, err error)
}

// Lock holds values.
type Lock interface {
	// Unlock makes changes (Was is not compared), and lets go of the keys. Errors are as with Swap.
	// Without changes, it never waits for the database. After an error the keys are free too.
	Unlock(ctx context.Context, changes []Change) error
}
