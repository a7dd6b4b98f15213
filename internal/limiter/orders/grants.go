package orders

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// MaxGrants bounds the grants in force at a time.
const MaxGrants = 10_000

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

// GrantOrder is a grant as a node keeps it. Immutable once it is in force.
type GrantOrder struct {
	Grant
	made int64 // as in head
	// what Allow means under the rules in force
	unlimited bool
	limits    []grantedLimit
}

type grantedLimit struct {
	counter uint64 // rule.Counter.ID
	limit   *algo.Limit
}

// Numbers returns the numbers that a key with g has under a counter, limit being those that it has
// without g; nil for none.
func (g *GrantOrder) Numbers(counter uint64, limit *algo.Limit) *algo.Limit {
	if g.unlimited {
		return nil
	}
	for i := range g.limits {
		if g.limits[i].counter == counter {
			return g.limits[i].limit
		}
	}
	return limit
}

// lowers reports whether g, which is for a key of r, gives it less than r or its override does.
func (g *GrantOrder) lowers(r *rule.Rule, key []byte) bool {
	for _, l := range g.limits {
		if w := r.WindowFor(l.counter, key); w == nil || !rule.Lower(l.limit, w.Limit) {
			return false
		}
	}
	return !g.unlimited
}

func (g *GrantOrder) head() head {
	return head{g.Domain, g.Rule, g.Key, g.Since, g.Until, g.Reason, g.made}
}

func (g *GrantOrder) encode(d *factData, _ int64) { d.Allow = g.Allow }

func (g *GrantOrder) says(d *factData) bool { return g.Allow == d.Allow }

// Grants are the grants in force on a node.
type Grants struct {
	kind[*GrantOrder]

	mu     sync.Mutex
	limits map[algo.Config]*algo.Limit // so that equal numbers are one limit to a store
	// the rules of a set by name, since many grants are read at a time
	named  *rule.Set
	byName map[ruleName]*rule.Rule
}

type ruleName struct{ domain, rule string }

// Any reports whether there may be a grant in force. It costs one atomic load.
func (t *Grants) Any() bool { return t.table.len() > 0 }

// Find returns the grant of a key at an instant.
func (t *Grants) Find(group uint64, key []byte, now int64) (g *GrantOrder, ok bool) {
	g, _, ok = t.table.find(group, key, now)
	return g, ok
}

// List returns the grants in force, in no order.
func (t *Grants) List() (list []Grant) {
	t.table.each(t.orders.Now(), func(_ uint64, _ []byte, _ int64, g *GrantOrder) { list = append(list, g.Grant) })
	return list
}

// Len returns how many grants are in force.
func (t *Grants) Len() int { return t.inForce(t.orders.Now()) }

func (t *Grants) inForce(now int64) (n int) {
	t.table.each(now, func(uint64, []byte, int64, *GrantOrder) { n++ })
	return n
}

// Set gives a key of a rule other numbers until an instant, in place of an earlier grant, and
// informs the other nodes. The error says what does not fit, or is ErrNotShared.
func (t *Grants) Set(ctx context.Context, r *rule.Rule, key []string, allow string, until time.Time,
	reason string) (Grant, error) {
	to, counted, g, err := t.plan(r, key, allow, until, reason)
	if err != nil {
		return Grant{}, err
	}
	t.ended.forget(factID(to.group, to.key))
	t.put(to.group, to.key, until.UnixMicro(), g)
	t.forgetRefusals(to.rule, counted)
	return g.Grant, t.orders.publish(ctx, t.factName(to.group, to.key))
}

// Plan returns the grant that Set would put in force, and the key's present grant; nil for none. It
// fails as Set does, except that it never returns ErrNotShared.
func (t *Grants) Plan(r *rule.Rule, key []string, allow string, until time.Time, reason string) (g Grant, before *Grant,
	err error) {
	to, _, planned, err := t.plan(r, key, allow, until, reason)
	if err != nil {
		return Grant{}, nil, err
	}
	if have, ok := t.Find(to.group, to.key, t.orders.Now()); ok {
		old := have.Grant
		before = &old
	}
	return planned.Grant, before, nil
}

// Of returns the grant of a key of a rule. The error says what does not fit, or is ErrNotFound.
func (t *Grants) Of(r *rule.Rule, key []string) (Grant, error) {
	to, counted, err := t.orders.written(r, key)
	if err != nil {
		return Grant{}, err
	}
	g, ok := t.Find(to.group, to.key, t.orders.Now())
	if !ok {
		g, ok = t.Find(to.group, counted, t.orders.Now())
	}
	if !ok {
		return Grant{}, fmt.Errorf("%w: no grant", ErrNotFound)
	}
	return g.Grant, nil
}

