package fallback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// scratch is the working memory of decideLocally; kept in a pool.
type scratch struct {
	charges []store.Charge
	results []algo.Result
	claims  []claim
}

// keepScratch is the number of charges above which the working memory is not kept.
const keepScratch = 1024

// without decides without the primary. refusal is the error if a charge wants that. asked is why
// the primary, which was asked, has not answered, so that it may have made the charges; nil if it
// was not asked.
func (s *Store) without(ctx context.Context, charges []store.Charge, results []algo.Result, refusal,
	asked error) (int64, error) {
	cause := asked
	if errors.Is(asked, store.ErrNotCharged) {
		asked = nil
	}
	for i := range charges {
		if deniesAll(&charges[i]) {
			s.stats.refused.Add(1)
			if cause != nil {
				s.unheard(charges, results, false, cause)
			}
			s.follow(charges, nil, asked, s.instant(asked))
			return 0, refusal
		}
	}
	now, admitted, counted, err := s.decideLocally(s.localWithin(ctx), charges, results, nil, asked)
	if err != nil {
		return 0, err
	}
	s.count(charges, admitted, counted)
	if cause != nil && len(charges) > 0 {
		s.unheard(charges, results, admitted, cause)
	}
	return now, nil
}

// local is how Local is asked.
type local func(charges []store.Charge, results []algo.Result) (now int64, err error)

func (s *Store) localWithin(ctx context.Context) local {
	return func(charges []store.Charge, results []algo.Result) (int64, error) {
		return s.o.Local.Take(ctx, charges, results)
	}
}

// instant is the present by Local's clock, if the primary may still answer; 0 if it cannot or Local
// fails.
func (s *Store) instant(asked error) int64 {
	if asked == nil {
		return 0
	}
	now, err := s.o.Local.Take(s.ctx, nil, nil)
	if err != nil {
		return 0
	}
	return now
}

// count counts a decision without the primary.
func (s *Store) count(charges []store.Charge, admitted, counted bool) {
	switch {
	case len(charges) == 0:
	case !admitted:
		s.stats.localDenied.Add(1)
	case counted:
		s.stats.localAllowed.Add(1)
	default:
		s.stats.uncounted.Add(1)
	}
}

// decideLocally decides on this node's share those charges that are counted while the primary is
// away. elsewhere stands in for the charges of the call that were decided elsewhere; nil if there
// are none.
func (s *Store) decideLocally(
	take local, charges []store.Charge, results []algo.Result, elsewhere *store.Charge, asked error,
) (now int64, admitted, counted bool, err error) {
	w := s.scratch.Get().(*scratch)
	defer s.putScratch(w)
	n := len(charges)
	w.charges = append(w.charges[:0], charges...)
	w.claims = append(w.claims[:0], make([]claim, n)...)
	shares := s.sharesNow()
	for i := range w.charges {
		c := &w.charges[i]
		c.Ask.Slot = 0 // the primary may have filled it in before it failed
		if !uncounted(c) {
			w.claims[i], counted = s.known.claim(c, shares.nodes), true
			if c.Limit = shares.of(c.Limit); w.claims[i].denied {
				c.Limit = shares.none(c.Limit)
			}
			continue
		}
		// A peek is always admitted, and leaves no trace.
		c.Ask = algo.Ask{}
		if c.Mode == rule.Enforce {
			c.Mode = rule.Shadow
		}
	}
	if elsewhere != nil {
		w.charges = append(w.charges, *elsewhere)
	}
	w.results = append(w.results[:0], make([]algo.Result, len(w.charges))...)
	if now, err = take(w.charges, w.results); err != nil {
		for i := range charges {
			s.unclaim(&charges[i], &w.claims[i])
		}
		s.follow(charges, nil, asked, 0)
		return 0, false, false, fmt.Errorf("fallback: the local store failed as well: %w", err)
	}
	copy(results, w.results)
	for i := range charges {
		c := &charges[i]
		c.Ask.Slot = w.charges[i].Ask.Slot
		if uncounted(c) {
			var fresh algo.State
			results[i] = c.Limit.Check(&fresh, now, algo.Ask{})
			results[i].Allowed = true
			continue
		}
		if w.claims[i].known {
			share := shares.of(c.Limit)
			w.claims[i].apply(&results[i], share, now)
			w.charges[i].Limit = share
		}
	}
	admitted = !store.VerdictOf(w.charges, w.results).Denied()
	if admitted {
		s.noteOutage(charges, now)
	}
	s.remember(charges, w, results, admitted, asked, now)
	return now, admitted, counted, nil
}

// noteOutage notes that charges were decided here, in the parts of the primary that would have
// decided them: uncounted ones, too, from which nothing may come back.
func (s *Store) noteOutage(charges []store.Charge, now int64) {
	for i := range charges {
		c := &charges[i]
		s.partOf(c.Counter, c.Key).outages.note(now)
	}
}

