package weir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/rule"
)

// Bans and grants take part in a decision: Match calls banned, Charge applyGrants, Tell
// countDenials.

// hitsOf returns how many hits the charge for h costs.
func (r *Request) hitsOf(h *rule.Hit) int64 {
	if h.Descriptor >= 0 && r.Descriptors[h.Descriptor].HasHits {
		return r.Descriptors[h.Descriptor].Hits
	}
	return r.Cost()
}

// banned refuses r if one of its keys is banned. d then holds the limits whose bans they are, and
// no others. Refunds are never refused.
func (l *Limiter) banned(r *Request, d *Decision) bool {
	if d.Exempt || !d.Known {
		return false
	}
	now := l.orders.Now()
	d.Limits = d.Limits[:0]
	hits := d.Matches.Hits
	for i := range hits {
		h := &hits[i]
		if h.Mode != rule.Enforce || r.hitsOf(h) < 0 || i > 0 && sameKey(h, &hits[i-1]) {
			continue
		}
		if b, ok := l.orders.Bans.Find(h.Window.Counter.Keys, h.Key, now, false); ok {
			d.ban(h, now, b)
		}
	}
	if len(d.Limits) > 0 {
		d.onlyBanned()
	}
	if l.orders.Bans.AnyDomainWide() && r.Cost() >= 0 {
		l.bannedWide(d, now)
	}
	if len(d.Limits) == 0 {
		return false
	}
	d.Allowed, d.Time = false, now
	l.bans.requests.Add(1)
	return true
}

// bannedWide finds the domain-wide bans, also under rules that the request does not meet.
func (l *Limiter) bannedWide(d *Decision, now int64) {
	met := len(d.Limits)
	d.Rules.BanKeys(&d.Matches, func(r *rule.Rule, key []byte) bool {
		w := orders.FirstCounted(r)
		if w == nil || slices.ContainsFunc(d.Limits[:met], func(res LimitResult) bool { return res.Window.Rule == r }) {
			return true
		}
		b, ok := l.orders.Bans.Find(w.Counter.Keys, key, now, true)
		if !ok {
			return true
		}
		if len(d.Limits) == 0 {
			d.Matches.Hits = d.Matches.Hits[:0]
			for i := range d.Matches.Descriptors {
				d.Matches.Descriptors[i].Hit = -1
			}
		}
		h := rule.Hit{Window: w, Limit: w.Limit, Key: key, Cost: 1, Mode: rule.Enforce, Descriptor: -1}
		d.ban(&h, now, b)
		d.Matches.Hits = append(d.Matches.Hits, h)
		return true
	})
}

// sameKey reports whether two hits are of one rule and key, which then have different windows.
func sameKey(a, b *rule.Hit) bool {
	return a.Window.Rule == b.Window.Rule && a.Descriptor == b.Descriptor && string(a.Key) == string(b.Key)
}

// ban adds the answer of a limit that a banned key met. Where the limit itself refuses for longer
// than the ban, its time is given: a client that came back when the ban ends would be refused
// again.
func (d *Decision) ban(h *rule.Hit, now int64, b *orders.BanOrder) {
	until := b.Until.UnixMicro()
	if !slices.Contains(d.bans, b) {
		d.bans = append(d.bans, b)
	}
	var fresh algo.State
	res := LimitResult{Window: h.Window, Result: h.Limit.Check(&fresh, now, algo.Ask{}), Mode: rule.Enforce,
		Descriptor: h.Descriptor}
	res.Allowed, res.Off, res.Remaining, res.Near = false, false, 0, true
	res.RetryAfter = max(until, b.RefusedUntil) - now
	res.ResetAfter = res.RetryAfter
	d.Limits = append(d.Limits, res)
	if until > d.Banned.Until || d.Banned.Rule == nil {
		d.Banned = Banned{Rule: h.Window.Rule, Until: until}
	}
	d.RetryAfter = max(d.RetryAfter, res.RetryAfter)
}

// onlyBanned removes the hits that d.Limits does not answer for, and keeps the others in order.
func (d *Decision) onlyBanned() {
	hits, n := d.Matches.Hits, 0
	d.place = slices.Grow(d.place[:0], len(hits))[:len(hits)]
	for i := range hits {
		d.place[i] = -1
		if n == len(d.Limits) || d.Limits[n].Window != hits[i].Window || d.Limits[n].Descriptor != hits[i].Descriptor {
			continue
		}
		hits[n], d.place[i] = hits[i], n
		n++
	}
	d.Matches.Hits = hits[:n]
	for i := range d.Matches.Descriptors {
		if m := &d.Matches.Descriptors[i]; m.Hit >= 0 {
			m.Hit = d.place[m.Hit]
		}
	}
}

