package weir

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// DefaultDomain is the domain of rules and requests that name none.
const DefaultDomain = "default"

// Limiter decides requests by the rules in force. Safe for concurrent use. Make one with New.
type Limiter struct {
	store   Store
	hooks   Hooks
	signals Signals // nil for none
	rules   atomic.Pointer[inForce]
	mu      sync.Mutex // serialises SetRules

	reservations reservations
	bans         bans
	grants       grants
	share        share
}

// inForce is a rule set with what the limiter derives from it. Immutable.
type inForce struct {
	set        *rule.Set
	generation uint64
	soleDomain string                   // what a request without a domain gets
	several    bool                     // the rules hold several domains
	counters   map[uint64]*rule.Counter // by ID, for Release
	bans       bool                     // some rule bans

	byCounterOnce sync.Once             // byCounter is made when it is needed first
	byCounter     map[uint64]*rule.Rule // by Counter.ID, those of overrides included
}

// Option configures New.
type Option func(*Limiter) error

// New returns a Limiter over store. Without rules it allows everything until SetRules.
func New(store Store, options ...Option) (*Limiter, error) {
	if store == nil {
		return nil, errors.New("weir: New needs a store, such as memory.New(memory.Options{})")
	}
	l := &Limiter{store: store}
	var initial *rule.Set
	for _, option := range options {
		if err := option(l); err != nil {
			return nil, err
		}
		if f := l.rules.Load(); f != nil {
			if initial != nil && initial != f.set {
				return nil, errors.New("weir: only one of WithRules and Limit may be given, once; a rule file holds several limits")
			}
			initial = f.set
		}
	}
	l.bans.init(store)
	l.grants.table.init(maxGrants)
	if initial != nil {
		l.rules.Store(nil)
		l.SetRules(initial)
	}
	return l, nil
}

// WithRules puts a rule set in force.
func WithRules(s *rule.Set) Option {
	return func(l *Limiter) error {
		if s == nil {
			return errors.New("weir: WithRules got a nil set")
		}
		l.rules.Store(&inForce{set: s})
		return nil
	}
}

// WithHooks sets the hooks.
func WithHooks(h Hooks) Option {
	return func(l *Limiter) error { l.hooks = h; return nil }
}

// Signals tells how loaded a service is, for elastic limits.
type Signals interface {
	// Signal returns the filtered value of a signal in whole percent, 0 to 100; ok is false for one that is not known, or has gone
	// stale. It is called on the deciding path: it must be quick, and safe for concurrent use.
	Signal(name string) (percent int, ok bool)
}

// WithSignals makes elastic limits follow s. Without it, and where a signal is not ok, they stand at 100 percent.
func WithSignals(s Signals) Option {
	return func(l *Limiter) error { l.signals = s; return nil }
}

// Limit puts a single limit in force, without rule files: allow is in the notation of rule files ("10/min", "100/15m"),
// and each key has a counter of its own, made of the attributes in per, or of the attribute "key" if there are none.
// For several limits, load rules and use WithRules.
func Limit(name, allow string, per ...string) Option {
	return func(l *Limiter) error {
		s, err := rule.One(name, allow, per...)
		if err != nil {
			return err
		}
		return WithRules(s)(l)
	}
}

// SetRules puts s in force for all decisions that begin after it returns. Counters are carried over from the rules
// before. A Set must not be given to more than one Limiter.
func (l *Limiter) SetRules(s *rule.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.rules.Load()
	next := &inForce{set: s, generation: 1, soleDomain: DefaultDomain}
	if old != nil {
		if old.set == s {
			return
		}
		next.generation = old.generation + 1
		s.Inherit(old.set)
	}
	domains := s.Domains()
	if next.several = len(domains) > 1; len(domains) == 1 {
		next.soleDomain = domains[0]
	}
	next.counters = make(map[uint64]*rule.Counter, len(s.Counters()))
	for _, c := range s.Counters() {
		next.counters[c.ID] = c
	}
	for _, domain := range domains {
		next.bans = next.bans || len(s.BanRules(domain)) > 0
	}
	l.rules.Store(next)
	l.regrant(next)
	if l.hooks.RulesChanged != nil {
		l.hooks.RulesChanged(s, next.generation)
	}
}