// noLimit returns a counter that belongs to no rule, with a limit that refuses every charge with a
// cost.
func noLimit() *rule.Counter {
	l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, Window: time.Second})
	if err != nil {
		panic(err) // it is the same each time
	}
	return &rule.Counter{ID: rand.Uint64(), Limit: l}
}

// apply corrects the result of a share by the primary's last answer for the key.
func (k *claim) apply(r *algo.Result, share *algo.Limit, now int64) {
	if r.Off {
		return
	}
	if k.denied { // the result is as of a limit of 0
		var fresh algo.State
		idle := share.Check(&fresh, now, algo.Ask{})
		r.Limit, r.SoftLimit, r.RetryAfter, r.ResetAfter = idle.Limit, idle.SoftLimit, k.retry, k.reset
		r.Remaining = min(idle.Limit, k.left)
		return
	}
	r.Remaining = min(r.Remaining, k.left)
	if r.ResetAfter != algo.Never && (k.reset == algo.Never || k.reset > r.ResetAfter) {
		r.ResetAfter = k.reset
	}
}

// unclaim releases the claim of a charge that was not made.
func (s *Store) unclaim(c *store.Charge, k *claim) {
	if k.known && !k.denied && c.Ask.Cost > 0 {
		s.known.free(c.Counter, c.Key, c.Ask.Cost)
	}
}

func (s *Store) putScratch(w *scratch) {
	if cap(w.charges) > keepScratch || cap(w.results) > keepScratch {
		return
	}
	clear(w.charges) // they point to limits and keys
	s.scratch.Put(w)
}

// uncounted reports whether a charge is admitted while the primary is away, whatever it costs.
func uncounted(c *store.Charge) bool { return c.OnStoreError == rule.AllowAll }

// deniesAll reports whether a charge fails its call while the primary is away.
func deniesAll(c *store.Charge) bool {
	return c.OnStoreError == rule.DenyAll && c.Mode != rule.Shadow
}

// remember records the charges that were made here.
func (s *Store) remember(
	charges []store.Charge, w *scratch, results []algo.Result, admitted bool, asked error, now int64,
) {
	var made []int64 // units that were, if the primary may still answer
	if asked != nil {
		made = make([]int64, len(charges))
	}
	for i := range charges {
		c, r, share := &charges[i], &results[i], w.charges[i].Limit
		units := c.Ask.Cost
		switch {
		case uncounted(c) || units == 0:
			continue
		case !r.Allowed || r.Off || !admitted && c.Mode != rule.Shadow:
			s.unclaim(c, &w.claims[i])
			continue
		case c.Limit.HasSlots():
			continue
		}
		if units > 0 {
			s.books.admit(units)
		}
		switch {
		case asked == nil:
			s.partOf(c.Counter, c.Key).missed.add(c, share, units, now, until(c, share, r, now))
		default:
			made[i] = units
		}
	}
	s.tendAll(charges)
	s.follow(charges, made, asked, now)
}

// tendAll starts the background of the parts of charges, once the ledgers have all of their
// entries: so these go to the primary in one call.
func (s *Store) tendAll(charges []store.Charge) {
	for i := range charges {
		p := s.partOf(charges[i].Counter, charges[i].Key)
		if p.breaker.Load().state == Closed && !p.missed.empty() {
			s.tendIfClosed(p)
		}
		if len(s.parts) == 1 {
			return
		}
	}
}

// follow waits for the outcome of charges that the primary was asked to make. made holds the units
// of each that were charged here instead, at now by Local's clock (below 0: refunded); nil if none
// were.
func (s *Store) follow(charges []store.Charge, made []int64, asked error, now int64) {
	if asked == nil {
		return
	}
	own := slices.Clone(charges)
	for i := range own {
		own[i].Key = slices.Clone(own[i].Key)
	}
	if made == nil {
		made = make([]int64, len(own))
	}
	pending, ok := errors.AsType[store.Pending](asked)
	if !ok {
		s.settleLate(own, made, nil, now)
		return
	}
	pending.Outcome(func(outcomes []store.Outcome) { s.settleLate(own, made, outcomes, now) })
}

// abandoned handles a call whose caller has given up, and so will not release its slots. Units that
// the primary charges for the call stay charged.
func (s *Store) abandoned(charges []store.Charge, asked error) {
	isSlots := func(c store.Charge) bool { return c.Limit.HasSlots() }
	pending, ok := errors.AsType[store.Pending](asked)
	if !ok || !slices.ContainsFunc(charges, isSlots) {
		return
	}
	own := slices.Clone(charges)
	for i := range own {
		own[i].Key = slices.Clone(own[i].Key)
	}
	pending.Outcome(func(outcomes []store.Outcome) {
		for i := range own {
			if o := outcomeOf(outcomes, i); o.Made && isSlots(own[i]) {
				s.releaseSlot(&own[i], o.Slot)
			}
		}
	})
}

