package file

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
)

// combination is one way to put the kinds of a rule together.
type combination struct {
	throttle  string // a key of throttles
	algorithm algo.Algorithm
	unlimited bool
	schedule  bool
	onLimit   string // reject, wait, queue, defer, shadow
	ban       string // "", limit, domain
	costAfter bool
	denied    bool // count_denied: true
	priority  string
	perIP     bool
}

var throttles = map[string]string{
	"hard":             "hard",
	"soft":             "{ soft: 10% }",
	"soft for":         "{ soft: { over: 10%, for: 5m } }",
	"elastic":          "{ elastic: { signal: cpu, curve: { 50%: 200%, 95%: 25% } } }",
	"soft+elastic":     "{ soft: 10%, elastic: { signal: cpu, curve: { 50%: 200%, 95%: 25% } } }",
	"soft for+elastic": "{ soft: { over: 10%, for: 5m }, elastic: { signal: cpu, curve: { 50%: 200%, 95%: 0% } } }",
}

// text writes the rule of a combination.
func (c combination) text(name string) string {
	var b strings.Builder
	allow, other := "100/min", "20/min"
	if c.algorithm == algo.Concurrency {
		allow, other = "100", "20"
	}
	if c.unlimited {
		allow, other = "unlimited", "unlimited"
	}
	fmt.Fprintf(&b, "- name: %s\n  allow: %s\n  throttle: %s\n", name, allow, throttles[c.throttle])
	if !c.unlimited {
		fmt.Fprintf(&b, "  algorithm: %s\n", c.algorithm)
	}
	if c.perIP {
		b.WriteString("  per: [ip]\n")
	}
	if c.schedule {
		fmt.Fprintf(&b,
			"  schedule: [{ days: mon-fri, between: \"08:00-20:00\", allow: %s }, { days: sun, allow: unlimited }]\n  timezone: Europe/Berlin\n", other)
	}
	switch c.onLimit {
	case "wait":
		b.WriteString("  on_limit: { wait: 2s }\n")
	case "queue":
		b.WriteString("  on_limit: { wait: { max: 2s, queue: 5 } }\n")
	case "defer":
		b.WriteString("  on_limit: { defer: later }\n")
	default:
		fmt.Fprintf(&b, "  on_limit: %s\n", c.onLimit)
	}
	if c.ban != "" {
		fmt.Fprintf(&b, "  ban: { after: 5, within: 1m, for: 1h, scope: %s }\n", c.ban)
	}
	if c.costAfter {
		b.WriteString("  cost_after: int(response.header[\"x-tokens\"])\n")
	}
	if c.denied {
		b.WriteString("  count_denied: true\n")
	}
	fmt.Fprintf(&b, "  priority: %s\n", c.priority)
	return b.String()
}

// contradictions are the reasons for which combinations are refused. Those with stage 2, which are
// of the rule as a whole, are looked for only where there is none of stage 1; those with stage 0
// stand apart.
var contradictions = []struct {
	stage    int
	when     func(c combination) bool
	fragment string
}{
	{0, func(c combination) bool { return c.onLimit == "queue" && c.leaky() }, "on_limit.wait.queue does not fit leaky_bucket"},
	{1, func(c combination) bool { return c.closes() && c.slots() }, "throttle.soft.for does not fit concurrency"},
	{1, func(c combination) bool { return c.denied && (c.leaky() || c.slots() || c.is(algo.TokenBucket)) }, "count_denied does not fit"},
	{1, func(c combination) bool { return c.unlimited && c.schedule }, "schedule: there is no limit at any time"},

	{2, func(c combination) bool { return c.unlimited && c.throttle != "hard" }, "throttle has no meaning where nothing is limited"},
	{2, func(c combination) bool { return c.unlimited && (c.onLimit == "wait" || c.onLimit == "queue") }, "on_limit.wait has no meaning"},
	{2, func(c combination) bool { return c.unlimited && c.onLimit == "defer" }, "on_limit.defer has no meaning"},
	{2, func(c combination) bool { return c.unlimited && c.ban != "" }, "ban has no meaning"},
	{2, func(c combination) bool { return c.unlimited && c.costAfter }, "cost_after has no meaning"},

	{2, func(c combination) bool { return !c.unlimited && c.denied && c.keeps() }, "does not fit count_denied"},
	{2, func(c combination) bool { return !c.unlimited && c.ban != "" && c.onLimit == "shadow" }, "a rule in shadow bans nobody"},
	{2, func(c combination) bool { return c.bans() && !c.perIP }, "ban needs per"},
	{2, func(c combination) bool { return c.bans() && c.perIP && c.onLimit == "defer" }, "ban does not fit on_limit.defer"},
	{2, func(c combination) bool { return c.bans() && c.perIP && c.waits() && !c.leaky() }, "ban does not fit on_limit.wait, except for leaky_bucket"},
	{2, func(c combination) bool { return c.costAfter && c.leaky() }, "cost_after does not fit leaky_bucket"},
	{2, func(c combination) bool { return c.costAfter && c.slots() }, "cost_after does not fit concurrency"},
}

