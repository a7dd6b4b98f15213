package file

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/lint"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// limitKeys are the keys of a native limit.
var limitKeys = []string{
	"name", "when", "if", "paths", "per", "allow", "algorithm", "buckets", "align", "refill", "timezone", "timeout",
	"count_denied", "cost", "cost_min", "cost_after", "cost_timeout", "replaces", "override", "throttle", "schedule", "warn", "on_limit",
	"priority", "response", "ban", "on_store_error", "consistency", "enforce",
}

// pathSpellings are the values of paths.
var pathSpellings = []string{"folded", "exact"}

// limitMistakes are hints for keys that people write who know another rate limiter.
var limitMistakes = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"key":               "the counter's key is said by per, as in: per: [ip]",
		"keys":              "the counter's key is said by per, as in: per: [ip]",
		"by":                "the counter's key is said by per, as in: per: [ip]",
		"rate":              "the rate is said by allow, as in: allow: 10/min or allow: {rate: 10/min, burst: 20}",
		"limit":             "the rate is said by allow, as in: allow: 10/min",
		"burst":             "it belongs into allow, as in: allow: {rate: 10/min, burst: 20}",
		"soft":              "it belongs into throttle, as in: throttle: {soft: 10%}",
		"elastic":           "it belongs into throttle",
		"curve":             "it belongs into throttle, as in: throttle: {elastic: {signal: cpu, curve: {50%: 200%, 95%: 25%}}}",
		"wait":              "it belongs into on_limit, as in: on_limit: {wait: 2s}",
		"queue":             "it belongs into on_limit, as in: on_limit: {wait: {max: 2s, queue: 500}}",
		"defer":             "it belongs into on_limit, as in: on_limit: {defer: NAME}",
		"lease":             "it belongs into consistency, as in: consistency: {lease: 5%}",
		"regions":           "it belongs into consistency, as in: consistency: {regions: {over: 20%}}",
		"days":              "it belongs into schedule, as in: schedule: [{days: mon-fri, between: \"08:00-20:00\", allow: 100/min}]",
		"between":           "it belongs into schedule, as in: schedule: [{days: mon-fri, between: \"08:00-20:00\", allow: 100/min}]",
		"shadow":            "write on_limit: shadow",
		"match":             "conditions are said by when, as in: when: {path: /api/**}",
		"path":              "conditions are said by when, as in: when: {path: /api/**}",
		"method":            "conditions are said by when, as in: when: {method: POST}",
		"unit":              "the rate is said by allow, as in: allow: 10/min; unit is of the Lyft form",
		"requests_per_unit": "the rate is said by allow, as in: allow: 10/min; requests_per_unit is of the Lyft form",
		"rate_limit":        "rate_limit is of the Lyft form; here: allow: 10/min",
		"shadow_mode":       "shadow_mode is of the Lyft form; here: on_limit: shadow",
		"exempt":            "exempt belongs to the file, beside limits",
		"groups":            "groups belongs to the file, beside limits",
		"domain":            "domain belongs to the file, beside limits",
	}
})

