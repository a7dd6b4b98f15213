package file

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// TestHostileYAML loads files that try to cost much: each must come back, without a Set or with
// one, within bounds. The parser's own depth and quadratic parts would make several of them run for
// hours, or exhaust the stack.
func TestHostileYAML(t *testing.T) {
	repeat := func(s string, size int) string { return strings.Repeat(s, size/len(s)) }
	const size = 1 << 17 // what is quadratic in the parser would still take minutes
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i, i,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	var merges strings.Builder
	merges.WriteString("m0: &m0 {a: b}\n")
	for i := 1; i < 2000; i++ {
		fmt.Fprintf(&merges, "m%d: &m%d {<<: *m%d, k%d: v}\n", i, i, i-1, i)
	}
	var chain strings.Builder
	chain.WriteString("c0: &c0 x\n")
	for i := 1; i < 2000; i++ {
		fmt.Fprintf(&chain, "c%d: &c%d [*c%d]\n", i, i, i-1)
	}
	var keys strings.Builder
	keys.WriteString("limits:\n- ")
	for i := range 25_000 {
		fmt.Fprintf(&keys, "k%d: v\n  ", i)
	}
	var nested strings.Builder
	nested.WriteString("domain: d\ndescriptors:\n")
	for i := range 500 {
		fmt.Fprintf(&nested, "%s- key: k\n%s  descriptors:\n", strings.Repeat("  ", i), strings.Repeat("  ", i))
	}
	long := strings.Repeat("k", 1<<20)
	cases := map[string]string{
		"sequences":       repeat("[", size),
		"mappings":        repeat("{", size),
		"mappings of one": repeat("{a: ", size),
		"dashes":          repeat("- ", size),
		"questions":       repeat("? ", size),
		"colons":          repeat(": ", size),
		"keys in a line":  repeat("a: ", size),
		"empty keys":      repeat("a:\n", size),
		"keys":            repeat("a: b\n", size),
		"keys in flow":    "[" + repeat("a: b\n", size) + "]",
		"distinct keys":   keys.String(),
		"empty in flow":   "[" + repeat("{a: , b: },", 2*size) + "]",
		"keys alone":      "{" + repeat("a,", size) + "}",
		"quotes":          repeat("\"", size),
		"single quotes":   repeat("'", size),
		"anchors":         repeat("&a\n", size),
		"tags":            repeat("!a\n", size),
		"long tags":       repeat("!!str\n", size),
		"aliases":         "a: &a b\nc: [" + repeat("*a ,", size) + "]",
		"documents":       repeat("---\n", size),
		"document ends":   repeat("a\n...\n", size),
		"directives":      repeat("%a\n", size),
		"literals":        repeat("- |\n  x\n", size),
		"folded":          repeat("a: >\n\n\n", size),
		"comments":        repeat("#\n", size),
		"long comment":    "#" + repeat("x", size),
		"spaces":          repeat(" ", size),
		"tabs":            repeat("\t", size),
		"line feeds":      repeat("\n", size),
		"returns":         repeat("\r", size),
		"backslashes":     "a: \"" + repeat("\\", size) + "\"",
		"unicode escapes": "a: \"" + repeat("\\u0041", size) + "\"",
		"zeros":           "a: " + repeat("0", size),
		"plain":           repeat("a\n", size),
		"billion laughs":  laughs.String(),
		"merge chain":     merges.String(),
		"alias chain":     chain.String(),
		"nested":          nested.String(),
		"too large":       "limits: [] #" + repeat("x", 8<<20),
		"too many tokens": "limits: [" + repeat("a,", 1<<19+10) + "]",
		"nul":             "a: \x00",
		"not UTF-8":       "limits:\n- name: \xff\n",
		"long names":      "domain: d\ndescriptors: [{key: " + long + ", descriptors: [" + strings.TrimSuffix(strings.Repeat("{key: a},", 1000), ",") + "]}]",
		"large regexps":   largeRegexps(20_000),
		"large classes":   "limits: [{name: a, allow: 1/s, when: {a: ~" + repeat(`\pL`, 64<<10-1) + "}}]",
		"a byte of YAML":  "x",
	}
	wants := map[string]string{ // what stops it, for those that only a bound of ours stops
		"sequences":       "nested more than 128 levels",
		"mappings":        "nested more than 128 levels",
		"mappings of one": "nested more than 128 levels",
		"dashes":          "nested more than 128 levels",
		"nested":          "nested more than 128 levels",
		"alias chain":     "nested more than 128 levels",
		"keys":            "more than 20000 keys",
		"empty keys":      "more than 20000 keys",
		"keys in flow":    "more than 20000 keys",
		"distinct keys":   "more than 20000 keys",
		"empty in flow":   "too many keys without a value",
		"keys alone":      "too many keys without a value",
		"anchors":         "more than 10000 anchors",
		"tags":            "more than 10000 anchors",
		"long tags":       "more than 10000 anchors",
		"aliases":         "more than 10000 anchors",
		"documents":       "more than 100 documents",
		"billion laughs":  "aliases make the file grow",
		"too large":       "at most 8388608 are read",
		"too many tokens": "words and signs",
		"not UTF-8":       "2:9: error loading config file: the file is not valid UTF-8",
		"long names":      "are too long",
		"large classes":   "regular expressions of all rules together are too large",
		"large regexps":   "regular expressions of all rules together are too large",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			if slices.Contains([]string{"folded", "large regexps", "too many tokens"}, name) {
				effort.Long(t, "has the parser work to its bounds")
			}
			set, _, err := load(t, "x.yaml", text)
			if err == nil {
				t.Fatalf("loaded %d rules", len(set.Rules()))
			}
			if n := len(err.Error()); n > 16<<20 {
				t.Errorf("an error of %d bytes", n)
			}
			if !strings.Contains(err.Error(), wants[name]) {
				t.Errorf("got %q, want an error with %q", message.Clip(err.Error()), wants[name])
			}
		})
	}
}

