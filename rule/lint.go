package rule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
)

// longQueue is from when on a leaky bucket without `wait` is warned of.
const longQueue = 30 * time.Second

// largeLog is from how many units on the memory of a sliding log is warned of.
const largeLog = 10_000

// Lint warns of what is legal and useless or dangerous in s: limits that no request can meet, ones that a tighter one
// always beats, overlapping wildcards, keys that a client can forge or invent without end, concurrency at doors that
// cannot release, soft margins that round to nothing, queues that hold for long, bans that a client can bring upon others,
// curves and schedules without effect. Warnings are in order of place.
func Lint(s *Set) []Problem {
	if s == nil {
		return nil
	}
	l := &linter{domains: map[string][]*Rule{}}
	for _, r := range s.Rules() {
		if l.domains[r.Domain] == nil {
			l.order = append(l.order, r.Domain)
		}
		l.domains[r.Domain] = append(l.domains[r.Domain], r)
	}
	for _, d := range l.order {
		rules := l.domains[d]
		for _, r := range rules {
			l.numbers(r)
			l.windows(r)
			l.conditions(r)
			l.kinds(r)
		}
		l.keys(rules)
		l.firsts(rules)
		l.exempt(rules)
		l.replaced(rules)
		l.beaten(rules)
		l.wildcards(rules)
	}
	sortProblems(l.found)
	return l.found
}

type linter struct {
	domains map[string][]*Rule
	order   []string
	found   []Problem
}

func (l *linter) warn(r *Rule, pos Position, hint, format string, args ...any) {
	if len(l.found) < maxProblems {
		l.found = append(l.found, Problem{
			Pos: pos, Rule: r.Name, Message: fmt.Sprintf(format, args...), Hint: hint, Quote: r.origin.quote(pos.Line, pos.Column),
		})
	}
}

// numbers warns of single numbers of r.
func (l *linter) numbers(r *Rule) {
	if r.CostExpr == "" && r.Cost == 0 && r.CostAfter == "" {
		l.warn(r, r.Pos, "", "%s: cost is 0, so that it never refuses anything", r.Name)
	}
	if r.Lyft == nil && r.EnforcePercent == 0 {
		l.warn(r, r.Pos, "on_limit: shadow says so more plainly", "%s: enforce is 0%%, so that it refuses nobody", r.Name)
	}
	all := slices.Clone(r.Windows)
	for _, o := range r.Overrides {
		all = append(all, o.Windows...)
	}
	warned := map[string]bool{}
	once := func(kind, hint, format string, args ...any) {
		if !warned[kind] {
			warned[kind] = true
			l.warn(r, r.Pos, hint, format, args...)
		}
	}
	for _, w := range all {
		if w.Limit == nil {
			continue
		}
		c := w.Limit.Config()
		for _, p := range w.allParts() {
			c := p.Config()
			base, what := softBase(c), softWhat(c)
			if c.Soft > 0 && base > 0 && base*int64(c.Soft)/100 == 0 {
				once("soft", enough(base), "%s: a soft margin of %d%% of %s %d rounds to nothing", w.Name, c.Soft, what, base)
			}
			if c.Algorithm == algo.SlidingLog && c.N >= largeLog {
				once("log", "algorithm: sliding_window with buckets needs far less", "%s: a sliding log of %d needs up to %d KB for each key", w.Name, c.N, c.N*5/1000)
			}
		}
		switch c.Algorithm {
		case algo.LeakyBucket:
			if hold := queueTime(c); r.Wait == 0 && !r.Shadow && hold >= longQueue {
				once("queue", "name the longest wait, as in: on_limit: {wait: 2s}", "%s: a full queue holds requests for %s; without on_limit.wait the proxy holds them that long", w.Name, hold)
			}
		case algo.Concurrency:
			once("slots", "use it at the proxy, the middleware or the HTTP API", "%s: doors that cannot release (RLS, forward auth) hold a slot until the time-out of %s", w.Name, c.Timeout)
		}
	}
}

// size is the bucket size B in force.
func size(c algo.Config) int64 {
	switch {
	case c.Burst == algo.NoBurst:
		return 0
	case c.Burst == 0:
		return c.N
	}
	return c.Burst
}

// queueTime is how long the last of a full queue waits: B × W/N.
func queueTime(c algo.Config) time.Duration {
	if c.N == 0 {
		return 0
	}
	d := float64(c.Window) * float64(size(c)) / float64(c.N)
	if d > float64(100*year) {
		d = float64(100 * year)
	}
	return time.Duration(d).Round(time.Millisecond)
}

