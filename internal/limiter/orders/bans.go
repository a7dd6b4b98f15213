package orders

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
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
	// Refused is how many requests it has refused on this node, since that heard of it: not peeks,
	// and not what others than this node decide or drop (RLQS, nftables).
	Refused uint64 `json:"refused"`
	// Manual: an operator set it, rather than the key's denials.
	Manual bool `json:"set,omitempty"`
	// NFTables: the rule wants the kernel to drop the key's packets, too.
	NFTables bool `json:"nftables,omitempty"`
}

// BanOrder is a ban as a node keeps it. Immutable.
type BanOrder struct {
	Ban
	made int64 // as in head
	// RefusedUntil is the instant until which the limit itself would refuse, in µs, as it stood
	// when its key was banned; 0 if that is not known, or not after Until.
	RefusedUntil int64

	bits    uint8          // of a network (rule.AppendNetwork); 0 if Key is one that requests have
	refused *atomic.Uint64 // as Ban.Refused, of all copies of the ban
}

// CountRefusal counts a request that b has refused.
func (b *BanOrder) CountRefusal() { b.refused.Add(1) }

// Read returns the ban with its count, as of now.
func (b *BanOrder) Read() Ban {
	ban := b.Ban
	ban.Refused = b.refused.Load()
	return ban
}

// Scope says where a ban by hand holds.
type Scope uint8

// The scopes of a ban.
const (
	ScopeAsRule Scope = iota // where the rule's own bans hold; by a rule without ban, ScopeRule
	ScopeRule                // wherever the rule applies and is enforced
	ScopeDomain              // for every request of the domain with the key
)

// Bans are the bans in force on a node.
type Bans struct {
	kind[*BanOrder]
	denials denials
	changed func(b *Ban, lifted bool)

	wide     wideRules
	networks networks
	set      atomic.Uint64
}

// Any reports whether there may be a ban in force. It costs one atomic load.
func (b *Bans) Any() bool { return b.table.len() > 0 }

// AnyDomainWide reports whether there may be a ban on a whole domain. Without one no request is
// looked up under rules that it does not meet.
func (b *Bans) AnyDomainWide() bool { return b.wide.current() != nil }

// WideRules returns the rules of a domain, in s, under which a ban by hand may hold everywhere in
// the domain, although their own bans do not. They are for rule.Query.BanRules.
func (b *Bans) WideRules(s *rule.Set, domain string) []*rule.Rule { return b.wide.of(s, domain) }

// Find returns the ban that ends last at an instant, of those on a key and on networks that its
// address is in. With wide it is one that holds everywhere in the domain.
func (b *Bans) Find(group uint64, key []byte, now int64, wide bool) (ban *BanOrder, ok bool) {
	if ban, _, ok = b.table.find(group, key, now); wide && ok && !ban.DomainWide {
		ban, ok = nil, false
	}
	if sizes := b.networks.of(group); len(sizes) > 0 {
		ban = b.findNetwork(sizes, ban, group, key, now, wide)
	}
	return ban, ban != nil
}

// List returns the bans in force, in no order.
func (b *Bans) List() (list []Ban) {
	b.table.each(b.orders.Now(), func(_ uint64, _ []byte, _ int64, ban *BanOrder) { list = append(list, ban.Read()) })
	return list
}

// Each calls f for each ban in force, with the group of its key. f must not change bans.
func (b *Bans) Each(f func(group uint64, ban *Ban)) {
	b.table.each(b.orders.Now(), func(group uint64, _ []byte, _ int64, ban *BanOrder) { f(group, &ban.Ban) })
}

// BanStats counts bans and their fates since the Orders were made.
type BanStats struct {
	Set     uint64 // bans that this node set
	Evicted uint64 // bans that went before their end, since there were too many
	Dropped uint64 // denials that were not counted: too many keys waited, or the store failed
}

// Stats returns a reading.
func (b *Bans) Stats() BanStats {
	return BanStats{Set: b.set.Load(), Evicted: b.table.evicted.Load(), Dropped: b.denials.dropped.Load()}
}