// Rules returns the set in force and its generation, counted from 1; nil and 0 if there is none.
func (l *Limiter) Rules() (s *rule.Set, generation uint64) {
	f := l.rules.Load()
	if f == nil {
		return nil, 0
	}
	return f.set, f.generation
}

// SoleDomain returns the domain of requests that name none: the only one that the rules in force hold, DefaultDomain if there are no
// rules, and "" if they hold several, so that a door which knows no better has to ask for a name.
func (l *Limiter) SoleDomain() string {
	f := l.rules.Load()
	switch {
	case f == nil:
		return DefaultDomain
	case f.several:
		return ""
	}
	return f.soleDomain
}

// Allow decides r as one hit (r.Hits is ignored). It allocates the decision's parts; Decide can reuse them.
func (l *Limiter) Allow(ctx context.Context, r Request) (Decision, error) {
	r.Hits = 1
	var d Decision
	err := l.Decide(ctx, &r, &d)
	return d, err
}

// Decide decides r into d, reusing what d holds. Nothing is allocated once d has grown, but for concurrency limits' slots and
// CEL expressions. The error is of the store (or of ctx, or of r.Met); then d is not a decision, but d.Matches tells which rules were met,
// whose rule.StoreErrorPolicy says what to do.
func (l *Limiter) Decide(ctx context.Context, r *Request, d *Decision) error {
	d.Allowed, d.Known, d.Exempt = true, false, false
	d.Time, d.RetryAfter, d.Delay, d.Generation, d.Rules, d.ID = 0, 0, 0, 0, nil, 0
	d.Domain = r.Domain
	d.Limits, d.charges, d.results, d.Banned = d.Limits[:0], d.charges[:0], d.results[:0], Banned{}
	f := l.rules.Load()
	if f == nil {
		d.Matches = rule.Matches{}
		l.decided(r, d)
		return nil
	}
	if d.Domain == "" {
		d.Domain = f.soleDomain
	}
	d.Generation, d.Rules = f.generation, f.set
	d.query = rule.Query{Domain: d.Domain, Attributes: r.Attributes, Descriptors: r.Descriptors}
	f.set.Match(&d.query, &d.Matches)
	d.query = rule.Query{}
	d.Known, d.Exempt = d.Matches.Known, d.Matches.Exempt
	if l.bans.table.n.Load() > 0 && l.banned(r, d) {
		l.decided(r, d)
		return nil
	}
	if r.Met != nil {
		if err := r.Met(d); err != nil {
			return err
		}
	}
	if len(d.Matches.Hits) > 0 {
		d.charge(r, l.signals)
		if l.grants.table.n.Load() > 0 && !l.applyGrants(d) {
			l.decided(r, d)
			return nil
		}
		now, err := l.store.Take(ctx, d.charges, d.results)
		if err != nil {
			if l.hooks.StoreError != nil {
				l.hooks.StoreError(err)
			}
			return err
		}
		d.Time = now
		d.fold()
		if !d.Allowed && r.Waits != nil && r.Waits(d) {
			return nil
		}
		if !d.Allowed && f.bans {
			l.count(ctx, d)
		}
	}
	l.decided(r, d)
	return nil
}

// Refused tells Hooks of a refusal that a door came to by itself: of a request that was held in vain, or found no room to be held.
func (l *Limiter) Refused(r *Request, d *Decision) { l.decided(r, d) }

func (l *Limiter) decided(r *Request, d *Decision) {
	if !d.Allowed {
		d.Identity()
	}
	if l.hooks.Decided != nil {
		l.hooks.Decided(r, d)
	}
}

