package file

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// only loads a file with one rule.
func only(t testing.TB, text string) (*rule.Set, *rule.Rule) {
	t.Helper()
	set, _, err := load(t, "x.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	return set, set.Rules()[0]
}

// A margin that closes has a state of its own, which a reload carries as it carries the limit's,
// and which outlasts the slowest limit that may be in force.
func TestMarginCounters(t *testing.T) {
	const soft = "throttle: {soft: {over: 10%, for: 5m}}"
	set := func(text string) *rule.Set {
		s, _ := only(t, "limits: [{name: a, per: [user], "+text+"}]")
		return s
	}
	chain := func(s *rule.Set) string {
		var list []string
		for _, c := range s.Counters() {
			if c.Override {
				continue
			}
			text := fmt.Sprint(c.Window, " ", c.Limit.Config().Window)
			if c.Margin != nil {
				text += " +margin"
				for _, p := range c.Margin.Previous {
					text += "<" + p.Limit.Config().Window.String()
					if p.Previous != nil {
						text += "(holds on to its past)"
					}
				}
			}
			list = append(list, text)
		}
		return strings.Join(list, ", ")
	}
	for _, c := range []struct {
		name  string
		steps []string
		want  string
	}{
		{"none", []string{"allow: 100/min"}, "a 1m0s"},
		{"one that stays open", []string{"allow: 100/min, throttle: {soft: 10%}"}, "a 1m0s"},
		{"one", []string{"allow: 100/min, " + soft}, "a 1m0s +margin"},
		{"of two windows one", []string{"allow: [5/s, 100/min], " + soft}, "a:1s 1s, a:60s 1m0s +margin"},
		{"of an override only", []string{"allow: 100/min, override: {big: 1000/hour}, " + soft}, "a 1m0s +margin, a:3600s 1h0m0s +margin"},
		{"of an override with the window of the rule", []string{"allow: [100/min, 5/s], override: {big: 1000/s}, " + soft}, "a:60s 1m0s +margin, a:1s 1s +margin"},
		{"of a phase only", []string{"allow: 5/min, schedule: [{days: mon, allow: 100/min}], throttle: {soft: {over: 20%, for: 5m}}"}, "a 1m0s +margin"},
		{"the same again", []string{"allow: 100/min, " + soft, "allow: 200/min, " + soft}, "a 1m0s +margin"},
		{"another window", []string{"allow: 100/min, " + soft, "allow: 100/2m, " + soft}, "a 2m0s +margin<1m0s"},
		{"two windows later", []string{"allow: 100/min, " + soft, "allow: 100/2m, " + soft, "allow: 100/3m, " + soft, "allow: 100/3m, " + soft}, "a 3m0s +margin<2m0s<1m0s"},
		{"the margin is new", []string{"allow: 100/min", "allow: 100/2m, " + soft}, "a 2m0s +margin"},
		{"the margin is gone", []string{"allow: 100/min, " + soft, "allow: 100/2m"}, "a 2m0s"},
	} {
		var last *rule.Set
		for _, text := range c.steps {
			next := set(text)
			next.Inherit(last)
			last = next
		}
		if got := chain(last); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}

	// The bucket of the override drains for 100 minutes, and at 10 % of the signal for a thousand:
	// the state of its margin is not forgotten before.
	s := set(
		"allow: {rate: 100/min, burst: 10}, override: {slow: {rate: 1/min, burst: 100}}, throttle: {soft: {over: 10%, for: 5m}, elastic: {signal: cpu, curve: {0%: 100%, 100%: 10%}}}")
	m := s.Counters()[0].Margin
	slow := s.Rules()[0].Overrides[0].Windows[0].Limit
	var state, margin algo.State
	now := int64(1_700_000_000_000_000)
	for range 110 {
		if !slow.TakeWith(&state, &margin, now, algo.Ask{Cost: 1}).Allowed {
			t.Fatal("the margin is not open")
		}
	}
	if m.Limit.Fresh(&margin, now+1) || m.Limit.Check(&margin, now,
		algo.Ask{}).ResetAfter < slow.Margin().Check(&margin, now, algo.Ask{}).ResetAfter {
		t.Errorf("the margin's counter forgets after %v", m.Limit.Check(&margin, now, algo.Ask{}))
	}
}

// Denials that count towards a ban go on counting when the rule is loaded again, also with another
// `within`.
func TestBanCounters(t *testing.T) {
	set := func(text string) *rule.Set {
		s, _ := only(t, "limits: [{name: a, per: [ip], allow: 5/min, ban: {"+text+
			", for: 1h}}, {name: b, per: [ip], allow: 5/min, ban: {after: 5, within: 10m, for: 1h}}]")
		return s
	}
	counter := func(s *rule.Set, i int) *rule.Counter { return s.Rules()[i].Ban.Counter }
	one, two, three := set("after: 5, within: 10m"), set("after: 9, within: 10m"), set("after: 9, within: 20m")
	if a, b := counter(one, 0), counter(two, 0); a.ID != b.ID || b.Limit.Config().N != 9 {
		t.Errorf("another `after` makes another counter: %+v, %+v", a, b)
	}
	if a, b := counter(one, 0), counter(one, 1); a.ID == b.ID || a.Group == b.Group {
		t.Error("two rules share a ban's counter")
	}
	two.Inherit(one)
	three.Inherit(two)
	if p := counter(three, 0).Previous; len(p) != 1 || p[0].ID != counter(two, 0).ID {
		t.Errorf("with another `within` the denials are forgotten: %+v", p)
	}
	if p := counter(three, 1).Previous; len(p) != 0 {
		t.Errorf("what did not change carries on %+v", p)
	}
	four := set("after: 9, within: 10m")
	four.Inherit(three)
	if p := counter(four, 0).Previous; len(p) != 1 || p[0].ID != counter(three, 0).ID || p[0].Previous != nil {
		t.Errorf("there and back: %+v", p)
	}
	for _, c := range three.Counters() {
		if c.ID == counter(three, 0).ID {
			t.Error("a ban's counter is among those of the limits")
		}
	}
}

// At each time the limits of the first entry that fits hold; a window that an entry lacks is off.
func TestScheduleWindows(t *testing.T) {
	set, r := only(t, `
limits:
  - name: a
    allow: [10/min, 1000/day]
    timezone: Europe/Berlin
    schedule:
      - { days: "sat,sun", between: "22:00-02:00", allow: unlimited }
      - { days: fri-mon, allow: [50/min, 20/s] }
      - { between: "08:00-20:00", allow: { rate: 100/min } }
`)
	_ = set
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ at, want string }{
		{"2026-03-24 07:59", "60s:10 86400s:1000"}, // a Tuesday
		{"2026-03-24 08:00", "60s:100"},
		{"2026-03-24 20:00", "60s:10 86400s:1000"},
		{"2026-03-27 08:00", "60s:50 1s:20"}, // Friday
		{"2026-03-28 21:59", "60s:50 1s:20"},
		{"2026-03-28 22:00", ""},
		{"2026-03-29 01:59", ""}, // the night in which the clocks go from 02:00 to 03:00
		{"2026-03-29 03:00", "60s:50 1s:20"},
		{"2026-03-30 01:59", ""}, // Monday morning still belongs to Sunday night
		{"2026-03-30 02:00", "60s:50 1s:20"},
		{"2026-03-31 00:00", "60s:10 86400s:1000"},
	} {
		at, err := time.ParseInLocation("2006-01-02 15:04", c.at, berlin)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, w := range r.Windows {
			if in, _ := w.Limit.At(at.UnixMicro()); in != nil {
				list = append(list, fmt.Sprintf("%s:%d", strings.TrimPrefix(w.Name, "a:"), in.Config().N))
			}
		}
		if got := strings.Join(list, " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.at, got, c.want)
		}
	}
	if got := fmt.Sprint(r.Schedule); got != "[sat,sun 22:00-02:00: unlimited fri-mon: [50/min, 20/s] 08:00-20:00: {rate: 100/min}]" && got != "[sat,sun 22:00-02:00: unlimited mon,fri-sun: [50/min, 20/s] 08:00-20:00: {rate: 100/min}]" {
		t.Errorf("shown as %s", got)
	}
	// The identity of a window does not hang on the schedule: with or without one, the state is the
	// same.
	plain, _ := only(t, "limits: [{name: a, allow: [10/min, 1000/day]}]")
	for i := range 2 {
		if a, b := plain.Counters()[i], set.Counters()[i]; a.ID != b.ID {
			t.Errorf("%s is counted anew with a schedule", a.Window)
		}
	}
	// An override has no schedule.
	_, r = only(t,
		"limits: [{name: a, per: [user], allow: 10/min, override: {big: 99/min}, schedule: [{days: mon, allow: 5/min}]}]")
	if w := r.Overrides[0].Windows[0]; w.Limit.Scheduled() || w.Counter != r.Windows[0].Counter {
		t.Errorf("the override is %v", w.Limit)
	}
}

