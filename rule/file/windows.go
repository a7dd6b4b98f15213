package file

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// part is one entry of an allow, compiled.
type part struct {
	config algo.Config
	limit  *algo.Limit
	at     *yaml.Node
}

func (p *part) window(r *rule.Rule) *rule.Window {
	return &rule.Window{Rule: r, Limit: p.limit}
}

// shape holds the properties that all limits of one state share.
type shape struct {
	algorithm algo.Algorithm
	window    time.Duration
	buckets   int
	calendar  algo.Calendar
}

func (p *part) shape() shape {
	return shape{p.config.Algorithm, p.config.Window, p.config.Buckets, p.config.Calendar}
}

// parts compiles the entries of one allow.
func (l *loader) parts(s *settings, entries []allowance) []part {
	var list []part
	for _, e := range entries {
		c, ok := l.config(s, e)
		s.used[c.Algorithm] = true
		if !ok || !l.regionsFit(s, &c, e.at) {
			continue
		}
		limit := l.compileLimit(s, c, e.at)
		if limit == nil {
			continue
		}
		s.calendars = s.calendars || c.Calendar != algo.NoCalendar
		s.counted = s.counted || c.CountDenied
		s.closes = s.closes || c.SoftFor > 0
		list = append(list, part{limit.Config(), limit, e.at})
	}
	return list
}

// compile makes the windows of r from its entries, its schedule and its overrides, and checks that
// the settings of the rule go together.
func (l *loader) compile(s *settings, r *rule.Rule, entries []allowance, keys fields) {
	before := len(l.errors)
	r.Lent = s.lease.percent == 0 && (s.lends || s.regions.borrows())
	base := l.parts(s, entries)
	if s.algorithm == nil && len(s.used) == 1 && s.used[algo.TokenBucket] {
		bucket := algo.TokenBucket // a rate alone, put in place of a bucket, is a bucket
		s.inherited = &bucket
	}
	r.Windows = l.windows(s, r, base)
	if len(s.phases) > 0 && len(l.errors) == before {
		if r.Unlimited = len(r.Windows) == 0; r.Unlimited {
			l.err(keys.key("schedule"), "leave it out, or give it an entry with a rate",
				"schedule: there is no limit at any time")
		}
	}
	if len(l.errors) == before && s.softFor > 0 && !s.closes && len(base) > 0 {
		l.emptyMargin(s, base[0].config)
	}
	if v := keys.val("override"); v != nil {
		l.override(s, r, v)
	}
	if len(s.used) > 0 {
		l.checkFit(s)
	}
	if len(l.errors) == before {
		l.elasticWindows(s, r)
		l.checkTogether(s, r, keys)
	}
}

// windows puts the limits that share a state at different times together.
func (l *loader) windows(s *settings, r *rule.Rule, base []part) []*rule.Window {
	type column struct {
		first     part
		otherwise *algo.Limit
		phases    []*algo.Limit
	}
	var columns []*column
	byName := map[string]*column{}
	add := func(p part, what string, set func(c *column) (twice bool)) {
		name := spell(p.config)
		c := byName[name]
		switch {
		case c == nil:
			c = &column{first: p, phases: make([]*algo.Limit, len(s.phases))}
			columns, byName[name] = append(columns, c), c
			set(c)
		case c.first.shape() != p.shape():
			if what == "allow" {
				l.err(p.at, "keep the one that is meant, or make two limits of them",
					"allow: two entries with a window of %s", name)
				return
			}
			l.err(p.at, "name one algorithm for all of them, or make two limits of it",
				"%s: a window of %s counts by %s here, and by %s elsewhere in this limit", what, name, p.config.Algorithm, c.first.config.Algorithm)
		case set(c):
			l.err(p.at, "keep the one that is meant, or make two limits of them", "%s: two entries with a window of %s",
				what, name)
		}
	}
	for _, p := range base {
		add(p, "allow", func(c *column) bool {
			twice := c.otherwise != nil
			c.otherwise = p.limit
			return twice
		})
	}
	for i := range s.phases {
		for _, p := range l.parts(s, s.phases[i].entries) {
			add(p, "schedule", func(c *column) bool {
				twice := c.phases[i] != nil
				c.phases[i] = p.limit
				return twice
			})
		}
	}
	if len(columns) > maxWindows {
		l.err(s.phases[0].at, "", "schedule: at most %d windows in one limit, got %d", maxWindows, len(columns))
		return nil
	}
	if r.Lyft != nil && len(columns) > 1 {
		l.err(columns[1].first.at, "give all entries the same unit; a limit under limits may have several",
			"schedule: a descriptor has one limit, since its status can speak of one only")
		return nil
	}
	var list []*rule.Window
	for _, c := range columns {
		w := c.first.window(r)
		if w.Name = r.Name; len(columns) > 1 {
			w.Name += ":" + spell(c.first.config)
		}
		if len(s.phases) > 0 {
			l.scheduled(s, w, c.otherwise, c.phases, c.first.at)
		}
		list = append(list, w)
	}
	return list
}