// plan also returns the key under which the rule counts the key of the grant.
func (t *Grants) plan(r *rule.Rule, key []string, allow string, until time.Time, reason string) (to target,
	counted []byte, g *GrantOrder, err error) {
	if to, counted, err = t.orders.written(r, key); err != nil {
		return to, nil, nil, err
	}
	if err := t.orders.check(to, "grant"); err != nil {
		return to, nil, nil, err
	}
	now := t.orders.Now()
	if until.UnixMicro() <= now {
		return to, nil, nil, fmt.Errorf("weir: the grant would have ended at %s already",
			until.UTC().Format(time.RFC3339))
	}
	g = &GrantOrder{Grant: Grant{
		Domain: r.Domain, Rule: r.Name, Key: to.parts, Allow: strings.TrimSpace(allow),
		Since: time.UnixMicro(now), Until: until, Reason: clipText(reason, maxReason),
	}}
	if err := t.resolve(g, r, to.key); err != nil {
		return to, nil, nil, fmt.Errorf("weir: allow: %w", err)
	}
	if g.lowers(r, to.key) { // a key in all its spellings
		to.key, to.parts = counted, to.window.KeyParts(counted)
		g.Key = to.parts
	}
	if _, have := t.Find(to.group, to.key, now); !have && t.inForce(now) >= MaxGrants {
		return to, nil, nil, fmt.Errorf(
			"weir: %d grants are in force, as many as there may be; end some, or write the numbers into the rule's override", MaxGrants)
	}
	return to, counted, g, nil
}

// Revoke ends a grant on all nodes and returns it. The error says what does not fit, or is
// ErrNotFound or ErrNotShared.
func (t *Grants) Revoke(ctx context.Context, r *rule.Rule, key []string) (Grant, error) {
	to, counted, err := t.orders.written(r, key)
	if err != nil {
		return Grant{}, err
	}
	g, ok := t.end(to)
	if !ok {
		to.key = counted
		g, ok = t.drop(to.group, to.key, t.orders.Now())
	}
	if !ok {
		return Grant{}, fmt.Errorf("%w: no grant", ErrNotFound)
	}
	t.forgetRefusals(to.rule, counted)
	return g.Grant, t.orders.publish(ctx, t.factName(to.group, to.key))
}

// decodeGrant makes a grant of a fact.
func (t *Grants) decodeGrant(h head, key []byte, d *factData, _ int64) *GrantOrder {
	g := &GrantOrder{made: h.made, Grant: Grant{
		Domain: h.domain, Rule: h.rule, Key: h.key, Since: h.since, Until: h.until, Reason: h.reason,
		Allow: strings.TrimSpace(d.Allow),
	}}
	t.resolveOrNote(g, t.ruleOf(t.orders.rules(), g), key)
	return g
}

// forgetRefusals makes the store forget the refusals of a key that it remembers under the limits of
// its rule: with other numbers the key may be admitted earlier.
func (t *Grants) forgetRefusals(r *rule.Rule, key []byte) {
	f, ok := store.As[store.Forgetter](t.orders.store)
	if !ok {
		return
	}
	done := map[*rule.Counter]bool{}
	forget := func(windows []*rule.Window) {
		for _, w := range windows {
			if w.Counter != nil && !done[w.Counter] {
				done[w.Counter] = true
				f.Forget(w.Counter, key)
			}
		}
	}
	forget(r.Windows)
	for i := range r.Overrides {
		forget(r.Overrides[i].Windows)
	}
}

// setRules works out the grants in force under another rule set.
func (t *Grants) setRules(s *rule.Set) {
	type held struct {
		group uint64
		key   []byte
		g     *GrantOrder
	}
	var all []held
	t.table.each(t.orders.Now(),
		func(group uint64, key []byte, _ int64, g *GrantOrder) { all = append(all, held{group, key, g}) })
	if len(all) == 0 {
		return
	}
	for _, h := range all {
		g := &GrantOrder{Grant: h.g.Grant, made: h.g.made}
		g.Problem = ""
		t.resolveOrNote(g, t.ruleOf(s, g), h.key)
		replace(&t.table, h.group, h.key, h.g, g)
	}
}

// ruleOf returns the rule of a set that g is for; nil if there is none. s may be nil.
func (t *Grants) ruleOf(s *rule.Set, g *GrantOrder) *rule.Rule {
	if s == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.named != s {
		t.named, t.byName = s, map[ruleName]*rule.Rule{}
		for _, r := range s.Rules() {
			t.byName[ruleName{r.Domain, r.Name}] = r
		}
	}
	return t.byName[ruleName{g.Domain, g.Rule}]
}

// resolveOrNote resolves g, and notes in it why that cannot be done. r is nil if there is no rule.
func (t *Grants) resolveOrNote(g *GrantOrder, r *rule.Rule, key []byte) {
	if r == nil {
		g.Problem = "no rule in force has this name"
	} else if err := t.resolve(g, r, key); err != nil {
		g.Problem, g.limits = err.Error(), nil
	}
}

