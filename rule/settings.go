package rule

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
)

// settings are the options of a rule that shape its windows.
type settings struct {
	lyft      bool
	calendar  bool // Lyft: calendar: true
	parts     int  // values that make a key, for override
	algorithm *algo.Algorithm
	inherited *algo.Algorithm // for overrides: the algorithm of allow
	buckets   int
	first     bool // align: first_request
	interval  bool // refill: interval
	location  *time.Location
	timeout   time.Duration
	denied    *bool // count_denied
	soft      int
	at        map[string]*element // options given, by key
}

// optionFits says which algorithms an option fits.
var optionFits = map[string][]algo.Algorithm{
	"buckets":      {algo.SlidingWindow},
	"align":        {algo.FixedWindow},
	"timezone":     {algo.FixedWindow},
	"calendar":     {algo.FixedWindow},
	"refill":       {algo.TokenBucket},
	"timeout":      {algo.Concurrency},
	"count_denied": {algo.FixedWindow, algo.SlidingWindow, algo.SlidingLog},
	"burst":        {algo.TokenBucket, algo.LeakyBucket},
}

var algorithmNames = func() []string {
	var names []string
	for a := algo.SlidingWindow; a <= algo.Concurrency; a++ {
		names = append(names, a.String())
	}
	return names
}()

