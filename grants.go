package weir

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Grant is other numbers for a key of a rule, until an instant.
type Grant struct {
	Domain string    `json:"domain"`
	Limit  string    `json:"limit"` // name of the rule
	Key    []string  `json:"key"`   // as rule.Window.KeyParts shows it
	Allow  string    `json:"allow"` // in the notation of rule files
	Since  time.Time `json:"since"` // by the Limiter's clock, as Until
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
	// Problem says why it has no effect under the rules in force; "" if it has.
	Problem string `json:"problem,omitempty"`
}

// grants is what a Limiter knows of grants.
type grants struct {
	table timetable[*grant]

	mu     sync.Mutex
	limits map[algo.Config]*algo.Limit // so that equal numbers are one limit to a store
}

// grant is a Grant with what it means under the rules in force. Immutable.
type grant struct {
	Grant
	unlimited bool
	limits    []grantedLimit
}

type grantedLimit struct {
	counter uint64 // rule.Counter.ID
	limit   *algo.Limit
}

// applyGrants puts the numbers of grants in place of those that d is about to be charged under; false if nothing is left to charge.
func (l *Limiter) applyGrants(d *Decision) bool {
	now := l.bans.now()
	lifted := false
	for i := range d.charges {
		h := &d.Matches.Hits[i]
		g, _, ok := l.grants.table.find(h.Window.Counter.Keys, h.Key, now)
		if !ok {
			continue
		}
		if g.unlimited {
			d.charges[i].Limit, lifted = nil, true
			continue
		}
		for k := range g.limits {
			if g.limits[k].counter == h.Window.Counter.ID {
				d.charges[i].Limit, h.Limit = g.limits[k].limit, g.limits[k].limit
			}
		}
	}
	if lifted {
		d.dropUnlimited()
	}
	return len(d.charges) > 0
}

// Grant gives a key of a rule other numbers until an instant of the Limiter's clock, on all nodes of the store (see Follow), in
// place of a grant before and of what the rule, its schedule, its override or its elastic signal says. What the key has used
// stays used. allow is in the notation of rule files ("1000/min", "[1000/min, 50000/hour]", "{rate: 4/min, burst: 20}",
// "unlimited") and has the same windows as the rule. The error says what does not fit, or is ErrNotShared.
func (l *Limiter) Grant(ctx context.Context, domain, limit string, key []string, allow string, until time.Time, reason string) (Grant, error) {
	t, err := l.target(domain, limit, key)
	if err != nil {
		return Grant{}, err
	}
	now := l.bans.now()
	if until.UnixMicro() <= now {
		return Grant{}, fmt.Errorf("weir: the grant would have ended at %s already", until.UTC().Format(time.RFC3339))
	}
	g := &grant{Grant: Grant{
		Domain: t.rule.Domain, Limit: t.rule.Name, Key: t.parts, Allow: strings.TrimSpace(allow), Since: time.UnixMicro(now), Until: until, Reason: clipText(reason, maxReason),
	}}
	if err := l.grants.resolve(g, t.rule, t.key); err != nil {
		return Grant{}, fmt.Errorf("weir: allow: %w", err)
	}
	if _, _, have := l.grants.table.find(t.group, t.key, now); !have && l.grants.count(now) >= maxGrants {
		return Grant{}, fmt.Errorf("weir: %d grants are in force, as many as there may be; end some, or write the numbers into the rule's override", maxGrants)
	}
	l.grants.table.set(t.group, t.key, until.UnixMicro(), g)
	l.forget(t)
	return g.Grant, l.share.tell(ctx, l, kindGrant, factID(t.group, t.key))
}

// Revoke ends a grant on all nodes. The error says what does not fit, or is ErrNothingThere or ErrNotShared.
func (l *Limiter) Revoke(ctx context.Context, domain, limit string, key []string) error {
	t, err := l.target(domain, limit, key)
	if err != nil {
		return err
	}
	if _, ok := l.grants.table.drop(t.group, t.key, l.bans.now()); !ok {
		return fmt.Errorf("%w: no grant", ErrNothingThere)
	}
	l.forget(t)
	return l.share.tell(ctx, l, kindGrant, factID(t.group, t.key))
}

