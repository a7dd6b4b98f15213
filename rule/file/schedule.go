package file

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// maxPhases bounds the entries of one schedule, which are all looked at whenever one of them begins
// or ends.
const maxPhases = 64

// phase is one entry of schedule, as it was read.
type phase struct {
	days        algo.Days
	from, until time.Duration
	entries     []allowance
	always      bool // neither days nor between is given
	at          *yaml.Node
}

var phaseMistakes = sync.OnceValue(func() map[string]string {
	m := map[string]string{
		"day": "it is called days", "weekdays": "it is called days", "on": "it is called days",
		"from": `write between: "08:00-20:00"`, "until": `write between: "08:00-20:00"`, "to": `write between: "08:00-20:00"`,
		"start": `write between: "08:00-20:00"`, "end": `write between: "08:00-20:00"`, "time": "it is called between", "hours": "it is called between",
		"rate": "it is called allow", "limit": "it is called allow",
	}
	for option := range optionFits() {
		m[option] = "it belongs beside schedule, and holds for all its entries"
	}
	for _, option := range []string{"algorithm", "throttle", "on_limit", "override", "timezone"} {
		m[option] = "it belongs beside schedule, and holds for all its entries"
	}
	for _, d := range dayNames { // {days: sat,sun} ends at the comma
		const quote = `between braces a list of days is quoted, as in days: "sat,sun"`
		m[d], m[d[:3]] = quote, quote
	}
	return m
})

// schedule reads schedule into s, and for display into r.
func (l *loader) schedule(v *yaml.Node, r *rule.Rule, s *settings) {
	const example = `as in: schedule: [{days: mon-fri, between: "08:00-20:00", allow: 100/min}]`
	if v.Kind != yaml.List {
		l.err(v, example, "schedule: expected a list, got %s", v)
		return
	}
	switch n := len(v.Items); {
	case n == 0:
		l.err(v, example, "schedule: the list is empty")
	case n > maxPhases:
		l.err(v, "", "schedule: at most %d entries, got %d", maxPhases, n)
		return
	}
	for i, item := range v.Items {
		keys, ok := l.keys(item, keyRules{
			expected: "schedule: expected a mapping of days, between and allow", example: example,
			known: []string{"days", "between", "allow"}, elsewhere: phaseMistakes(),
		})
		if !ok {
			continue
		}
		p := phase{until: message.Day, at: item, always: keys.val("days") == nil && keys.val("between") == nil}
		if d := keys.val("days"); d != nil {
			p.days = l.days(d)
		}
		if b := keys.val("between"); b != nil {
			p.from, p.until = l.between(b)
		}
		if p.always && i < len(v.Items)-1 {
			l.err(item, "name days or between, or put it last",
				"schedule: an entry without days and between always holds, so that those behind it never would")
		}
		a := keys.val("allow")
		if a == nil {
			l.err(item, example, "schedule: allow is missing")
			continue
		}
		p.entries, _ = l.allow(a, "schedule.allow")
		s.phases = append(s.phases, p)
		r.Schedule = append(r.Schedule, rule.SchedulePhase{Days: p.days, From: p.from, Until: p.until, Allow: spelt(a),
			Pos: item.Position})
	}
}

// scheduled makes w follow the schedule: otherwise holds when no phase does; nil means no limit.
func (l *loader) scheduled(s *settings, w *rule.Window, otherwise *algo.Limit, phases []*algo.Limit, at *yaml.Node) {
	list := make([]algo.Phase, len(phases))
	for i, limit := range phases {
		p := &s.phases[i]
		list[i] = algo.Phase{Days: p.days, From: p.from, Until: p.until, Limit: limit}
	}
	limit, err := algo.Scheduled(otherwise, list, s.location)
	if err != nil {
		l.err(at, "", "schedule: %v", err)
		return
	}
	w.Limit = limit
}

var dayNames = []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}

var shortDays = sync.OnceValue(func() []string {
	var names []string
	for _, d := range dayNames {
		names = append(names, d[:3])
	}
	return names
})

// days reads days: names and ranges, separated by commas, or a list of these.
func (l *loader) days(v *yaml.Node) algo.Days {
	texts, at := l.texts(v, "days")
	if v.Kind == yaml.List && len(v.Items) == 0 {
		l.err(v, "leave it out for every day", "days: the list is empty")
	}
	var set algo.Days
	for i, text := range texts {
		for item := range strings.SplitSeq(text, ",") {
			first, last, isRange := strings.Cut(item, "-")
			from, ok := l.day(at[i], first)
			if !ok {
				continue
			}
			to := from
			if isRange {
				if to, ok = l.day(at[i], last); !ok {
					continue
				}
			}
			for d := from; ; d = (d + 1) % 7 {
				if set |= 1 << d; d == to {
					break
				}
			}
		}
	}
	return set
}

func (l *loader) day(v *yaml.Node, name string) (time.Weekday, bool) {
	name = strings.ToLower(strings.TrimSpace(name))
	if i := slices.Index(shortDays(), name); i >= 0 {
		return time.Weekday(i), true
	}
	if i := slices.Index(dayNames, name); i >= 0 {
		return time.Weekday(i), true
	}
	hint := "days are mon, tue, wed, thu, fri, sat and sun, as in mon-fri or sat,sun"
	if near := suggest.Nearest(name, append(shortDays()[:7:7], dayNames...)); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	l.err(v, hint, "days: %q is no day of the week", message.Clip(name))
	return 0, false
}

// between reads a part of the day.
func (l *loader) between(v *yaml.Node) (from, until time.Duration) {
	text, ok := l.text(v, "between")
	if !ok {
		return 0, message.Day
	}
	first, last, isRange := strings.Cut(text, "-")
	from, ok1 := timeOfDay(first)
	until, ok2 := timeOfDay(last)
	switch {
	case !isRange || !ok1 || !ok2:
		l.err(v, `as in: between: "08:00-20:00"; one that crosses midnight is written "22:00-06:00"`,
			"between: expected HH:MM-HH:MM, got %s", v)
		return 0, message.Day
	case from == message.Day:
		l.err(v, `as in: between: "00:00-06:00"`, "between: 24:00 can be an end, not a beginning")
		return 0, message.Day
	}
	return from, until
}

// timeOfDay reads HH:MM, up to 24:00.
func timeOfDay(s string) (time.Duration, bool) {
	s = strings.TrimSpace(s)
	hours, minutes, ok := strings.Cut(s, ":")
	number := func(s string, most int) (int, bool) {
		n := 0
		for _, c := range s {
			if c < '0' || c > '9' {
				return 0, false
			}
			n = 10*n + int(c-'0')
		}
		return n, n <= most
	}
	if !ok || len(hours) < 1 || len(hours) > 2 || len(minutes) != 2 {
		return 0, false
	}
	h, ok1 := number(hours, 24)
	m, ok2 := number(minutes, 59)
	d := time.Duration(h)*time.Hour + time.Duration(m)*time.Minute
	return d, ok1 && ok2 && d <= message.Day
}

// spelt spells a value as it could stand in a file.
func spelt(v *yaml.Node) string {
	switch v.Kind {
	case yaml.List:
		var items []string
		for _, i := range v.Items {
			items = append(items, spelt(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case yaml.Mapping:
		var pairs []string
		for _, p := range v.Pairs {
			pairs = append(pairs, spelt(p.Key)+": "+spelt(p.Value))
		}
		return "{" + strings.Join(pairs, ", ") + "}"
	}
	return v.Text
}
