package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// A Regional store can be the store of one region among several (package store/regions). Each
// region decides on its own store. Its nodes write their use into a log that the store keeps; the
// other regions read that log, and charge it to their own states.
//
// The log has as many parts as the states have. The entries about a state belong to the state's
// part (PartOf), so that a store that is spread over servers can write both in one step.
type Regional interface {
	Store
	// Parts returns the number of parts, at least 1. It never changes. (See Parted.)
	Parts() int
	// PartOf returns the part of a counter's key, from 0. It never changes.
	PartOf(c *rule.Counter, key []byte) int
	// Tell appends one entry to the log of a part; it does nothing if told is empty. The log is
	// bounded: the oldest entries go. After an error it is unknown whether the entry was written,
	// so its uses must not be written a second time, unless it is ErrNotCharged.
	Tell(ctx context.Context, part int, told []Told) error
	// Told reads up to limit entries of the log of a part that come after a position, and waits for
	// the first one for as long as wait. With an empty position it reads nothing, and next is the
	// end of the log. With Oldest it reads from the oldest entry on that is left; if there is none,
	// it does not wait, and next is the end. Without a new entry next is the position itself.
	//
	// gap says that entries after the position are gone, or that the log is another one, as where a
	// server lost it; after Oldest nothing can be missing. The rest of the log is read all the
	// same; if the position lies behind the end of the log, nothing is read, and next is the end.
	// Only the store that returned a position understands it.
	//
	// now is an instant of the store's clock during the call, in µs; it is after each At that was
	// read, if clocks are right.
	Told(ctx context.Context, part int, after string, limit int, wait time.Duration) (told []Told, next string,
		gap bool, now int64, err error)
	// Position returns up to where the log of another region, which has that name, was charged
	// here; "" if it never was, or not for so long that nothing of it counts any more. It is of
	// this store, and of one part.
	Position(ctx context.Context, part int, log string) (string, error)
	// Change makes changes of states, all of one part, each by itself, and moves the position of
	// the log from one to another, in one step. If the position is another one, nothing is done,
	// and the error is ErrMoved. An empty log moves nothing. done has the length of changes. The
	// store serves nobody else meanwhile, so some hundred changes are enough for a call, and
	// MaxChanges the most. Changes of one call may name one state several times, and are made in
	// their order; but a Counter must not come together with one of its Previous. Without changes
	// and without a log, the call only returns the time of the part's server.
	//
	// After any other error it is unknown whether anything was done, unless it is ErrNotCharged.
	// With a log, Position shows it.
	Change(ctx context.Context, part int, log, from, to string, changes []Change, done []Changed) (now int64, err error)
	// Lead makes holder the one that does a task for all nodes of the store, or lets it go on doing
	// it, for as long as term; leads is false if another one does it. With a term of 0 holder
	// leaves the task to others, and leads is false. It avoids double work, and is no lock: for a
	// moment two may take themselves to be the one.
	Lead(ctx context.Context, task, holder string, term time.Duration) (leads bool, err error)
}

// Told reports that units were used of a key in another region, or given back.
type Told struct {
	Counter uint64 // rule.Counter.ID; 0: nothing was used, and At is the time in that region
	Key     []byte
	Units   int64 // below 0: they were given back
	At      int64 // instant of that by the clock of that region's store, in µs
}

// Change changes a state by something else than a decision made here.
type Change struct {
	Counter *rule.Counter
	Limit   *algo.Limit // the numbers in force for this key
	Key     []byte      // valid during the call only
	// Units above 0 are charged at the instant of the call, whether there is room or not
	// (algo.Limit.Hear). Below 0 they are given back, as a refund is.
	Units int64
	// The change is made only if the call is at Since or later, and before Until, by the store's
	// clock, in µs. An Until of 0 is no bound.
	Since, Until int64
}

// Oldest is the position before the oldest entry that is left in a log, see Regional.Told.
const Oldest = "oldest"

// MaxChanges is how many changes a call of Regional.Change may have.
const MaxChanges = 5000

// CheckChanges returns an error if a call of Regional.Change cannot be understood: what all stores
// check before they do anything.
func CheckChanges(changes []Change, done []Changed) error {
	switch {
	case len(changes) != len(done):
		return errors.New("there must be one result for each change")
	case len(changes) > MaxChanges:
		return fmt.Errorf("%d changes in a call; there may be %d", len(changes), MaxChanges)
	}
	for i := range changes {
		if changes[i].Counter == nil || changes[i].Limit == nil {
			return fmt.Errorf("change %d needs a Counter and a Limit", i)
		}
	}
	return nil
}

// Due reports whether the change may be made at now.
func (c *Change) Due(now int64) bool { return now >= c.Since && (c.Until == 0 || now < c.Until) }

// Apply makes the change of a state at now. lease is the key's state of Limit.Lease(), if that is
// lent of; else it does not matter. A change that is not made leaves both as they are. A limit with
// a queue hears nothing, and one with slots does not change at all: they go back by their ids.
func (c *Change) Apply(s, lease *algo.State, now int64) Changed {
	if !c.Due(now) {
		return Changed{}
	}
	l := c.Limit
	if l.Lease() == nil {
		lease = nil
	}
	switch {
	case c.Units > 0:
		return Changed{Made: true, Over: l.Hear(s, lease, now, c.Units)}
	case c.Units < 0 && !l.HasSlots():
		l.Roll(s, lease, now)
		l.TakeWith(s, lease, now, algo.Ask{Cost: c.Units})
	}
	return Changed{Made: true}
}

// Changed is the outcome of a Change.
type Changed struct {
	Made bool // false: the time was not right
	// Over is how many of the units that were charged found no room within the limit.
	Over int64
}

// ErrMoved is the error of Regional.Change where another one was there before.
var ErrMoved = errors.New("weir: the position has moved")