func (c combination) is(a algo.Algorithm) bool { return !c.unlimited && c.algorithm == a }
func (c combination) leaky() bool              { return c.is(algo.LeakyBucket) }
func (c combination) slots() bool              { return c.is(algo.Concurrency) }
func (c combination) closes() bool             { return strings.HasPrefix(c.throttle, "soft for") }
func (c combination) waits() bool              { return c.onLimit == "wait" || c.onLimit == "queue" }
func (c combination) keeps() bool              { return c.waits() || c.onLimit == "defer" }
func (c combination) bans() bool {
	return !c.unlimited && c.ban != "" && c.onLimit != "shadow"
}

// expected returns the fragments of the errors of a combination; none if it loads.
func (c combination) expected() []string {
	var list []string
	at := 0
	for _, x := range contradictions {
		if at == 1 && x.stage > at {
			break
		}
		if x.when(c) {
			list, at = append(list, x.fragment), max(at, x.stage)
		}
	}
	return list
}

// TestCombinations puts everything together with everything: each combination loads, or is refused
// for exactly the reasons for which it means nothing.
func TestCombinations(t *testing.T) {
	effort.Long(t, "loads hundreds of thousands of combinations")
	for throttle := range throttles {
		t.Run(throttle, func(t *testing.T) { testCombinations(t, throttle) })
	}
}

func testCombinations(t *testing.T, throttle string) {
	all := map[string]combination{}
	var file, good strings.Builder
	file.WriteString("limits:\n")
	good.WriteString("limits:\n")
	flags := []bool{false, true}
	for a := algo.SlidingWindow; a <= algo.Concurrency+1; a++ { // one more is for unlimited
		for _, schedule := range flags {
			for _, onLimit := range []string{"reject", "wait", "queue", "defer", "shadow"} {
				for _, ban := range []string{"", "limit", "domain"} {
					for _, bits := range []int{0, 1, 2, 3, 4, 5, 6, 7} {
						c := combination{
							throttle: throttle, algorithm: a, unlimited: a > algo.Concurrency, schedule: schedule, onLimit: onLimit, ban: ban,
							costAfter: bits&1 != 0, denied: bits&2 != 0, perIP: bits&4 != 0, priority: []string{"default", "critical", "sheddable"}[len(all)%3],
						}
						if c.denied && c.unlimited || c.onLimit == "queue" && (c.denied || c.costAfter) {
							continue // nothing that others do not show
						}
						name := fmt.Sprintf("c%d", len(all))
						all[name] = c
						file.WriteString(c.text(name))
					}
				}
			}
		}
	}
	_, _, err := load(t, "all.yaml", file.String())
	var problems rule.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("got %v", err)
	}
	byRule := map[string][]string{}
	for _, p := range problems {
		byRule[p.Rule] = append(byRule[p.Rule], p.Message)
		if p.Pos.Line == 0 || p.Pos.Column == 0 || p.Hint == "" && !strings.HasPrefix(p.Message, "count_denied") {
			t.Fatalf("no place, or no advice: %+v", p)
		}
	}
	loads, fails := 0, 0
	for name, c := range all {
		want := c.expected()
		got := byRule[name]
		matched := len(got) == len(want)
		for _, fragment := range want {
			matched = matched && slices.ContainsFunc(got, func(m string) bool { return strings.Contains(m, fragment) })
		}
		if !matched {
			t.Errorf("%+v:\n%sgot %q, want %q", c, c.text(name), got, want)
			if fails++; fails > 5 {
				t.Fatal("and so on")
			}
		}
		if len(want) == 0 {
			loads++
			good.WriteString(c.text(name))
		}
	}
	if loads < len(all)/5 || loads > len(all)*4/5 {
		t.Errorf("%d of %d load: is that a test?", loads, len(all))
	}
	if t.Failed() {
		return
	}
	set, _, err := load(t, "good.yaml", good.String())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(set.Rules()); n != loads {
		t.Errorf("%d rules of %d", n, loads)
	}
	ids := map[uint64]string{}
	take := func(c *rule.Counter, what string) {
		if c == nil {
			t.Fatalf("%s has no counter", what)
		}
		if other := ids[c.ID]; other != "" {
			t.Fatalf("%s and %s have the same ID", what, other)
		}
		ids[c.ID] = what
	}
	for _, r := range set.Rules() {
		all[r.Name].check(t, r)
		for _, w := range r.Windows {
			take(w.Counter, w.Name)
			if w.Counter.Margin != nil {
				take(w.Counter.Margin, w.Name+"'s margin")
			}
		}
		if r.Ban != nil {
			take(r.Ban.Counter, r.Name+"'s ban")
		}
	}
}

