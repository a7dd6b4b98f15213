// Package lint warns of rules that load and are useless or dangerous.
//
// Begin with Check (lint.go), which calls one method for each kind of warning; names.go, kinds.go,
// paths.go, lease.go and so on have them. covers.go says whether one rule meets all that another
// one does, and warning.go lists the names of the warnings.
package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// longQueue is from when on a leaky bucket without `wait` is warned of.
const longQueue = 30 * time.Second

// largeLog is from how many units on the memory of a sliding log is warned of.
const largeLog = 10_000

// Options are file.LintOptions, field by field.
type Options struct {
	Identity        map[string]string
	Nodes           int
	Quotas          []string
	NoLeases        string
	Regions         int
	Weight, Weights int
	NoRegions       string
}

// Check warns of rules in s that are legal and useless or dangerous: see file.Lint.
func Check(s *rule.Set, o Options) []rule.Problem {
	if s == nil {
		return nil
	}
	l := newLinter(s, o)
	for _, d := range l.order {
		rules := l.domains[d]
		for _, r := range rules {
			l.numbers(r)
			l.windows(r)
			l.conditions(r)
			l.kinds(r)
			l.expressions(r)
		}
		l.keys(rules)
		l.secrets(rules)
		l.firsts(rules)
		l.exempt(rules)
		l.replaced(rules)
		l.beaten(rules)
		l.leases(rules)
		l.quotas(d, rules)
		l.regions(rules)
	}
	l.values(s)
	l.spellings(s)
	for _, d := range s.Domains() {
		l.unindexed(s, d)
	}
	sortFindings(l.found)
	problems := l.merged()
	problems = append(problems, l.leftIgnores(s)...)
	message.SortProblems(problems)
	return problems
}

func newLinter(s *rule.Set, o Options) *linter {
	l := &linter{domains: map[string][]*rule.Rule{}, options: o, ignores: map[string]*message.Ignores{}}
	for _, o := range message.All(s) {
		l.ignores[o.Name] = o.Ignores.Clone()
	}
	for _, r := range s.Rules() {
		if l.domains[r.Domain] == nil {
			l.order = append(l.order, r.Domain)
		}
		l.domains[r.Domain] = append(l.domains[r.Domain], r)
	}
	return l
}

type linter struct {
	domains map[string][]*rule.Rule
	order   []string
	options Options
	ignores map[string]*message.Ignores // by file
	found   []finding
	without []Proof // of rules without use
}

// finding is a warning about one rule.
type finding struct {
	rule.Problem
	subject string // the beginning of the message
}

// warn warns of r. The message begins with the rule's name, which format leaves out.
func (l *linter) warn(name string, r *rule.Rule, pos rule.Position, hint, format string, args ...any) {
	l.warnOf(name, r.Name, r, pos, hint, format, args...)
}

// warnOf is warn with another subject than the rule's name.
func (l *linter) warnOf(name, subject string, r *rule.Rule, pos rule.Position, hint, format string,
	args ...any) (warned bool) {
	if g := l.ignores[pos.File]; g != nil && g.Silence(name, pos.Line, r.Pos.Line) {
		return false
	}
	if len(l.found) < message.MaxProblems {
		l.found = append(l.found, finding{subject: subject, Problem: rule.Problem{
			Pos: pos, Rule: r.Name, Name: name, Message: fmt.Sprintf(format, args...), Hint: hint, Quote: message.Of(r).Quote(pos.Line, pos.Column),
		}})
	}
	return true
}

func sortFindings(list []finding) {
	slices.SortStableFunc(list, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.Pos.File, b.Pos.File), a.Pos.Line-b.Pos.Line, a.Pos.Column-b.Pos.Column)
	})
}

