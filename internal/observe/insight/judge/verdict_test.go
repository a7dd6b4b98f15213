package judge

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"pgregory.net/rapid"
)

// Demand is the limit at which a sliding_window of one bucket refuses nothing: the most of
// ⌊previous × overlap⌋ + current.
func TestDemandEqualsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 1000
		var d Demand
		units := map[int64]int64{}
		now, peak := int64(0), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += rapid.Int64Range(0, 700).Draw(t, "after")
			n := rapid.Int64Range(0, 5).Draw(t, "units")
			units[now/window] += n
			here := units[now/window] + units[now/window-1]*(window-now%window)/window
			peak = max(peak, here)
			if got := d.Add(now, window, n); got != here {
				t.Fatalf("at %d: %d units, want %d", now, got, here)
			}
		}
		if d.Peak() != peak {
			t.Fatalf("peak %d, want %d", d.Peak(), peak)
		}
	})
}

func TestMulDiv(t *testing.T) {
	for _, c := range []struct{ a, b, c, want int64 }{{7, 3, 4, 5}, {0, 5, 9, 0}, {5, 0, 9, 0},
		{1 << 50, 1 << 20, 1 << 21, 1 << 49}, {math.MaxInt64, 60e6, 60e6, math.MaxInt64}} {
		if got := mulDiv(c.a, c.b, c.c); math.Abs(float64(got-c.want)) > 1e-12*float64(c.want) {
			t.Errorf("%d × %d ÷ %d = %d, want %d", c.a, c.b, c.c, got, c.want)
		}
	}
}

// The bounds hold the true share in at least 93 of 100 samples, also of rare things (Wilson's are
// 95 % on average), and never lie outside of 0 and 1.
func TestWilson(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range []float64{0.02, 0.1, 0.5, 0.97} {
		held := 0
		for range 2000 {
			x := 0
			for range 300 {
				if rng.Float64() < p {
					x++
				}
			}
			low, high := Wilson(float64(x), 300)
			if low < 0 || high > 1 || low > float64(x)/300 || high < float64(x)/300 {
				t.Fatalf("%d of 300: %v to %v", x, low, high)
			}
			if low <= p && p <= high {
				held++
			}
		}
		if held < 1860 {
			t.Errorf("the bounds held %v in %d of 2000 samples", p, held)
		}
	}
	if low, high := Wilson(0, 0); low != 0 || high != 1 {
		t.Errorf("of nothing: %v to %v", low, high)
	}
}

func sampleOf(fills ...float64) []KeyFacts {
	var list []KeyFacts
	for i, f := range fills {
		list = append(list, KeyFacts{Hash: uint64(i + 1), Fill: f, Demand: []int64{int64(math.Round(f * 20))}, OK: -1})
	}
	return list
}

func TestHistogramAndAffected(t *testing.T) {
	s := sampleOf(0, 0.05, 0.1, 0.55, 0.999, 1, 1.05, 7)
	if got, want := Histogram(s, 8), [11]uint64{2, 1, 0, 0, 0, 1, 0, 0, 0, 2, 2}; got != want {
		t.Errorf("histogram %v, want %v", got, want)
	}
	if got := Histogram(s, 800)[10]; got != 200 {
		t.Errorf("of a sample of 8 for 800: %d above, want 200", got)
	}
	if n, err := Affected(s, 8, 0, 20); n != 2 || err != 0 {
		t.Errorf("20 touches %v ± %v of all 8, want 2", n, err)
	}
	if n, err := Affected(s, 800, 0, 20); n != 200 || math.Abs(err-1.96*800*math.Sqrt(0.25*0.75/8)) > 1e-9 {
		t.Errorf("20 touches %v ± %v of 800", n, err)
	}
	s[7].Own = true
	if n, _ := Affected(s, 8, 0, 20); n != 1 {
		t.Errorf("20 touches %v keys, one of which has an override", n)
	}
	if n, err := Affected(nil, 5, 0, 1); n != 0 || err != 0 {
		t.Errorf("nobody: %v ± %v", n, err)
	}
	if got := Needed(s, 0, 0.5); got != 11 {
		t.Errorf("half of the keys need %d, want 11", got)
	}
}