// releaseSlot gives back, in the background, a slot of the primary that no request holds.
func (s *Store) releaseSlot(c *store.Charge, slot uint64) {
	p := s.partOf(c.Counter, c.Key)
	if slot != 0 && p.missed.addRelease(c.Counter, c.Key, slot) {
		s.tendIfClosed(p)
	}
}

// settleLate notes a late answer, or that it will never come.
func (s *Store) settleLate(charges []store.Charge, made []int64, outcomes []store.Outcome, now int64) {
	for i := range charges {
		c, units, o := &charges[i], made[i], outcomeOf(outcomes, i)
		if o.Made && c.Limit.HasSlots() {
			// The local decision gave the request a slot of its own, or none.
			s.releaseSlot(c, o.Slot)
		}
		if uncounted(c) {
			continue
		}
		p := s.partOf(c.Counter, c.Key)
		if o.Now != 0 {
			s.known.record(charges[i:i+1], []algo.Result{o.Result}, o.Now)
		}
		switch {
		case !o.Known:
			s.books.move(c.Counter, c.Key, lost, units)
		case c.Limit.HasSlots():
		case o.Made && units > 0:
			s.books.moveOf(c.Counter, c.Key, charged(&o), units, c.Mode == rule.Shadow)
		case o.Made && c.Ask.Cost > 0:
			s.refund(p, c, &o, now)
		case o.Made || units == 0:
		case units < 0:
			s.restore(p, c, &o, units, now)
		case o.Now != 0 && !o.Result.Allowed:
			s.noteExcess(p, c, &o, units, now)
		default: // it was another limit that refused, or nothing was decided
			s.owe(p, c, units, now)
		}
	}
	s.tendAll(charges)
}

// charged is the fate of units that the primary has charged: a limit that counts denied requests
// charges them beyond its end too.
func charged(o *store.Outcome) fate {
	if o.Now != 0 && !o.Result.Allowed {
		return excess
	}
	return settled
}

// restore notes a refund that was made here and that the primary has not made, unless its own
// verdict was that nothing goes back.
func (s *Store) restore(p *part, c *store.Charge, o *store.Outcome, units, now int64) {
	if o.Now != 0 && !o.Result.Allowed {
		return
	}
	share := s.sharesNow().of(c.Limit)
	var fresh algo.State
	idle := share.Check(&fresh, now, algo.Ask{})
	p.missed.add(c, share, units, now, until(c, share, &idle, now))
}

// refund gives back the units that the primary has charged for a call that was refused here. They
// stay charged if denied requests count, or if the algorithm is a leaky bucket, where a refund
// would cost another request its turn.
func (s *Store) refund(p *part, c *store.Charge, o *store.Outcome, now int64) {
	if c.Mode == rule.Shadow || c.Limit.CountDenied() || c.Limit.Delays() {
		return
	}
	share := s.sharesNow().of(c.Limit)
	p.missed.addBack(c, share, c.Ask.Cost, now, after(now, o.Result.ResetAfter))
}

// noteExcess records units that were admitted here and that the primary has refused. As many as
// there was room for are owed; the rest went beyond the limit.
func (s *Store) noteExcess(p *part, c *store.Charge, o *store.Outcome, units, now int64) {
	room := min(max(o.Result.Remaining, 0), units)
	s.books.moveOf(c.Counter, c.Key, excess, units-room, c.Mode == rule.Shadow)
	s.owe(p, c, room, now)
}

// owe notes units of a charge that are to be charged to the primary.
func (s *Store) owe(p *part, c *store.Charge, units, now int64) {
	if units > 0 {
		share := s.sharesNow().of(c.Limit)
		var st algo.State
		r := share.Take(&st, now, algo.Ask{Cost: units, MaxDelay: -1})
		p.missed.add(c, share, units, now, after(now, r.ResetAfter))
	}
}

// after is an instant some time after now, which may be never.
func after(now, d int64) int64 {
	if d == algo.Never {
		return math.MaxInt64
	}
	return now + d
}

// until returns the instant from which a charge on the share, with the result r, no longer has any
// effect.
func until(c *store.Charge, share *algo.Limit, r *algo.Result, now int64) int64 {
	reset := r.ResetAfter
	if c.Ask.Cost < 0 {
		// The units that go back were taken from the primary: they count as if they had been taken
		// here, now.
		ask := algo.Ask{Cost: 1, MaxDelay: -1}
		if share.Algorithm().HasBurst() {
			ask.Cost = min(-c.Ask.Cost, r.Limit)
		}
		var st algo.State
		reset = share.Take(&st, now, ask).ResetAfter
	}
	return after(now, reset)
}