// place puts a ban in force on this node.
func (b *Bans) place(group uint64, key []byte, until int64, ban *BanOrder) {
	now := b.orders.Now()
	// The board may say a ban once more, with another end: its count goes on.
	if have, _, ok := b.table.find(group, key, now); ok && have.madeAt() == ban.madeAt() {
		ban.refused = have.refused
	}
	b.table.set(group, key, until, ban)
	if b.changed != nil {
		b.changed(&ban.Ban, false)
	}
}

// remove lifts a ban on this node; ok is false if there is none.
func (b *Bans) remove(group uint64, key []byte, now int64) (ban *BanOrder, ok bool) {
	ban, ok = b.table.drop(group, key, now)
	if ok && b.changed != nil {
		b.changed(&ban.Ban, true)
	}
	return ban, ok
}

// newBan returns a ban on a key of a rule, as the rule wants it.
func newBan(r *rule.Rule, parts []string, now, until int64) *BanOrder {
	b := &BanOrder{refused: new(atomic.Uint64), Ban: Ban{Domain: r.Domain, Rule: r.Name, Key: parts,
		Since: time.UnixMicro(now), Until: time.UnixMicro(until)}}
	if r.Ban != nil {
		b.DomainWide, b.NFTables = r.Ban.Domain, r.Ban.NFTables
	}
	return b
}

func (b *BanOrder) head() head {
	return head{b.Domain, b.Rule, b.Key, b.Since, b.Until, b.Reason, b.made}
}

func (b *BanOrder) madeAt() int64 {
	h := b.head()
	return h.madeAt()
}

func (b *BanOrder) encode(d *factData, until int64) {
	d.Wide, d.Manual, d.NFTables = b.DomainWide, b.Manual, b.NFTables
	d.Beyond, d.Bits = max(0, b.RefusedUntil-until), b.bits
}

func (b *BanOrder) says(d *factData) bool { return b.Manual == d.Manual && b.DomainWide == d.Wide }

func decodeBan(h head, _ []byte, d *factData, until int64) *BanOrder {
	b := &BanOrder{made: h.made, bits: d.Bits, refused: new(atomic.Uint64), Ban: Ban{
		Domain: h.domain, Rule: h.rule, Key: h.key, Since: h.since, Until: h.until, Reason: h.reason,
		DomainWide: d.Wide, Manual: d.Manual, NFTables: d.NFTables,
	}}
	if d.Beyond > 0 {
		b.RefusedUntil = until + min(d.Beyond, algo.MaxWindow.Microseconds())
	}
	return b
}

// Set bans a key of a rule, or a network, until an instant, in place of an earlier ban, and informs
// the other nodes. The error says what does not fit, or is ErrNotShared.
func (b *Bans) Set(ctx context.Context, r *rule.Rule, key []string, until time.Time, reason string,
	scope Scope) (Ban, error) {
	t, ban, err := b.plan(r, key, until, reason, scope)
	if err != nil {
		return Ban{}, err
	}
	b.ended.forget(factID(t.group, t.key))
	b.put(t.group, t.key, until.UnixMicro(), ban)
	b.set.Add(1)
	return ban.Read(), b.orders.publish(ctx, b.factName(t.group, t.key))
}

// Plan returns the ban that Set would put in force, and the key's present ban; nil for none. It
// fails as Set does, except that it never returns ErrNotShared.
func (b *Bans) Plan(r *rule.Rule, key []string, until time.Time, reason string, scope Scope) (ban Ban, before *Ban,
	err error) {
	t, planned, err := b.plan(r, key, until, reason, scope)
	if err != nil {
		return Ban{}, nil, err
	}
	if have, _, ok := b.table.find(t.group, t.key, b.orders.Now()); ok {
		old := have.Read()
		before = &old
	}
	return planned.Ban, before, nil
}