func largeRegexps(n int) string {
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {name: r%d, allow: 1/s, when: {a: \"~%d.{1000}\"}}\n", i, i)
	}
	return b.String()
}

// TestNotTooStrict holds the bounds against ordinary large files.
func TestNotTooStrict(t *testing.T) {
	var overrides strings.Builder
	overrides.WriteString("limits:\n- name: a\n  per: [user]\n  allow: 1/s\n  override:\n")
	for i := range 10_000 {
		fmt.Fprintf(&overrides, "    user-%d: %d/s\n", i, i)
	}
	set, _, err := load(t, "x.yaml", overrides.String())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(set.Rules()[0].Overrides); n != 10_000 {
		t.Errorf("%d overrides", n)
	}
	var deep strings.Builder
	deep.WriteString("domain: d\ndescriptors:\n")
	for i := range 50 {
		fmt.Fprintf(&deep, "%s- key: k\n%s  descriptors:\n", strings.Repeat("    ", i), strings.Repeat("    ", i))
	}
	if set, _, err = load(t, "x.yaml", deep.String()); err != nil {
		t.Fatal(err)
	}
	if got := len(set.Rules()[0].Lyft.Path); got != 50 {
		t.Errorf("%d levels", got)
	}
	var flat strings.Builder
	flat.WriteString("domain: d\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&flat,
			"  - key: user\n    value: u%d\n    shadow_mode:\n    rate_limit:\n      unit: minute\n      requests_per_unit: %d\n", i, i)
	}
	if _, _, err = load(t, "x.yaml", flat.String()); err != nil {
		t.Fatal(err)
	}
}

func TestPlainType(t *testing.T) {
	for text, want := range map[string]string{
		"abc": "string", "": "string", "yes": "bool", "on": "bool", "y": "bool", "True": "bool", "5": "int", "-5": "int", "+5": "int",
		"0x10": "int", "010": "int", "0b11": "int", "0o7": "int", "1_000": "int", "18446744073709551615": "int", "1.5": "float",
		"1e+3": "float", "1e3": "string", ".5": "float", "5.": "string", ".inf": "float", "-.inf": "float", ".nan": "float",
		"2020-01-01": "timestamp", "2020-1-1 1:2:3": "timestamp", "2020-01-01T00:00:00Z": "timestamp", "1.2.3.4": "string",
		"10/min": "string", "::1": "string", "<<": "string", "-": "string", ".": "string", "99999999999999999999": "float",
	} {
		if got := plainType(&yaml.Node{Kind: yaml.Scalar, Text: text}); got != want {
			t.Errorf("%q is a %s, want %s", text, got, want)
		}
		if got := plainType(&yaml.Node{Kind: yaml.Scalar, Text: text, Quoted: true}); got != "string" {
			t.Errorf("quoted %q is a %s", text, got)
		}
	}
}