// numbers warns of single numbers of r.
func (l *linter) numbers(r *rule.Rule) {
	if r.CostExpr == "" && r.Cost == 0 && r.CostAfter == "" {
		l.warn(warnCostZero, r, r.Pos, "", "cost is 0, so that it never refuses anything")
	}
	if r.Lyft == nil && r.EnforcePercent == 0 {
		l.warn(warnEnforceZero, r, r.Pos, "on_limit: shadow says so more plainly",
			"enforce is 0%%, so that it refuses nobody")
	}
	all := slices.Clone(r.Windows)
	for _, o := range r.Overrides {
		all = append(all, o.Windows...)
	}
	warned := map[string]bool{}
	once := func(name string, w *rule.Window, hint, format string, args ...any) {
		if !warned[name] {
			warned[name] = true
			l.warnOf(name, w.Name, r, r.Pos, hint, format, args...)
		}
	}
	for _, w := range all {
		if w.Limit == nil {
			continue
		}
		c := w.Limit.Config()
		for _, p := range w.Parts() {
			c := p.Config()
			base, what := message.SoftBase(c), message.SoftWhat(c)
			if c.Soft > 0 && base > 0 && base*int64(c.Soft)/100 == 0 {
				once(warnSoftZero, w, message.Enough(base), "a soft margin of %d%% of %s %d rounds to nothing", c.Soft,
					what, base)
			}
			if c.Algorithm.HasLog() && c.N >= largeLog {
				once(warnLargeLog, w, "algorithm: sliding_window with buckets needs far less",
					"a sliding log of %d needs up to %d KB for each key", c.N, c.N*5/1000)
			}
		}
		switch {
		case c.Algorithm.Delays():
			if hold := queueTime(c); r.Wait == 0 && !r.Shadow && hold >= longQueue {
				once(warnLongQueue, w, "name the longest wait, as in: on_limit: {wait: 2s}",
					"a full queue holds requests for %s; without on_limit.wait the proxy holds them that long", hold)
			}
		case c.Algorithm.HasSlots():
			if !message.Of(r).Timeout(r) && bites(r) {
				once(warnUnreleasedSlots, w, "say with timeout how long that may be",
					"a slot that nobody releases is held for %s, and doors such as RLS and forward auth release none", c.Timeout)
			}
		}
	}
}

// queueTime is how long the last of a full queue waits: B × W/N.
func queueTime(c algo.Config) time.Duration {
	if c.N == 0 {
		return 0
	}
	d := float64(c.Window) * float64(message.Size(c)) / float64(c.N)
	if d > float64(100*365*message.Day) {
		d = float64(100 * 365 * message.Day)
	}
	return time.Duration(d).Round(time.Millisecond)
}

// windows warns of windows of one rule that another one of it always beats.
func (l *linter) windows(r *rule.Rule) {
	for i, loose := range r.Windows {
		for j, tight := range r.Windows {
			if i == j || loose.Limit == nil || tight.Limit == nil || loose.Limit.Scheduled() ||
				tight.Limit.Scheduled() {
				continue // limits of a schedule are not compared
			}
			if a, b := tight.Limit.Config(), loose.Limit.Config(); beats(a, b) && !(j > i && beats(b, a)) {
				l.warn(warnNeverRefuses, r, r.Pos, "leave it out",
					"%s never refuses anything, since %s is always tighter", show(b), show(a))
				break
			}
		}
	}
}

// show spells a limit's numbers.
func show(c algo.Config) string {
	r := rule.Rate{N: c.N, Window: c.Window, Unit: message.UnitOf(c.Window)}
	return r.String()
}