const shop = `# limits of the shop
domain: shop
limits:
  - name: search
    when: { path: /search }
    # each client
    per: [ip]
    allow: [20/min, "500/hour"]   # see the wiki
    schedule:
      - { days: [sat], allow: 20/min }

  # the next
  - { name: flow, per: [ip], when: { path: [/a, "/b,}"] }, allow: 20/min, on_limit: shadow }
  - name: bucket
    per: [ip]
    allow: { rate: 20/min, burst: 60 }
    algorithm: token_bucket
  - per: [ip]
    allow:
      - 20/min
      - 500/hour
    name: lines
`

// facts returns the facts of a rule of the shop, from its Set.
func facts(t *testing.T, text, name string) *Facts {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(text)}}, file.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, r := range set.Rules() {
		if r.Name == name {
			f := &Facts{Domain: r.Domain, Rule: r.Name, File: r.Pos.File, Line: r.Pos.Line, Text: text, Mode: "enforce",
				OKShare: -1}
			for _, w := range r.Windows {
				f.Windows = append(f.Windows, WindowOf(w))
			}
			return f
		}
	}
	t.Fatalf("no rule %s in\n%s", name, text)
	return nil
}

// A proposal changes the numbers of the rule and nothing else, however it is written; the text
// loads, and where it cannot be changed plainly there is no patch.
func TestPatchesLoad(t *testing.T) {
	for _, c := range []struct {
		rule   string
		limits []int64
		lines  []string // that are in the diff
		none   bool
	}{
		{"search", []int64{40, 0}, []string{`-    allow: [20/min, "500/hour"]   # see the wiki`, `+    allow: [40/min, "500/hour"]   # see the wiki`}, false},
		{"search", []int64{40, 900}, []string{`+    allow: [40/min, "900/hour"]   # see the wiki`}, false},
		{"flow", []int64{35}, []string{`+  - { name: flow, per: [ip], when: { path: [/a, "/b,}"] }, allow: 35/min, on_limit: shadow }`}, false},
		{"lines", []int64{0, 990}, []string{"-      - 500/hour", "+      - 990/hour"}, false},
		{"bucket", []int64{90}, nil, true},
	} {
		f := facts(t, shop, c.rule)
		text := f.withLimits(c.limits)
		if c.none {
			if text != "" {
				t.Errorf("%s: a bucket with a burst of its own is changed:\n%s", c.rule, text)
			}
			continue
		}
		after := facts(t, text, c.rule)
		for i, w := range after.Windows {
			want := f.Windows[i].Limit
			if c.limits[i] > 0 {
				want = c.limits[i]
			}
			if w.Limit != want {
				t.Errorf("%s: %s is %d, want %d:\n%s", c.rule, w.Name, w.Limit, want, text)
			}
		}
		patch := unifiedDiff(f.File, shop, text)
		for _, line := range c.lines {
			if !strings.Contains(patch, "\n"+line+"\n") {
				t.Errorf("%s: no %q in\n%s", c.rule, line, patch)
			}
		}
		if got := apply(t, shop, patch); got != text {
			t.Errorf("%s: the patch makes\n%s\nof\n%s", c.rule, got, patch)
		}
	}
}

