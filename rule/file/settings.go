package file

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// settings are the options of a rule that shape its windows.
type settings struct {
	lyft      bool
	lends     bool // its domain is one of Options.Lend
	calendar  bool // Lyft: calendar: true
	named     bool // per is given
	parts     int  // values that make a key, for override
	algorithm *algo.Algorithm
	inherited *algo.Algorithm // for overrides and schedules: the algorithm of allow
	buckets   int
	first     bool // align: first_request
	interval  bool // refill: interval
	location  *time.Location
	timeout   time.Duration
	denied    *bool // count_denied
	soft      int
	softFor   time.Duration
	softForAt *yaml.Node
	elasticAt *yaml.Node
	lease     leasing               // of consistency
	regions   regional              // of consistency
	phases    []phase               // of schedule
	at        map[string]*yaml.Node // options given, by key

	// Properties of the entries of allow, schedule and override.
	used map[algo.Algorithm]bool
	// one of them: is of the calendar, counts denied requests, has a margin that closes
	calendars, counted, closes bool
}

// optionFits says which algorithms an option fits.
var optionFits = sync.OnceValue(func() map[string][]algo.Algorithm {
	return map[string][]algo.Algorithm{
		"buckets":      {algo.SlidingWindow},
		"align":        {algo.FixedWindow},
		"timezone":     {algo.FixedWindow},
		"calendar":     {algo.FixedWindow},
		"refill":       {algo.TokenBucket},
		"timeout":      {algo.Concurrency},
		"count_denied": {algo.FixedWindow, algo.SlidingWindow, algo.SlidingLog},
		"burst":        {algo.TokenBucket, algo.LeakyBucket},
	}
})

var algorithmNames = sync.OnceValue(func() []string {
	var names []string
	for _, a := range algo.Algorithms() {
		names = append(names, a.String())
	}
	return names
})

// fits lists the algorithms that an option fits, for messages.
func fits(option string) string {
	var names []string
	for _, a := range optionFits()[option] {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// uses reports whether one of the limits has an algorithm with a trait.
func (s *settings) uses(trait func(algo.Algorithm) bool) bool {
	for a, used := range s.used {
		if used && trait(a) {
			return true
		}
	}
	return false
}

// newRule returns a rule of a file that stands at v. It counts the rules, and reports whether this
// one is still within bounds.
func (l *loader) newRule(v *yaml.Node, f *rule.File) (r *rule.Rule, within bool) {
	l.rules++
	if l.rules == maxRules+1 {
		l.err(v, "", "more than %d rules", maxRules)
	}
	r = rule.New("", f.Domain)
	r.Pos, r.File = v.Position, f
	return r, l.rules <= maxRules
}

// settings reads the keys of a limit that both forms share, except name, when, per, allow, replaces
// and override. Settings of the whole rule go into r.
func (l *loader) settings(keys fields, r *rule.Rule, lyft bool) *settings {
	s := &settings{lyft: lyft, lends: slices.Contains(l.lend, r.Domain), named: keys.val("per") != nil,
		parts: len(r.Per), at: map[string]*yaml.Node{}, used: map[algo.Algorithm]bool{}}
	for _, o := range options {
		if v := keys.val(o.key); v != nil {
			if o.key == "algorithm" || optionFits()[o.key] != nil {
				s.at[o.key] = keys.key(o.key)
			}
			o.read(l, v, r, s)
		}
	}
	return s
}

// options are the keys that settings reads, in this order.
var options = []struct {
	key  string
	read func(l *loader, v *yaml.Node, r *rule.Rule, s *settings)
}{
	{"algorithm", func(l *loader, v *yaml.Node, _ *rule.Rule, s *settings) {
		if a, ok := algo.ParseAlgorithm(l.oneOf(v, "algorithm", algorithmNames()...)); ok {
			s.algorithm = &a
		}
	}},
	{"buckets", func(l *loader, v *yaml.Node, _ *rule.Rule, s *settings) {
		n, _ := l.integer(v, "buckets", 1, algo.MaxK)
		s.buckets = int(n)
	}},
	{"align", func(l *loader, v *yaml.Node, _ *rule.Rule, s *settings) {
		s.first = l.oneOf(v, "align", "first_request") != ""
	}},
	{"refill", func(l *loader, v *yaml.Node, _ *rule.Rule, s *settings) {
		s.interval = l.oneOf(v, "refill", "continuous", "interval") == "interval"
	}},
	{"timezone", func(l *loader, v *yaml.Node, _ *rule.Rule, s *settings) { s.location = l.timezone(v) }},
	{"timeout", func(l *loader, v *yaml.Node, r *rule.Rule, s *settings) {
		s.timeout, _ = l.duration(v, "timeout")
		message.Of(r).NoteTimeout(r)
	}},
	{"count_denied", func(l *loader, v *yaml.Node, _ *rule.Rule, s *settings) {
		if b, ok := l.boolean(v, "count_denied"); ok {
			s.denied = &b
		}
	}},
	{"throttle", (*loader).throttle},
	{"schedule", (*loader).schedule},
	{"if", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) { l.condition(v, r) }},
	{"cost", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) { l.cost(v, r) }},
	{"cost_min", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) { l.costMin(v, r) }},
	{"warn", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) {
		if n, ok := l.percent(v, "warn", 1, 100); ok {
			r.WarnPercent = n
		}
	}},
	{"enforce", (*loader).enforce},
	{"on_store_error", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) {
		switch l.oneOf(v, "on_store_error", "local", "allow", "deny") {
		case "allow":
			r.OnStoreError = rule.AllowAll
		case "deny":
			r.OnStoreError = rule.DenyAll
		}
	}},
	{"response", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) { r.Response = l.response(v) }},
	{"on_limit", (*loader).onLimit},
	{"priority", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) {
		switch l.oneOf(v, "priority", "critical", "default", "sheddable") {
		case "critical":
			r.Priority = rule.Critical
		case "sheddable":
			r.Priority = rule.Sheddable
		}
	}},
	{"ban", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) { l.ban(v, r) }},
	{"cost_after", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) { l.costAfter(v, r) }},
	{"cost_timeout", func(l *loader, v *yaml.Node, r *rule.Rule, _ *settings) {
		r.CostTimeout, _ = l.span(v, "cost_timeout", maxCostTimeout)
	}},
	{"consistency", (*loader).consistency},
}

// enforce reads enforce into r.
func (l *loader) enforce(v *yaml.Node, r *rule.Rule, s *settings) {
	if v.Kind == yaml.Scalar && v.Text == "all" {
		return
	}
	n, err := parsePercent(v, 0, 100)
	if err != nil {
		l.err(v, "", "enforce: expected all, or %v", err)
		return
	}
	if r.EnforcePercent = n; !s.lyft && !s.named {
		l.err(v, "add per, as in: per: [ip]", "enforce: a percentage is of the keys of per, and this limit has none")
	}
}

func (l *loader) timezone(v *yaml.Node) *time.Location {
	name, ok := l.text(v, "timezone")
	if !ok {
		return nil
	}
	if name == "" || name == "Local" {
		l.err(v, "as in Europe/Berlin, or UTC", "timezone: expected the name of an IANA time zone, got %q", name)
		return nil
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		l.err(v, "write a name of the IANA database, as in Europe/Berlin", "timezone: unknown time zone %q",
			message.Clip(name))
		return nil
	}
	return loc
}