// windows warns of windows of one rule that another one of it always beats.
func (l *linter) windows(r *Rule) {
	for i, loose := range r.Windows {
		for j, tight := range r.Windows {
			if i == j || loose.Limit == nil || tight.Limit == nil || loose.Limit.Scheduled() || tight.Limit.Scheduled() {
				continue // what a schedule's limits are worth at any one time is not compared
			}
			if a, b := tight.Limit.Config(), loose.Limit.Config(); beats(a, b) && !(j > i && beats(b, a)) {
				l.warn(r, r.Pos, "leave it out", "%s: %s never refuses anything, since %s is always tighter", r.Name, show(b), show(a))
				break
			}
		}
	}
}

// show spells a limit's numbers.
func show(c algo.Config) string {
	r := Rate{N: c.N, Window: c.Window}
	for _, u := range units {
		if u.window == c.Window {
			r.Unit = u.name
		}
	}
	return r.String()
}

// beats reports whether a limit a, asked for the same keys, refuses before b ever does. It may miss some.
func beats(a, b algo.Config) bool {
	bucket := func(c algo.Config) bool { return c.Algorithm == algo.TokenBucket || c.Algorithm == algo.LeakyBucket }
	switch {
	case a.Algorithm == algo.Concurrency || b.Algorithm == algo.Concurrency:
		return a.Algorithm == b.Algorithm && a.N+a.N*int64(a.Soft)/100 <= b.N
	case bucket(b):
		// A bucket that fills up again at least as quickly, and holds at least as much.
		return a.Algorithm == b.Algorithm && !a.RefillInterval && !b.RefillInterval &&
			size(a)+size(a)*int64(a.Soft)/100 <= size(b) && float64(a.N)*float64(b.Window) <= float64(b.N)*float64(a.Window)
	case a.Algorithm == algo.SlidingWindow && b.Algorithm != algo.SlidingWindow:
		return false // an approximation may admit more than N
	}
	most := float64(a.N + a.N*int64(a.Soft)/100)
	whole := b.Window / a.Window
	switch {
	case bucket(a):
		if a.RefillInterval {
			return false
		}
		most = float64(size(a)+size(a)*int64(a.Soft)/100) + float64(a.N)*float64(b.Window)/float64(a.Window) + 1
	case a == b:
	case a.Algorithm == algo.FixedWindow && b.Algorithm == algo.FixedWindow && b.Window%a.Window == 0 &&
		a.Calendar == algo.NoCalendar && b.Calendar == algo.NoCalendar && !a.FirstRequest && !b.FirstRequest:
		most *= float64(whole) // windows of a tile those of b
	case a.Algorithm == algo.SlidingLog && b.Window%a.Window == 0:
		most *= float64(whole)
	default:
		most *= float64(whole + 2)
	}
	return most <= float64(b.N)
}

// conditions warns of conditions that nothing can meet.
func (l *linter) conditions(r *Rule) {
	for _, c := range r.When {
		excluded := map[string]bool{}
		for _, p := range c.Patterns {
			if p.Negated {
				excluded[strings.TrimPrefix(p.Source, "!")] = true
			}
		}
		for _, p := range c.Patterns {
			if !p.Negated && excluded[p.Source] {
				l.warn(r, p.Pos, "remove one of them", "%s: when.%s allows and excludes %s: no request can meet that", r.Name, c.Attribute, p.Source)
			}
		}
	}
	values := func(o Override) bool {
		return slices.ContainsFunc(o.Values, func(v string) bool { return strings.TrimSpace(v) != v })
	}
	for _, o := range r.Overrides {
		if values(o) {
			l.warn(r, o.Pos, "", "%s: the key of an override begins or ends with a space", r.Name)
		}
	}
}

// keys warns of counters whose keys a client can invent.
func (l *linter) keys(rules []*Rule) {
	var guards []*Rule // limits by address alone
	for _, r := range rules {
		if r.Lyft == nil && bites(r) && r.If == "" && len(r.Per) == 1 && slices.Equal(r.Per[0], Key{"ip"}) {
			guards = append(guards, r)
		}
	}
	for _, r := range rules {
		if r.Lyft != nil || !bites(r) {
			continue
		}
		for _, k := range r.Per {
			for _, attribute := range k {
				if pinned(r, attribute) {
					continue
				}
				switch {
				case forgeable(attribute):
					l.warn(r, r.Pos, "pin it by when to exact values, or count by ip", "%s: per %s: a client can send any %s, and has a fresh counter for each", r.Name, attribute, attribute)
				case attribute == "user" && !slices.ContainsFunc(guards, func(g *Rule) bool { return implied(g.When, r.When) }):
					l.warn(r, r.Pos, "set a limit with per: [ip] beside it", "%s: per user without a limit by ip beside it: a client that invents users has a fresh counter for each", r.Name)
				}
			}
		}
	}
}