// countBanned counts a request that bans refused, for each of them.
func (d *Decision) countBanned(r *Request) {
	if r.Cost() <= 0 {
		return // a peek
	}
	for _, b := range d.bans {
		b.CountRefusal()
	}
}

// countDenials counts a denial for each rule with a ban whose own windows denied d.
func (l *Limiter) countDenials(ctx context.Context, d *Decision) {
	hits, now := d.Matches.Hits, int64(0)
next:
	for i := range d.results {
		b := hits[i].Window.Rule.Ban
		if b == nil || b.Counter == nil || d.results[i].Allowed || d.charges[i].Mode != rule.Enforce ||
			d.charges[i].Ask.Needs() <= 0 {
			continue
		}
		for j := i - 1; j >= 0 && sameKey(&hits[i], &hits[j]); j-- {
			if !d.results[j].Allowed {
				continue next
			}
		}
		if now == 0 {
			now = l.orders.Now()
		}
		until := int64(0)
		for j := i; j < len(d.results) && sameKey(&hits[i], &hits[j]); j++ {
			if after := d.results[j].RetryAfter; !d.results[j].Allowed && after != algo.Never {
				until = max(until, now+after)
			}
		}
		l.orders.Bans.CountDenial(ctx, hits[i].Window, hits[i].Key, now, until)
	}
}

// applyGrants replaces the numbers that d is about to be charged under by grants' numbers. It
// returns false if nothing is left to charge. A grant of more is for a key as it is written: a
// request with another spelling may ask for something else.
func (l *Limiter) applyGrants(d *Decision) bool {
	now := l.orders.Now()
	lifted := false
	for i := range d.charges {
		h := &d.Matches.Hits[i]
		written := d.Matches.WrittenKey(i)
		g, ok := l.orders.Grants.Find(h.Window.Counter.Keys, written, now)
		respelled := !ok && !bytes.Equal(written, h.Key)
		if respelled {
			g, ok = l.orders.Grants.Find(h.Window.Counter.Keys, h.Key, now)
		}
		if !ok {
			continue
		}
		limit := g.Numbers(h.Window.Counter.ID, d.charges[i].Limit)
		if respelled && !rule.Lower(limit, d.charges[i].Limit) {
			continue
		}
		lifted = lifted || limit == nil
		if limit != nil && limit != d.charges[i].Limit {
			h.Limit = limit
		}
		d.charges[i].Limit = limit
	}
	if lifted {
		d.dropUnlimited()
	}
	return len(d.charges) > 0
}

// granted returns the numbers in force for a key under a limit, as Decide charges it; nil for none.
// g is the grant that the key has; nil if it has none.
func (l *Limiter) granted(w *rule.Window, key []byte, now int64) (limit *algo.Limit, g *Grant) {
	limit = atSignal(w, w.Limit, l.signals)
	if found, ok := l.orders.Grants.Find(w.Counter.Keys, key, now); ok {
		return found.Numbers(w.Counter.ID, limit), &found.Grant
	}
	return limit, nil
}

// Ban is a key of a rule that is refused outright until an instant, whatever the rule's limits say.
// It has the Domain and the name of the Rule, the Key as rule.Window.KeyParts shows it, the
// instants Since and Until by the Limiter's clock, the Reason, how many requests it Refused on this
// node, and more in DomainWide, Manual and NFTables. A ban that is reached by a pointer must not be
// changed.
type Ban = orders.Ban

// Banned says why a request was refused outright.
type Banned struct {
	Rule  *rule.Rule // whose ban it is; nil if the request was not refused so
	Until int64      // by the Limiter's clock, µs since the Unix epoch
}

// Errors of Bans, Grants and Keys, by errors.Is.
var (
	// ErrNotFound: there is nothing of the key to end or to show.
	ErrNotFound = orders.ErrNotFound
	// ErrNotShared: the change is in force on this node, and the others do not know of it. While
	// Follow runs, it reaches them as soon as the store can be reached.
	ErrNotShared = orders.ErrNotShared
)

// Bans are the bans in force: keys that are refused outright. A rule may ban keys that it denies
// too often; an operator bans and pardons them here. Safe for concurrent use. See Limiter.Bans.
type Bans struct {
	l        *Limiter
	requests atomic.Uint64 // refused by a ban
}

