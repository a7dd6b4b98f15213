package weir

import (
	"context"
	"time"

	"github.com/weir-rl/weir/internal/limiter/orders"
)

// Grant is other numbers for a key of a rule, until an instant.
type Grant struct {
	Domain string    `json:"domain"`
	Rule   string    `json:"limit"` // name of the rule
	Key    []string  `json:"key"`   // as rule.Window.KeyParts shows it
	Allow  string    `json:"allow"` // in the notation of rule files
	Since  time.Time `json:"since"` // by the Limiter's clock, as Until
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
	// Problem says why it has no effect under the rules in force; "" if it has.
	Problem string `json:"problem,omitempty"`
}

// newGrant returns a grant as users see it; the zero value for nil.
func newGrant(g *orders.Grant) Grant {
	if g == nil {
		return Grant{}
	}
	return Grant{
		Domain: g.Domain, Rule: g.Rule, Key: g.Key, Allow: g.Allow,
		Since: g.Since, Until: g.Until, Reason: g.Reason, Problem: g.Problem,
	}
}

// Grants are the grants in force: keys with other numbers than their rule. Safe for concurrent use.
// See Limiter.Grants.
type Grants struct{ l *Limiter }

// Grants returns the grants of this Limiter.
func (l *Limiter) Grants() *Grants { return &l.grants }

// Set gives a key of a rule other numbers until an instant of the Limiter's clock, on all nodes of
// the store (see Limiter.Follow). They replace an earlier grant, and the numbers of the rule, its
// schedule, its override and its elastic signal. Units that the key has used stay used. allow is in
// the notation of rule files (see rule.ParseAllow) and has the same windows as the rule, or is
// "unlimited". The error says what does not fit, or is ErrNotShared; then the grant is in force
// here.
func (g *Grants) Set(ctx context.Context, domain, limit string, key []string, allow string, until time.Time, reason string) (Grant, error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, err
	}
	grant, err := g.l.orders.Grants.Set(ctx, r, key, allow, until, reason)
	return newGrant(grant), err
}

// Plan returns the grant that Set would put in force, without doing it, and the grant of the key
// that is in force; nil for none. It fails as Set does, except that it never returns ErrNotShared.
func (g *Grants) Plan(domain, limit string, key []string, allow string, until time.Time, reason string) (grant Grant, before *Grant, err error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, nil, err
	}
	planned, have, err := g.l.orders.Grants.Plan(r, key, allow, until, reason)
	if have != nil {
		old := newGrant(have)
		before = &old
	}
	return newGrant(planned), before, err
}

// Of returns the grant of a key. The error says what does not fit, or is ErrNotFound.
func (g *Grants) Of(domain, limit string, key []string) (Grant, error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, err
	}
	grant, err := g.l.orders.Grants.Of(r, key)
	return newGrant(grant), err
}

// Revoke ends a grant on all nodes and returns it. The error says what does not fit, or is
// ErrNotFound or ErrNotShared.
func (g *Grants) Revoke(ctx context.Context, domain, limit string, key []string) (Grant, error) {
	r, err := g.l.ruleNamed(domain, limit)
	if err != nil {
		return Grant{}, err
	}
	grant, err := g.l.orders.Grants.Revoke(ctx, r, key)
	return newGrant(grant), err
}

// List returns the grants in force on this node, in no order.
func (g *Grants) List() []Grant {
	var list []Grant
	for _, grant := range g.l.orders.Grants.List() {
		list = append(list, newGrant(grant))
	}
	return list
}