// resolve parses g.Allow, and fills in the numbers that it means for a key of r.
func (t *Grants) resolve(g *GrantOrder, r *rule.Rule, key []byte) error {
	entries, err := rule.ParseAllow(g.Allow)
	if err != nil {
		return err
	}
	if len(entries) == 1 && entries[0].Rate.Unlimited {
		g.unlimited = true
		return nil
	}
	windows := Limited(r, key)
	if len(windows) == 0 {
		if overridden(r, key) {
			return fmt.Errorf("the limit %q has an override that leaves this key unlimited, which a grant cannot limit: change the override",
				r.Name)
		}
		return fmt.Errorf("the limit %q has no numbers that a grant could replace", r.Name)
	}
	has := windowList(windows)
	if overridden(r, key) {
		has += " for this key by an override"
	}
	given := make([]bool, len(windows))
	for _, a := range entries {
		i := windowFor(a, windows)
		if i < 0 {
			return fmt.Errorf("%s is for no window of the limit %q, which has %s; %s", a.Rate, r.Name, has,
				instead(a, windows))
		}
		if given[i] {
			return fmt.Errorf("%s is the second for one window", a.Rate)
		}
		given[i] = true
		limit, err := t.limit(windows[i].Limit.Config(), a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.Rate, err)
		}
		if c := windows[i].Counter; a.Rate.N > algo.MaxN && c.Heard() != nil {
			return fmt.Errorf("%s: the limit %q holds over regions, which tell each other of at most %d requests",
				a.Rate, r.Name, algo.MaxN)
		}
		g.limits = append(g.limits, grantedLimit{windows[i].Counter.ID, limit})
	}
	for i, ok := range given {
		if !ok {
			return fmt.Errorf("nothing is given for %s: the limit %q has %s, and each needs a number",
				windowText(windows[i]), r.Name, has)
		}
	}
	return nil
}

// Limited returns the windows of a rule, or of its override, that limit a key.
func Limited(r *rule.Rule, key []byte) (windows []*rule.Window) {
	for _, w := range r.WindowsFor(key) {
		if w.Limit != nil && w.Counter != nil {
			windows = append(windows, w)
		}
	}
	return windows
}

// overridden reports whether an override says what a key of a rule has.
func overridden(r *rule.Rule, key []byte) bool {
	own := r.WindowsFor(key)
	return len(own) != len(r.Windows) || len(own) > 0 && own[0] != r.Windows[0]
}

// limit returns the limit of a configuration with the numbers of a.
func (t *Grants) limit(c algo.Config, a rule.Allowance) (*algo.Limit, error) {
	bucket := c.Algorithm.HasBurst()
	switch {
	case a.Rate.Unlimited:
		return nil, errors.New("unlimited must stand alone")
	case a.Burst != 0 && !bucket:
		return nil, fmt.Errorf("a burst does not fit %v", c.Algorithm)
	}
	c.N, c.Burst = a.Rate.N, a.Burst
	if bucket && c.Burst == 0 && c.N == 0 {
		c.Burst = algo.NoBurst
	}
	size := c.N
	if bucket && c.Burst != 0 {
		size = max(0, c.Burst)
	}
	if size*int64(c.Soft)/100 == 0 {
		c.SoftFor = 0 // there is no margin that could close
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.limits[c]; l != nil {
		return l, nil
	}
	l, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	if t.limits == nil || len(t.limits) >= MaxGrants {
		t.limits = map[algo.Config]*algo.Limit{}
	}
	t.limits[c] = l
	return l, nil
}

// windowFor returns the index of the window that an entry of allow is for; -1 if there is none.
func windowFor(a rule.Allowance, windows []*rule.Window) int {
	for i, w := range windows {
		c := w.Limit.Config()
		if a.Rate.Window == c.Window && c.Algorithm.HasSlots() == (a.Rate.Window == 0) {
			return i
		}
	}
	return -1
}

func windowText(w *rule.Window) string {
	c := w.Limit.Config()
	if c.Algorithm.HasSlots() {
		return "what is in flight"
	}
	return "requests per " + c.Period()
}

func windowList(windows []*rule.Window) string {
	list := make([]string, len(windows))
	for i, w := range windows {
		list[i] = rule.AllowanceOf(w.Limit.Config()).String()
	}
	return strings.Join(list, ", ")
}

// instead says what can be given in place of a, which is for no window.
func instead(a rule.Allowance, windows []*rule.Window) string {
	if len(windows) > 1 {
		return "each of these needs a number, and nothing else"
	}
	c := windows[0].Limit.Config()
	c.N, c.Burst = a.Rate.N, a.Burst
	return fmt.Sprintf("did you mean %s?", rule.AllowanceOf(c))
}