// Bans returns the bans of this Limiter.
func (l *Limiter) Bans() *Bans { return &l.bans }

// BanScope says where a ban by hand holds.
type BanScope = orders.Scope

// The scopes of bans by hand.
const (
	// BanAsRule is where the rule's own bans hold (scope: domain), by default: everywhere in the
	// domain, or as BanInRule.
	BanAsRule = orders.ScopeAsRule
	// BanInRule is wherever the rule applies and is enforced.
	BanInRule = orders.ScopeRule
	// BanInDomain is every request of the domain with the key, whatever rules it meets.
	BanInDomain = orders.ScopeDomain
)

// Set refuses a key of a rule outright until an instant of the Limiter's clock, on all nodes of the
// store (see Limiter.Follow): where scope says, of which at most one is to be given; BanAsRule by
// default. The parts of key are as rule.Window.AppendKey takes them. It takes the place of a ban of
// the same key.
//
// Of a rule whose key is one address, key may name a network, such as ip=192.0.2.0/24 or
// ip=2001:db8::/48: all addresses in it are refused then, each of which may be banned by itself,
// too.
//
// A key is refused if it is exempt, or if its address is none. The error says what does not fit, or
// is ErrNotShared; then the ban is in force here.
func (b *Bans) Set(ctx context.Context, domain, limit string, key []string, until time.Time, reason string,
	scope ...BanScope) (Ban, error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, err
	}
	return b.l.orders.Bans.Set(ctx, r, key, until, reason, oneScope(scope))
}

func oneScope(scope []BanScope) BanScope {
	if len(scope) == 0 {
		return BanAsRule
	}
	return scope[0]
}

// Plan returns the ban that Set would put in force, without doing it, and the ban of the key that
// is in force; nil for none. It fails as Set does, except that it never returns ErrNotShared.
func (b *Bans) Plan(domain, limit string, key []string, until time.Time, reason string, scope ...BanScope) (ban Ban,
	before *Ban, err error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, nil, err
	}
	return b.l.orders.Bans.Plan(r, key, until, reason, oneScope(scope))
}

// On returns the ban that refuses all requests which a rule counts under a key: of the key itself,
// of the network of its address, or of another rule in the whole domain. Of several it is the one
// that ends last. The error says what does not fit, or is ErrNotFound.
func (b *Bans) On(domain, limit string, key []string) (Ban, error) {
	named, raw, err := b.l.keyTarget(domain, limit, key)
	if err != nil {
		return Ban{}, err
	}
	w := named.windows[0]
	k := KeyInfo{Window: w, Key: raw, Parts: w.KeyParts(raw), Mode: named.rule.ModeFor(raw)}
	if ban := b.l.banOn(&k, b.l.orders.Now()); ban != nil {
		return *ban, nil
	}
	return Ban{}, fmt.Errorf("%w: no ban", ErrNotFound)
}

// Of returns the ban of a key. The error says what does not fit, or is ErrNotFound.
func (b *Bans) Of(domain, limit string, key []string) (Ban, error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, err
	}
	return b.l.orders.Bans.Of(r, key)
}

// Lift ends a ban on all nodes and returns it. It also forgets the denials that were counted
// towards the next one. The error says what does not fit, or is ErrNotFound or ErrNotShared, or the
// store's, if the ban is lifted and the denials could not be forgotten.
func (b *Bans) Lift(ctx context.Context, domain, limit string, key []string) (Ban, error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, err
	}
	return b.l.orders.Bans.Lift(ctx, r, key)
}

// List returns the bans in force on this node, in no order.
func (b *Bans) List() []Ban { return b.l.orders.Bans.List() }

// BanStats is a reading of bans and grants on this node. InForce and Grants are as things stand;
// the others count since the Limiter was made.
type BanStats struct {
	InForce  map[RuleName]int // bans by their rule
	Grants   int
	Set      uint64 // bans that this node set
	Requests uint64 // requests refused by a ban
	Evicted  uint64 // bans that went before their end, since there were too many
	Dropped  uint64 // denials that were not counted: too many keys waited, or the store failed
}

// RuleName names a rule.
type RuleName struct{ Domain, Name string }

// Stats returns a reading. It looks at each ban.
func (b *Bans) Stats() BanStats {
	counts := b.l.orders.Bans.Stats()
	s := BanStats{
		InForce: map[RuleName]int{}, Grants: b.l.orders.Grants.Len(),
		Set: counts.Set, Requests: b.requests.Load(), Evicted: counts.Evicted, Dropped: counts.Dropped,
	}
	b.l.orders.Bans.Each(func(_ uint64, ban *Ban) { s.InForce[RuleName{ban.Domain, ban.Rule}]++ })
	return s
}