// config is the limit that one entry of allow asks for.
func (l *loader) config(s *settings, e allowance) (algo.Config, bool) {
	slots := e.rate.Window == 0
	c := algo.Config{N: e.rate.N, Window: e.rate.Window, Soft: s.soft}
	switch {
	case s.algorithm != nil:
		c.Algorithm = *s.algorithm
	case slots:
		c.Algorithm = algo.Concurrency
	case e.hasBurst:
		c.Algorithm = algo.TokenBucket
	case s.inherited != nil:
		c.Algorithm = *s.inherited
	case s.lyft:
		c.Algorithm = algo.FixedWindow
	}
	switch {
	case slots && !c.Algorithm.HasSlots():
		l.err(e.at, fmt.Sprintf("as in: %d/min", e.rate.N),
			"allow: a number without a unit is for concurrency; %s needs N/unit or N/duration", c.Algorithm)
		return c, false
	case !slots && c.Algorithm.HasSlots():
		l.err(e.at, fmt.Sprintf("as in: allow: %d concurrent", e.rate.N),
			"allow: concurrency takes a number, the most that may be in flight; got %s", e.rate)
		return c, false
	case slots && !e.rate.Concurrent && s.algorithm == nil && !s.used[algo.Concurrency]:
		l.err(e.at, e.rate.UnitHint(), "allow: %s names no unit", e.rate)
		return c, false
	case e.hasBurst && !slices.Contains(optionFits()["burst"], c.Algorithm):
		l.err(e.at, "", "burst does not fit %s: it fits %s", c.Algorithm, fits("burst"))
		return c, false
	}
	if e.hasBurst {
		if c.Burst = e.burst; c.Burst == 0 {
			c.Burst = algo.NoBurst
		}
	}
	switch c.Algorithm {
	case algo.SlidingWindow:
		c.Buckets = s.buckets
		if s.buckets > 1 && c.Window%(time.Duration(s.buckets)*time.Microsecond) != 0 {
			l.err(s.at["buckets"], "take "+dividers(c.Window, s.buckets),
				"buckets: %d does not divide the window of %s into whole microseconds", s.buckets, e.rate)
			return c, false
		}
	case algo.FixedWindow:
		c.FirstRequest = s.first
		if !s.first && (!s.lyft || s.calendar) {
			c.Calendar = e.rate.Calendar()
		}
		if c.Calendar != algo.NoCalendar {
			c.Location = s.location
		}
	case algo.TokenBucket:
		c.RefillInterval = s.interval
	case algo.Concurrency:
		c.Timeout = s.timeout
	}
	if !l.closing(s, &c) {
		return c, false
	}
	if slices.Contains(optionFits()["count_denied"], c.Algorithm) {
		if s.denied != nil {
			c.CountDenied = *s.denied
		} else {
			c.CountDenied = s.lyft && c.Algorithm.ResetsAtOnce()
		}
	}
	s.leased(&c)
	return c, true
}

// dividers names the numbers of buckets next to k that divide w.
func dividers(w time.Duration, k int) string {
	fits := func(k int) bool { return w%(time.Duration(k)*time.Microsecond) == 0 }
	below, above := k-1, k+1
	for below > 1 && !fits(below) {
		below--
	}
	for above <= algo.MaxK && !fits(above) {
		above++
	}
	if above > algo.MaxK {
		return strconv.Itoa(below)
	}
	return fmt.Sprintf("%d or %d", below, above)
}

// spell is a window's length in seconds, as in 60s; below a second with the fraction that
// distinguishes windows.
func spell(c algo.Config) string {
	if c.Window%time.Second == 0 {
		return strconv.FormatInt(int64(c.Window/time.Second), 10) + "s"
	}
	return strconv.FormatFloat(float64(c.Window/time.Microsecond)/1e6, 'f', -1, 64) + "s"
}

// override reads override. parts is the number of values that make a key.
func (l *loader) override(s *settings, r *rule.Rule, v *yaml.Node) {
	parts := s.parts
	if v.Kind != yaml.Mapping {
		l.err(v, "as in: override: {acme: 1000/min}", "override: expected a mapping from keys to rates, got %s", v)
		return
	}
	if parts == 0 {
		l.err(v, "add per, as in: per: [user]", "override names keys of per, and this limit has one counter only")
		return
	}
	seen := map[string]bool{}
	for _, p := range v.Pairs {
		key, ok := l.text(p.Key, "override")
		if !ok {
			continue
		}
		values := []string{key}
		if parts > 1 {
			if values = strings.Split(key, ","); len(values) != parts {
				l.err(p.Key, "join them with commas in the order of per",
					"override: %q holds %s, but a key of this limit has %d", message.Clip(key), message.Count(
						len(values), "value", "values"), parts)
				continue
			}
			for i := range values {
				values[i] = strings.TrimSpace(values[i])
			}
		}
		if slices.Contains(values, "") && r.Lyft == nil {
			l.err(p.Key, "", "override: %q holds an empty value, which never makes a key", message.Clip(key))
			continue
		}
		if joined := strings.Join(values, ","); seen[joined] {
			l.err(p.Key, "remove one", "override: the key %q stands twice", message.Clip(key))
			continue
		} else {
			seen[joined] = true
		}
		entries, unlimited := l.allow(p.Value, "override."+message.Clip(key))
		o := rule.Override{Values: values, Unlimited: unlimited, Pos: p.Key.Position}
		for _, p := range l.parts(s, entries) {
			o.Windows = append(o.Windows, p.window(r))
		}
		names := map[string]bool{}
		for i, w := range o.Windows {
			w.Name = r.Name + ":" + spell(w.Limit.Config())
			for _, mine := range r.Windows {
				if a, b := mine.Limit.Config(), w.Limit.Config(); a.Window == b.Window && a.Algorithm == b.Algorithm {
					w.Name = mine.Name
				}
			}
			if names[w.Name] && len(entries) == len(o.Windows) {
				l.err(entries[i].at, "", "override: two entries with a window of %s", spell(w.Limit.Config()))
			}
			names[w.Name] = true
		}
		r.Overrides = append(r.Overrides, o)
	}
}
