package weir

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Allow decides r, as Decide does, into a new Decision. It returns one, which does not allow,
// beside an error, too.
func (l *Limiter) Allow(ctx context.Context, r Request) (*Decision, error) {
	d := new(Decision)
	err := l.Decide(ctx, &r, d)
	return d, err
}

// Decide decides r into d, reusing what d holds, in the order of Phases. Nothing is allocated once
// d has grown, except for slots of concurrency limits and CEL expressions.
//
// If the store fails, the rules decide: r is admitted if each enforcing limit that it meets says
// on_store_error: allow, and d.WithoutStore then says why it was not counted. Otherwise, and if ctx
// was cancelled, Decide returns the error of the store or of ctx; d then does not allow, and
// d.Matches lists the limits that r meets.
func (l *Limiter) Decide(ctx context.Context, r *Request, d *Decision) error {
	p := l.Phases()
	if p.Match(r, d) {
		if err := p.Charge(ctx, r, d); err != nil {
			return err
		}
	}
	p.Tell(ctx, r, d)
	return nil
}

func (l *Limiter) match(r *Request, d *Decision, now bool) (undecided, done bool) {
	d.Allowed, d.Known, d.Exempt, d.byDoor = true, false, false, false
	d.Time, d.RetryAfter, d.Delay, d.Generation, d.Rules, d.ID = 0, 0, 0, 0, nil, 0
	d.Domain, d.WithoutStore = r.Domain, nil
	d.Limits, d.charges, d.results, d.Banned, d.asked = d.Limits[:0], d.charges[:0], d.results[:0], Banned{}, false
	d.bans = d.bans[:0]
	f := l.rules.Load()
	if f == nil {
		d.Matches = rule.Matches{}
		if l.needsRules { // charge returns the error
			d.Allowed = false
			return true, !now
		}
		return false, true
	}
	if d.Domain == "" {
		d.Domain = f.soleDomain
	}
	d.Generation, d.Rules = f.generation, f.set
	q := rule.Query{Domain: d.Domain, Attributes: r.Attributes, Descriptors: r.Descriptors}
	if l.orders.Bans.AnyDomainWide() && l.orders.Bans.Any() {
		q.BanRules = l.orders.Bans.WideRules(f.set, d.Domain)
	}
	if len(r.Also) > 0 {
		if now {
			d.Rules = nil
			return true, false // several readings take several times as long
		}
		f.set.Match(&q, &d.Matches)
		for _, q.Attributes = range r.Also {
			f.set.MatchAlso(&q, &d.Matches)
		}
	} else if !now {
		f.set.Match(&q, &d.Matches)
	} else if !f.set.MatchNow(&q, &d.Matches) {
		d.Rules = nil
		return true, false
	}
	d.Known, d.Exempt = d.Matches.Known, d.Matches.Exempt
	if l.orders.Bans.Any() && l.banned(r, d) {
		return false, true
	}
	if d.Matches.TooCostly != nil {
		d.refuseCostly(l.orders.Now())
		return false, true
	}
	if l.unknown != nil && !d.Known && r.Cost() >= 0 {
		d.refuseFor(l.unknown, l.unknown.Limit, l.orders.Now())
		return false, true
	}
	return true, true
}

// UnknownDomainLimit is the name of the limit, and of its rule, by which DenyUnknownDomains
// refuses.
const UnknownDomainLimit = "unknown_domain"

// unknownDomain returns the limit that refuses requests of unknown domains. It is of no rule set.
func unknownDomain() (*rule.Window, error) {
	set, err := rule.Of(rule.Spec{Name: UnknownDomainLimit, Allow: "0/s"})
	if err != nil {
		return nil, err
	}
	return set.Rules()[0].Windows[0], nil
}

// refuseCostly makes d the refusal of d.Matches.TooCostly.
func (d *Decision) refuseCostly(now int64) {
	h := &d.Matches.Hits[0]
	d.refuseFor(h.Window, h.Limit, now)
}

// refuseFor makes d a refusal by one window at an instant of the Limiter's clock: as of a limit
// that never admits the request. Nothing is charged.
func (d *Decision) refuseFor(w *rule.Window, limit *algo.Limit, now int64) {
	var fresh algo.State
	res := LimitResult{Window: w, Result: limit.Check(&fresh, now, algo.Ask{}), Mode: rule.Enforce, Descriptor: -1,
		Near: true}
	res.Allowed, res.Off, res.Remaining, res.RetryAfter = false, false, 0, algo.Never
	d.Limits = append(d.Limits[:0], res)
	d.Allowed, d.Time, d.RetryAfter = false, now, algo.Never
}

func (l *Limiter) charge(ctx context.Context, r *Request, d *Decision, again bool) error {
	if d.Rules == nil && l.needsRules {
		return ErrNoRules
	}
	if len(d.Matches.Hits) == 0 {
		return nil
	}
	asked := d.asked && !again
	d.asked = false
	if !asked && !l.ask(r, d, again) {
		return nil
	}
	now, err := l.store.Take(ctx, d.charges, d.results)
	switch {
	case err == nil:
	case abandoned(ctx):
		d.drop()
		return err
	default:
		l.storeError(err)
		return d.withoutStore(err)
	}
	d.Time = now
	d.fold()
	return nil
}

// ask makes the charges of d, with the numbers of grants. It returns false if nothing is left to
// charge.
func (l *Limiter) ask(r *Request, d *Decision, again bool) bool {
	d.ask(r, l.signals, again)
	return !l.orders.Grants.Any() || l.applyGrants(d)
}

