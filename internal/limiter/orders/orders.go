// Package orders keeps the orders that stand for single keys of rules until an instant: a ban
// refuses a key outright, a grant gives it other numbers than its rule. Nodes share their orders
// over the store's board.
//
// Begin at Orders, which holds everything that a node knows. Both kinds of orders live in a table,
// where the deciding path looks them up, and the same code sends them to other nodes (kind,
// sharing). Bans and Grants have the code of one kind alone. Denials that may lead to a ban are
// counted by denials.
package orders

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Errors of changes to orders, by errors.Is.
var (
	// ErrNotFound: there is no order to end.
	ErrNotFound = errors.New("weir: there is none for this key")
	// ErrNotShared: the change is in force on this node, and the others do not know of it. Follow
	// publishes it as soon as the store can be reached.
	ErrNotShared = errors.New("weir: the other nodes do not know of it yet")
)

// maxReason is how many bytes of a reason are kept.
const maxReason = 256

// Config is what Orders need.
type Config struct {
	Store store.Store
	Rules func() *rule.Set // the set in force; nil if there is none
	Clock func() int64     // by which orders begin and end, in µs since the Unix epoch

	MaxBans    int  // bans in force at a time; past it the one that ends first goes
	MaxPending int  // keys whose denials wait to be counted in the background
	Async      bool // count denials in the background
	// Changed is called for each ban that is set, here or on another node, and for each that is
	// lifted; not for those that end by themselves. It must not change the ban. nil for none.
	Changed func(b *Ban, lifted bool)
}

// Orders are the bans and grants that a node knows. Safe for concurrent use. Make them with New.
type Orders struct {
	Bans   Bans
	Grants Grants

	store store.Store
	rules func() *rule.Set
	clock func() int64

	sharing sharing
}

// New returns Orders that hold nothing yet.
func New(c Config) *Orders {
	o := &Orders{store: c.Store, rules: c.Rules, clock: c.Clock}
	b, g := &o.Bans, &o.Grants
	b.init("ban", o, c.MaxBans)
	b.wide.init(c.Rules)
	b.networks.init()
	b.table.count = b.counted
	b.put, b.drop, b.decode = b.place, b.remove, decodeBan
	b.changed = c.Changed
	b.denials.bans, b.denials.async, b.denials.max = b, c.Async, c.MaxPending
	g.init("grant", o, MaxGrants)
	g.put, g.drop, g.decode = g.table.set, g.table.drop, g.decodeGrant
	o.sharing.kinds = []shared{&b.kind, &g.kind}
	o.sharing.publishing = make(chan struct{}, 1)
	return o
}

// Now returns the instant by which orders begin and end.
func (o *Orders) Now() int64 { return o.clock() }

// Expect prepares for decisions under another rule set.
func (o *Orders) Expect(s *rule.Set) { o.Bans.wide.of(s, "") }

// SetRules works out the grants in force under another rule set.
func (o *Orders) SetRules(s *rule.Set) { o.Grants.setRules(s) }

// target is a key of a rule, as an operator names it.
type target struct {
	rule   *rule.Rule
	window *rule.Window // the first one that has a counter
	group  uint64
	key    []byte
	parts  []string
}

// written makes a target of a key as requests write it (rule.Matches.WrittenKey); counted is the
// key under which the rule counts it.
func (o *Orders) written(r *rule.Rule, key []string) (t target, counted []byte, err error) {
	if t, err = o.target(r, key); err != nil {
		return t, nil, err
	}
	counted = t.key
	t.key, err = t.window.AppendWrittenKey(nil, key)
	t.parts = t.window.KeyParts(t.key)
	return t, counted, err
}

// target makes a key of a rule, whose parts are as rule.Window.AppendKey takes them.
func (o *Orders) target(r *rule.Rule, key []string) (t target, err error) {
	t.rule = r
	if t.window = FirstCounted(r); t.window == nil {
		return t, fmt.Errorf("weir: the limit %q counts nothing", r.Name)
	}
	if t.key, err = t.window.AppendKey(nil, key); err != nil {
		return t, fmt.Errorf("weir: key: %w", err)
	}
	t.group, t.parts = t.window.Counter.Keys, t.window.KeyParts(t.key)
	return t, nil
}

// check returns an error if an order on the key could never have an effect, since no request has
// such a key, or since the key is exempt. order is the name of the order.
func (o *Orders) check(t target, order string) error {
	if part := t.window.NotAddress(t.key); part != "" {
		return fmt.Errorf(
			"weir: key: %s is not an address, so that no client has this key: a %s is of a single address, such as ip=192.0.2.1, or of the block of one of IPv6%s", part, order, networkHint(order))
	}
	if s := o.rules(); s != nil && s.ExemptKey(t.rule.Domain, t.parts) {
		return fmt.Errorf(
			"weir: key: %s is exempt in the domain %q, where a %s would have no effect: take it out of exempt first", strings.Join(t.parts, ","), t.rule.Domain, order)
	}
	return nil
}

func networkHint(order string) string {
	if order == "ban" {
		return "; or of a network, such as ip=192.0.2.0/24"
	}
	return ""
}

// FirstCounted returns the first window of a rule that has a counter; of its overrides if it has
// none itself, nil if none has. Its counter names the keys of the rule (rule.Counter.Keys).
func FirstCounted(r *rule.Rule) *rule.Window {
	for _, w := range r.Windows {
		if w.Counter != nil {
			return w
		}
	}
	for i := range r.Overrides {
		for _, w := range r.Overrides[i].Windows {
			if w.Counter != nil {
				return w
			}
		}
	}
	return nil
}

// clipText cuts text to n bytes at most, at the end of a character.
func clipText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