// limit reads one entry of limits. If it has errors, the Rule that comes back is only good for
// finding names twice; it is nil if the entry has no usable name.
func (l *loader) limit(v *yaml.Node, f *rule.File) *rule.Rule {
	l.rule = ""
	if v.Kind != yaml.Mapping {
		l.err(v, "as in: {name: api, per: [ip], allow: 10/min}", "limits: expected a mapping, got %s", v)
		return nil
	}
	r, within := l.newRule(v, f)
	if !within {
		return nil
	}
	before := len(l.errors)
	named := v.Get("name")
	if named != nil && named.Kind == yaml.Scalar {
		l.rule = message.Clip(named.Text)
	}
	keys, _ := l.keys(v, keyRules{known: limitKeys, elsewhere: limitMistakes()})
	if named == nil {
		l.err(v, "as in: name: api-per-user", "name is missing: every limit needs one that is unique in its domain")
	} else if name, ok := l.text(named, "name"); ok {
		if !rule.ValidName(name) {
			l.err(named, "", "name: expected 1 to 200 letters, digits, -, _ and ., got %q", message.Clip(name))
		} else {
			r.Name = strings.Clone(name) // a copy, since others keep it longer than the file
		}
	}
	if w := keys.val("when"); w != nil {
		r.When = l.conditions(w, "when")
	}
	if p := keys.val("per"); p != nil {
		r.Per = l.per(p)
	}
	if rep := keys.val("replaces"); rep != nil {
		r.Replaces = l.replaces(rep, r.Name)
	}
	if r.ExactPaths = f.ExactPaths; keys.val("paths") != nil {
		r.ExactPaths = l.oneOf(keys.val("paths"), "paths", pathSpellings...) == "exact"
	}
	s := l.settings(keys, r, false)
	var entries []allowance
	if a := keys.val("allow"); a != nil {
		entries, r.Unlimited = l.allow(a, "allow")
	} else {
		l.err(v, "as in: allow: 10/min", "allow is missing: every limit needs one")
	}
	l.compile(s, r, entries, keys)
	if len(l.errors) > before {
		if r.Name == "" {
			return nil
		}
		names := slices.DeleteFunc(r.Replaces, func(n string) bool { return n == r.Name || n == "" })
		return &rule.Rule{Name: r.Name, Domain: r.Domain, Pos: r.Pos, Unlimited: true, Replaces: names, Cost: 1}
	}
	return r
}

// conditions reads when or exempt.
func (l *loader) conditions(v *yaml.Node, what string) []rule.Condition {
	if v.Kind != yaml.Mapping {
		l.err(v, "as in: {path: /api/**, method: [GET, HEAD]}",
			"%s: expected a mapping from attributes to patterns, got %s", what, v)
		return nil
	}
	conditions := make([]rule.Condition, 0, len(v.Pairs))
	seen := map[string]int{}
	for _, p := range v.Pairs {
		name, ok := l.attribute(p.Key, what)
		if !ok {
			continue
		}
		if line, twice := seen[name]; twice {
			l.err(p.Key, "put both into one list: any of them then matches",
				"%s: the attribute %q stands twice (before in line %d)", what, name, line)
			continue
		}
		seen[name] = p.Key.Line
		c := rule.Condition{Attribute: name, Pos: p.Key.Position}
		items, negative := []*yaml.Node{p.Value}, 0
		if p.Value.Kind == yaml.List {
			if items = p.Value.Items; len(items) == 0 {
				l.err(p.Value, "", "%s.%s: the list is empty, so that nothing could match it", what, name)
			}
		}
		c.Patterns = make([]rule.Pattern, 0, len(items))
		for _, i := range items {
			switch i.Kind {
			case yaml.Scalar:
			case yaml.Null:
				l.err(i, `for an attribute that must be absent, write "!**"`, "%s.%s: expected a pattern, got nothing",
					what, name)
				continue
			default:
				l.err(i, "", "%s.%s: expected a pattern, or a list of patterns, got %s", what, name, i)
				continue
			}
			pattern, err := l.compiled.pattern(name, i.Text)
			if err != nil {
				l.err(i, "", "%s.%s: %v", what, name, err)
				continue
			}
			pattern.Pos = i.Position
			if pattern.Negated {
				negative++
			}
			c.Patterns = append(c.Patterns, pattern)
		}
		if p.Value.Kind == yaml.List && negative > 0 && negative == len(items) {
			l.err(p.Value, "one !pattern stands without a list; to exclude several, use ~regex, or if",
				"%s.%s: a list of only negations is always true", what, name)
		}
		conditions = append(conditions, c)
	}
	return conditions
}

// attribute reads the name of an attribute.
func (l *loader) attribute(v *yaml.Node, what string) (string, bool) {
	name, ok := l.text(v, what)
	if !ok {
		return "", false
	}
	if !rule.ValidAttribute(name) {
		l.err(v, "as in ip, path or header.x-plan", "%s: %q is no name of an attribute", what, message.Clip(name))
		return "", false
	}
	l.checkCase(v, what, name)
	return name, true
}

// checkCase warns of the name of a header that is not in lower case.
func (l *loader) checkCase(v *yaml.Node, what, name string) {
	if rest, ok := strings.CutPrefix(name, "header."); ok && rest != strings.ToLower(rest) {
		l.warn(lint.NeverMatches, v, "write header."+strings.ToLower(rest),
			"%s: HTTP doors supply the names of headers in lower case, so that %q is never there", what, name)
	}
}