// withoutStore decides d without the store, which failed with err: d is an admission if each
// enforcing limit that was met says on_store_error: allow. Else it returns err.
func (d *Decision) withoutStore(err error) error {
	d.drop()
	for i := range d.Matches.Hits {
		if h := &d.Matches.Hits[i]; h.Mode != rule.Shadow && h.Window.Rule.OnStoreError != rule.AllowAll {
			return err
		}
	}
	d.Allowed, d.WithoutStore = true, err
	return nil
}

// drop makes d no admission, and leaves out all that it knows of charges.
func (d *Decision) drop() {
	d.Allowed = false
	d.Limits, d.charges, d.results = d.Limits[:0], d.charges[:0], d.results[:0]
}

// abandoned reports whether the caller gave up a call that failed, as where a client hangs up: the
// store is not to blame for that. A deadline that is over is another matter, since the store may
// have been too slow.
func abandoned(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// ask fills d.charges from d.Matches.
func (d *Decision) ask(r *Request, signals Signals, again bool) {
	n := len(d.Matches.Hits)
	if cap(d.charges) < n {
		d.charges = make([]store.Charge, 2*n)
		d.results = make([]algo.Result, 2*n)
	}
	d.charges, d.results = d.charges[:n], d.results[:n]
	hits := r.Cost()
	for i := range d.Matches.Hits {
		h, c := &d.Matches.Hits[i], &d.charges[i]
		hits := hits
		room := false
		if h.Cost == 0 && h.Window.Rule.CostAfter != "" {
			room = r.hitsOf(h) > 0 // as of one that costs something once it is answered
		}
		if h.Descriptor >= 0 && r.Descriptors[h.Descriptor].HasHits {
			hits = r.Descriptors[h.Descriptor].Hits
		}
		c.Counter, c.Limit, c.Key, c.Mode = h.Window.Counter, h.Limit, h.Key, h.Mode
		if h.Window.Rule.Elastic != nil {
			c.Limit = atSignal(h.Window, h.Limit, signals)
		}
		if again && (h.Mode == rule.Shadow && !c.Limit.HasSlots() || c.Limit.CountDenied()) {
			hits = 0
		}
		c.OnStoreError = h.Window.Rule.OnStoreError
		c.Ask = algo.Ask{Cost: algo.Cost(hits, h.Cost), MaxDelay: maxDelay(r, h.Window.Rule), Room: room}
	}
}

// atSignal returns the numbers of a limit as its elastic signal has them. signals may be nil.
func atSignal(w *rule.Window, limit *algo.Limit, signals Signals) *algo.Limit {
	if e := w.Rule.Elastic; e != nil && signals != nil {
		if value, ok := signals.Signal(e.Signal); ok {
			return w.Scaled(value)
		}
	}
	return limit
}

// maxDelay translates MaxDelay and Within of a request into microseconds for one rule; below 0 is
// any delay.
func maxDelay(q *Request, r *rule.Rule) int64 {
	d := q.MaxDelay
	switch {
	case d >= 0:
	case d == RuleDelay && r.Wait > 0:
		d = r.Wait
	default:
		d = AnyDelay
	}
	if q.Within > 0 && (d < 0 || d > q.Within) {
		d = q.Within
	}
	if d < 0 {
		return -1
	}
	return d.Microseconds()
}

// dropOff leaves out the limits that a schedule puts out of force at the instant of the decision:
// as if they had not been met.
func (d *Decision) dropOff() {
	off := false
	for i := range d.results {
		if d.results[i].Off {
			d.charges[i].Limit, off = nil, true
		}
	}
	if off {
		d.dropUnlimited()
	}
}

// dropUnlimited leaves out the charges without a limit, and what stands beside them.
func (d *Decision) dropUnlimited() {
	d.place = slices.Grow(d.place[:0], len(d.charges))[:len(d.charges)]
	n, place := 0, d.place
	for i := range d.charges {
		if place[i] = -1; d.charges[i].Limit != nil {
			place[i] = n
			d.results[n], d.charges[n], d.Matches.Hits[n] = d.results[i], d.charges[i], d.Matches.Hits[i]
			n++
		}
	}
	d.results, d.charges, d.Matches.Hits = d.results[:n], d.charges[:n], d.Matches.Hits[:n]
	for i := range d.Matches.Descriptors {
		if m := &d.Matches.Descriptors[i]; m.Hit >= 0 {
			m.Hit = place[m.Hit]
			m.Unlimited = m.Hit < 0
		}
	}
}

// fold makes the decision of d.results.
func (d *Decision) fold() {
	d.dropOff()
	verdict := store.VerdictOf(d.charges, d.results)
	d.quotaRefused = verdict.QuotasExhausted()
	d.Allowed = d.Allowed && !verdict.Denied()
	n := len(d.results)
	if cap(d.Limits) < n {
		d.Limits = make([]LimitResult, 2*n)
	}
	d.Limits = d.Limits[:n]
	for i := range d.results {
		h, c, res := &d.Matches.Hits[i], &d.charges[i], &d.Limits[i]
		res.Window, res.Mode, res.Descriptor, res.Slot = h.Window, h.Mode, h.Descriptor, ""
		res.Result = d.results[i]
		res.Near = (res.Limit-res.Remaining)*100 >= int64(h.Window.Rule.WarnPercent)*res.Limit
		if c.Ask.Slot != 0 && res.Allowed && (d.Allowed || h.Mode == rule.Shadow) && c.Ask.Cost > 0 {
			res.Slot = encodeSlot(c)
		}
		switch {
		case d.Refuses(res):
			if res.RetryAfter == algo.Never || d.RetryAfter == algo.Never {
				d.RetryAfter = algo.Never
			} else {
				d.RetryAfter = max(d.RetryAfter, res.RetryAfter)
			}
		case d.Allowed && h.Mode != rule.Shadow:
			d.Delay = max(d.Delay, res.Delay)
		}
	}
}
