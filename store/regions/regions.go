// Package regions wraps the store of one region among several, each of which decides by itself on a
// store of its own, so that rules with rule.Counter.Regions hold over all of them.
//
// Such a limit has a ceiling in each region: the region's part of N × (1 + over), which it never
// exceeds, whatever it hears of others. The ceilings together are N × (1 + over). Beside it, if
// over is above 0, the whole limit counts the use of all regions, as far as they have reported it.
// So one charge becomes two, own and all, which the wrapped store makes together or not at all, and
// two results become one. With sync a region may admit the whole limit, and one charge stays one.
//
// Begin at Store.Take (regions.go). expand.go makes the charges for the wrapped store, ceilings.go
// computes the ceilings, and fold.go joins the results. wraps.go has the store's optional
// interfaces.
//
// The exchange between regions is in exchange.go, and no decision waits for it: this node reports
// its use (ledger.go), one node of each region charges the reports of the others (bridge.go), and
// units are borrowed from them where a ceiling is nearly used up (borrow.go). Bans and grants go
// the same way (orders.go), and so does the setup of each region (greeting.go).
package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Region is one of the regions that share limits.
type Region struct {
	Name string
	// Weight is its part of the ceilings, beside the weights of the others: 0 to MaxWeight. A
	// region with 0 refuses all requests that meet a limit over regions, except with sync.
	Weight int
}

// MaxWeight bounds Region.Weight, and MaxRegions the length of a table.
const (
	MaxWeight  = 1_000_000
	MaxRegions = 100
)

// Options configure New. Region and Table are required.
type Options struct {
	Region string // the name of the one whose store is wrapped
	// Table holds all regions, this one included, in any order. It must be the same in all of them:
	// the ceilings follow from it.
	Table []Region

	// Own is the store of the region itself, which inner wraps. Without it the region neither
	// reports its use to the others nor hears of theirs, and keeps to its ceilings.
	Own store.Regional
	// Peers are the stores of the other regions, by name. Of one that is missing nothing is heard,
	// and nothing is borrowed.
	Peers map[string]Neighbour
	// Rules returns the Counter with an ID, which may be the Counter's own or its
	// rule.Regions.All's, and the numbers of a key: those in force, and those that the rule gives
	// it without grants and signals. All are nil if there is none. It must be safe for concurrent
	// use. Required with Own; weir.Phases.Numbers is one.
	Rules func(id uint64, key []byte) (c *rule.Counter, inForce, plain *algo.Limit)
	// Ready reports whether Rules and Digest know the rules yet; nil if they do from the beginning.
	// Reports on unknown rules are lost, so nothing is heard before.
	Ready func() bool
	// Nodes returns how many nodes this region has; nil means one. Each reports its part.
	Nodes func() int
	// Digest returns a text that is the same in all regions that have the same rules; nil means
	// that this is not compared.
	Digest func() string
	// Logger gets warnings for operators; nil means that nothing is logged.
	Logger *slog.Logger
}

// Store implements store.Store over the store of a region. Make one with New.
//
// The result of a limit that holds over regions is about the whole: Limit and SoftLimit are the
// limit's own, and Remaining is the smaller of the units left under the ceiling and under the
// limit, as far as others have reported. It is admitted if both admit it. RetryAfter is then the
// longest of the limits that refuse; after a refusal by the ceiling it is an upper bound, since
// units may be borrowed before.
//
// A store.Lender, a store.Board and a store.Remote are found in the wrapped store. Users of its
// Lender must lend on the charges that Expand returns; Lender informs other regions.
type Store struct {
	inner    store.Store
	prompt   store.Prompt // inner, if it is one
	ceilings *ceilings    // of this region
	hooks    hooks
	x        *exchange // nil without Options.Own
	calls    sync.Pool // *splitCall
	clock    clock     // of the wrapped store
}

// hooks are called for charges of limits that hold over regions, after they were decided. Any may
// be nil. They must be quick, and must not keep key and results.
type hooks struct {
	// told: units of the limit were charged at now; below 0: given back. limit is the whole one.
	// own is the ceiling's result, or with sync the limit's; nil for a cost that is settled.
	told func(c *rule.Counter, limit *algo.Limit, key []byte, units, now int64, own *algo.Result)
	// short: a request of cost was refused by the ceiling, or less than a fifth of that is left
	// after it, while the limit has room as far as others have reported.
	short func(c *rule.Counter, limit *algo.Limit, key []byte, cost, now int64, own *algo.Result)
}

var (
	_ store.Reserver  = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Forgetter = (*Store)(nil)
	_ store.Prompt    = (*Store)(nil)
)

// New returns a Store over inner, which it closes.
func New(inner store.Store, o Options) (*Store, error) {
	if inner == nil {
		return nil, errors.New("regions: New needs the store of the region")
	}
	c, err := newCeilings(o.Table, o.Region)
	if err != nil {
		return nil, fmt.Errorf("regions: %w", err)
	}
	s := &Store{inner: inner, ceilings: c}
	s.prompt, _ = inner.(store.Prompt)
	s.calls.New = func() any { return new(splitCall) }
	if o.Own == nil {
		return s, nil
	}
	if o.Rules == nil {
		return nil, errors.New("regions: New needs Options.Rules to tell other regions what was used")
	}
	if s.x, err = newExchange(c, &s.clock, &o); err != nil {
		return nil, fmt.Errorf("regions: %w", err)
	}
	if f, ok := store.As[store.Forgetter](inner); ok {
		s.x.forget = f.Forget
	}
	s.hooks = hooks{told: s.x.used, short: s.x.short}
	s.x.start()
	return s, nil
}