// fits lists the algorithms that an option fits, for messages.
func fits(option string) string {
	var names []string
	for _, a := range optionFits[option] {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// settings reads the keys of a limit that both forms share, but for name, when, per, allow, replaces and override.
// What concerns the whole rule goes into r.
func (l *loader) settings(keys fields, r *Rule, lyft bool) settings {
	s := settings{lyft: lyft, parts: len(r.Per), at: map[string]*element{}}
	option := func(key string) *element {
		v := keys.val(key)
		if v != nil && optionFits[key] != nil {
			s.at[key] = keys.key(key)
		}
		return v
	}
	if v := option("algorithm"); v != nil {
		if name := l.oneOf(v, "algorithm", algorithmNames...); name != "" {
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
	}
	if v := option("count_denied"); v != nil {
		if b, ok := l.boolean(v, "count_denied"); ok {
			s.denied = &b
		}
	}
	if v := keys.val("throttle"); v != nil {
		s.soft = l.throttle(v)
	}
	if v := keys.val("if"); v != nil {
		if text, ok := l.text(v, "if"); ok {
			p, err := l.compiled.expression(&l.compiled.ifs, compileIf, text)
			if err != nil {
				l.err(v, "", "if: %v", err)
			}
			r.If, r.ifProgram = text, p
		}
	}
	if v := keys.val("cost"); v != nil {
		l.cost(v, r)
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
			r.OnStoreError = AllowAll
		case "deny":
			r.OnStoreError = DenyAll
		}
	}
	if v := keys.val("response"); v != nil {
		r.Response = l.response(v)
	}
	l.unsupported(keys)
	if v := keys.val("on_limit"); v != nil {
		l.onLimit(v, r, &s)
	}
	return s
}

// unsupported refuses the keys whose effect is still to come.
func (l *loader) unsupported(keys fields) {
	for _, key := range []string{"schedule", "ban"} {
		if k := keys.key(key); k != nil {
			l.err(k, "", "%s is not supported yet", key)
		}
	}
	if v := keys.val("priority"); v != nil && l.oneOf(v, "priority", "critical", "default", "sheddable") != "" && v.text != "default" {
		l.err(keys.key("priority"), "", "priority is not supported yet")
	}
	if v := keys.val("consistency"); v != nil && !(v.kind == scalarKind && v.text == "exact") {
		if v.kind == mapKind && len(v.pairs) == 1 && contains([]string{"lease", "regions"}, v.pairs[0].key.text) {
			l.err(keys.key("consistency"), "", "consistency is not supported yet: only exact is")
		} else {
			l.err(v, "", "consistency: expected exact, {lease: …} or {regions: sync}, got %s", describe(v))
		}
	}
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
		l.err(v, "names are those of the IANA database, as in Europe/Berlin", "timezone: unknown time zone %q", clip(name))
		return nil
	}
	return loc
}

// throttle reads throttle, and returns the soft margin in percent.
func (l *loader) throttle(v *element) (soft int) {
	const expected = "throttle: expected hard, {soft: 10%%}, or {elastic: …}, got %s"
	if v.kind == scalarKind && v.text == "hard" {
		return 0
	}
	if v.kind != mapKind {
		hint := ""
		if v.kind == scalarKind && v.text == "soft" {
			hint = "write the margin, as in: throttle: {soft: 10%}"
		}
		l.err(v, hint, expected, describe(v))
		return 0
	}
	keys := l.keys(v, keyRules{known: []string{"soft", "elastic"}})
	if len(v.pairs) == 0 {
		l.err(v, "", expected, "an empty mapping")
	}
	if e := keys.key("elastic"); e != nil {
		l.err(e, "", "throttle.elastic is not supported yet")
	}
	m := keys.val("soft")
	if m == nil {
		return 0
	}
	if m.kind == mapKind {
		inner := l.keys(m, keyRules{known: []string{"over", "for"}})
		if f := inner.key("for"); f != nil {
			l.err(f, "", "throttle.soft.for is not supported yet")
		}
		if m = inner.val("over"); m == nil {
			l.err(v, "as in: throttle: {soft: {over: 10%}}", "throttle.soft: over is missing")
			return 0
		}
	}
	soft, _ = l.percent(m, "throttle.soft", 0, algo.MaxSoft)
	return soft
}

func (l *loader) cost(v *element, r *Rule) {
	if v.kind == scalarKind && !v.quoted {
		if _, err := strconv.ParseFloat(v.text, 64); err == nil {
			if n, ok := l.integer(v, "cost", 0, algo.MaxCost); ok {
				r.Cost = n
			}
			return
		}
	}
	text, ok := l.text(v, "cost")
	if !ok {
		return
	}
	p, err := l.compiled.expression(&l.compiled.costs, compileCost, text)
	if err != nil {
		l.err(v, "", "cost: %v", err)
	}
	r.CostExpr, r.costProgram = text, p
}

func (l *loader) onLimit(v *element, r *Rule, s *settings) {
	if v.kind == scalarKind {
		switch v.text {
		case "reject":
			return
		case "shadow":
			r.Shadow = true
			return
		}
	}
	if v.kind != mapKind || len(v.pairs) != 1 {
		hint := ""
		if v.kind == scalarKind && v.text == "wait" {
			hint = "write the longest wait, as in: on_limit: {wait: 2s}"
		}
		l.err(v, hint, "on_limit: expected reject, shadow, {wait: 2s} or {defer: queue}, got %s", describe(v))
		return
	}
	keys := l.keys(v, keyRules{known: []string{"wait", "defer"}})
	if d := keys.key("defer"); d != nil {
		l.err(d, "", "on_limit.defer is not supported yet")
	}
	if w := keys.val("wait"); w != nil {
		if s.algorithm == nil || *s.algorithm != algo.LeakyBucket {
			l.err(keys.key("wait"), "with algorithm: leaky_bucket it works", "on_limit.wait is not supported yet, but for leaky_bucket")
			return
		}
		r.Wait, _ = l.duration(w, "on_limit.wait")
	}
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_\x60|~-]+$")

func (l *loader) response(v *element) *Response {
	if v.kind != mapKind {
		l.err(v, "as in: response: {status: 503, body: later}", "response: expected a mapping of status, headers, content_type and body, got %s", describe(v))
		return nil
	}
	keys := l.keys(v, keyRules{known: []string{"status", "headers", "content_type", "body"}})
	r := &Response{Status: 429}
	if s := keys.val("status"); s != nil {
		if n, ok := l.integer(s, "response.status", 400, 599); ok {
			r.Status = int(n)
		}
	}
	line := func(v *element, what string) string {
		text, ok := l.text(v, what)
		if ok && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			l.err(v, "", "%s: a header's value is one line without control characters", what)
		}
		return text
	}
	if h := keys.val("headers"); h != nil {
		if h.kind != mapKind {
			l.err(h, "as in: headers: {X-Reason: quota}", "response.headers: expected a mapping, got %s", describe(h))
		}
		seen := map[string]bool{}
		for _, p := range h.pairs {
			name, ok := l.text(p.key, "response.headers")
			if !ok {
				continue
			}
			if !headerName.MatchString(name) {
				l.err(p.key, "", "response.headers: %q is no name of a header", clip(name))
				continue
			}
			if lower := strings.ToLower(name); seen[lower] {
				l.err(p.key, "", "response.headers: %s stands twice", name)
			} else {
				seen[lower] = true
			}
			r.Headers = append(r.Headers, Pair{Name: name, Value: line(p.value, "response.headers."+name)})
		}
	}
	if c := keys.val("content_type"); c != nil {
		r.ContentType = line(c, "response.content_type")
	}
	if b := keys.val("body"); b != nil {
		r.Body, _ = l.text(b, "response.body")
	}
	return r
}