func (b *Bans) plan(r *rule.Rule, key []string, until time.Time, reason string, scope Scope) (target, *BanOrder,
	error) {
	t, bits, err := b.target(r, key)
	if err != nil {
		return t, nil, err
	}
	if len(t.key) == 0 {
		return t, nil, fmt.Errorf("weir: the limit %q has one counter for all: a ban would refuse everybody", r.Name)
	}
	if err := b.orders.check(t, "ban"); err != nil {
		return t, nil, err
	}
	now, end := b.orders.Now(), until.UnixMicro()
	if end <= now {
		return t, nil, fmt.Errorf("weir: the ban would have ended at %s already", until.UTC().Format(time.RFC3339))
	}
	ban := newBan(t.rule, t.parts, now, end)
	ban.Reason, ban.Manual, ban.bits = clipText(reason, maxReason), true, bits
	switch scope {
	case ScopeRule:
		ban.DomainWide = false
	case ScopeDomain:
		if !r.BansDomain() {
			return t, nil, fmt.Errorf(
				"weir: scope: the key of the limit %q says which descriptor was met, so that a ban holds where the limit does", r.Name)
		}
		ban.DomainWide = true
	}
	ban.NFTables = ban.NFTables && bits == 0 // the kernel's sets are of single addresses
	return t, ban, nil
}

// target makes a key of a rule, or a network of addresses, of so many bits.
func (b *Bans) target(r *rule.Rule, key []string) (t target, bits uint8, err error) {
	w := FirstCounted(r)
	if w == nil {
		t, err = b.orders.target(r, key)
		return t, 0, err
	}
	network, text, ok, err := w.AppendNetwork(nil, key)
	switch {
	case err != nil:
		return t, 0, fmt.Errorf("weir: key: %w", err)
	case !ok:
		t, err = b.orders.target(r, key)
		return t, 0, err
	}
	return target{rule: r, window: w, group: w.Counter.Keys, key: network, parts: []string{text}},
		network[len(network)-1], nil
}

// Of returns the ban of a key of a rule. The error says what does not fit, or is ErrNotFound.
func (b *Bans) Of(r *rule.Rule, key []string) (Ban, error) {
	t, _, err := b.target(r, key)
	if err != nil {
		return Ban{}, err
	}
	ban, _, ok := b.table.find(t.group, t.key, b.orders.Now())
	if !ok {
		return Ban{}, fmt.Errorf("%w: no ban", ErrNotFound)
	}
	return ban.Read(), nil
}

// Lift ends a ban on all nodes and returns it. It also forgets the denials that were counted
// towards the next one. The error says what does not fit, or is ErrNotFound or ErrNotShared, or
// the store's, if the ban is lifted and the denials could not be forgotten.
func (b *Bans) Lift(ctx context.Context, r *rule.Rule, key []string) (Ban, error) {
	t, bits, err := b.target(r, key)
	if err != nil {
		return Ban{}, err
	}
	ban, ok := b.end(t)
	if !ok {
		return Ban{}, fmt.Errorf("%w: no ban", ErrNotFound)
	}
	err = b.orders.publish(ctx, b.factName(t.group, t.key))
	if t.rule.Ban != nil && bits == 0 { // denials are counted by address
		err = errors.Join(err, b.forgive(ctx, t.rule.Ban, t.key))
	}
	return ban.Read(), err
}

// forgive forgets the denials of a key.
func (b *Bans) forgive(ctx context.Context, by *rule.Ban, key []byte) error {
	b.denials.forget(by, key)
	charge := []store.Charge{{Counter: by.Counter, Limit: by.Counter.Limit, Key: key, Mode: rule.Shadow,
		Ask: algo.Ask{Cost: -min(by.After, algo.MaxCost)}}}
	_, err := b.orders.store.Take(ctx, charge, make([]algo.Result, 1))
	return err
}

// ban bans a key of w's rule for its denials, the first of which was at an instant, unless it is
// banned already or was pardoned since. The rule itself refuses the key until refusedUntil.
func (b *Bans) ban(w *rule.Window, key []byte, first, refusedUntil int64) {
	now := b.orders.Now()
	group := w.Counter.Keys
	if _, _, ok := b.table.find(group, key, now); ok || b.ended.since(factID(group, key), first, now) {
		return
	}
	r := w.Rule
	until := now + r.Ban.For.Microseconds()
	ban := newBan(r, w.KeyParts(key), now, until)
	if refusedUntil > until {
		ban.RefusedUntil = refusedUntil
	}
	ban.Reason = fmt.Sprintf("%d denials within %s", r.Ban.After, r.Ban.Within)
	if r.Ban.After == 1 {
		ban.Reason = fmt.Sprintf("1 denial within %s", r.Ban.Within)
	}
	b.put(group, key, until, ban)
	b.set.Add(1)
	b.orders.sharing.enqueue(b.factName(group, key))
}