// bites reports whether r can refuse a request.
func bites(r *Rule) bool {
	return !r.Unlimited && !r.Shadow && r.EnforcePercent > 0 && len(r.Windows) > 0
}

// pinned reports whether r's conditions leave finitely many values to attribute.
func pinned(r *Rule, attribute string) bool {
	for _, c := range r.When {
		if c.Attribute != attribute {
			continue
		}
		positive := 0
		for _, p := range c.Patterns {
			if p.Negated {
				continue
			}
			if positive++; strings.Contains(p.Source, "*") || strings.HasPrefix(p.Source, "~") || strings.Contains(p.Source, "/") && attribute == "ip" {
				return false
			}
		}
		return positive > 0
	}
	return false
}

// implied reports whether every request that meets the conditions `by` also meets conditions, judged by their text.
func implied(conditions, by []Condition) bool {
	for _, c := range conditions {
		if !slices.ContainsFunc(by, func(o Condition) bool { return o.Attribute == c.Attribute && narrower(o, c) }) {
			return false
		}
	}
	return true
}

// narrower reports whether what meets a surely meets b: each pattern that a allows is one that b allows, and what b
// excludes a excludes.
func narrower(a, b Condition) bool {
	has := func(c Condition, p Pattern) bool {
		return slices.ContainsFunc(c.Patterns, func(o Pattern) bool { return o.Source == p.Source })
	}
	positive := 0
	for _, p := range b.Patterns {
		if p.Negated && !has(a, p) {
			return false
		}
		if !p.Negated {
			positive++
		}
	}
	if positive == 0 {
		return true
	}
	some := false
	for _, p := range a.Patterns {
		if p.Negated {
			continue
		}
		some = true
		if !has(b, p) {
			return false
		}
	}
	return some
}

// subset reports whether a request that lends itself to the key `by` always lends itself to per.
func subset(per, by []Key) bool {
	for _, k := range per {
		if !slices.ContainsFunc(by, func(o Key) bool { return slices.Equal(o, k) }) {
			return false
		}
	}
	return true
}

// firsts warns of limits behind one that takes every request that they could meet, in files with groups: first.
func (l *linter) firsts(rules []*Rule) {
	seen := map[*origin][]*Rule{}
	for _, r := range rules {
		if r.Lyft != nil || r.origin == nil || !r.origin.first {
			continue
		}
		before := seen[r.origin]
		for _, b := range before {
			if b.If == "" && !b.Shadow && b.EnforcePercent == 100 && implied(b.When, r.When) && subset(b.Per, r.Per) {
				l.warn(r, r.Pos, "put the narrower limit first", "%s: no request can meet it: groups: first, and %s takes all of them", r.Name, b.Name)
				break
			}
		}
		if len(before) < 200 {
			seen[r.origin] = append(before, r)
		}
	}
}

// exempt warns of limits all of whose requests are exempt.
func (l *linter) exempt(rules []*Rule) {
	var exempt []Condition
	seen := map[*origin]bool{}
	for _, r := range rules {
		if r.origin != nil && !seen[r.origin] {
			seen[r.origin] = true
			exempt = append(exempt, r.origin.exempt...)
		}
	}
	if len(exempt) == 0 {
		return
	}
	for _, r := range rules {
		for _, e := range exempt {
			if r.Lyft == nil && implied([]Condition{e}, r.When) {
				l.warn(r, r.Pos, "", "%s: no request can meet it: exempt lets all with that %s pass", r.Name, e.Attribute)
				break
			}
		}
	}
}

// replaced warns of limits that are always replaced, and of names that nothing in the Lyft form bears.
func (l *linter) replaced(rules []*Rule) {
	byName := map[string]*Rule{}
	names := map[string]bool{}
	for _, r := range rules {
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
					l.warn(r, r.Pos, "names are those of rate_limit.name in the same domain", "%s: replaces %q, which no descriptor bears", r.Name, name)
				}
				continue
			}
			other := byName[name]
			if other != nil && !r.Shadow && r.If == "" && r.EnforcePercent == 100 && implied(r.When, other.When) && subset(r.Per, other.Per) {
				l.warn(other, other.Pos, "", "%s: no request can meet it: %s replaces it for all of them", other.Name, r.Name)
			}
		}
	}
}

