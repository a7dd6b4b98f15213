package file

import (
	"errors"
	cmdflag "flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

var update = cmdflag.Bool("update", false, "rewrite the expected problems and rules beside the fixtures")

// TestFixtures loads every testdata/*.good.yaml and *.bad.yaml alone and compares what comes back
// with the .txt beside it.
func TestFixtures(t *testing.T) {
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(names) < 20 {
		t.Fatalf("fixtures: %v, %v", names, err)
	}
	for _, name := range names {
		base := filepath.Base(name)
		if strings.HasSuffix(base, ".full.yaml") {
			continue
		}
		t.Run(base, func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			set, warnings, err := Load([]Source{{Name: base, Data: data}}, Options{})
			var got strings.Builder
			switch good := strings.HasSuffix(base, ".good.yaml"); {
			case good && err != nil:
				t.Fatalf("must load, got:\n%v", err)
			case good:
				for _, r := range set.Rules() {
					dumpRule(&got, r)
				}
			case err == nil:
				t.Fatal("must not load")
			default:
				if set != nil {
					t.Error("a Set beside an error")
				}
				var problems rule.Problems
				if !errors.As(err, &problems) || len(problems) == 0 {
					t.Fatalf("not Problems: %T", err)
				}
				for i, p := range problems {
					if i > 0 && p.Pos.Line < problems[i-1].Pos.Line {
						t.Errorf("problems out of order: %v after %v", p.Pos, problems[i-1].Pos)
					}
				}
				got.WriteString(err.Error() + "\n")
			}
			for _, w := range warnings {
				fmt.Fprintf(&got, "warning: %v\n", w)
			}
			expected := strings.TrimSuffix(name, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(expected, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(expected)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
			}
		})
	}
}

// dumpRule writes all that was read of a rule.
func dumpRule(b *strings.Builder, r *rule.Rule) {
	fmt.Fprintf(b, "%s/%s at %d:%d\n", r.Domain, r.Name, r.Pos.Line, r.Pos.Column)
	for _, c := range r.When {
		var sources []string
		for _, p := range c.Patterns {
			sources = append(sources, p.Source)
		}
		fmt.Fprintf(b, "  when %s %q\n", c.Attribute, sources)
	}
	if r.If != "" {
		fmt.Fprintf(b, "  if %s\n", r.If)
	}
	if len(r.Per) > 0 {
		fmt.Fprintf(b, "  per %q\n", r.Per)
	}
	dumpWindows(b, "  ", r.Windows)
	if r.Unlimited {
		b.WriteString("  unlimited\n")
	}
	for _, o := range r.Overrides {
		fmt.Fprintf(b, "  override %q unlimited=%v\n", o.Values, o.Unlimited)
		dumpWindows(b, "    ", o.Windows)
	}
	fmt.Fprintf(b, "  cost=%d%s warn=%d enforce=%d store=%d shadow=%v wait=%v replaces=%q\n",
		r.Cost, r.CostExpr, r.WarnPercent, r.EnforcePercent, r.OnStoreError, r.Shadow, r.Wait, r.Replaces)
	if r.WaitQueue != 0 || r.Defer != "" {
		fmt.Fprintf(b, "  queue=%d defer=%q\n", r.WaitQueue, r.Defer)
	}
	if of := r.Regions; of != nil {
		fmt.Fprintf(b, "  regions over=%d sync=%v tell=%d lent=%v\n", of.Over, of.Sync, of.Tell, r.Lent)
	}
	if e := r.Elastic; e != nil {
		fmt.Fprintf(b, "  elastic %s %v\n", e.Signal, e.Curve)
	}
	for _, p := range r.Schedule {
		fmt.Fprintf(b, "  schedule %s\n", p)
	}
	if r.Priority != rule.DefaultPriority {
		fmt.Fprintf(b, "  priority %d\n", r.Priority)
	}
	if x := r.Ban; x != nil {
		fmt.Fprintf(b, "  ban after=%d within=%v for=%v domain=%v nftables=%v by %s\n", x.After, x.Within, x.For,
			x.Domain, x.NFTables, x.Counter.Limit)
	}
	if r.CostAfter != "" || r.CostTimeout != rule.DefaultCostTimeout {
		fmt.Fprintf(b, "  cost_after %s within %v\n", r.CostAfter, r.CostTimeout)
	}
	if x := r.Response; x != nil {
		var headers []rule.Pair
		for _, h := range x.Headers {
			headers = append(headers, rule.Pair{Name: h.Name, Value: h.Value.Source})
		}
		fmt.Fprintf(b, "  response status=%d headers=%q type=%q body=%q\n", x.Status, headers, x.ContentType,
			x.Body.Source)
		for _, body := range x.Bodies {
			fmt.Fprintf(b, "    %s: %q\n", body.MediaType, body.Text.Source)
		}
	}
	if l := r.Lyft; l != nil {
		fmt.Fprintf(b,
			"  lyft shadow=%v quota=%v detailed=%v name=%q requests=%d unit=%q stats=%q path=%q metadata=%v\n",
			l.Shadow, l.Quota, l.DetailedMetric, l.LimitName, l.RequestsPerUnit, l.Unit, l.StatsKey, l.Path, l.Metadata)
	}
}

func dumpWindows(b *strings.Builder, indent string, windows []*rule.Window) {
	for _, w := range windows {
		c := w.Limit.Config()
		fmt.Fprintf(b, "%s%s: %s N=%d W=%v seconds=%d", indent, w.Name, c.Algorithm, c.N, c.Window, w.Seconds)
		fmt.Fprintf(b, " B=%d K=%d soft=%d calendar=%d location=%v first=%v interval=%v denied=%v timeout=%v\n",
			c.Burst, c.Buckets, c.Soft, c.Calendar, c.Location, c.FirstRequest, c.RefillInterval, c.CountDenied,
			c.Timeout)
		if c.SoftFor > 0 {
			fmt.Fprintf(b, "%s  the margin closes after %v\n", indent, c.SoftFor)
		}
		if c.Lease > 0 {
			fmt.Fprintf(b, "%s  leased %d%% for %v\n", indent, c.Lease, w.Limit.Lease().Config().Timeout)
		}
		if w.Limit.Scheduled() {
			for _, p := range w.Parts() {
				fmt.Fprintf(b, "%s  at times: %s\n", indent, p)
			}
		}
	}
}

// TestSpecExample loads the first example of the specification as it stands.
func TestSpecExample(t *testing.T) {
	full, err := os.ReadFile("testdata/spec_native.full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set, warnings, err := Load([]Source{{Name: "shop.yaml", Data: full}}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	byName := map[string]*rule.Rule{}
	for _, r := range set.Rules() {
		byName[r.Name] = r
	}
	if len(byName) != 6 {
		t.Errorf("%d rules, want 6", len(byName))
	}
	if b := byName["login-attempts"].Ban; b == nil || b.After != 20 || b.Within != 10*time.Minute ||
		b.For != 15*time.Minute || b.Domain || b.NFTables {
		t.Errorf("the ban is %+v", b)
	}
	if e := byName["whole-system"].Elastic; e == nil || e.Signal != "cpu" ||
		!slices.Equal(e.Curve, []rule.Point{{At: 50, Share: 200}, {At: 80, Share: 100}, {At: 95, Share: 25}}) {
		t.Errorf("elastic is %+v", e)
	}
}

// load loads files given as name, text, name, text…
func load(t testing.TB, files ...string) (*rule.Set, []rule.Problem, error) {
	t.Helper()
	var sources []Source
	for i := 0; i < len(files); i += 2 {
		sources = append(sources, Source{Name: files[i], Data: []byte(files[i+1])})
	}
	return Load(sources, Options{})
}

func TestLoadSeveralFiles(t *testing.T) {
	set, warnings, err := load(t,
		"b.yaml", "domain: shop\nlimits: [{name: second, allow: 1/s}]\n",
		"c.yaml", "domain: shop\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
		"a.yaml", "domain: shop\nlimits: [{name: first, allow: 1/s, replaces: [second]}]\n",
		"d.yaml", "limits: [{name: first, allow: 1/s}]\n",
		"e.yaml", "domain: empty\n",
	)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	var got []string
	for i, r := range set.Rules() {
		got = append(got, r.Domain+"/"+r.Name)
		if r.Index != i {
			t.Errorf("%s has index %d, want %d", r.Name, r.Index, i)
		}
	}
	if want := []string{"shop/first", "shop/second", "shop/k", "default/first"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, d := range []string{"shop", "default", "empty"} {
		if !set.HasDomain(d) {
			t.Errorf("domain %s is not there", d)
		}
	}
	files, ok := Sources(set)
	var names strings.Builder
	for _, f := range files {
		names.WriteString(f.Name)
	}
	again, _, err := Load(files, Options{})
	if !ok || names.String() != "a.yamlb.yamlc.yamld.yamle.yaml" || string(files[4].Data) != "domain: empty\n" ||
		err != nil || len(again.Rules()) != len(got) {
		t.Errorf("it was made of %q, %t (%v)", files, ok, err)
	}
	if files, ok := Sources(new(rule.Set)); ok {
		t.Errorf("a set of no files was made of %q", files)
	}
}

func TestLoadAcrossFiles(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string
		want  []string // parts of the problems, in order
	}{
		{"a name twice", []string{"a.yaml", "limits: [{name: x, allow: 1/s}]", "b.yaml", "limits: [{name: x, allow: 1/s}]"}, []string{"b.yaml:1:10: a limit named \"x\""}},
		{"a descriptor twice", []string{
			"a.yaml", "domain: d\ndescriptors: [{key: k, value: v}]", "b.yaml", "domain: d\ndescriptors: [{key: k, value: v}]",
		}, []string{"b.yaml:2:15: duplicate descriptor composite key 'd.k_v'"}},
		{"an unknown name replaced", []string{"a.yaml", "limits: [{name: x, allow: 1/s, replaces: [zz]}]"}, []string{"replaces names \"zz\""}},
		{"errors of several files at once, also across them", []string{
			"b.yaml", "limits: [{name: x, allow: 1/s}, {name: y, allow: 1/zz}]", "a.yaml", "limits: [{name: x, alow: 1/s}]",
		}, []string{"a.yaml:1:10: allow is missing", "a.yaml:1:20: unknown key \"alow\"",
			"b.yaml:1:10: a limit named \"x\"", "b.yaml:1:50: allow: rate \"1/zz\""}},
		{"a file that cannot be read keeps the others from being judged by it", []string{
			"a.yaml", "limits: [", "b.yaml", "limits: [{name: x, allow: 1/s, replaces: [y]}]",
		}, []string{"a.yaml:1:9: error loading config file"}},
		{"no rule left", []string{"a.yaml", "domain: a", "b.yaml", "domain: b\nlimits: []"}, []string{"no rule is left"}},
		{"an empty file beside a good one", []string{"a.yaml", " \n", "b.yaml", "limits: [{name: x, allow: 1/s}]"}, []string{"a.yaml:1: the file is empty"}},
		{"no files", nil, []string{"no rule files"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, _, err := load(t, c.files...)
			if err == nil || set != nil {
				t.Fatal("must not load")
			}
			var problems rule.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("%T is not Problems", err)
			}
			if len(problems) != len(c.want) {
				t.Fatalf("got %d problems, want %d:\n%v", len(problems), len(c.want), err)
			}
			for i, p := range problems {
				if !strings.Contains(p.Error(), c.want[i]) {
					t.Errorf("problem %d: got %q, want one with %q", i, p.Error(), c.want[i])
				}
			}
		})
	}
}

func TestLoadOptions(t *testing.T) {
	for _, bits := range []int{-1, 129} {
		if _, _, err := Load([]Source{Starter()}, Options{IPv6Prefix: bits}); err == nil ||
			!strings.Contains(err.Error(), "IPv6") {
			t.Errorf("prefix %d: %v", bits, err)
		}
	}
}

// manyRules is a file of n native limits, each with conditions, a list of windows and options.
func manyRules(n int) []byte {
	var b strings.Builder
	b.WriteString("domain: many\nlimits:\n")
	for i := range n {
		fmt.Fprintf(&b,
			"  - name: rule-%d\n    when: { path: /x/%d/**, method: [GET, POST], plan: \"!free\" }\n    per: [user|ip]\n    allow: [10/min, 500/hour]\n    throttle: { soft: 10%% }\n    on_store_error: local\n", i, i)
	}
	return []byte(b.String())
}

func TestLoadManyRules(t *testing.T) {
	const n = 10_000
	set, warnings, err := Load([]Source{{Name: "many.yaml", Data: manyRules(n)}}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if got := len(set.Rules()); got != n {
		t.Fatalf("%d rules, want %d", got, n)
	}
	if last := set.Rules()[n-1]; last.Name != "rule-9999" || len(last.Windows) != 2 ||
		last.Windows[1].Limit.Config().Soft != 10 {
		t.Errorf("the last rule is %+v", last)
	}
}

// Names are no parts of the file's text: what keeps one after a reload, such as a Counter that
// others carry on, would keep the text of the old file, too.
func TestNamesOutliveText(t *testing.T) {
	for _, text := range []string{
		"domain: shop\nlimits:\n- {name: one, per: [ip], allow: [1/s, 5/min]}\n",
		"domain: shop\ndescriptors:\n- {key: one, value: x, rate_limit: {unit: second, requests_per_unit: 5}}\n",
	} {
		set, _, err := load(t, "x.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		o := message.All(set)[0].Text
		begin := uintptr(unsafe.Pointer(unsafe.StringData(o)))
		for _, c := range set.Counters() {
			for _, s := range []string{c.Domain, c.Rule, c.Window} {
				if at := uintptr(unsafe.Pointer(unsafe.StringData(s))); at-begin < uintptr(len(o)) {
					t.Errorf("%q is a part of the file's text", s)
				}
			}
		}
	}
}

func TestProblemError(t *testing.T) {
	for _, c := range []struct {
		p    rule.Problem
		want string
	}{
		{rule.Problem{Message: "m"}, "m"},
		{rule.Problem{Pos: rule.Position{File: "f"}, Message: "m", Hint: "h"}, "f: m (h)"},
		{rule.Problem{Pos: rule.Position{File: "f", Line: 3}, Message: "m"}, "f:3: m"},
		{rule.Problem{Pos: rule.Position{File: "f", Line: 3, Column: 4}, Message: "m", Quote: "q"}, "f:3:4: m\nq"},
		{rule.Problem{Pos: rule.Position{Line: 3, Column: 4}, Message: "m"}, "3:4: m"},
	} {
		if got := c.p.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	all := rule.Problems{{Message: "a"}, {Message: "b"}}
	if all.Error() != "a\nb" || len(all.Unwrap()) != 2 {
		t.Errorf("got %q", all.Error())
	}
	var one rule.Problem
	if !errors.As(error(all), &one) || one.Message != "a" {
		t.Error("errors.As does not find a single problem")
	}
}

func TestQuote(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, c := range []struct {
		text         string
		line, column int
		want         string
	}{
		{"abc\ndef\n", 2, 2, "    def\n     ^"},
		{"abc", 1, 0, "    abc"},
		{"abc", 5, 1, ""},
		{"abc", 0, 1, ""},
		{"\n\n", 1, 1, ""},
		{"\tx: y\r\n", 1, 2, "    \tx: y\n    \t^"},
		{"é: ü", 1, 4, "    é: ü\n       ^"},
		{"a\x1b[31m", 1, 1, "    a\ufffd[31m\n    ^"},
		{long, 1, 1, "    " + long[:160] + "…\n    ^"},
		{long, 1, 200, "    …" + long[:160] + "…\n    " + strings.Repeat(" ", 80) + "^"},
		{"\ufeffa: b", 1, 1, "    a: b\n    ^"},
	} {
		o := &message.Origin{Text: c.text}
		if got := o.Quote(c.line, c.column); got != c.want {
			t.Errorf("%q at %d:%d: got %q, want %q", message.Clip(c.text), c.line, c.column, got, c.want)
		}
	}
}

func TestOf(t *testing.T) {
	set, err := rule.Of(rule.Spec{Name: "search", Allow: "10/min"})
	if err != nil {
		t.Fatal(err)
	}
	r := set.Rules()[0]
	if len(set.Rules()) != 1 || r.Domain != rule.DefaultDomain || r.Name != "search" || len(r.Per) != 0 ||
		r.Windows[0].Limit.Config().N != 10 {
		t.Errorf("got %+v", r)
	}
	set, err = rule.Of(rule.Spec{Name: "two", Allow: "100/15m", Per: []string{"user|ip", "path"}})
	if err != nil {
		t.Fatal(err)
	}
	if per := set.Rules()[0].Per; len(per) != 2 || !slices.Equal(per[0], rule.Key{"user", "ip"}) ||
		!slices.Equal(per[1], rule.Key{"path"}) {
		t.Errorf("per is %q", per)
	}
	for _, c := range []struct {
		name, allow string
		per         []string
		want        string
	}{
		{"", "10/min", nil, "name: expected"},
		{"a", "10 concurrent", nil, ""},
		{"a", "10", nil, "did you mean 10/min?"},
		{"a", "unlimited", nil, ""},
		{"a", "often", nil, `"often" is not a number of requests`},
		{"a b", "1/s", nil, "name: expected"},
		{"a", "1/s", []string{""}, "no name of an attribute"},
		{"a", "1/s", []string{"ip", "ip"}, "stands twice"},
	} {
		_, err := rule.Of(rule.Spec{Name: c.name, Allow: c.allow, Per: c.per})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("Of(%q, %q, %q): got %v, want one with %q", c.name, c.allow, c.per, err, c.want)
		}
	}
}

func TestStarter(t *testing.T) {
	set, warnings, err := Load([]Source{Starter()}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	var b strings.Builder
	dumpRule(&b, set.Rules()[0])
	for _, want := range []string{"default/starter", `per [["key"]]`, "starter:60s: sliding_log N=10 W=1m0s",
		"starter:3600s: sliding_log N=500 W=1h0m0s"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
	if found := Lint(set, LintOptions{}); len(found) > 0 {
		t.Errorf("the starter rules do not lint: %v", found)
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct{ word, want string }{
		{"algoritm", "algorithm"}, {"alow", "allow"}, {"aloow", "allow"}, {"alolw", "allow"}, {"ALLOW", "allow"}, {"per", "per"},
		{"pre", "per"}, {"zzzz", ""}, {"", ""}, {"x", ""}, {"on_limt", "on_limit"}, {"onlimit", "on_limit"}, {strings.Repeat("a", 100), ""},
	} {
		if got := suggest.Nearest(c.word, limitKeys); got != c.want {
			t.Errorf("nearest to %q is %q, want %q", c.word, got, c.want)
		}
	}
}
