package store

import (
	"context"
	"errors"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Inspector is implemented by stores that show their counters to an operator. Implementations are
// safe for concurrent use.
type Inspector interface {
	// Inspect calls visit for each of the keys whose state is not fresh, or that have units out.
	Inspect(ctx context.Context, v *View, keys [][]byte, visit func(KeyState)) error
	// Scan visits the store's keys from a position on; "" is the beginning. It looks at about limit
	// keys, other counters' included, and calls visit for the keys of the view that are not fresh.
	// A caller that goes on from Scanned.Next until that is "" has seen each key that existed all
	// the while, some perhaps more than once. A key that has units out, and no charges, may be left
	// out.
	Scan(ctx context.Context, v *View, from string, limit int, visit func(KeyState)) (Scanned, error)
	// Reset deletes the state of a counter's key and its soft margin's, older identities of the
	// counter included; ok is false if there was nothing to delete. Units that are lent stay out,
	// since their holders go on using them (algo.Limit.Reset).
	Reset(ctx context.Context, c *rule.Counter, key []byte) (ok bool, err error)
}

// View says how an Inspector is to show the keys of a counter.
type View struct {
	Counter *rule.Counter
	// Limit returns the numbers in force for a key, as Take would be given them; nil if there are
	// none: such a key is left out. It must be safe for concurrent use, and must not call the
	// store.
	Limit func(key []byte) *algo.Limit
	// MaxDelay is algo.Ask.MaxDelay for KeyState.Next.
	MaxDelay int64
}

// KeyState is the state of a key, as a View shows it.
type KeyState struct {
	Key    []byte      // valid during the call of visit only
	Result algo.Result // of a peek
	Next   algo.Result // of a request with a cost of 1
	// Used is how many units are used, in a soft margin too: 9 where 6 are allowed and 3 more in
	// the margin. It exceeds Result.SoftLimit where costs that became known afterwards, or lower
	// numbers, overdrew the limit (algo.Limit.Used); for a limit that counts denied requests it
	// never does. Units that are out are among them.
	Used int64
	Lent algo.Lent // the units out; zero if the limit does not lend
	// Regions is how the key stands in this region and in all, under a limit that holds over
	// several regions; nil for other limits, and of a store that is not one region among several.
	Regions *KeyRegions
}

// KeyRegions is how a key stands under a limit that holds over several regions
// (rule.Counter.Regions).
type KeyRegions struct {
	Region string // the name of this one
	// Own is this region's use of its ceiling, with the units that other regions borrowed, and
	// without the units that this one borrowed. nil where there is no ceiling (rule.Regions.Sync).
	Own *KeyUse
	// All is all regions' use of the limit, as far as they have reported it; nil where that has no
	// say (rule.Regions.Over is 0).
	All *KeyUse
}

// KeyUse is how many units are used of how many.
type KeyUse struct{ Used, Limit int64 }

// State returns the KeyState of a state and the record beside it, which is the state of its soft
// margin or the record of the units lent (a zero State if there is none), under the limit that
// v.Limit returned for the key. It does not change the states.
func (v *View) State(key []byte, l *algo.Limit, st, beside *algo.State, now int64) KeyState {
	k := KeyState{
		Key:    key,
		Result: l.CheckWith(st, beside, now, algo.Ask{MaxDelay: -1}),
		Next:   l.CheckWith(st, beside, now, algo.Ask{Cost: 1, MaxDelay: v.MaxDelay, Slot: 1}),
		Lent:   l.LentAt(beside, now),
	}
	k.Used = k.Result.Limit - k.Result.Remaining
	if k.Result.Remaining == 0 && !k.Result.Off {
		// A Result counts no further than Limit, so that no decision pays for this.
		k.Used = l.Used(st, beside, now)
		if l.CountDenied() { // a refused unit is not used, and the state does not distinguish them
			k.Used = min(k.Used, k.Result.SoftLimit)
		}
	}
	return k
}

// Scanned says how far a Scan has come.
type Scanned struct {
	Next   string // the position to go on from; "" at the end
	Looked int    // about how many keys were looked at
	Of     int    // about how many keys the store holds
}

// ErrNoInspector is the error of methods that need an Inspector if the Limiter's store is none.
var ErrNoInspector = errors.New("weir: this store lets nobody look into its counters")