// beats reports whether a limit a, asked for the same keys, refuses before b ever does. It may miss
// some.
func beats(a, b algo.Config) bool {
	bucket := func(c algo.Config) bool { return c.Algorithm.HasBurst() }
	switch {
	case a.Algorithm.HasSlots() || b.Algorithm.HasSlots():
		return a.Algorithm == b.Algorithm && a.N+a.N*int64(a.Soft)/100 <= b.N
	case bucket(b):
		// A bucket that fills up again at least as quickly, and holds at least as much.
		return a.Algorithm == b.Algorithm && !a.RefillInterval && !b.RefillInterval &&
			message.Size(a)+message.Size(a)*int64(a.Soft)/100 <= message.Size(b) &&
			float64(a.N)*float64(b.Window) <= float64(b.N)*float64(a.Window)
	case a.Algorithm.Approximates() && !b.Algorithm.Approximates():
		return false // an approximation may admit more than N
	}
	most := float64(a.N + a.N*int64(a.Soft)/100)
	whole := b.Window / a.Window
	switch {
	case bucket(a):
		if a.RefillInterval {
			return false
		}
		most = float64(message.Size(a)+message.Size(a)*int64(a.Soft)/100) +
			float64(a.N)*float64(b.Window)/float64(a.Window) + 1
	case a == b:
	case a.Algorithm.ResetsAtOnce() && b.Algorithm.ResetsAtOnce() && b.Window%a.Window == 0 &&
		a.Calendar == algo.NoCalendar && b.Calendar == algo.NoCalendar && !a.FirstRequest && !b.FirstRequest:
		most *= float64(whole) // whole windows of a fill one of b
	case a.Algorithm.HasLog() && b.Window%a.Window == 0:
		most *= float64(whole)
	default:
		most *= float64(whole + 2)
	}
	return most <= float64(b.N)
}

// conditions warns of conditions that nothing can meet, and of parts of them.
func (l *linter) conditions(r *rule.Rule) {
	for i := range r.When {
		c := &r.When[i]
		positives, negatives := split(c)
		dead := 0
		for _, p := range positives {
			k := slices.IndexFunc(negatives,
				func(n *rule.Pattern) bool { return patternCovers(n.Written(), p.Written()) })
			if k < 0 {
				continue
			}
			if dead++; dead == len(positives) && c.Folds() {
				l.warn(warnNeverMet, r, p.Pos, "remove one of them",
					"when.%s allows %s and excludes %s: only other spellings of it can meet that", c.Attribute, p.Source, negatives[k].Source)
			} else if dead == len(positives) {
				l.useless(warnNeverMet, r, p.Pos, "remove one of them",
					"when.%s allows %s and excludes %s: no request can meet that", c.Attribute, p.Source, negatives[k].Source)
			} else {
				l.warn(warnNeverMet, r, p.Pos, "remove one of them",
					"when.%s allows %s and excludes %s, so that %[2]s has no effect", c.Attribute, p.Source, negatives[k].Source)
			}
		}
	}
	values := func(o rule.Override) bool {
		return slices.ContainsFunc(o.Values, func(v string) bool { return strings.TrimSpace(v) != v })
	}
	for _, o := range r.Overrides {
		if values(o) {
			l.warn(NeverMatches, r, o.Pos, "", "the key of an override begins or ends with a space")
		}
	}
}

// keys warns of counters whose keys a client can invent, where no limit with a key that it cannot
// invent holds it.
func (l *linter) keys(rules []*rule.Rule) {
	var guards []*rule.Rule
	for _, r := range rules {
		free := func(k rule.Key) bool {
			return slices.ContainsFunc(k, func(a string) bool { return forgeable(a) || l.unverified(a) != "" })
		}
		if r.Lyft == nil && bites(r) && r.If == "" && len(r.Per) > 0 && !slices.ContainsFunc(r.Per, free) {
			guards = append(guards, r)
		}
	}
	for _, r := range rules {
		if r.Lyft != nil || !bites(r) {
			continue
		}
		guarded := func() bool {
			return slices.ContainsFunc(guards,
				func(g *rule.Rule) bool { return g != r && implied(g.When, r.When) && l.guards(g, r) })
		}
		for _, k := range r.Per {
			for _, attribute := range k {
				source := l.unverified(attribute)
				switch {
				case source == "" && !forgeable(attribute) || pinned(r, attribute) || guarded():
				case source == "":
					l.warn(warnForgeableKey, r, r.Pos,
						"set a limit with per: [ip] beside it, or pin it by when to exact values",
						"per %s: a client can send any %s, and has a fresh counter for each", attribute, attribute)
				default:
					l.warn(UnverifiedIdentity, r, r.Pos,
						"set a limit with per: [ip] beside it, or take it from jwt:CLAIM or tls",
						"per %s: identity takes it from %s, which a client writes, and has a fresh counter for each that it invents", attribute, source)
				}
			}
		}
	}
}