func (l *loader) per(v *yaml.Node) []rule.Key {
	if v.Kind == yaml.Null {
		l.err(v, "as in: per: [ip]; leave it out for one global counter",
			"per: expected a list of attributes, got nothing")
		return nil
	}
	entries, at := l.texts(v, "per")
	spelling := strings.Join(entries, "\x00")
	keys, known := l.compiled.pers[spelling]
	var faults []rule.Fault
	if !known {
		if keys, faults = rule.ParsePer(entries); len(faults) == 0 {
			if l.compiled.pers == nil {
				l.compiled.pers = map[string][]rule.Key{}
			}
			l.compiled.pers[spelling] = keys
		}
	}
	for _, f := range faults {
		where := v
		if f.At >= 0 {
			where = at[f.At]
		}
		l.err(where, f.Hint, "%s", f.Message)
	}
	for i, entry := range entries {
		for name := range strings.SplitSeq(entry, "|") {
			if name = strings.TrimSpace(name); rule.ValidAttribute(name) {
				l.checkCase(at[i], "per", name)
			}
		}
	}
	return keys
}

func (l *loader) replaces(v *yaml.Node, own string) []string {
	names, at := l.texts(v, "replaces")
	for i, n := range names {
		switch {
		case n == "":
			l.err(at[i], "", "should not have an empty replaces entry")
		case n == own:
			l.err(at[i], "", "replaces should not contain name of same descriptor or limit: %q", n)
		}
	}
	return names
}

// allowance is one entry of allow.
type allowance struct {
	rate     rule.Rate
	burst    int64
	hasBurst bool
	at       *yaml.Node
}

// maxWindows bounds the entries of one allow: a request that meets the limit is charged to all of
// them.
const maxWindows = 64

// allow reads allow, or one value of override. unlimited is for the whole of it.
func (l *loader) allow(v *yaml.Node, what string) (entries []allowance, unlimited bool) {
	items := []*yaml.Node{v}
	if v.Kind == yaml.List {
		if items = v.Items; len(items) == 0 {
			l.err(v, "as in: allow: [10/min, 500/hour]", "%s: the list is empty", what)
		}
		if len(items) > maxWindows {
			l.err(v, "", "%s: at most %d entries, got %d", what, maxWindows, len(items))
			return nil, false
		}
	}
	for _, i := range items {
		a, ok := l.allowance(i, what)
		if !ok {
			continue
		}
		if a.rate.Unlimited {
			if len(items) > 1 {
				l.err(i, "write it alone, or leave it out", "%s: unlimited has no meaning beside other entries", what)
			}
			unlimited = true
			continue
		}
		entries = append(entries, a)
	}
	return entries, unlimited && len(entries) == 0
}

func (l *loader) allowance(v *yaml.Node, what string) (allowance, bool) {
	a := allowance{at: v}
	switch v.Kind {
	case yaml.Scalar:
		r, err := rule.ParseRate(v.Text)
		if err != nil {
			l.err(v, "", "%s: %v", what, err)
			return a, false
		}
		a.rate = r
		return a, true
	case yaml.Mapping:
		keys, _ := l.keys(v, keyRules{known: []string{"rate", "burst"}})
		rate := keys.val("rate")
		if rate == nil {
			l.err(v, "as in: {rate: 10/min, burst: 20}", "%s: rate is missing", what)
			return a, false
		}
		text, ok := l.text(rate, what+".rate")
		if !ok {
			return a, false
		}
		r, err := rule.ParseRate(text)
		if err == nil && (r.Unlimited || r.Window == 0) {
			err = fmt.Errorf("rate %q: expected N/unit or N/duration, as in 10/min", message.Clip(text))
		}
		if err != nil {
			l.err(rate, "", "%s: %v", what, err)
			return a, false
		}
		a.rate = r
		if b := keys.val("burst"); b != nil {
			if a.burst, ok = l.integer(b, what+".burst", 0, algo.MaxN); !ok {
				return a, false
			}
			a.hasBurst = true
		}
		return a, true
	}
	l.err(v, "as in: allow: 10/min",
		"%s: expected a rate, {rate, burst}, a number, unlimited, or a list of these, got %s", what, v)
	return a, false
}
