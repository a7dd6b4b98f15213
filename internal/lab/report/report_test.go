package report

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

const hostile = `<script>alert(1)</script>`

func replay(t *testing.T, lines int, suggest bool, rules ...string) *sim.Report {
	t.Helper()
	var log strings.Builder
	for i := range lines {
		client := fmt.Sprintf("192.0.2.%d", i%40)
		if i%5 == 0 {
			client = hostile
		}
		fmt.Fprintf(&log, "%d\t%s\tGET\t/%s/%d\n", 1_700_000_000+i*37, client, hostile, i%30)
	}
	open := func() (*accesslog.Log, error) {
		return accesslog.Open([]string{"-"}, strings.NewReader(log.String()),
			accesslog.Options{Format: accesslog.TSV, Fields: []string{"time", "ip", "method", "path"}})
	}
	l, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var sets []sim.RuleSet
	for i, text := range rules {
		set, _, err := file.Load([]file.Source{{Name: "r.yaml", Data: []byte(text)}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, sim.RuleSet{Name: fmt.Sprint("set", i+1, hostile), Domain: "default", Set: set})
	}
	o := sim.ReplayOptions{}
	if suggest {
		o.Suggest = &sim.SuggestOptions{Open: open, Load: func(text string) (*rule.Set, error) {
			set, _, err := file.Load([]file.Source{{Name: "s.yaml", Data: []byte(text)}}, file.Options{})
			return set, err
		}}
	}
	r, err := sim.Replay(context.Background(), l, sets, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	tight = "limits: [{ name: per-client, per: [ip], allow: 3/hour, algorithm: sliding_log }, { name: all, allow: 60/hour, on_limit: shadow }]"
	loose = "limits: [{ name: everything, allow: { rate: 80/hour, burst: 5 }, algorithm: leaky_bucket }]"
)

// The page holds the figures, nothing from outside, nothing of the log unescaped; its charts are
// well-formed.
func TestPage(t *testing.T) {
	for _, tt := range []struct {
		name  string
		r     *sim.Report
		wants []string
	}{
		{"one set", replay(t, 2000, true, tight), []string{"Would be refused", "per-client", "sliding log", "shadow", "Most refused clients", "Suggested limits", "allow: [", "3 / hour", "&lt;script&gt;"}},
		{"two sets", replay(t, 2000, false, tight, loose), []string{"Beside each other", "refused by both", "class=\"other\"", "80 / hour, 6 at once"}},
		{"nothing refused", replay(t, 10, false, "limits: [{ name: a, allow: 1000000/s }]"), []string{"would have refused none", "No client would be refused"}},
		{"an empty log", replay(t, 0, false, tight), []string{"The log holds no requests", "never met"}},
		{"one request", replay(t, 1, false, tight), []string{"1 request"}},
		{"no rules", replay(t, 2000, true), []string{"The log holds 2,000 requests", "Suggested limits"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if err := Page(&b, tt.r, []string{"/var/log/a" + hostile}, time.Unix(1_700_000_000, 0)); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			for _, w := range tt.wants {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in the page", w)
				}
			}
			for _, bad := range []string{"<script", "http://", "https://", "src=", "@import", "url(http", "NaN", "Inf",
				"%!", "<no value>"} {
				if strings.Contains(text, bad) {
					t.Errorf("the page holds %q", bad)
				}
			}
			for rest := text; ; {
				i := strings.Index(rest, "<svg")
				if i < 0 {
					break
				}
				end := strings.Index(rest[i:], "</svg>") + i + len("</svg>")
				d := xml.NewDecoder(strings.NewReader(rest[i:end]))
				for {
					if _, err := d.Token(); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						t.Fatalf("a chart is not well-formed: %v", err)
					}
				}
				rest = rest[end:]
			}
		})
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	r := replay(t, 2000, false, tight, loose)
	r.Skipped, r.Late = 1, 2
	if err := Text(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"2,000 requests from 33 clients", "1 line did not parse", "2 lines lay out of order",
		"beside each other", "all (shadow)", "over time", "█"} {
		if !strings.Contains(b.String(), w) {
			t.Errorf("no %q in\n%s", w, b.String())
		}
	}
}

func TestClean(t *testing.T) {
	if got := clean("a\x1b[31m\u202eb\u0085c\xffé\u200b4\u00a0%\ufeff"); got != "a?[31m?b?c?é?4\u00a0%?" {
		t.Errorf("clean = %q", got)
	}
}

func TestPercent(t *testing.T) {
	for _, tt := range []struct {
		part, whole int64
		want        string
	}{{0, 5, "0 %"}, {0, 0, "0 %"}, {5, 5, "100 %"}, {1, 1_000_000, "< 0.01 %"}, {1, 1000, "0.10 %"}, {1, 3, "33.3 %"},
		{99_999, 100_000, "> 99.9 %"}} {
		if got := percent(tt.part, tt.whole); got != tt.want {
			t.Errorf("percent(%d, %d) = %q, want %q", tt.part, tt.whole, got, tt.want)
		}
	}
}

// An axis reaches over the highest value in at most five steps, which are integers.
func TestNiceCeil(t *testing.T) {
	for v := int64(0); v < 200_000; v = v*21/20 + 1 {
		top, step := niceCeil(v)
		if top < float64(v) || top/step > 5 || step != float64(int64(step)) || top > 2*float64(v)+4 {
			t.Errorf("niceCeil(%d) = %v in steps of %v", v, top, step)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "an instant", time.Second: "1 s", 90 * time.Minute: "1 h 30 min",
		25*time.Hour + time.Second: "1 d 1 h", 24*time.Hour +
			time.Minute: "1 d", 1500 * time.Millisecond: "1 s 500 ms"} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

// Merging neighbours keeps all sums, and aligns buckets to the new width.
func TestMerge(t *testing.T) {
	for _, start := range []int64{1_700_000_040, 1_700_000_100} {
		x := &sim.Timeline{Start: time.Unix(start, 0).UTC(), Seconds: 60, Requests: make([]int64, 301),
			Denied: make([]int64, 301)}
		for i := range x.Requests {
			x.Requests[i], x.Denied[i] = int64(i), 1
		}
		m := merge(x, 260)
		sum, denied := int64(0), int64(0)
		for i := range m.Requests {
			sum += m.Requests[i]
			denied += m.Denied[i]
		}
		if sum != 301*300/2 || denied != 301 || m.Seconds != 120 || m.Start.Unix()%120 != 0 || m.Start.Unix() > start ||
			m.DeniedOther != nil {
			t.Errorf("merged: %d, %d, start %v", sum, denied, m.Start)
		}
	}
}

// All text can be read in light and in dark, by WCAG 2.2: 4.5:1 on each background, and 3:1 for
// graphics.
func TestContrast(t *testing.T) {
	_, dark, _ := strings.Cut(pageText, "@media (prefers-color-scheme: dark)")
	themes := map[string]map[string]string{"light": colours(pageText), "dark": colours(dark)}
	for theme, colour := range themes {
		if len(colour) < 10 {
			t.Fatalf("%s has the colours %v", theme, colour)
		}
		grounds := []string{"card", "tint", "page"}
		for _, c := range []struct {
			text  string
			least float64
			on    []string
		}{
			{"ink", 4.5, append(grounds, "code")}, {"soft", 4.5, grounds}, {"faint", 4.5, grounds}, {"denied", 4.5, grounds[:2]}, {"second", 4.5, grounds[:2]},
			{"fine", 4.5, grounds[:1]}, {"allowed-fill", 3, []string{"card", "grid"}}, {"denied-fill", 3, []string{"card", "grid"}},
		} {
			for _, ground := range c.on {
				if got := contrast(t, colour[c.text], colour[ground]); got < c.least {
					t.Errorf("%s: %s on %s is %.2f:1, want %v:1", theme, c.text, ground, got, c.least)
				}
			}
		}
	}
}

// colours reads the custom properties of the first rule of a style sheet.
func colours(css string) map[string]string {
	_, css, _ = strings.Cut(css, ":root {")
	css, _, _ = strings.Cut(css, "}")
	list := map[string]string{}
	for _, m := range regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6})`).FindAllStringSubmatch(css, -1) {
		list[m[1]] = m[2]
	}
	return list
}

// contrast returns the contrast by WCAG 2.2.
func contrast(t *testing.T, a, b string) float64 {
	luminance := func(colour string) float64 {
		n, err := strconv.ParseUint(strings.TrimPrefix(colour, "#"), 16, 32)
		if err != nil {
			t.Fatalf("colour %q: %v", colour, err)
		}
		part := func(c uint64) float64 {
			x := float64(c&255) / 255
			if x <= 0.04045 {
				return x / 12.92
			}
			return math.Pow((x+0.055)/1.055, 2.4)
		}
		return 0.2126*part(n>>16) + 0.7152*part(n>>8) + 0.0722*part(n)
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// Each figure is in the page as text, and not only in a tooltip: each bucket of the chart, each bin
// of a histogram, the highest point of a sparkline.
func TestPageFigures(t *testing.T) {
	r := replay(t, 2000, true, tight)
	var b strings.Builder
	if err := Page(&b, r, []string{"a.log"}, time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`<title>[^<]*</title>`).ReplaceAllString(b.String(), "")
	if strings.Contains(text, ` title="`) {
		t.Error("a tooltip of HTML is left")
	}
	shown := merge(&r.Timeline, wide.buckets)
	for i, n := range shown.Requests {
		if n == 0 {
			continue
		}
		row := fmt.Sprintf(`<td class="n">%s</td><td class="n">%s</td>`, human.Number(n), human.Number(shown.Denied[i]))
		if at := "<td>" + start(shown, i).Format("2 Jan 15:04") + "</td>" + row; !strings.Contains(text, at) {
			t.Fatalf("the figures of bucket %d, %s, are not in the page", i, at)
		}
	}
	for _, rule := range r.ByRule {
		if len(rule.Per) == 0 {
			continue
		}
		for _, n := range rule.Fill {
			if !strings.Contains(text, "<span>"+human.Number(n)+"</span>") {
				t.Errorf("no %d of the histogram of %s", n, rule.Name)
			}
		}
	}
	for _, w := range []string{"requests in ", "refused, on a scale of its own", "at most ", "&gt; 100</span>",
		"the fullest used "} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q", w)
		}
	}
}

