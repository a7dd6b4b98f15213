package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestWhatChanged: if the rules of a fleet lie in folders, the history, the audit log and the mark
// in the chart say what changed, rule by rule; a change stands once, with the nodes that have it.
func TestWhatChanged(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	redis := redistest.Start(t)
	const before = "domain: shop\nlimits:\n" +
		"  - { name: images, per: [user], allow: 600/min, override: { ada: 700/min } }\n" +
		"  - { name: gone, allow: 10000/min }\n"
	after := strings.NewReplacer("600/min", "650/min", "name: gone", "name: fresh", "ada: 700", "ada: 800").Replace(before) +
		"  - { name: odd, allow: 9/min, if: 'attr.x == \"<img src=x onerror=alert(1)>\"' }\n"
	// The one operator, of all figures, and one who sees no keys.
	files := map[string]string{"rules/shop.yaml": before, "tokens": "token-of-ann-0123456789abcdef name=ann role=admin\ntoken-of-vic-0123456789abcdef name=vic role=viewer\n"}
	var all [2]*server
	for i := range all {
		all[i] = serve(t, files, "--store", redis.URL(), "--store-deadline", "30s", "--store-timeout", "30s",
			"--auth-tokens-file", "tokens")
		all[i].token = "token-of-ann-0123456789abcdef"
	}
	var overview struct {
		Nodes  struct{ Answered int }
		Events []struct {
			Kind    string
			Nodes   []string
			Changes []json.RawMessage
		}
	}
	looked := []look{desktop, {"dark", 390, 844}}
	login := func(b *tab) {
		t.Helper()
		b.visit("/history")
		b.do(nil, "fill", "selector", "input[type=password]", "text", "token-of-ann-0123456789abcdef")
		b.press("Enter")
		b.sees("Rules in force")
		b.do(nil, "clear")
	}
	overviewOf := func(s *server) string {
		t.Helper()
		_, body := s.api("GET", "/api/v1/insight?over=7d", "")
		overview.Events = nil
		if err := json.Unmarshal([]byte(body), &overview); err != nil {
			t.Fatal(err, body)
		}
		return body
	}
	for _, s := range all {
		patience.Until(t, "both nodes answer", func() bool { overviewOf(s); return overview.Nodes.Answered == 2 })
	}
	for _, s := range all {
		s.write("shop.yaml", after)
	}
	for i, s := range all {
		patience.Until(t, "the change stands once, with both nodes", func() bool {
			overviewOf(s)
			n, nodes := 0, 0
			for _, e := range overview.Events {
				if e.Kind == "rules" {
					n, nodes = n+1, len(e.Nodes)
				}
			}
			return n == 1 && nodes == 2
		})
		b := d.open(t, s.admin, looked[i])
		login(b)
		b.visit("/")
		counted := b.from()
		counted.click("History", "nav [data-view=history]")
		b.sees("the rules changed")
		counted.took("see what changed, and on which nodes")
		text := b.text("main")
		for _, line := range []string{
			"shop/images: allow 600/min → 650/min, override ada 700/min → ada 800/min", "shop/gone: removed, allow 10000/min", "shop/fresh: added, allow 10000/min", "shop/odd: added, allow 9/min",
		} {
			if strings.Count(text, line) != 2 { // among the changes, and in the audit log
				t.Errorf("%q is there %d times: %s", line, strings.Count(text, line), text)
			}
		}
		if strings.Contains(text, "sha256") || strings.Contains(text, "digest") {
			t.Errorf("digests in place of what changed: %s", text)
		}
		b.accessible("what changed")
		b.clean("what changed")
		b.visit("/")
		b.until("the mark says it",
			`() => { const d = document.querySelector('details.figures'); if (d) d.open = true; return d && /rules changed, on .+, .+, shop\/fresh: added, allow 10000\/min; .*1 more/.test(d.textContent); }`, nil)
		b.clean("the mark of a change")
	}
	all[0].token = "token-of-vic-0123456789abcdef"
	if body := overviewOf(all[0]); !strings.Contains(body, "650/min") || strings.Contains(body, "ada") {
		t.Errorf("a viewer sees %s", body)
	}
	all[0].token = "token-of-ann-0123456789abcdef"

	// A thousand rules that change at once are the first ones, and a count.
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "  - { name: r%03d, per: [user], allow: 1/min }\n", i)
	}
	all[0].write("shop.yaml", after+many.String())
	patience.Until(t, "a thousand rules are in force", func() bool { return strings.Contains(overviewOf(all[0]), `"more_changes": 980`) })
	b := d.open(t, all[0].admin, desktop)
	login(b)
	b.sees("980 more changes")
	b.clean("a thousand changes")
}
