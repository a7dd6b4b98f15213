package changes

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

func load(t *testing.T, texts ...string) *rule.Set {
	t.Helper()
	var files []file.Source
	for i, text := range texts {
		files = append(files, file.Source{Name: fmt.Sprint("f", i, ".yaml"), Data: []byte(text)})
	}
	set, _, err := file.Load(files, file.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, texts)
	}
	return set
}

// limit is a file with one limit, images, whose lines follow.
func limit(lines string) string {
	return "domain: shop\nlimits:\n  - name: images\n    " + strings.ReplaceAll(lines, "\n", "\n    ") + "\n"
}

// TestFields: whatever a rule file changes in a rule is said by the name of its key, with both
// values.
func TestFields(t *testing.T) {
	const base = "per: [user]\nallow: 600/min"
	for _, c := range []struct{ before, after, want string }{
		{base, "per: [user]\nallow: 700/min", "allow 600/min → 700/min"},
		{base, "per: [user]\nallow: [600/min, 10000/day]", "allow 600/min → 600/min, 10000/day"},
		{base, "per: [user]\nallow: 100/15m", "allow 600/min → 100/15m"},
		{base, "per: [user]\nallow: unlimited", "allow 600/min → unlimited, algorithm sliding_window → none"},
		{base, "per: [user]\nallow: 25 concurrent", "allow 600/min → 25 concurrent, algorithm sliding_window → concurrency, timeout 30s"},
		{base, "allow: 600/min", "per user → none"},
		{base, "per: [user|ip, path]\nallow: 600/min", "per user → user|ip, path"},
		{base, base + "\nenforce: 10%", "enforce all → 10%"},
		{base, base + "\non_limit: shadow", "on_limit reject → shadow"},
		{base, base + "\non_limit: {wait: 2s}", "on_limit reject → wait 2s"},
		{base, base + "\non_limit: {wait: {max: 2s, queue: 7}}", "on_limit reject → wait 2s, queue 7"},
		{base, base + "\non_limit: {defer: orders}", "on_limit reject → defer orders"},
		{base, base + "\nwhen: { path: [/a, \"!/b\"], method: GET }", "when none → path /a, !/b; method GET"},
		{base, base + "\nif: attr.plan == \"free\"", "if none → attr.plan == \"free\""},
		{base, base + "\npaths: exact", "paths none → exact"},
		{base, base + "\nalgorithm: token_bucket", "algorithm sliding_window → token_bucket"},
		{base + "\nalgorithm: token_bucket", "per: [user]\nalgorithm: token_bucket\nallow: {rate: 600/min, burst: 20}", "allow 600/min → 600/min burst 20"},
		{base, base + "\nbuckets: 6", "algorithm sliding_window → sliding_window, buckets 6"},
		{base + "\nalgorithm: fixed_window", base + "\nalgorithm: fixed_window\nalign: first_request", "algorithm fixed_window → fixed_window, align first_request"},
		{"per: [user]\nalgorithm: fixed_window\nallow: 9/day", "per: [user]\nalgorithm: fixed_window\nallow: 9/day\ntimezone: Europe/Berlin", "algorithm fixed_window, timezone UTC → fixed_window, timezone Europe/Berlin"},
		{base + "\nalgorithm: token_bucket", base + "\nalgorithm: token_bucket\nrefill: interval", "algorithm token_bucket → token_bucket, refill interval"},
		{base, base + "\ncount_denied: true", "algorithm sliding_window → sliding_window, count_denied"},
		{base, base + "\nthrottle: { soft: 10% }", "algorithm sliding_window → sliding_window, soft 10%"},
		{base, base + "\nthrottle: { elastic: { signal: cpu, curve: { 50%: 100%, 90%: 20% } } }", "throttle none → elastic cpu, 50%: 100%, 90%: 20%"},
		{base, base + "\nschedule: [{ days: sat, allow: 9/min }]", "schedule none → sat: 9/min"},
		{base, base + "\noverride: { acme: 9/min }", "override none → acme 9/min"},
		{base, base + "\ncost: 3", "cost 1 → 3"},
		{base, base + "\ncost: int(attr.n)\ncost_min: 2", "cost 1 → int(attr.n), cost_min none → 2"},
		{base, base + "\ncost_after: int(response.header[\"n\"])\ncost_timeout: 9s", "cost_after none → int(response.header[\"n\"]), cost_timeout none → 9s"},
		{base, base + "\nwarn: 90%", "warn 80% → 90%"},
		{base, base + "\npriority: critical", "priority none → critical"},
		{base, base + "\nban: { after: 5, within: 1m, for: 10m }", "ban none → after 5/1m0s for 10m0s"},
		{base, base + "\non_store_error: deny", "on_store_error none → deny"},
		{base, base + "\nconsistency: { lease: 5% }", "consistency none → lease 5%"},
		{base, base + "\nconsistency: { regions: { over: 20% } }", "consistency none → regions over 20%"},
		{base, base + "\nresponse: { status: 503 }", "response none → status 503"},
		{base, "# a comment\nallow: 600/minute\nper: user", ""},
	} {
		got := Between(load(t, limit(c.before)), load(t, limit(c.after))).Lines()
		want := []string{"shop/images: " + c.want}
		if c.want == "" {
			want = nil
		}
		if len(got) != len(want) || len(got) > 0 && !strings.HasPrefix(got[0], want[0]) {
			t.Errorf("%q → %q: %q, want %q", c.before, c.after, got, want)
		}
	}
}