func TestDays(t *testing.T) {
	for text, want := range map[string]string{
		"mon-fri": "mon-fri", "sat": "sat", "sat,sun": "sat,sun", "fri-mon": "mon,fri-sun", "sun-sat": "mon-sun", "Monday - wednesday , FRI": "mon-wed,fri",
		"mon-mon": "mon", "tue,mon": "mon,tue", "thu-tue": "mon,tue,thu-sun",
	} {
		l := &loader{}
		if got := (rule.SchedulePhase{Days: l.days(&yaml.Node{Kind: yaml.Scalar, Text: text}), Until: message.Day}).When(); got != want || len(l.errors) > 0 {
			t.Errorf("%s: %s, want %s; %v", text, got, want, l.errors)
		}
	}
	for text, want := range map[string]time.Duration{"00:00": 0, "8:05": 8*time.Hour + 5*time.Minute,
		"24:00": 24 * time.Hour, " 23:59 ": 23*time.Hour + 59*time.Minute} {
		if got, ok := timeOfDay(text); got != want || !ok {
			t.Errorf("%s: %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "8", "8:5", "24:01", "25:00", "08:60", "-8:00", "+8:00", "008:00", "08:00:00",
		"0x:00"} {
		if got, ok := timeOfDay(text); ok {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// descriptors reads "k=v,k=v k=v": two descriptors.
func descriptors(text string) []rule.Descriptor {
	var list []rule.Descriptor
	for _, d := range strings.Fields(text) {
		var desc rule.Descriptor
		for _, e := range strings.Split(d, ",") {
			key, value, _ := strings.Cut(e, "=")
			desc.Entries = append(desc.Entries, rule.Entry{Key: key, Value: value})
		}
		list = append(list, desc)
	}
	return list
}

// Bans that hold everywhere find their keys in requests that do not meet the rule, without
// allocating.
func TestBanKeys(t *testing.T) {
	set, _ := only(t, `
domain: shop
exempt: { plan: staff }
limits:
  - { name: login, when: { path: /login }, per: [ip], allow: 5/min, ban: { after: 20, within: 10m, for: 15m, scope: domain } }
  - { name: pair, when: { path: /x }, if: path == "/x", per: [user|ip, ip], allow: 5/min, enforce: 50%, ban: { after: 20, within: 10m, for: 15m, scope: domain } }
  - { name: here, per: [ip], allow: 5/min, ban: { after: 20, within: 10m, for: 15m } }
  - { name: plain, per: [ip], allow: 5/min }
descriptors:
  - key: key
    rate_limit: { unit: day, requests_per_unit: 1, per: [ip], ban: { after: 20, within: 10m, for: 15m, scope: domain } }
`)
	var m rule.Matches
	keys := func(q *rule.Query) string {
		set.Match(q, &m)
		var list []string
		set.BanKeys(&m, func(r *rule.Rule, key []byte) bool {
			list = append(list, r.Name+strings.ReplaceAll(fmt.Sprint(r.Windows[0].KeyParts(key)), " ", ","))
			return true
		})
		return strings.Join(list, " ")
	}
	for _, c := range []struct {
		q    rule.Query
		want string
	}{
		{rule.Query{Attributes: rule.Map{"ip": "192.0.2.1", "path": "/other"}}, "key[ip=192.0.2.1] login[ip=192.0.2.1] pair[ip=192.0.2.1,ip=192.0.2.1]"},
		{rule.Query{Attributes: rule.Map{"ip": "2001:db8::1", "user": "ada"}}, "key[ip=2001:db8::/64] login[ip=2001:db8::/64] pair[user=ada,ip=2001:db8::/64]"},
		{rule.Query{Attributes: rule.Map{"user": "ada", "path": "/login"}}, ""},
		{rule.Query{Attributes: rule.Map{"ip": "192.0.2.1", "plan": "staff"}}, ""},
		{rule.Query{Descriptors: descriptors("remote_address=192.0.2.9")}, "key[ip=192.0.2.9] login[ip=192.0.2.9] pair[ip=192.0.2.9,ip=192.0.2.9]"},
		{rule.Query{Domain: "elsewhere", Attributes: rule.Map{"ip": "192.0.2.1"}}, ""},
	} {
		if c.q.Domain == "" {
			c.q.Domain = "shop"
		}
		if got := keys(&c.q); got != c.want {
			t.Errorf("%v: %s, want %s", c.q, got, c.want)
		}
	}
	var names []string
	for _, r := range set.BanRules("shop") {
		names = append(names, r.Name)
	}
	if want := []string{"key", "login", "pair", "here"}; !slices.Equal(names, want) ||
		set.BanRules("elsewhere") != nil {
		t.Errorf("rules that ban: %q, want %q", names, want)
	}
	// The key of a ban is the key under which the rule is met.
	q := &rule.Query{Domain: "shop", Attributes: rule.Pairs{{Name: "ip", Value: "192.0.2.1"},
		{Name: "path", Value: "/login"}}}
	set.Match(q, &m)
	found := false
	set.BanKeys(&m, func(r *rule.Rule, key []byte) bool {
		for _, h := range m.Hits {
			found = found || h.Window.Rule == r && string(h.Key) == string(key)
		}
		return !found
	})
	if !found {
		t.Error("the key of a ban is none of the rule's")
	}
	n := 0
	if allocs := testing.AllocsPerRun(100, func() {
		set.Match(q, &m)
		set.BanKeys(&m, func(*rule.Rule, []byte) bool { n++; return true })
	}); allocs > 0 || n == 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The most important rule that is met gives the request its priority, also one that limits nothing.
func TestMatchPriority(t *testing.T) {
	set, _ := only(t, `
limits:
  - { name: bulk, when: { path: /bulk/** }, allow: 10/min, priority: sheddable }
  - { name: pay, when: { plan: gold }, allow: unlimited, priority: critical }
  - { name: shadow, when: { plan: silver }, allow: 10/min, priority: critical, on_limit: shadow }
  - { name: lifts, when: { plan: iron }, allow: unlimited, replaces: [bulk] }
`)
	var m rule.Matches
	for _, c := range []struct {
		path, plan string
		want       rule.Priority
	}{
		{"/", "", rule.DefaultPriority}, {"/bulk/1", "", rule.Sheddable}, {"/bulk/1", "gold", rule.Critical}, {"/", "gold", rule.Critical},
		{"/bulk/1", "silver", rule.Sheddable}, {"/", "silver", rule.DefaultPriority}, {"/bulk/1", "iron", rule.DefaultPriority},
	} {
		set.Match(&rule.Query{Domain: "default", Attributes: rule.Map{"path": c.path, "plan": c.plan}}, &m)
		if m.Priority != c.want {
			t.Errorf("%s of %s: %d, want %d", c.path, c.plan, m.Priority, c.want)
		}
	}
}

func TestCostOf(t *testing.T) {
	header := func(h map[string]string) func(string) string { return func(name string) string { return h[name] } }
	for _, c := range []struct {
		source string
		resp   rule.ResponseInfo
		cost   int64
		ok     bool
	}{
		{`int(response.header["x-tokens"])`, rule.ResponseInfo{Header: header(map[string]string{"x-tokens": "123"})}, 123, true},
		{`int(response.header["X-Tokens"])`, rule.ResponseInfo{Header: header(map[string]string{"x-tokens": "123"})}, 123, true},
		{`int(response.header["x-tokens"])`, rule.ResponseInfo{Header: header(map[string]string{"x-tokens": "many"})}, 0, false},
		{`int(response.header["x-tokens"])`, rule.ResponseInfo{Header: header(nil)}, 0, false},
		{`int(response.header["x-tokens"])`, rule.ResponseInfo{}, 0, false},
		{`"x-tokens" in response.header ? int(response.header["x-tokens"]) : estimate`, rule.ResponseInfo{Header: header(nil), Estimate: 7}, 7, true},
		{`has(response.header.tokens) ? int(response.header.tokens) : 1`, rule.ResponseInfo{Header: header(map[string]string{"tokens": "5"})}, 5, true},
		{`has(response.header.tokens) ? int(response.header.tokens) : 1`, rule.ResponseInfo{Header: header(nil)}, 1, true},
		{`response.bytes / 1024`, rule.ResponseInfo{Bytes: 10_240}, 10, true},
		{`int(response.duration * 1000.0)`, rule.ResponseInfo{Duration: 1500 * time.Millisecond}, 1500, true},
		{`response.status >= 500 ? 0 : estimate`, rule.ResponseInfo{Status: 503, Estimate: 9}, 0, true},
		{`estimate - 10`, rule.ResponseInfo{Estimate: 3}, 0, true},
		{`estimate * 1000`, rule.ResponseInfo{Estimate: 1 << 53}, algo.MaxCost, true},
		{`estimate / response.status`, rule.ResponseInfo{Estimate: 3}, 0, false},
		{`["x-a", "x-b"].filter(n, n in response.header).size()`, rule.ResponseInfo{Header: header(map[string]string{"x-b": "1"})}, 1, true},
	} {
		_, r := only(t, fmt.Sprintf("limits: [{name: a, allow: 10/min, cost_after: '%s'}]", c.source))
		if cost, ok := r.CostOf(c.resp); cost != c.cost || ok != c.ok {
			t.Errorf("%s of %+v: %d, %v, want %d, %v", c.source, c.resp, cost, ok, c.cost, c.ok)
		}
	}
	for _, source := range []string{
		`size(response.header)`, `response.header.exists(k, k == "a") ? 1 : 0`, `response.header == {"a": "b"} ? 1 : 0`, `size(true ? response.header : {"a": "b"})`,
		`[response.header].size()`, `{"a": response.header}.size()`, `response.header.map(k, k).size()`, `response.header.size()`, `type(response.header) == map ? 1 : 0`,
	} {
		if _, err := CompileCostAfter(source); err == nil || !strings.Contains(err.Error(), "looked up by name") {
			t.Errorf("%s: %v", source, err)
		}
	}
	_, r := only(t, "limits: [{name: a, allow: 10/min}]")
	if _, ok := r.CostOf(rule.ResponseInfo{}); ok || r.CostTimeout != 5*time.Minute {
		t.Error("a cost without cost_after, or no time-out")
	}
	// Safe for concurrent use.
	_, r = only(t, "limits: [{name: a, allow: 10/min, cost_after: 'int(response.header[\"n\"]) + estimate'}]")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 100 {
				if cost, ok := r.CostOf(rule.ResponseInfo{Header: func(string) string {
					return fmt.Sprint(i)
				}, Estimate: int64(k)}); !ok || cost != int64(i+k) {
					t.Errorf("%d + %d = %d, %v", i, k, cost, ok)
				}
			}
		})
	}
	wg.Wait()
}

// Elastic limits whose numbers do not fit at some value are refused at load, not at some load of
// the machine.
func TestElasticIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "- {name: r%d, per: [ip], allow: [", i)
		for k := range 64 {
			fmt.Fprintf(&b, "%d/%ds,", 10+k, 1+k)
		}
		b.WriteString("], throttle: {elastic: {signal: cpu, curve: {50%: 100%}}}}\n")
	}
	if _, _, err := load(t, "x.yaml", b.String()); err == nil ||
		!strings.Contains(err.Error(), "more than 100000 elastic limits") {
		t.Errorf("got %v", message.Clip(fmt.Sprint(err)))
	}
}