// compile makes the windows of r from its entries, and those of its overrides.
func (l *loader) compile(s settings, r *Rule, entries []allowance, override *element) {
	used := map[algo.Algorithm]bool{}
	calendar := false
	windows := func(entries []allowance) []*Window {
		var list []*Window
		for _, e := range entries {
			c, ok := l.config(s, e)
			used[c.Algorithm] = true
			if !ok {
				continue
			}
			calendar = calendar || c.Calendar != algo.NoCalendar
			limit, err := algo.New(c)
			if err != nil {
				l.err(e.at, "", "allow: %v", err)
				continue
			}
			list = append(list, &Window{Rule: r, Seconds: seconds(c), Limit: limit})
		}
		return list
	}
	r.Windows = windows(entries)
	l.nameWindows(r, entries)
	if override != nil {
		if s.algorithm == nil && len(used) == 1 && used[algo.TokenBucket] {
			bucket := algo.TokenBucket // a rate alone, put in place of a bucket, is a bucket
			s.inherited = &bucket
		}
		l.override(r, override, s.parts, windows)
	}
	if len(used) > 0 {
		l.checkFit(s, used, calendar)
	}
}

// config is the limit that one entry of allow asks for.
func (l *loader) config(s settings, e allowance) (algo.Config, bool) {
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
	case slots && c.Algorithm != algo.Concurrency:
		l.err(e.at, fmt.Sprintf("as in: %d/min", e.rate.N), "allow: a bare number is for concurrency; %s needs N/unit or N/duration", c.Algorithm)
		return c, false
	case !slots && c.Algorithm == algo.Concurrency:
		l.err(e.at, fmt.Sprintf("as in: allow: %d", e.rate.N), "allow: concurrency takes a bare number, the most that may be in flight; got %s", e.rate)
		return c, false
	case e.hasBurst && !slices.Contains(optionFits["burst"], c.Algorithm):
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
			l.err(s.at["buckets"], "take "+dividers(c.Window, s.buckets), "buckets: %d does not divide the window of %s into whole microseconds", s.buckets, e.rate)
			return c, false
		}
	case algo.FixedWindow:
		c.FirstRequest = s.first
		if !s.first && (!s.lyft || s.calendar) {
			switch e.rate.Unit {
			case "day":
				c.Calendar = algo.Day
			case "week":
				c.Calendar = algo.Week
			case "month":
				c.Calendar = algo.Month
			case "year":
				c.Calendar = algo.Year
			}
		}
		if c.Calendar != algo.NoCalendar {
			c.Location = s.location
		}
	case algo.TokenBucket:
		c.RefillInterval = s.interval
	case algo.Concurrency:
		c.Timeout = s.timeout
	}
	if slices.Contains(optionFits["count_denied"], c.Algorithm) {
		if s.denied != nil {
			c.CountDenied = *s.denied
		} else {
			c.CountDenied = s.lyft && c.Algorithm == algo.FixedWindow
		}
	}
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

// seconds is the nominal window in seconds, fractions rounded up.
func seconds(c algo.Config) int64 {
	return int64((c.Window + time.Second - 1) / time.Second)
}