// guards reports whether g, whose conditions hold wherever r's do, counts all that r counts: every
// request that a client sends to r has a key of g that it cannot choose. The address is there at
// every door that sees clients.
func (l *linter) guards(g, r *rule.Rule) bool {
	for _, k := range g.Per {
		if !slices.Contains(k, "ip") && !keyed([]rule.Key{k}, r.Per, r.When) {
			return false
		}
	}
	return true
}

// unverified returns the source from which the configuration takes an attribute, if that is one
// that a client writes.
func (l *linter) unverified(attribute string) string {
	source := l.options.Identity[attribute]
	kind, _, _ := strings.Cut(source, ":")
	switch strings.ToLower(kind) {
	case "header", "cookie", "hash", "basic", "bearer", "apikey":
		return source
	}
	return ""
}

// bites reports whether r can refuse a request.
func bites(r *rule.Rule) bool {
	return !r.Unlimited && !r.Shadow && r.EnforcePercent > 0 && len(r.Windows) > 0
}

// pinned reports whether r's conditions leave finitely many values to attribute.
func pinned(r *rule.Rule, attribute string) bool {
	for _, c := range r.When {
		if c.Attribute != attribute {
			continue
		}
		positive := 0
		for _, p := range c.Patterns {
			if p.Negated {
				continue
			}
			if positive++; strings.Contains(p.Source, "*") || strings.HasPrefix(p.Source, "~") ||
				strings.Contains(p.Source, "/") && attribute == "ip" {
				return false
			}
		}
		return positive > 0
	}
	return false
}

// subset reports whether a request that lends itself to the key `by` always lends itself to per.
func subset(per, by []rule.Key) bool {
	for _, k := range per {
		if !slices.ContainsFunc(by, func(o rule.Key) bool { return slices.Equal(o, k) }) {
			return false
		}
	}
	return true
}

// maxFirsts bounds how many pairs of rules of a domain are compared by firsts.
const maxFirsts = 2_000_000

// firsts warns of limits behind those that take every request that they could meet, in files with
// groups: first.
func (l *linter) firsts(rules []*rule.Rule) {
	seen := map[*rule.File][]*rule.Rule{}
	left := maxFirsts
	for _, r := range rules {
		if r.Lyft != nil || !r.File.First {
			continue
		}
		before := seen[r.File]
		seen[r.File] = append(before, r)
		if left -= len(before); left < 0 {
			return
		}
		if takers := takenBy(r, before); len(takers) > 0 {
			take := " takes all of them"
			if len(takers) > 1 {
				take = " take all of them"
			}
			l.useless(warnNeverMet, r, r.Pos, "put the narrower limit first",
				"no request can meet it: groups: first, and %s", message.Listed(takers)+take)
		}
	}
}

// takenBy returns the names of the rules of before that surely take every request that r could
// meet; none if some may be left.
func takenBy(r *rule.Rule, before []*rule.Rule) []string {
	takes := func(b *rule.Rule, when []rule.Condition) bool {
		// A rule in shadow takes requests from those in shadow only, and so does one that is
		// enforced on some keys.
		return b.If == "" && (r.Shadow || !b.Shadow && b.EnforcePercent == 100) && implied(b.When, when) &&
			keyed(b.Per, r.Per, when)
	}
	var takers []string
	for _, c := range cases(r.When) {
		k := slices.IndexFunc(before, func(b *rule.Rule) bool { return takes(b, c) })
		if k < 0 {
			return nil
		}
		if !slices.Contains(takers, before[k].Name) {
			takers = append(takers, before[k].Name)
		}
	}
	return takers
}

// exempt warns of limits all of whose requests are exempt.
func (l *linter) exempt(rules []*rule.Rule) {
	var exempt []rule.Condition
	seen := map[*rule.File]bool{}
	for _, r := range rules {
		if !seen[r.File] {
			seen[r.File] = true
			exempt = append(exempt, r.File.Exempt...)
		}
	}
	if len(exempt) == 0 {
		return
	}
	for _, r := range rules {
		for _, e := range exempt {
			if r.Lyft == nil && implied([]rule.Condition{e}, asWritten(r.When)) {
				l.useless(warnNeverMet, r, r.Pos, "", "no request can meet it: exempt lets all with that %s pass",
					e.Attribute)
				break
			}
		}
	}
}