// The labels of a time axis do not run into each other, wherever the log begins.
func TestTimeTicks(t *testing.T) {
	label := regexp.MustCompile(`<text class="tick[^"]*" x="([0-9.]+)" y="[0-9]+" text-anchor="middle">([^<]*)</text>`)
	for _, f := range []*frame{&wide, &narrow} {
		for _, seconds := range []int64{1, 60, 600, 3600, 86400} {
			for begin := range int64(48) {
				timeline := &sim.Timeline{Start: time.Unix(1_700_000_000+begin*1800, 0).UTC(), Seconds: seconds,
					Requests: make([]int64, f.buckets)}
				var b strings.Builder
				timeTicks(&b, timeline, f, func(i int) float64 {
					return float64(f.left) + float64(i)*float64(f.width-f.left-f.right)/float64(f.buckets)
				}, 300)
				behind, n := -1.0, 0
				for _, m := range label.FindAllStringSubmatch(b.String(), -1) {
					middle, _ := strconv.ParseFloat(m[1], 64)
					half := 3.3 * float64(len(m[2]))
					if n++; middle-half < behind || middle+half > float64(f.width)+8 || middle-half < -8 {
						t.Fatalf("%s, buckets of %d s: %q at %v runs into the label before, which ends at %v", f.class,
							seconds, m[2], middle, behind)
					}
					behind = middle + half
				}
				if n < 2 {
					t.Fatalf("%s, buckets of %d s: %d labels", f.class, seconds, n)
				}
			}
		}
	}
}