// A second rule takes the conditions of the first, and stands behind it.
func TestPatchAddsRule(t *testing.T) {
	f := facts(t, shop, "search")
	text := f.withRule("search-crowd", "allow: { rate: 64/s, burst: 640 }", "algorithm: token_bucket")
	crowd := facts(t, text, "search-crowd")
	if crowd.Windows[0].Limit != 640 || crowd.Line != 11 {
		t.Errorf("the rule at %d:\n%s", crowd.Line, text)
	}
	if !strings.Contains(text, "  - name: search-crowd\n    when: { path: /search }\n    allow:") {
		t.Errorf("no condition in\n%s", text)
	}
	if got := apply(t, shop, unifiedDiff("shop.yaml", shop, text)); got != text {
		t.Errorf("the patch makes\n%s", got)
	}
	last := facts(t, shop, "lines").withRule("more", "allow: 3/s")
	if facts(t, last, "more").Windows[0].Limit != 3 {
		t.Errorf("behind the last rule:\n%s", last)
	}
	if text := facts(t, shop, "flow").withRule("x", "allow: 1/s"); text != "" {
		t.Errorf("a rule in braces has one behind it:\n%s", text)
	}
}

// The Lyft form has its number in rate_limit.
func TestPatchOfLyftForm(t *testing.T) {
	const lyft = "domain: shop\ndescriptors:\n  - key: plan\n    rate_limit:\n      unit: minute\n      requests_per_unit: 20\n    descriptors:\n      - key: user\n        rate_limit: { unit: minute, requests_per_unit: 20 }\n"
	for _, c := range []struct{ rule, want string }{
		{"plan", "      requests_per_unit: 45\n"}, {"plan.user", "rate_limit: { unit: minute, requests_per_unit: 45 }\n"},
	} {
		text := facts(t, lyft, c.rule).withLimits([]int64{45})
		if strings.Count(text, "45") != 1 || !strings.Contains(text, c.want) ||
			facts(t, text, c.rule).Windows[0].Limit != 45 {
			t.Errorf("%s:\n%s", c.rule, text)
		}
	}
}

// Whatever stands in a file, looking for a rule ends, and a patch is one of it.
func TestPatchOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := []string{"\n", " ", "  ", "- ", "{", "}", "[", "]", ",", ":", "'", `"`, "#", "allow: ", "20/min",
			"rate_limit:", "requests_per_unit: 20", "name: a", "when: b"}
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "text"), "")
		f := &Facts{Text: text, File: "a.yaml", Line: rapid.IntRange(-1, 9).Draw(t, "line"),
			Windows: []WindowFacts{{Rate: "20/min", Limit: 20, Window: time.Minute}}}
		for _, after := range []string{f.withLimits([]int64{7}), f.withRule("b", "allow: 1/s")} {
			if after != "" && after != text {
				if got, err := patched(text, unifiedDiff("a.yaml", text, after)); err != nil || got != after {
					t.Fatalf("%q, %v; want %q", got, err, after)
				}
			}
		}
	})
}

func apply(t *testing.T, text, patch string) string {
	t.Helper()
	got, err := patched(text, patch)
	if err != nil {
		t.Fatalf("%v:\n%s", err, patch)
	}
	return got
}