// replaced warns of limits that are always replaced, and of names that nothing in the Lyft form
// bears.
func (l *linter) replaced(rules []*rule.Rule) {
	byName := map[string]*rule.Rule{}
	names := map[string]bool{}
	heads := map[*rule.Rule]bool{} // the first native rule of each file
	begun := map[*rule.File]bool{}
	for _, r := range rules {
		if r.Lyft == nil && !begun[r.File] {
			begun[r.File], heads[r] = true, true
		}
		if r.Lyft == nil {
			byName[r.Name] = r
		} else if r.Lyft.LimitName != "" {
			names[r.Lyft.LimitName] = true
		}
	}
	for _, r := range rules {
		for _, name := range r.Replaces {
			if r.Lyft != nil {
				if !names[name] {
					l.warn(warnUnknownReplaced, r, r.Pos, "it takes a rate_limit.name of the same domain",
						"replaces %q, which no descriptor bears", name)
				}
				continue
			}
			other := byName[name]
			if r.File.First && !heads[r] {
				// a rule before it in its file may take the request, so that it replaces nothing
				continue
			}
			if other != nil && !r.Shadow && r.If == "" && r.EnforcePercent == 100 && implied(r.When, other.When) &&
				keyed(r.Per, other.Per, other.When) {
				l.useless(warnNeverMet, other, other.Pos, "", "no request can meet it: %s replaces it for all of them",
					r.Name)
			}
		}
	}
}

// beaten warns of limits beside which a tighter one always stands, with the same conditions and the
// same or a coarser key.
func (l *linter) beaten(rules []*rule.Rule) {
	type signature struct {
		when, cost, after string
		exact             bool
	}
	groups := map[signature][]*rule.Rule{}
	replaced := map[string]bool{}
	for _, r := range rules {
		for _, name := range r.Replaces {
			replaced[name] = replaced[name] || r.Lyft == nil
		}
		if r.Lyft != nil || len(r.Windows) == 0 || r.Shadow {
			continue
		}
		var parts []string
		for _, c := range r.When {
			var patterns []string
			for _, p := range c.Patterns {
				patterns = append(patterns, p.Source)
			}
			slices.Sort(patterns)
			parts = append(parts, fmt.Sprintf("%q:%q", c.Attribute, patterns))
		}
		slices.Sort(parts)
		k := signature{fmt.Sprintf("%q if %q", parts, r.If), fmt.Sprintf("%d %d %s", r.Cost, r.CostMin, r.CostExpr),
			r.CostAfter, r.ExactPaths}
		groups[k] = append(groups[k], r)
	}
	for _, group := range groups {
		if len(group) > 200 {
			group = group[:200]
		}
		for i, loose := range group {
			for j, tight := range group {
				if i == j || tight.EnforcePercent < 100 || varies(tight) || varies(loose) || len(tight.Overrides) > 0 ||
					len(loose.Overrides) > 0 || !subset(tight.Per, loose.Per) {
					continue
				}
				if loose.File.First || tight.File.First || replaced[tight.Name] {
					continue // where tight is replaced, loose remains
				}
				if allBeaten(loose, tight) && !(j > i && subset(loose.Per, tight.Per) && allBeaten(tight, loose)) {
					l.useless(warnNeverRefuses, loose, loose.Pos, "leave it out",
						"never refuses anything, since %s is always tighter, except for keys that are granted more there", tight.Name)
					break
				}
			}
		}
	}
}

// varies reports whether the numbers of r are others at other times.
func varies(r *rule.Rule) bool { return len(r.Schedule) > 0 || r.Elastic != nil }

func allBeaten(loose, tight *rule.Rule) bool {
	for _, b := range loose.Windows {
		if !slices.ContainsFunc(tight.Windows, func(a *rule.Window) bool {
			return a.Limit != nil && b.Limit != nil && beats(a.Limit.Config(), b.Limit.Config())
		}) {
			return false
		}
	}
	return true
}