// Ceiling returns the part of a limit of c that this region may use in any case: the limit with
// smaller numbers, or l itself where there is no ceiling. Safe for concurrent use.
func (s *Store) Ceiling(c *rule.Counter, l *algo.Limit) *algo.Limit {
	if l == nil || c.Regions == nil || c.Regions.Sync {
		return l
	}
	return s.ceilings.of(l, c.Regions.Over).own
}

// Unwrap returns the wrapped store.
func (s *Store) Unwrap() store.Store { return s.inner }

// Close implements store.Store. It reports the rest of its use to the other regions, and leaves
// their stores open.
func (s *Store) Close() error {
	if s.x != nil {
		s.x.close()
	}
	return s.inner.Close()
}

// Stats returns a reading of the exchange between this region and the others. Without Options.Own
// it is the zero value.
func (s *Store) Stats() Stats {
	if s.x == nil {
		return Stats{}
	}
	return s.x.readStats()
}

// Release implements store.Store. Slots belong to the ceiling.
func (s *Store) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	return s.inner.Release(ctx, c, key, slot)
}

// Take implements store.Store.
func (s *Store) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	some, split := anyRegional(charges)
	if !some || len(charges) != len(results) {
		return s.inner.Take(ctx, charges, results)
	}
	if !split {
		now, err := s.inner.Take(ctx, charges, results)
		if err == nil {
			s.tellSynced(charges, results, now)
		}
		return now, err
	}
	c := s.expand(charges)
	defer s.putCall(c)
	now, err := s.inner.Take(ctx, c.charges, c.results)
	if err != nil {
		return now, c.unfolded(charges, err)
	}
	if c.shadows {
		s.undo(ctx, c)
	}
	s.finish(c, charges, results, now)
	return now, nil
}

// TakeNow implements store.Prompt: it decides if the wrapped store can at once. A Shadow charge
// that becomes two is left to Take, since it may have to be undone.
func (s *Store) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if s.prompt == nil {
		return 0, false
	}
	some, split := anyRegional(charges)
	if !some || len(charges) != len(results) {
		return s.prompt.TakeNow(charges, results)
	}
	if !split {
		if now, ok = s.prompt.TakeNow(charges, results); ok {
			s.tellSynced(charges, results, now)
		}
		return now, ok
	}
	c := s.expand(charges)
	defer s.putCall(c)
	if c.shadows {
		return 0, false
	}
	if now, ok = s.prompt.TakeNow(c.charges, c.results); ok {
		s.finish(c, charges, results, now)
	}
	return now, ok
}

// finish folds the results of a call that was decided at now, and calls the hooks.
func (s *Store) finish(c *splitCall, charges []store.Charge, results []algo.Result, now int64) {
	for i := range charges {
		p := &c.parts[i]
		charges[i].Ask.Slot = c.charges[p.at].Ask.Slot
		if p.of == nil {
			results[i] = c.results[p.at]
			continue
		}
		p.of.fold(&results[i], charges[i].Limit, c.own(p), c.all(p), now)
	}
	s.clock.notice(now)
	if s.hooks.told == nil && s.hooks.short == nil {
		return
	}
	denied := store.VerdictOf(charges, results).Denied()
	for i := range charges {
		if p := &c.parts[i]; charges[i].Counter.Regions != nil {
			s.tell(&charges[i], &results[i], c.own(p), c.all(p), now, denied)
		}
	}
}

// tellSynced calls the hooks for a call whose charges with regions were made as they are.
func (s *Store) tellSynced(charges []store.Charge, results []algo.Result, now int64) {
	s.clock.notice(now)
	if s.hooks.told == nil {
		return
	}
	denied := store.VerdictOf(charges, results).Denied()
	for i := range charges {
		if charges[i].Counter.Regions != nil {
			s.tell(&charges[i], &results[i], &results[i], nil, now, denied)
		}
	}
}

// tell calls the hooks for a charge of a call that was decided at now: r is its result, folded from
// own and, if that is not nil, all; denied says whether the call as a whole was denied.
//
// A denied request is not reported, also if the limit counts it: it counts where it was denied.
func (s *Store) tell(c *store.Charge, r, own, all *algo.Result, now int64, denied bool) {
	if r.Off || c.Ask.Cost == 0 {
		return
	}
	if s.hooks.told != nil && r.Allowed && (!denied || c.Mode == rule.Shadow) {
		s.hooks.told(c.Counter, c.Limit, c.Key, c.Ask.Cost, now, own)
	}
	if s.hooks.short == nil || c.Ask.Cost < 0 || c.Counter.Regions.Sync {
		return
	}
	if room := all == nil || all.Allowed && all.Remaining > 0; room && (!own.Allowed || own.Remaining*5 < own.Limit) {
		s.hooks.short(c.Counter, c.Limit, c.Key, c.Ask.Cost, now, own)
	}
}