// TestLyftFields does the same for descriptors.
func TestLyftFields(t *testing.T) {
	text := func(limit, more string) string {
		return "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: { " + limit + " }\n" + more
	}
	const base = "unit: minute, requests_per_unit: 5"
	for _, c := range []struct{ limit, more, want string }{
		{"unit: hour, requests_per_unit: 7", "", "shop/tenant: allow 5/min → 7/hour"},
		{base, "    shadow_mode: true\n", "shop/tenant: shadow_mode none → true"},
		{base, "    quota_mode: true\n", "shop/tenant: quota_mode none → true"},
		{base + ", name: n", "", "shop/tenant: rate_limit.name none → n"},
	} {
		got := Between(load(t, text(base, "")), load(t, text(c.limit, c.more))).Lines()
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%s %s: %q, want %q", c.limit, c.more, got, c.want)
		}
	}
}

// TestBetween: rules that come and go, and what files say of all their rules. That a rule moves to
// another file changes nothing.
func TestBetween(t *testing.T) {
	a := "domain: shop\nlimits:\n  - { name: a, allow: 1/min }\n  - { name: b, allow: 2/min }\n"
	b := "domain: shop\nexempt: { ip: 10.0.0.0/8 }\ngroups: first\nlimits:\n  - { name: b, allow: 2/min }\n  - { name: c, allow: 3/s }\n"
	got := strings.Join(Between(load(t, a), load(t, b)).Lines(), "\n")
	want := "shop: exempt none → ip 10.0.0.0/8, groups none → first of b, c\nshop/a: removed, allow 1/min\nshop/c: added, allow 3/s"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	moved := Between(load(t, a), load(t, "domain: shop\nlimits: [{ name: b, allow: 2/min }]\n", "domain: shop\nlimits: [{ name: a, allow: 1/min }]\n"))
	if len(moved.Changes) != 0 {
		t.Errorf("moved: %v", moved.Lines())
	}
	if all := Between(nil, load(t, a)); len(all.Changes) != 2 || all.Changes[0].Change != insight.Added {
		t.Errorf("from nothing: %v", all.Lines())
	}
	if none := Between(load(t, a), nil); len(none.Changes) != 2 || none.Changes[0].Change != insight.Removed {
		t.Errorf("to nothing: %v", none.Lines())
	}
}