// charge fills d.charges from d.Matches.
func (d *Decision) charge(r *Request, signals Signals) {
	n := len(d.Matches.Hits)
	if cap(d.charges) < n {
		d.charges = make([]Charge, 2*n)
		d.results = make([]algo.Result, 2*n)
	}
	d.charges, d.results = d.charges[:n], d.results[:n]
	for i := range d.Matches.Hits {
		h, c := &d.Matches.Hits[i], &d.charges[i]
		hits := r.Hits
		if h.Descriptor >= 0 && r.Descriptors[h.Descriptor].HasHits {
			hits = r.Descriptors[h.Descriptor].Hits
		}
		c.Counter, c.Limit, c.Key, c.Mode = h.Window.Counter, h.Limit, h.Key, h.Mode
		if e := h.Window.Rule.Elastic; e != nil && signals != nil {
			if value, ok := signals.Signal(e.Signal); ok {
				c.Limit = h.Window.Scaled(value)
			}
		}
		if r.Again && (h.Mode == rule.Shadow && c.Limit.Algorithm() != algo.Concurrency || c.Limit.CountDenied()) {
			hits = 0
		}
		c.OnStoreError = h.Window.Rule.OnStoreError
		c.Ask = algo.Ask{Cost: cost(hits, h.Cost), MaxDelay: maxDelay(r.MaxDelay, h.Window.Rule)}
	}
}

// cost is hits × each, kept within ±algo.MaxCost, which is above every capacity.
func cost(hits, each int64) int64 {
	return withinCost(withinCost(hits) * withinCost(max(each, 0)))
}

func withinCost(n int64) int64 { return min(max(n, -algo.MaxCost), algo.MaxCost) }

// maxDelay translates Request.MaxDelay into microseconds for one rule; below 0 is any delay.
func maxDelay(d time.Duration, r *rule.Rule) int64 {
	switch {
	case d >= 0:
		return d.Microseconds()
	case d == RuleDelay && r.Wait > 0:
		return r.Wait.Microseconds()
	default:
		return -1
	}
}

// dropOff leaves out the limits that a schedule puts out of force at the instant of the decision: as if they had not been met.
func (d *Decision) dropOff() {
	if !slices.ContainsFunc(d.results, func(r algo.Result) bool { return r.Off }) {
		return
	}
	for i := range d.results {
		if d.results[i].Off {
			d.charges[i].Limit = nil
		}
	}
	d.dropUnlimited()
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
	quotas, quotasLeft := false, false
	for i := range d.results {
		switch d.charges[i].Mode {
		case rule.Enforce:
			d.Allowed = d.Allowed && d.results[i].Allowed
		case rule.Quota:
			quotas = true
			quotasLeft = quotasLeft || d.results[i].Allowed
		}
	}
	d.quotaRefused = quotas && !quotasLeft
	d.Allowed = d.Allowed && !d.quotaRefused
	n := len(d.results)
	if cap(d.Limits) < n {
		d.Limits = make([]LimitResult, 2*n)
	}
	d.Limits = d.Limits[:n]
	for i := range d.results {
		h, c, res := &d.Matches.Hits[i], &d.charges[i], &d.Limits[i]
		res.Window, res.Mode, res.Descriptor, res.Slot = h.Window, h.Mode, h.Descriptor, ""
		res.Result = d.results[i]
		res.NearLimit = (res.Limit-res.Remaining)*100 >= int64(h.Window.Rule.WarnPercent)*res.Limit
		if c.Ask.Slot != 0 && res.Allowed && (d.Allowed || h.Mode == rule.Shadow) && c.Ask.Cost > 0 {
			res.Slot = encodeSlot(c)
		}
		switch {
		case d.refuses(res):
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

// encodeSlot packs what Release needs: the counter's ID, the slot and the key. The slot is random, so that nobody
// releases what is not theirs.
func encodeSlot(c *Charge) string {
	raw := make([]byte, 16, 16+len(c.Key))
	binary.BigEndian.PutUint64(raw, c.Counter.ID)
	binary.BigEndian.PutUint64(raw[8:], c.Ask.Slot)
	return base64.RawURLEncoding.EncodeToString(append(raw, c.Key...))
}

// Release gives the slot of an admitted concurrency limit back; ok is false if it is gone (released, timed out, or of
// a rule that is no longer in force) or was never given.
func (l *Limiter) Release(ctx context.Context, slot string) (ok bool, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(slot)
	if err != nil || len(raw) < 16 {
		return false, nil
	}
	f := l.rules.Load()
	if f == nil {
		return false, nil
	}
	c := f.counters[binary.BigEndian.Uint64(raw)]
	id := binary.BigEndian.Uint64(raw[8:])
	if c == nil || id == 0 || c.Limit == nil || c.Limit.Algorithm() != algo.Concurrency {
		return false, nil
	}
	return l.store.Release(ctx, c, raw[16:], id)
}
