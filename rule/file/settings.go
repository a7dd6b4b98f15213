package file

import (
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// settings are the options of a rule that shape its windows.
type settings struct {
	lyft      bool
	calendar  bool // Lyft: calendar: true
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
	softForAt *element
	elasticAt *element
	lease     leasing             // of consistency
	regions   regional            // of consistency
	phases    []phase             // of schedule
	at        map[string]*element // options given, by key

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

// settings reads the keys of a limit that both forms share, except name, when, per, allow, replaces
// and override. Settings of the whole rule go into r.
func (l *loader) settings(keys fields, r *rule.Rule, lyft bool) *settings {
	s := &settings{lyft: lyft, parts: len(r.Per), at: map[string]*element{}, used: map[algo.Algorithm]bool{}}
	option := func(key string) *element {
		v := keys.val(key)
		if v != nil && optionFits()[key] != nil {
			s.at[key] = keys.key(key)
		}
		return v
	}
	if v := option("algorithm"); v != nil {
		if name := l.oneOf(v, "algorithm", algorithmNames()...); name != "" {
			a, _ := algo.ParseAlgorithm(name)
			s.algorithm = &a
		}
		s.at["algorithm"] = keys.key("algorithm")
	}
	if v := option("buckets"); v != nil {
		if n, ok := l.integer(v, "buckets", 1, algo.MaxK); ok {
			s.buckets = int(n)
		}
	}
	if v := option("align"); v != nil {
		s.first = l.oneOf(v, "align", "first_request") != ""
	}
	if v := option("refill"); v != nil {
		s.interval = l.oneOf(v, "refill", "continuous", "interval") == "interval"
	}
	if v := option("timezone"); v != nil {
		s.location = l.timezone(v)
	}
	if v := option("timeout"); v != nil {
		s.timeout, _ = l.duration(v, "timeout")
		l.src.NoteTimeout(r)
	}
	if v := option("count_denied"); v != nil {
		if b, ok := l.boolean(v, "count_denied"); ok {
			s.denied = &b
		}
	}
	if v := keys.val("throttle"); v != nil {
		l.throttle(v, r, s)
	}
	if v := keys.val("schedule"); v != nil {
		l.schedule(v, r, s)
	}
	if v := keys.val("if"); v != nil {
		if text, ok := l.text(v, "if"); ok {
			p, err := l.compiled.cel.If(text)
			if r.If = text; err != nil {
				l.err(v, "", "if: %v", err)
			} else {
				exprs(r).If = p
			}
		}
	}
	if v := keys.val("cost"); v != nil {
		l.cost(v, r)
	}
	if v := keys.val("cost_min"); v != nil {
		l.costMin(v, r)
	}
	if v := keys.val("warn"); v != nil {
		if n, ok := l.percent(v, "warn", 1, 100); ok {
			r.WarnPercent = n
		}
	}
	if v := keys.val("enforce"); v != nil {
		if v.kind != scalarKind || v.text != "all" {
			n, err := parsePercent(v, 0, 100)
			switch {
			case err != nil:
				l.err(v, "", "enforce: expected all, or %v", err)
			default:
				r.EnforcePercent = n
				if !lyft && keys.val("per") == nil {
					l.err(v, "add per, as in: per: [ip]", "enforce: a percentage is of the keys of per, and this limit has none")
				}
			}
		}
	}
	if v := keys.val("on_store_error"); v != nil {
		switch l.oneOf(v, "on_store_error", "local", "allow", "deny") {
		case "allow":
			r.OnStoreError = rule.AllowAll
		case "deny":
			r.OnStoreError = rule.DenyAll
		}
	}
	if v := keys.val("response"); v != nil {
		r.Response = l.response(v)
	}
	if v := keys.val("on_limit"); v != nil {
		l.onLimit(v, r, s)
	}
	if v := keys.val("priority"); v != nil {
		switch l.oneOf(v, "priority", "critical", "default", "sheddable") {
		case "critical":
			r.Priority = rule.Critical
		case "sheddable":
			r.Priority = rule.Sheddable
		}
	}
	if v := keys.val("ban"); v != nil {
		l.ban(v, r)
	}
	l.costAfter(keys, r)
	l.consistency(keys, r, s)
	return s
}

func (l *loader) timezone(v *element) *time.Location {
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
		l.err(v, "names are those of the IANA database, as in Europe/Berlin", "timezone: unknown time zone %q", message.Clip(name))
		return nil
	}
	return loc
}