// Grants returns the grants in force, in no order.
func (l *Limiter) Grants() []Grant {
	var list []Grant
	l.grants.table.each(l.bans.now(), func(_ uint64, _ []byte, _ int64, g *grant) { list = append(list, g.Grant) })
	return list
}

// count returns how many grants are in force.
func (g *grants) count(now int64) int {
	n := 0
	g.table.each(now, func(uint64, []byte, int64, *grant) { n++ })
	return n
}

// forget makes the store forget what it remembers of a key's refusals under all limits of its rule.
func (l *Limiter) forget(t target) {
	f, ok := as[Forgetter](l.store)
	if !ok {
		return
	}
	done := map[*rule.Counter]bool{}
	add := func(windows []*rule.Window) {
		for _, w := range windows {
			if w.Counter != nil && !done[w.Counter] {
				done[w.Counter] = true
				f.Forget(w.Counter, t.key)
			}
		}
	}
	add(t.rule.Windows)
	for i := range t.rule.Overrides {
		add(t.rule.Overrides[i].Windows)
	}
}

// regrant finds out what the grants in force mean under another rule set.
func (l *Limiter) regrant(f *inForce) {
	type held struct {
		group uint64
		key   []byte
		g     *grant
	}
	var all []held
	l.grants.table.each(l.bans.now(), func(group uint64, key []byte, _ int64, g *grant) { all = append(all, held{group, key, g}) })
	if len(all) == 0 {
		return
	}
	rules := map[BanLimit]*rule.Rule{}
	for _, r := range f.set.Rules() {
		rules[BanLimit{r.Domain, r.Name}] = r
	}
	for _, h := range all {
		g := &grant{Grant: h.g.Grant}
		l.grants.understand(g, rules[BanLimit{g.Domain, g.Limit}], h.key)
		replace(&l.grants.table, h.group, h.key, h.g, g)
	}
}

// understand resolves g, and notes in it if that cannot be done. r may be nil.
func (t *grants) understand(g *grant, r *rule.Rule, key []byte) {
	g.Problem = ""
	if r == nil {
		g.Problem = "no rule in force has this name"
	} else if err := t.resolve(g, r, key); err != nil {
		g.Problem, g.limits = err.Error(), nil
	}
}

// resolve fills in what g.Allow means for r.
func (t *grants) resolve(g *grant, r *rule.Rule, key []byte) error {
	entries, err := parseAllow(g.Allow)
	if err != nil {
		return err
	}
	g.limits, g.unlimited = nil, false
	if len(entries) == 1 && entries[0].rate.Unlimited {
		g.unlimited = true
		return nil
	}
	var windows []*rule.Window
	for _, w := range r.Windows {
		if w.Limit != nil {
			windows = append(windows, w)
		}
	}
	if len(windows) == 0 {
		return fmt.Errorf("the limit %q has no windows of its own", r.Name)
	}
	given := make([]bool, len(windows))
	for _, e := range entries {
		i := e.windowOf(windows)
		if i < 0 {
			return fmt.Errorf("%s is for no window of the limit %q, which has %s", e.rate, r.Name, windowList(windows))
		}
		if given[i] {
			return fmt.Errorf("%s is the second for one window", e.rate)
		}
		if r.WindowFor(windows[i].Counter.ID, key) == nil {
			return fmt.Errorf("the limit %q has an override for this key with other windows, or none: change the override", r.Name)
		}
		given[i] = true
		limit, err := t.limit(windows[i].Limit.Config(), e)
		if err != nil {
			return fmt.Errorf("%s: %w", e.rate, err)
		}
		g.limits = append(g.limits, grantedLimit{windows[i].Counter.ID, limit})
	}
	for i, ok := range given {
		if !ok {
			return fmt.Errorf("nothing is given for %s: the limit %q has %s, and each needs a number", windowText(windows[i]), r.Name, windowList(windows))
		}
	}
	return nil
}

// limit returns the limit that c is with the numbers of e.
func (t *grants) limit(c algo.Config, e allowed) (*algo.Limit, error) {
	bucket := c.Algorithm == algo.TokenBucket || c.Algorithm == algo.LeakyBucket
	switch {
	case e.rate.Unlimited:
		return nil, errors.New("unlimited must stand alone")
	case e.burst != 0 && !bucket:
		return nil, fmt.Errorf("a burst does not fit %v", c.Algorithm)
	}
	c.N, c.Burst = e.rate.N, e.burst
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
	if t.limits == nil || len(t.limits) >= maxGrants {
		t.limits = map[algo.Config]*algo.Limit{}
	}
	t.limits[c] = l
	return l, nil
}