// FuzzLoad: no input panics or runs away, every problem has a place within the file, and what is
// accepted makes a Set that can be asked, linted and loaded again to the same rules.
func FuzzLoad(f *testing.F) {
	f.Add(string(Starter().Data))
	for _, c := range fuzzSeeds {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			return
		}
		set, warnings, err := Load([]Source{{Name: "f.yaml", Data: []byte(text)}}, Options{})
		lines := strings.Count(text, "\n") + strings.Count(text, "\r") + 2
		check := func(p rule.Problem) {
			if p.Message == "" || p.Pos.Line < 0 || p.Pos.Line > lines || p.Pos.Column < 0 {
				t.Errorf("bad problem %+v", p)
			}
		}
		for _, w := range warnings {
			check(w)
		}
		if err != nil {
			if set != nil {
				t.Error("a Set beside an error")
			}
			for _, p := range err.(rule.Problems) {
				check(p)
			}
			return
		}
		for _, p := range Lint(set, LintOptions{}) {
			check(p)
		}
		var m rule.Matches
		for _, r := range set.Rules() {
			if r.Name == "" && r.Lyft == nil || r.Domain == "" || r.EnforcePercent < 0 || r.EnforcePercent > 100 {
				t.Errorf("bad rule %+v", r)
			}
			for _, w := range r.Windows {
				if w.Limit == nil || w.Counter == nil || w.Name == "" || w.Rule != r {
					t.Errorf("bad window %+v of %s", w, r.Name)
				}
			}
			q := rule.Query{Domain: r.Domain, Attributes: rule.Map{"ip": "192.0.2.1", "path": "/x", "user": "u",
				"key": "k"}}
			if r.Lyft != nil {
				q = rule.Query{Domain: r.Domain, Descriptors: []rule.Descriptor{{Entries: r.Lyft.Path}}}
			}
			set.Match(&q, &m)
			if !m.Known {
				t.Errorf("domain %q is not known", r.Domain)
			}
			set.BanKeys(&m, func(r *rule.Rule, key []byte) bool {
				if r.Ban == nil || r.Ban.Counter == nil || len(r.Windows[0].KeyParts(key)) != len(r.Per) {
					t.Errorf("a ban of %s for %x", r.Name, key)
				}
				return true
			})
			for _, w := range r.Windows {
				var s, margin algo.State
				for _, value := range []int{0, 33, 100} {
					w.Scaled(value).TakeWith(&s, &margin, 1_700_000_000_000_000,
						algo.Ask{Cost: 1, MaxDelay: -1, Slot: 1})
				}
			}
			r.CostOf(rule.ResponseInfo{Status: 200, Header: func(string) string { return "5" }})
			if r.Response != nil {
				render(r.Response, "text/html", rule.ResponseData{Limit: r.Name})
				r.Response.RenderHeaders(nil, rule.ResponseData{Limit: r.Name})
			}
		}
		again, _, err := Load([]Source{{Name: "f.yaml", Data: []byte(text)}}, Options{})
		if err != nil || len(again.Rules()) != len(set.Rules()) {
			t.Fatalf("loads once but not twice: %v", err)
		}
	})
}

var fuzzSeeds = []string{
	"", "{}", "domain: x", "limits: [{name: a, allow: 5 concurrent}]", "limits:\n- name: a\n  per: [user|ip, path]\n  allow: [10/min, 500/hour]\n  override: {\"a,b\": unlimited}\n",
	"domain: d\ndescriptors:\n- key: a\n  value: b*\n  rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: x}]}\n  descriptors: [{key: c}]\n",
	"limits:\n- &a {name: a, allow: 1/s}\n- <<: *a\n  name: b\n", "a: &a [*a]", "---\n---\n", "limits: [{name: a, allow: {rate: 1/s, burst: 0}, algorithm: leaky_bucket, on_limit: {wait: 1s}}]",
	"limits:\n- name: a\n  allow: 10/month\n  algorithm: fixed_window\n  timezone: Europe/Berlin\n  when: {path: /a/**, ip: [10.0.0.0/8, \"!10.1.1.1\"], x: ~a.*b}\n  if: path == 'x'\n  cost: int(attr.x)\n",
	"exempt: {ip: 1.2.3.4}\ngroups: first\nlimits: [{name: a, allow: 1/s, throttle: {soft: 10%}, enforce: 5%, per: ip, response: {status: 503, headers: {a: b}}}]",
	"domain: d\ndescriptors: [{key: 5, value: yes, metadata: {a: [1, {b: c}]}, shadow_mode: on, rate_limit: {unlimited: true}}]",
	"limits:\n- name: a\n  per: [ip]\n  allow: [10/min, {rate: 5/s, burst: 9}]\n  throttle: {soft: {over: 10%, for: 5m}, elastic: {signal: cpu, curve: {50%: 200%, 95%: 0%}}}\n  ban: {after: 20, within: 10m, for: 15m, scope: domain, at: [http, nftables]}\n  priority: critical\n",
	"limits:\n- name: a\n  allow: 10 concurrent\n  timezone: Europe/Berlin\n  schedule: [{days: mon-fri, between: \"22:00-06:00\", allow: 20 concurrent}, {days: \"sat,sun\", allow: unlimited}, {allow: 5 concurrent}]\n  on_limit: {wait: {max: 2s, queue: 500}}\n",
	"limits:\n- name: a\n  allow: 10/min\n  cost: 5\n  cost_after: int(response.header[\"x\"]) + estimate\n  cost_timeout: 1m\n  on_limit: {defer: q}\n  response: {headers: {X: \"{{.ID}}\"}, body: {json: \"{\\\"a\\\": {{json .Limit}}}\", html: \"<b>{{.Limit}}\", text: \"{{if .ID}}x{{end}}\"}}\n",
	"limits: [{name: a, when: {plan: !x }, allow: !!str 1/s}]", "\ufeffdomain: x\r\nlimits: [{name: a, allow: 1/s}]\r\n", "limits: |\n  a\n", "? a\n: b\n", "\"a\\u0000\": b",
}