// checkFit reports the options that fit none of the algorithms in use.
func (l *loader) checkFit(s settings, used map[algo.Algorithm]bool, calendar bool) {
	for option, v := range s.at {
		if option == "algorithm" {
			continue
		}
		if !slices.ContainsFunc(optionFits[option], func(a algo.Algorithm) bool { return used[a] }) {
			var names []string
			for a := algo.SlidingWindow; a <= algo.Concurrency; a++ {
				if used[a] {
					names = append(names, a.String())
				}
			}
			hint := ""
			if s.at["algorithm"] == nil {
				hint = fmt.Sprintf("no algorithm is named, so it is %s; name one with algorithm", strings.Join(names, " and "))
			}
			l.err(v, hint, "%s does not fit %s: it fits %s", option, strings.Join(names, " and "), fits(option))
			continue
		}
		if option == "timezone" && !calendar && s.location != nil {
			hint := "as in: allow: 100/day"
			switch {
			case s.first:
				hint = "leave out align: first_request, whose windows know no time zone"
			case s.lyft && !s.calendar:
				hint = "add calendar: true, and a unit of day, week, month or year"
			}
			l.err(v, hint, "timezone needs windows of the calendar: day, week, month or year")
		}
		if option == "calendar" && s.calendar && !calendar {
			l.err(v, "", "calendar: true needs a unit of day, week, month or year, and no align: first_request")
		}
	}
}

// nameWindows names the windows of r, and refuses two that one name and one counter would have to share.
func (l *loader) nameWindows(r *Rule, entries []allowance) {
	if len(r.Windows) == 1 && len(entries) == 1 {
		r.Windows[0].Name = r.Name
		return
	}
	seen := map[string]bool{}
	for i, w := range r.Windows {
		w.Name = r.Name + ":" + spell(w.Limit.Config())
		if seen[w.Name] && len(r.Windows) == len(entries) {
			l.err(entries[i].at, "keep the one that is meant, or make two limits of them", "allow: two entries with a window of %s", spell(w.Limit.Config()))
		}
		seen[w.Name] = true
	}
}

// spell is a window's length in seconds, as in 60s; below a second with the fraction that tells windows apart.
func spell(c algo.Config) string {
	if c.Window%time.Second == 0 {
		return strconv.FormatInt(int64(c.Window/time.Second), 10) + "s"
	}
	return strconv.FormatFloat(float64(c.Window/time.Microsecond)/1e6, 'f', -1, 64) + "s"
}

// override reads override. parts is the number of values that make a key.
func (l *loader) override(r *Rule, v *element, parts int, windows func([]allowance) []*Window) {
	if v.kind != mapKind {
		l.err(v, "as in: override: {acme: 1000/min}", "override: expected a mapping from keys to rates, got %s", describe(v))
		return
	}
	if parts == 0 {
		l.err(v, "add per, as in: per: [user]", "override names keys of per, and this limit has one counter only")
		return
	}
	seen := map[string]bool{}
	for _, p := range v.pairs {
		key, ok := l.text(p.key, "override")
		if !ok {
			continue
		}
		values := []string{key}
		if parts > 1 {
			if values = strings.Split(key, ","); len(values) != parts {
				l.err(p.key, "join them with commas in the order of per", "override: %q holds %d values, but a key of this limit has %d", clip(key), len(values), parts)
				continue
			}
			for i := range values {
				values[i] = strings.TrimSpace(values[i])
			}
		}
		if slices.Contains(values, "") && r.Lyft == nil {
			l.err(p.key, "", "override: %q holds an empty value, which never makes a key", clip(key))
			continue
		}
		if joined := strings.Join(values, ","); seen[joined] {
			l.err(p.key, "remove one", "override: the key %q stands twice", clip(key))
			continue
		} else {
			seen[joined] = true
		}
		entries, unlimited := l.allow(p.value, "override."+clip(key))
		o := Override{Values: values, Unlimited: unlimited, Pos: l.pos(p.key), Windows: windows(entries)}
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