// patched applies a unified diff of one hunk.
func patched(text, patch string) (string, error) {
	lines := strings.SplitAfter(patch, "\n")
	var from, n, to, m int
	if _, err := fmt.Sscanf(lines[2], "@@ -%d,%d +%d,%d @@", &from, &n, &to, &m); err != nil {
		return "", fmt.Errorf("%q: %w", lines[2], err)
	}
	old := strings.SplitAfter(text, "\n")
	if n == 0 {
		from++
	}
	out := slices.Clone(old[:from-1])
	at := from - 1
	for _, l := range lines[3:] {
		if l == "" {
			continue
		}
		sign, body := l[0], l[1:]
		if sign == '\\' {
			continue
		}
		if i := slices.Index(lines, l); i+1 < len(lines) && strings.HasPrefix(lines[i+1], `\`) {
			body = strings.TrimSuffix(body, "\n")
		}
		if sign != '+' {
			if old[at] != body {
				return "", fmt.Errorf("line %d is %q, the patch says %q", at+1, old[at], body)
			}
			at++
		}
		if sign != '-' {
			out = append(out, body)
		}
	}
	return strings.Join(append(out, old[at:]...), ""), nil
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		36_869_892 * time.Microsecond: "37 s", 24 * time.Hour: "24 h", 14 * 24 * time.Hour: "14 d", 200 * time.Minute: "3 h 20 min", time.Millisecond: "less than a second",
		119*time.Minute + 50*time.Second: "2 h", 9*time.Second + 900*time.Millisecond: "10 s", 48 * time.Hour: "2 d", 25 * time.Hour: "25 h", 90 * time.Second: "1 min 30 s",
	} {
		if got := human.Lasted(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
	for p, want := range map[float64]string{0: "0 %", 0.00001: "less than 0.01 %", 0.003: "0.3 %", 0.0024: "0.24 %",
		0.016: "1.6 %", 0.12: "12 %", 0.9999: "more than 99 %", 1: "100 %", 2.03: "203 %"} {
		if got := human.Percent(p); got != want {
			t.Errorf("percent(%v) = %q, want %q", p, got, want)
		}
	}
	for n, want := range map[float64]int64{1: 1, 9.2: 10, 10: 10, 26: 26, 99: 99, 99.5: 100, 101: 110, 1234: 1300} {
		if got := roundUp(n); got != want {
			t.Errorf("roundUp(%v) = %d, want %d", n, got, want)
		}
	}
	if got := human.List([]string{"a", "b", "c"}, "and"); got != "a, b and c" {
		t.Errorf("list: %q", got)
	}
}

// Verdicts that sampled numbers cannot bear out are not given: with a sample of 100 of 100,000
// keys, three good ones refused are too few to say more than one in a thousand.
func TestSampledStrict(t *testing.T) {
	f := &Facts{Mode: "enforce", Per: []string{"user"},
		Windows: []WindowFacts{{Rate: "20/min", Limit: 20, Window: time.Minute}}, To: time.Unix(1e9,
			0), From: time.Unix(1e9-86400, 0),
		Met: 1e6, Known: 1e6, Refused: 4000, Alone: 4000, Keys: 100_000, KeysError: 0.1, KeysRefused: 200,
		RefusedError: 0.1, OKShare: -1}
	for i := range 100 {
		f.Sample = append(f.Sample, KeyFacts{Hash: uint64(i), Known: true, OK: -1, Demand: []int64{3}})
		f.RefusedSample = append(f.RefusedSample,
			KeyFacts{Hash: uint64(i), Known: i < 50, Refused: 20, OK: -1, Demand: []int64{int64(25 + i%10)}})
	}
	if v := Judge(f, Thresholds{}); len(v) != 1 || v[0].Verdict != insight.Works {
		t.Errorf("100 of 100,000 good keys are 0.1 %%: %+v", v)
	}
	f.KeysRefused = 2000
	v := Judge(f, Thresholds{})
	if v[0].Verdict != insight.Strict || v[0].Confidence != insight.High ||
		v[0].Evidence["g_low"] >= v[0].Evidence["g"] || v[0].Evidence["g_low"] <= 0.001 {
		t.Errorf("1,000 of 100,000 are 1 %%: %+v", v)
	}
	if v[0].Proposal != nil {
		t.Errorf("at once it is proposed: %+v", v[0].Proposal)
	}
	if p := judgedFor(f, 61)[0].Proposal; p == nil ||
		!strings.HasPrefix(p.Sentence, "40/min would refuse none of them") {
		t.Errorf("proposal %+v", p)
	}
	if v := Judge(f, Thresholds{GoodRefused: 0.05}); v[0].Verdict != insight.Works {
		t.Errorf("where 5 %% are allowed: %+v", v)
	}
}

// A verdict that held before keeps the time since which it does.
func TestKeepSince(t *testing.T) {
	old, now := time.Unix(100, 0), time.Unix(200, 0)
	list := []insight.Verdict{{Verdict: insight.Strict, Since: now}, {Verdict: insight.Ignored, Since: now}}
	KeepSince([]insight.Verdict{{Verdict: insight.Strict, Since: old}}, list)
	if list[0].Since != old || list[1].Since != now {
		t.Errorf("since %v and %v", list[0].Since, list[1].Since)
	}
}

// Nobody ignores a rule in shadow, which tells nobody to come back.
func TestNobodyIgnoresShadow(t *testing.T) {
	for _, mode := range []string{"enforce", "shadow"} {
		f := facts(t, "domain: shop\nlimits: [{name: a, per: [user], allow: 5/min}]", "a")
		f.Mode, f.Episodes, f.Met, f.Refused, f.WouldRefuse = mode, insight.Episodes{Obeyed: 1, Early: 59}, 5000, 60, 60
		f.Replay = false
		if is := slices.ContainsFunc(Judge(f, Thresholds{}), func(v insight.Verdict) bool {
			return v.Verdict == insight.Ignored
		}); is != (mode == "enforce") {
			t.Errorf("%s: ignored is %t", mode, is)
		}
	}
}

// It is too early is said where nothing else is certain, not beside what is.
func TestTooEarlyDoesNotRepeat(t *testing.T) {
	f := facts(t, "domain: shop\nlimits: [{name: a, per: [user], allow: 5/min}]", "a")
	f.Replay, f.From, f.To = false, time.Unix(1e9, 0), time.Unix(1e9+120, 0)
	f.Met, f.Refused, f.Alone, f.TopRefused, f.Episodes = 14_000, 60, 60, 60, insight.Episodes{Obeyed: 1, Early: 59}
	list := Judge(f, Thresholds{})
	if len(list) != 1 || list[0].Verdict != insight.Ignored {
		t.Fatalf("%+v", list)
	}
	if want := "After 98 % of 60 refusals clients came back before they were told to: they do not read Retry-After."; list[0].Sentence != want {
		t.Errorf("%q, want %q", list[0].Sentence, want)
	}
	f.Episodes = insight.Episodes{}
	if list := Judge(f, Thresholds{}); len(list) != 1 || list[0].Verdict != insight.Works ||
		list[0].Confidence != insight.Low {
		t.Errorf("%+v", list)
	}
}

// A server says what is known of a rule as soon as there is something, how sure that is, and how
// long it takes until it is.
func TestKnownSoFar(t *testing.T) {
	for _, c := range []struct {
		met, refused uint64
		after        time.Duration
		fill         float64
		verdict      string // with its confidence
		says         string
	}{
		{0, 0, 10 * time.Minute, 0, "too_early low", "Too early to tell: none of 500 requests of the domain met it in 10 min so far. About 24 h more."},
		{19, 0, time.Minute, 0.1, "too_early low", "Too early to tell: 19 requests in 1 min so far. About 59 min more."},
		{100, 0, 10 * time.Minute, 0.1, "reserve low", "Nobody was refused in 10 min; no client used more than 10 %. If that stays so, it never binds: sure after 10,000 requests and 24 h, in about 24 h."},
		{100, 0, 10 * time.Minute, 0.7, "reserve low", "Nobody was refused in 10 min; no client used more than 70 %. That is sure after 1,000 requests and 1 h, in about 1 h 30 min."},
		{100, 5, 10 * time.Minute, 1.5, "works low", "5 of 100 requests (5 %) were refused in 10 min. That is sure after 1,000 requests and 1 h, in about 1 h 30 min."},
		{5000, 0, 2 * time.Hour, 0.7, "reserve high", "Nobody was refused in 2 h; no client used more than 70 %."},
		{5000, 5, 2 * time.Hour, 1.5, "works high", "5 of 5,000 requests (0.1 %) were refused in 2 h."},
		{5000, 0, 2 * time.Hour, 0.1, "reserve low", "Nobody was refused in 2 h; no client used more than 10 %. If that stays so, it never binds: sure after 10,000 requests and 24 h, in about 22 h."},
		{20_000, 0, 25 * time.Hour, 0.1, "never_binding high", "Of 20,000 requests none was refused; no client used more than 10 % of what it may."},
	} {
		f := facts(t, "domain: shop\nlimits: [{name: a, per: [user], allow: 5/min}]", "a")
		f.Met, f.Refused, f.Alone, f.MaxFill, f.DomainMet = c.met, c.refused, c.refused, c.fill, 500
		f.From, f.To = time.Unix(1e9, 0), time.Unix(1e9, 0).Add(c.after)
		list := Judge(f, Thresholds{})
		if len(list) != 1 || list[0].Verdict+" "+list[0].Confidence != c.verdict || list[0].Sentence != c.says {
			t.Errorf("%+v: %+v", c, list)
		}
	}
}

// What the text of the rules proves is said at once, and not where traffic says otherwise.
func TestProven(t *testing.T) {
	f := facts(t, "domain: shop\nlimits: [{name: a, per: [user], allow: 5/min}]", "a")
	f.From, f.To = time.Unix(1e9, 0), time.Unix(1e9+5, 0)
	f.Proven = Proof{insight.NeverMet, "no request can meet it: b replaces it for all of them"}
	if v := Judge(f, Thresholds{}); len(v) != 1 || v[0].Verdict != insight.NeverMet ||
		v[0].Confidence != insight.High || v[0].Proposal == nil ||
		v[0].Sentence != "No request can meet it: b replaces it for all of them." {
		t.Errorf("%+v", v)
	}
	f.Met = 30
	if v := Judge(f, Thresholds{}); v[0].Verdict != insight.Reserve {
		t.Errorf("it is met: %+v", v)
	}
	f.Proven = Proof{insight.AddsNothing,
		"never refuses anything, since b is always tighter, except for keys that are granted more there"}
	if v := Judge(f, Thresholds{}); v[0].Verdict != insight.AddsNothing || v[0].Confidence != insight.High ||
		v[0].Sentence != "It never refuses anything, since b is always tighter, except for keys that are granted more there." {
		t.Errorf("%+v", v)
	}
	f.Refused, f.Alone = 5, 5
	if v := Judge(f, Thresholds{}); v[0].Verdict != insight.Works {
		t.Errorf("it refuses: %+v", v)
	}
}

// Unmet covers only the requests that came nearest to a rule. The most frequent value is separate
// from the condition.
func TestUnmet(t *testing.T) {
	reason := func(why string, fails int) rule.Reason { return rule.Reason{Why: why, Fails: fails} }
	for _, c := range []struct {
		reasons       []rule.Reason
		kept, nearest string
	}{
		{nil, "", ""},
		{[]rule.Reason{reason("when.path: /b does not match /a", 1), reason("when.method: GET does not match POST", 1), reason("when.path: /b does not match /a", 1), reason("when.path: /c does not match /a", 1)},
			" Of 4 requests looked at, when.path kept out 3.", "Most often so: /b does not match /a. "},
		{[]rule.Reason{reason("when.path: /b does not match /a", 2), reason("when.path: /b does not match /a", 2), reason("when.method: PUT does not match POST", 1)},
			" Of 3 requests looked at, 1 came nearest: when.method kept out 1 of these.", "Most often so: PUT does not match POST. "},
		{[]rule.Reason{reason("user=ada does not match eve: never", 0), reason("the request has no user", 0)},
			" Of 2 requests looked at, its descriptors kept out 2.", "Most often so: the request has no user. "},
	} {
		u := UnmetOf(c.reasons)
		if kept, nearest := u.kept(), u.nearest(); kept != c.kept || nearest != c.nearest {
			t.Errorf("%q %q, want %q %q", kept, nearest, c.kept, c.nearest)
		}
	}
}