// TestBounded: of a thousand rules that change the first are told, and how many there are; long
// values are cut where they begin to differ.
func TestBounded(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		b.WriteString("domain: shop\nlimits:\n")
		for i := range 1000 {
			fmt.Fprintf(&b, "  - { name: r%03d, per: [user], allow: %d/min }\n", i, n)
		}
		return b.String()
	}
	c := Between(load(t, many(1)), load(t, many(2)))
	lines := c.Lines()
	if len(c.Changes) != insight.MostChanges || c.More != 980 || lines[0] != "shop/r000: allow 1/min → 2/min" ||
		lines[len(lines)-1] != "and 980 more changes" {
		t.Errorf("%d changes, %d more: %q", len(c.Changes), c.More, lines)
	}
	long := func(end string) string {
		return limit("allow: 1/min\nif: attr.x == \"" + strings.Repeat("ä", 300) + end + "\"")
	}
	c = Between(load(t, long("one")), load(t, long("two")))
	f := c.Changes[0].Fields[0]
	if len(f.Before) > insight.MostValue || len(f.After) > insight.MostValue || !strings.HasSuffix(f.Before, "one\"") ||
		!strings.HasSuffix(f.After, "two\"") {
		t.Errorf("%+v", f)
	}
	masked := Between(load(t, limit("per: [user]\nallow: 1/min")),
		load(t, limit("per: [user]\nallow: 1/min\noverride: { ada: 9/min }"))).Masked()
	if got := masked.Lines()[0]; got != "shop/images: override none → …" {
		t.Errorf("masked: %s", got)
	}
}

// TestMasked: no field whose text can hold a key is shown to those who see keys masked, and numbers
// are.
func TestMasked(t *testing.T) {
	const base = "per: [user]\nallow: 600/min"
	const lyft = "domain: shop\ndescriptors:\n  - { key: remote_address, value: %s, rate_limit: { unit: minute, requests_per_unit: 5%s } }\n"
	for _, c := range []struct {
		before, after string
		want          string // the fields that show no key
	}{
		{limit(base), limit(base + "\nwhen: { user: ada }"), "when none → …"},
		{limit(base), limit(base + "\nif: attr.user == \"ada\""), "if none → …"},
		{limit(base), limit(base + "\ncost: \"attr.user == 'ada' ? 1 : 2\""), "cost 1 → …"},
		{limit(base), limit(base + "\ncost: 3"), "cost 1 → 3"},
		{limit(base), limit("per: [user]\nallow: 700/min"), "allow 600/min → 700/min"},
		{limit(base), limit(base + "\nresponse: { body: \"ada, write to us\" }"), "response none → …"},
		{limit(base), "exempt: { user: ada }\n" + limit(base), "exempt none → …"},
		{fmt.Sprintf(lyft, "192.0.2.7", ""), fmt.Sprintf(lyft, "192.0.2.7", ", name: ada"), "rate_limit.name none → …"},
	} {
		before, after := load(t, c.before), load(t, c.after)
		plain, masked := Between(before, after), Between(before, after).Masked()
		if len(plain.Changes) != 1 {
			t.Errorf("%s: %q", c.want, plain.Lines())
			continue
		}
		if got := masked.Lines()[0]; !strings.HasSuffix(got, ": "+c.want) {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	// A descriptor keeps its place among the fields, without what it matches.
	one := insight.RuleChanges{Changes: []insight.RuleChange{{Domain: "shop", Rule: "a", Change: insight.Changed,
		Fields: []insight.FieldChange{{Field: "descriptor", Before: "remote_address=192.0.2.7", After: "remote_address=192.0.2.8"}}}}}
	if got := one.Masked().Lines()[0]; got != "shop/a: descriptor … → …" {
		t.Error(got)
	}
}

// TestAllFields: a field of rule.Rule that is new is compared too, or named here.
func TestAllFields(t *testing.T) {
	compared := []string{"When", "If", "Per", "Windows", "Unlimited", "Regions", "Cost", "CostExpr", "CostMin", "Replaces", "Overrides", "WarnPercent",
		"Wait", "WaitQueue", "Defer", "Elastic", "Schedule", "Priority", "Ban", "CostAfter", "CostTimeout", "Shadow", "ExactPaths", "OnStoreError",
		"EnforcePercent", "Response", "Lyft"}
	not := []string{"Name", "Domain", "Pos", "Index", "Lent", "Exprs", "File"} // who it is, where it stands, what is made of it
	for f := range reflect.TypeFor[rule.Rule]().Fields() {
		if f.IsExported() && !slices.Contains(compared, f.Name) && !slices.Contains(not, f.Name) {
			t.Errorf("rule.Rule.%s: is it compared?", f.Name)
		}
	}
}