// Grant is other numbers for a key of a rule, until an instant. It has the Domain and the name of
// the Rule, the Key as rule.Window.KeyParts shows it, Allow in the notation of rule files, the
// instants Since and Until by the Limiter's clock, the Reason, and the Problem that leaves it
// without effect under the rules in force.
type Grant = orders.Grant

// Grants are the grants in force: keys with other numbers than their rule. Safe for concurrent use.
// See Limiter.Grants.
type Grants struct{ l *Limiter }

// Grants returns the grants of this Limiter.
func (l *Limiter) Grants() *Grants { return &l.grants }

// Set gives a key of a rule other numbers until an instant of the Limiter's clock, on all nodes of
// the store (see Limiter.Follow). They replace an earlier grant, and the numbers of the rule, its
// schedule, its override and its elastic signal. Units that the key has used stay used. allow is in
// the notation of rule files (see rule.ParseAllow) and has the windows that the rule, or its
// override, has for the key, or is "unlimited". The error says what does not fit, or is
// ErrNotShared; then the grant is in force
// here.
func (g *Grants) Set(ctx context.Context, domain, limit string, key []string, allow string, until time.Time,
	reason string) (Grant, error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, err
	}
	return g.l.orders.Grants.Set(ctx, r, key, allow, until, reason)
}

// Plan returns the grant that Set would put in force, without doing it, and the grant of the key
// that is in force; nil for none. It fails as Set does, except that it never returns ErrNotShared.
func (g *Grants) Plan(domain, limit string, key []string, allow string, until time.Time, reason string) (grant Grant,
	before *Grant, err error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, nil, err
	}
	return g.l.orders.Grants.Plan(r, key, allow, until, reason)
}

// KeyNumbers is what holds for a key of a rule at an instant. Numbers are in the notation of rule
// files, "unlimited" for none.
type KeyNumbers struct {
	Allow   string    // in force: by a grant, an override, the schedule, an elastic share, or the rule
	Without string    // what would be in force without a grant
	Mode    rule.Mode // how the rule takes part in decisions on the key
	Ban     *Ban      // that refuses the key outright; nil for none. It is a copy
}

// Numbers returns what holds for a key now. The error says what does not fit.
func (g *Grants) Numbers(domain, limit string, key []string) (KeyNumbers, error) {
	l := g.l
	r, err := l.ruleNamed(domain, limit)
	if err != nil {
		return KeyNumbers{}, err
	}
	grant, err := l.orders.Grants.Of(r, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return KeyNumbers{}, err
	}
	w, now := orders.FirstCounted(r), l.orders.Now()
	k := KeyInfo{Window: w, Mode: rule.Enforce}
	if k.Key, err = w.AppendKey(nil, key); err != nil {
		return KeyNumbers{}, err
	}
	k.Parts, k.Mode = w.KeyParts(k.Key), r.ModeFor(k.Key)
	n := KeyNumbers{Mode: k.Mode, Ban: l.banOn(&k, now)}
	n.Without = l.numbersText(r, k.Key, now)
	if n.Allow = n.Without; grant.Allow != "" && grant.Problem == "" {
		n.Allow = grant.Allow
	}
	return n, nil
}

// numbersText returns the numbers that a key of r has without a grant, in the notation of rule
// files.
func (l *Limiter) numbersText(r *rule.Rule, key []byte, now int64) string {
	var list []rule.Allowance
	for _, w := range orders.Limited(r, key) {
		if limit, _ := atSignal(w, w.Limit, l.signals).At(now); limit != nil {
			list = append(list, rule.AllowanceOf(limit.Config()))
		}
	}
	if len(list) == 0 {
		return rule.Rate{Unlimited: true}.String()
	}
	return rule.AllowText(list)
}

// Of returns the grant of a key. The error says what does not fit, or is ErrNotFound.
func (g *Grants) Of(domain, limit string, key []string) (Grant, error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, err
	}
	return g.l.orders.Grants.Of(r, key)
}

// Revoke ends a grant on all nodes and returns it. The error says what does not fit, or is
// ErrNotFound or ErrNotShared.
func (g *Grants) Revoke(ctx context.Context, domain, limit string, key []string) (Grant, error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, err
	}
	return g.l.orders.Grants.Revoke(ctx, r, key)
}

// List returns the grants in force on this node, in no order.
func (g *Grants) List() []Grant { return g.l.orders.Grants.List() }