// The text has the verdict on each rule, what to do, and the statuses of the requests that it
// refuses.
func TestTextVerdicts(t *testing.T) {
	var b strings.Builder
	const nowhere = "  - { name: nowhere, when: { path: /nowhere }, per: [ip], allow: 3/hour }\n"
	if err := Text(&b, replay(t, 2000, false, "limits:\n  - { name: per-client, per: [ip], allow: 3/hour, algorithm: sliding_log }\n"+nowhere)); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"per-client: works. 340 of 2,000 requests (17 %) would be refused in the log, of 1 of 33 keys.", "nowhere: never met. ",
		"when.path", "or delete it.", "Keys by the most of their limit that they used: 90–100 %: 32, > 100 %: 1; the fullest used "} {
		if !strings.Contains(b.String(), w) {
			t.Errorf("no %q in\n%s", w, b.String())
		}
	}
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, "  ") && !strings.Contains(line, "▁") && len([]rune(line)) > 130 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	// With very many rules, only those that need attention are listed one by one.
	var rules strings.Builder
	rules.WriteString("limits:\n")
	for i := range 40 {
		fmt.Fprintf(&rules, "  - { name: r%d, per: [ip], allow: 1000/min }\n", i)
	}
	rules.WriteString(nowhere)
	r := replay(t, 2000, false, rules.String())
	var page strings.Builder
	b.Reset()
	if err := errors.Join(Text(&b, r), Page(&page, r, nil, time.Unix(0, 0))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "other rules: 40 too early") || strings.Contains(b.String(), "r7: ") ||
		!strings.Contains(b.String(), "nowhere: never met") {
		t.Errorf("the text of 41 rules:\n%s", b.String())
	}
	if !strings.Contains(page.String(), "Other rules: 40 too early") ||
		strings.Count(page.String(), `<div class="rule">`) != 1 {
		t.Error("the page tells of each of 41 rules")
	}
}