// beaten warns of limits beside which a tighter one always stands, with the same conditions and the same or a coarser key.
func (l *linter) beaten(rules []*Rule) {
	type signature struct{ when, cost string }
	groups := map[signature][]*Rule{}
	for _, r := range rules {
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
		k := signature{fmt.Sprintf("%q if %q", parts, r.If), fmt.Sprintf("%d %s", r.Cost, r.CostExpr)}
		groups[k] = append(groups[k], r)
	}
	for _, group := range groups {
		if len(group) > 200 {
			group = group[:200]
		}
		for i, loose := range group {
			for j, tight := range group {
				if i == j || tight.EnforcePercent < 100 || varies(tight) || varies(loose) || len(tight.Overrides) > 0 || len(loose.Overrides) > 0 || !subset(tight.Per, loose.Per) {
					continue
				}
				if loose.origin != nil && loose.origin.first || tight.origin != nil && tight.origin.first || slices.Contains(loose.Replaces, tight.Name) {
					continue
				}
				if allBeaten(loose, tight) && !(j > i && subset(loose.Per, tight.Per) && allBeaten(tight, loose)) {
					l.warn(loose, loose.Pos, "leave it out", "%s: never refuses anything, since %s is always tighter", loose.Name, tight.Name)
					break
				}
			}
		}
	}
}

// varies reports whether the numbers of r are others at other times.
func varies(r *Rule) bool { return len(r.Schedule) > 0 || r.Elastic != nil }

func allBeaten(loose, tight *Rule) bool {
	for _, b := range loose.Windows {
		if !slices.ContainsFunc(tight.Windows, func(a *Window) bool {
			return a.Limit != nil && b.Limit != nil && beats(a.Limit.Config(), b.Limit.Config())
		}) {
			return false
		}
	}
	return true
}

// wildcards warns of wildcard descriptors of one level that match the same values.
func (l *linter) wildcards(rules []*Rule) {
	type place struct{ path, key string }
	levels := map[place][]*Rule{}
	var order []place
	seen := map[string]bool{}
	for _, r := range rules {
		if r.Lyft == nil {
			continue
		}
		path := ""
		for depth, e := range r.Lyft.Path {
			here := fmt.Sprintf("%s\x00%q", path, e)
			if strings.Contains(e.Value, "*") && !seen[here] {
				seen[here] = true
				p := place{path, e.Key}
				if levels[p] == nil {
					order = append(order, p)
				}
				levels[p] = append(levels[p], &Rule{Name: r.Name, Pos: r.Pos, origin: r.origin, Lyft: &Lyft{Path: r.Lyft.Path[depth : depth+1]}})
			}
			path = here
		}
	}
	for _, p := range order {
		list := levels[p]
		if len(list) > 200 {
			list = list[:200]
		}
		for i, later := range list {
			for _, earlier := range list[:i] {
				a, b := earlier.Lyft.Path[0].Value, later.Lyft.Path[0].Value
				if covers(a, b) {
					l.warn(later, later.Pos, "put the narrower one first", "%s: no request can meet %s: %s of line %d stands before it and matches the same values", later.Name, b, a, earlier.Pos.Line)
					break
				}
				if overlap(a, b) {
					l.warn(later, later.Pos, "", "%s: %s and %s of line %d match some of the same values; the first in the file holds", later.Name, b, a, earlier.Pos.Line)
					break
				}
			}
		}
	}
}

// covers reports whether the wildcard a matches all that b matches: whether a matches b with its stars taken as text.
func covers(a, b string) bool {
	return globWalk(a, b, false)
}

// overlap reports whether some text matches both wildcards.
func overlap(a, b string) bool {
	return globWalk(a, b, true)
}

// globWalk matches the wildcard a against the text b; with both, the stars of b are wildcards as well.
func globWalk(a, b string, both bool) bool {
	if len(a)*len(b) > 1<<20 {
		return false
	}
	row := make([]bool, len(b)+1)
	next := make([]bool, len(b)+1)
	for i := 0; i <= len(a); i++ {
		for j := 0; j <= len(b); j++ {
			v := i == 0 && j == 0
			if i > 0 && a[i-1] == '*' {
				v = v || row[j] || j > 0 && next[j-1]
			}
			if both && j > 0 && b[j-1] == '*' {
				v = v || next[j-1] || i > 0 && row[j]
			}
			if i > 0 && j > 0 && a[i-1] == b[j-1] {
				v = v || row[j-1]
			}
			next[j] = v
		}
		row, next = next, row
	}
	return row[len(b)]
}