// check compares a rule with the combination.
func (c combination) check(t *testing.T, r *rule.Rule) {
	t.Helper()
	bad := func(format string, args ...any) {
		t.Errorf("%s:\n%s%s", r.Name, c.text(r.Name), fmt.Sprintf(format, args...))
	}
	if r.Unlimited != c.unlimited || (r.Elastic != nil) != strings.Contains(c.throttle, "elastic") ||
		(r.Ban != nil) != (c.ban != "") || (r.CostAfter != "") != c.costAfter {
		bad("got %+v", r)
	}
	if r.Shadow != (c.onLimit == "shadow") || (r.Wait > 0) != c.waits() || (r.Defer != "") != (c.onLimit == "defer") ||
		(len(r.Schedule) > 0) != c.schedule {
		bad("got %+v", r)
	}
	if want := map[string]rule.Priority{"critical": rule.Critical, "default": rule.DefaultPriority, "sheddable": rule.Sheddable}[c.priority]; r.Priority != want {
		bad("priority %d", r.Priority)
	}
	if want := map[string]int{"wait": rule.DefaultWaitQueue, "queue": 5}[c.onLimit]; r.WaitQueue != want &&
		!c.leaky() || c.leaky() && r.WaitQueue != 0 {
		bad("queue %d", r.WaitQueue)
	}
	if c.unlimited {
		return
	}
	w := r.Windows[0]
	config := w.Limit.Config()
	if len(r.Windows) != 1 || w.Name != r.Name || config.Algorithm != c.algorithm || config.N != 100 ||
		w.Limit.Scheduled() != c.schedule || config.CountDenied != c.denied {
		bad("window %s: %+v", w.Name, config)
	}
	if soft := strings.Contains(c.throttle, "soft"); (config.Soft == 10) != soft || (config.SoftFor > 0) != c.closes() {
		bad("soft %d for %v", config.Soft, config.SoftFor)
	}
	if m := w.Counter.Margin; (m != nil) != c.closes() ||
		m != nil && (m.Group != w.Counter.Group || uint32(m.ID) == uint32(w.Counter.ID) || m.Limit == nil ||
			m.Limit.Algorithm() != algo.Margin || m.Index != -1) {
		bad("margin %+v", m)
	}
	if r.Elastic == nil {
		if w.Scaled(95) != w.Limit {
			bad("scaled without a signal")
		}
		return
	}
	for value := range 101 {
		l := w.Scaled(value)
		num, den := r.Elastic.Share(value)
		want := 100 * num / den
		if num > 0 {
			want = max(1, want)
		}
		if l == w.Limit && want != 100 || l.Config().N != want || l.Scheduled() != c.schedule || w.Scaled(value) != l {
			bad("at %d%%: %v, want N %d", value, l, want)
			return
		}
	}
}