// What a log or an expression says cannot steer the terminal, and comes first on the page.
func TestProvisos(t *testing.T) {
	const evil = "\x1b[2J\u202e" + hostile
	r := replay(t, 100, false, tight)
	r.Skipped, r.SkippedShare, r.Late = 1, 1, 1
	r.SkippedLines = []accesslog.Fault{{Log: "a\x1b.log", Line: 7, Text: evil, Why: "it is damaged"}}
	r.MissingFields = []string{"ip=address"}
	r.Notes = []string{"per-client: if failed on 100 of 100 requests: " + evil}
	var text, page strings.Builder
	if err := Text(&text, r); err != nil {
		t.Fatal(err)
	}
	if err := Page(&page, r, []string{"a.log"}, time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"1 line did not parse, and was left out", "line 7: it is damaged", "names: ip=address",
		"1 line lay out of order by more than --reorder allows, and was replayed", "if failed on 100 of 100 requests"} {
		at := strings.Index(page.String(), w)
		if !strings.Contains(text.String(), w) || at < 0 || at > strings.Index(page.String(), "Over time") {
			t.Errorf("no %q in the text, or not early on the page", w)
		}
	}
	if strings.ContainsAny(text.String(), "\x1b\u202e") {
		t.Errorf("the text steers the terminal: %q", text.String())
	}
	if strings.ContainsAny(page.String(), "\x1b\u202e") || strings.Contains(page.String(), "<script") {
		t.Error("the page holds what the log does, unescaped")
	}
}

// TestMarkdown: a comment holds no client, key or path of the log, its tables are tables, and names
// are what they are, whatever they hold.
func TestMarkdown(t *testing.T) {
	r := replay(t, 2000, false, tight, loose)
	r.Skipped, r.Late = 1, 2
	r.Compare.ByRule[0].Name = "a|b`c\n<script>"
	r.Compare.Failures = []sim.Failure{{Rule: "all", Key: "if", Count: 3, First: hostile}}
	single := replay(t, 2000, false, tight)
	for _, c := range []struct {
		report *sim.Report
		want   []string
	}{
		{r, []string{"### Rules on 2,000 requests\n", "From 33 clients, ", "| requests refused | ",
			"| by these rules alone | ",
			"1 line of the log did not parse", "2 lines lay out of order", "| limit | each key before | refuses | keys | ",
			"`a/|b'c?<script>`", "`all`: its `if` failed 3 times"}},
		{single, []string{"| limit | each key | refuses | keys |", "| clients refused | "}},
		{replay(t, 0, false, tight), []string{"### Rules on 0 requests\n"}},
	} {
		var b strings.Builder
		if err := Markdown(&b, c.report); err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(b.String(), `\|`, "/|")
		for _, w := range c.want {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in\n%s", w, text)
			}
		}
		plain := regexp.MustCompile("`[^`]*`").ReplaceAllString(text, "")
		if strings.Contains(text, "192.0.2.") || strings.ContainsAny(plain, "<>`") {
			t.Errorf("the comment holds what it should not:\n%s", text)
		}
		columns := 0
		for line := range strings.Lines(strings.ReplaceAll(text, "/|", "/")) {
			if !strings.HasPrefix(line, "|") {
				columns = 0
				continue
			}
			n := strings.Count(line, "|")
			if columns != 0 && n != columns {
				t.Errorf("a row of %d columns in a table of %d: %s", n-1, columns-1, line)
			}
			columns = n
		}
	}
}

// TestMarkdownBounded: thousands of limits are a comment that can be posted.
func TestMarkdownBounded(t *testing.T) {
	r := replay(t, 200, false, tight, loose)
	for i := range 5000 {
		l := r.Compare.Limits[0]
		l.Name, l.Denied = fmt.Sprintf("%0200d", i), int64(i+1)
		r.Compare.Limits = append(r.Compare.Limits, l)
	}
	var b strings.Builder
	if err := Markdown(&b, r); err != nil || b.Len() > 65_536 || !strings.Contains(b.String(), " limits more.") {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}