// allowed is one entry of allow.
type allowed struct {
	rate  rule.Rate
	burst int64 // as in algo.Config
}

// windowOf finds the window that e is for; below 0 if there is none.
func (e *allowed) windowOf(windows []*rule.Window) int {
	for i, w := range windows {
		c := w.Limit.Config()
		if e.rate.Window == c.Window && (c.Algorithm == algo.Concurrency) == (e.rate.Window == 0) {
			return i
		}
	}
	return -1
}

func windowText(w *rule.Window) string {
	c := w.Limit.Config()
	if c.Algorithm == algo.Concurrency {
		return "what is in flight"
	}
	return "requests per " + c.Period()
}

func windowList(windows []*rule.Window) string {
	list := make([]string, len(windows))
	for i, w := range windows {
		c := w.Limit.Config()
		if list[i] = fmt.Sprintf("%d/%s", c.N, c.Period()); c.Algorithm == algo.Concurrency {
			list[i] = fmt.Sprint(c.N)
		}
	}
	return strings.Join(list, ", ")
}

// parseAllow reads allow as a rule file has it: a rate, {rate: …, burst: …}, or a list of these, with or without [ ].
func parseAllow(text string) ([]allowed, error) {
	const expected = "expected a rate such as 1000/min, {rate: 4/min, burst: 20}, or a list of these"
	if len(text) > 1024 {
		return nil, errors.New("it is too long; " + expected)
	}
	rest := strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(rest, "["); ok {
		if rest, ok = strings.CutSuffix(inner, "]"); !ok {
			return nil, errors.New("a ] is missing; " + expected)
		}
	}
	var list []allowed
	for {
		rest = strings.TrimSpace(rest)
		var item string
		if strings.HasPrefix(rest, "{") {
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return nil, errors.New("a } is missing; " + expected)
			}
			item, rest = rest[:end+1], strings.TrimSpace(rest[end+1:])
			if rest != "" && rest[0] != ',' {
				return nil, fmt.Errorf("%q stands where a comma should; %s", rest, expected)
			}
		} else {
			end := strings.IndexByte(rest, ',')
			if end < 0 {
				end = len(rest)
			}
			item, rest = rest[:end], rest[end:]
		}
		e, err := parseAllowed(item)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
		if rest == "" {
			return list, nil
		}
		rest = rest[1:]
	}
}

// parseAllowed reads one entry.
func parseAllowed(text string) (e allowed, err error) {
	inner, mapping := strings.CutPrefix(text, "{")
	if !mapping {
		e.rate, err = rule.ParseRate(unquote(text))
		return e, err
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(strings.TrimSuffix(inner, "}"), ",") {
		name, value, ok := strings.Cut(part, ":")
		name, value = strings.TrimSpace(name), unquote(value)
		if !ok || seen[name] {
			return e, fmt.Errorf("%s: expected rate and burst, once each, as in {rate: 4/min, burst: 20}", text)
		}
		seen[name] = true
		switch name {
		case "rate":
			if e.rate, err = rule.ParseRate(value); err == nil && e.rate.Unlimited {
				err = fmt.Errorf("%s: unlimited has no burst; write it alone", text)
			}
		case "burst":
			var burst rule.Rate
			if burst, err = rule.ParseRate(value); err != nil || burst.Window != 0 || burst.Unlimited {
				err = fmt.Errorf("%s: burst: expected a number of requests", text)
			}
			if e.burst = burst.N; e.burst == 0 {
				e.burst = algo.NoBurst
			}
		default:
			err = fmt.Errorf("%s: unknown key %q; there are rate and burst", text, name)
		}
		if err != nil {
			return e, err
		}
	}
	if !seen["rate"] {
		return e, fmt.Errorf("%s: rate is missing", text)
	}
	return e, nil
}

// unquote takes space and quotes off a scalar.
func unquote(text string) string {
	text = strings.TrimSpace(text)
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}
