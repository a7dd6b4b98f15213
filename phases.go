package weir

import (
	"context"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Phases are the steps of Limiter.Decide, and what else doors alone ask a Limiter. They are for
// programs that have something to do between the steps, such as to turn a request away before it is
// charged, and for programs that assign units ahead of the requests.
//
// Decide is Match, then Charge if that leaves the request undecided, then Tell. A Phases holds
// nothing but its Limiter, so that it costs nothing to make. Safe for concurrent use. See
// Limiter.Phases.
type Phases struct{ l *Limiter }

// Phases returns the phases of this Limiter's decisions. Most callers use Allow or Decide.
func (l *Limiter) Phases() Phases { return Phases{l} }

// Match is the first phase of Decide: it finds the limits that r meets, and the bans that refuse
// it. d.Matches, d.Priority and d.Exempt are valid from then on. It returns false if d is decided
// already, because a ban holds, no rules are in force, or an expression takes too long on r
// (rule.Matches.TooCostly); else Charge comes next. With RequireRules it returns true while there
// are no rules, and Charge fails with ErrNoRules.
func (p Phases) Match(r *Request, d *Decision) (undecided bool) {
	undecided, _ = p.l.match(r, d, false)
	return undecided
}

// MatchNow is Match for a goroutine that others wait for. If done is false, r would be tried on
// so many rules that it takes longer than others should wait (rule.Set.MatchNow). Nothing is
// known of r then, and Match or Decide comes next, on another goroutine.
func (p Phases) MatchNow(r *Request, d *Decision) (undecided, done bool) {
	return p.l.match(r, d, true)
}

// Charge is the second phase of Decide: it charges the limits that Match found, with the numbers of
// their grants, in one call of the store, and makes d the decision. It may be called again after
// another Match, for a request that was refused and waited meanwhile; see ChargeAgain.
//
// Charge handles a failing store as Decide describes. After an error it is unknown which limits
// were charged.
func (p Phases) Charge(ctx context.Context, r *Request, d *Decision) error {
	return p.l.charge(ctx, r, d, false)
}

// ChargeNow is Charge if it needs not wait: done is true if the store could decide at once, which a
// store.Prompt can for some requests and others never. Else nothing was charged, and Charge comes
// next, here or on another goroutine, with r and d as they are.
func (p Phases) ChargeNow(r *Request, d *Decision) (done bool) {
	if d.Rules == nil && p.l.needsRules {
		return false
	}
	if len(d.Matches.Hits) == 0 {
		return true
	}
	if p.l.prompt == nil {
		return false
	}
	if !p.l.ask(r, d, false) {
		return true
	}
	now, ok := p.l.prompt.TakeNow(d.charges, d.results)
	if !ok {
		d.asked = true
		return false
	}
	d.Time = now
	d.fold()
	return true
}

// ChargeAgain is Charge for a request that was charged before, refused, and then held without Tell.
// Limits that charge a refused request all the same do not charge it a second time: limits in
// shadow, and limits that count denied requests.
func (p Phases) ChargeAgain(ctx context.Context, r *Request, d *Decision) error {
	return p.l.charge(ctx, r, d, true)
}

// Tell is the last phase of Decide: it counts denials towards bans and the refusals of bans, gives
// a refusal its ID, and calls the Hooks. Callers do not call it for a request that is held, unless
// it is refused for good.
func (p Phases) Tell(ctx context.Context, r *Request, d *Decision) {
	if !d.Allowed {
		if f := p.l.rules.Load(); f != nil && f.bans && !d.byDoor {
			p.l.countDenials(ctx, d)
		}
		d.countBanned(r)
		d.Identity()
	}
	if p.l.hooks.Decided != nil {
		p.l.hooks.Decided(r, d)
	}
}

// HearsAnswers reports whether Answered has an effect, so that a door need not keep r and d until
// the answer if it has none.
func (p Phases) HearsAnswers() bool { return p.l.hooks.Answered != nil }

// Answered calls the hooks with the answer to r, which d admitted. Doors that see the answer call
// it once; r and d must be as they were at Tell.
func (p Phases) Answered(r *Request, d *Decision, a Answer) {
	if p.l.hooks.Answered != nil {
		p.l.hooks.Answered(r, d, a)
	}
}

// RefuseBy makes d a refusal by the limit of d.Matches.Hits[hit] alone, for a door that knows the
// limit's answer and refuses in its place. said is the limit's result for another request, as it
// stands at the instant now of the store's clock, in µs. Nothing is charged, and Tell does not
// count the refusal towards a ban.
func (Phases) RefuseBy(d *Decision, hit int, said LimitResult, now int64) {
	hits := d.Matches.Hits
	if len(d.charges) == len(hits) { // InForce takes its numbers from charges
		d.charges[0], d.results[0] = d.charges[hit], said.Result
		d.charges, d.results = d.charges[:1], d.results[:1]
	} else {
		d.charges, d.results = d.charges[:0], d.results[:0]
	}
	hits[0] = hits[hit]
	d.Matches.Hits = hits[:1]
	said.Window, said.Mode, said.Descriptor = hits[0].Window, hits[0].Mode, hits[0].Descriptor
	d.Limits = append(d.Limits[:0], said)
	d.Allowed, d.byDoor, d.ID = false, true, 0
	d.Time, d.RetryAfter, d.Delay = now, said.RetryAfter, 0
}

// SoleDomain returns the domain of requests that name none: the only one that the rules in force
// hold, DefaultDomain if there are no rules, and "" if they hold several, so that a door which
// knows no better has to ask for a name.
func (p Phases) SoleDomain() string {
	f := p.l.rules.Load()
	switch {
	case f == nil:
		return DefaultDomain
	case f.several:
		return ""
	}
	return f.soleDomain
}

// Charges returns the charges that each request like r would make, without charging or deciding
// anything. It is for doors that assign units ahead of the requests, in place of deciding them. The
// numbers are those in force, with grants and signals. d is as after Match: if there are no
// charges, d.Allowed says whether such requests pass, d.Banned for how long not.
//
// The charges are valid until d is used again, or given to another method.
func (p Phases) Charges(r *Request, d *Decision) []store.Charge {
	if !p.Match(r, d) || len(d.Matches.Hits) == 0 {
		return nil
	}
	d.ask(r, p.l.signals, false)
	if p.l.orders.Grants.Any() && !p.l.applyGrants(d) {
		return nil
	}
	return d.charges
}

// Report accounts for requests like r that somebody else decided, by the units assigned to them; d
// is the Decision that Charges filled in. It calls Hooks.Reported, and charges limits in shadow for
// the allowed requests, each as far as it has room. Bans do not count the denied ones. The error is
// the store's.
func (p Phases) Report(ctx context.Context, r *Request, d *Decision, allowed, denied int64) error {
	if p.l.hooks.Reported != nil {
		p.l.hooks.Reported(r, d, allowed, denied)
	}
	if allowed <= 0 || len(d.charges) == 0 {
		return nil
	}
	var charges []store.Charge
	for _, c := range d.charges {
		if c.Mode == rule.Shadow && c.Limit != nil && !c.Limit.HasSlots() {
			c.Ask.Cost = algo.Cost(allowed, c.Ask.Cost)
			charges = append(charges, c)
		}
	}
	if len(charges) == 0 {
		return nil
	}
	_, err := p.l.store.Take(ctx, charges, make([]algo.Result, len(charges)))
	if err != nil && !abandoned(ctx) {
		p.l.storeError(err)
	}
	return err
}

// Numbers returns the Counter with an ID, which may be the Counter's own or its rule.Regions.All's,
// and the numbers of a key: those in force, with grants and elastic signals, and those that the
// rule or an override gives it. All are nil if no rule in force has such a Counter, or the key is
// not limited by it. It is for package store/regions, which hears of uses and borrows units by ID.
func (p Phases) Numbers(id uint64, key []byte) (c *rule.Counter, inForce, plain *algo.Limit) {
	w := p.l.windowOf(id, key)
	if w == nil || w.Limit == nil {
		return nil, nil, nil
	}
	inForce, _ = p.l.granted(w, key, p.l.orders.Now())
	return w.Counter, inForce, w.Limit
}
