package weir

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/rule"
)

// Ban is a key of a rule that is refused outright until an instant, whatever the rule's limits say.
type Ban struct {
	Domain string   `json:"domain"`
	Rule   string   `json:"limit"` // name of the rule
	Key    []string `json:"key"`   // as rule.Window.KeyParts shows it
	// DomainWide: the key is refused everywhere in the domain, rather than where the rule applies.
	DomainWide bool      `json:"wide,omitempty"`
	Since      time.Time `json:"since"` // by the Limiter's clock, as Until
	Until      time.Time `json:"until"`
	Reason     string    `json:"reason"`
	// Manual: an operator set it, rather than the key's denials.
	Manual bool `json:"set,omitempty"`
	// NFTables: the rule wants the kernel to drop the key's packets, too.
	NFTables bool `json:"nftables,omitempty"`
}

// newBan returns a ban as users see it; the zero value for nil.
func newBan(b *orders.Ban) Ban {
	if b == nil {
		return Ban{}
	}
	return Ban{
		Domain: b.Domain, Rule: b.Rule, Key: b.Key, DomainWide: b.DomainWide,
		Since: b.Since, Until: b.Until, Reason: b.Reason, Manual: b.Manual, NFTables: b.NFTables,
	}
}

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

// Set refuses a key of a rule outright until an instant of the Limiter's clock, on all nodes of the
// store (see Limiter.Follow): wherever the rule applies and is enforced, or where its own ban would
// (scope: domain). The parts of key are as rule.Window.AppendKey takes them. It takes the place of
// a ban of the same key.
//
// A key is refused if it is exempt, or if its address is none. The error says what does not fit, or
// is ErrNotShared; then the ban is in force here.
func (b *Bans) Set(ctx context.Context, domain, limit string, key []string, until time.Time, reason string) (Ban, error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, err
	}
	ban, err := b.l.orders.Bans.Set(ctx, r, key, until, reason)
	return newBan(ban), err
}

// Plan returns the ban that Set would put in force, without doing it, and the ban of the key that
// is in force; nil for none. It fails as Set does, except that it never returns ErrNotShared.
func (b *Bans) Plan(domain, limit string, key []string, until time.Time, reason string) (ban Ban, before *Ban, err error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, nil, err
	}
	planned, have, err := b.l.orders.Bans.Plan(r, key, until, reason)
	if have != nil {
		old := newBan(have)
		before = &old
	}
	return newBan(planned), before, err
}

// Of returns the ban of a key. The error says what does not fit, or is ErrNotFound.
func (b *Bans) Of(domain, limit string, key []string) (Ban, error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, err
	}
	ban, err := b.l.orders.Bans.Of(r, key)
	return newBan(ban), err
}

// Lift ends a ban on all nodes and returns it. It also forgets the denials that were counted
// towards the next one. The error says what does not fit, or is ErrNotFound or ErrNotShared, or the
// store's, if the ban is lifted and the denials could not be forgotten.
func (b *Bans) Lift(ctx context.Context, domain, limit string, key []string) (Ban, error) {
	r, err := b.l.ruleNamed(domain, limit)
	if err != nil {
		return Ban{}, err
	}
	ban, err := b.l.orders.Bans.Lift(ctx, r, key)
	return newBan(ban), err
}

// List returns the bans in force on this node, in no order.
func (b *Bans) List() []Ban {
	var list []Ban
	for _, ban := range b.l.orders.Bans.List() {
		list = append(list, newBan(ban))
	}
	return list
}

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
	b.l.orders.Bans.Each(func(_ uint64, ban *orders.Ban) { s.InForce[RuleName{ban.Domain, ban.Rule}]++ })
	return s
}
