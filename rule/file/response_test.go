package file

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/wire/accept"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

var refusal = rule.ResponseData{
	Limit: `a"b<c>`, RetryAfter: 7, RetryAfterText: "7 seconds", ID: "00ff", Domain: "shop & co", LimitValue: 10, Window: "minute", Status: 503,
}

// answers loads a rule with this response.
func answers(t testing.TB, text string) *rule.Response {
	t.Helper()
	_, r := only(t, "limits:\n  - name: a\n    allow: 10/min\n    response:\n      "+
		strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      "))
	return r.Response
}

// render answers a client with this Accept header.
func render(r *rule.Response, accepted string, data rule.ResponseData) (contentType string, body []byte) {
	return r.Render(accept.Preferred(accepted, r.MediaTypes()...), data)
}

func TestRender(t *testing.T) {
	for _, c := range []struct{ response, accept, contentType, body string }{
		// Single bodies, as they are.
		{"status: 503", "text/html", "", "<nil>"},
		{"content_type: text/csv", "", "text/csv", "<nil>"},
		{"body: later", "application/json", "text/plain; charset=utf-8", "later"},
		{`body: '{"a": 1}'`, "text/html", "application/problem+json", `{"a": 1}`},
		{"{ body: later, content_type: text/x }", "", "text/x", "later"},
		{`body: "{ {.Limit} }"`, "", "text/plain; charset=utf-8", "{ {.Limit} }"},
		// Templates.
		{`body: "{{.Limit}} of {{.Domain}}, {{.LimitValue}} per {{.Window}}: {{.RetryAfter}} ({{.RetryAfterText}}), {{.ID}}, {{.Status}}"`, "", "text/plain; charset=utf-8",
			`a"b<c> of shop & co, 10 per minute: 7 (7 seconds), 00ff, 503`},
		{`body: '{"limit": {{json .Limit}}, "again": {{.RetryAfter}}}'`, "", "application/problem+json", `{"limit": "a\"b\u003cc\u003e", "again": 7}`},
		{`{ body: "<b>{{.Limit}}</b>", content_type: "text/HTML; charset=utf-8" }`, "", "text/HTML; charset=utf-8", "<b>a&#34;b&lt;c&gt;</b>"},
		{`body: "{{if lt .RetryAfter 0}}never{{else}}{{printf \"%03d\" .RetryAfter}}{{end}}"`, "", "text/plain; charset=utf-8", "007"},
		{`body: '{{"{{"}} as it is'`, "", "text/plain; charset=utf-8", "{{ as it is"},
		{`body: '{{/* nothing */}}'`, "", "text/plain; charset=utf-8", ""},
		// Several.
		{"body: { html: <i>h</i>, json: '{}', text: t }", "", "application/json", "{}"},
		{"body: { html: <i>h</i>, text: t }", "", "text/html; charset=utf-8", "<i>h</i>"},
		{"body: { text: 't{{.Limit}}', html: '<i title=\"{{.Limit}}\">' }", "text/html", "text/html; charset=utf-8", `<i title="a&#34;b&lt;c&gt;">`},
		{"body: { text: 't{{.Limit}}', html: h }", "text/plain", "text/plain; charset=utf-8", `ta"b<c>`},
	} {
		contentType, body := render(answers(t, c.response), c.accept, refusal)
		got := string(body)
		if body == nil {
			got = "<nil>"
		}
		if contentType != c.contentType || got != c.body {
			t.Errorf("%s for %q: %q, %q, want %q, %q", c.response, c.accept, contentType, got, c.contentType, c.body)
		}
	}
	// What fails on a real refusal falls back to the default.
	r := answers(t, `body: "{{if eq .Limit \"x\"}}{{index .Limit 99}}{{end}}ok"`)
	if _, body := r.Render(0, rule.ResponseData{Limit: "x"}); body != nil {
		t.Errorf("a template that fails gives %q", body)
	}
	if _, body := r.Render(0, rule.ResponseData{Limit: "y"}); string(body) != "ok" {
		t.Errorf("got %q", body)
	}
}

func TestRenderHeaders(t *testing.T) {
	r := answers(t, `headers: { X-Limit: "{{.Limit}}; {{.ID}}", X-Plain: "50% {x}", X-Again: "{{.RetryAfter}}" }`)
	data := refusal
	data.Limit = "a\r\nSet-Cookie: b\x00\n"
	got := r.RenderHeaders([]rule.Pair{{Name: "Before", Value: "1"}}, data)
	if want := `[{Before 1} {X-Limit a  Set-Cookie: b  ; 00ff} {X-Plain 50% {x}} {X-Again 7}]`; fmt.Sprint(
		got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestAccept(t *testing.T) {
	r := answers(t, "body: { json: '{}', html: h, text: t }")
	for accepted, want := range map[string]string{
		"":    "json",
		"*/*": "json",
		// a browser
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8": "html",
		"application/json, text/plain, */*":                                          "json",
		"text/plain":                                                                 "text",
		"TEXT/Plain;charset=utf-8":                                                   "text",
		"text/*":                                                                     "html",
		"text/*;q=0.5, text/plain":                                                   "text",
		"text/html;q=0.2, application/json;q=0.3":                                    "json",
		"text/html;q=0, text/*":                                                      "text",
		"application/problem+json":                                                   "json",
		"application/vnd.api+json;q=0.9, text/html;q=0.8":                            "json",
		// equally liked: ours first
		"text/html, application/json": "json",
		// named before not named
		"text/html, */*":              "html",
		"*/*;q=0.1, text/plain;q=0.1": "text",
		// none will do
		"image/png": "json",
		// neither do the others
		"application/json;q=0":                     "json",
		"*/*, application/json;q=0":                "html",
		"text/plain;q=nonsense, text/html;q=0.1":   "html",
		"text/plain;q=1.5, text/html;q=0.1":        "html",
		"text/plain;q=0.1234, text/html;q=0.1":     "html",
		"text/plain ; Q=1.000 , text/html;q=0.999": "text",
		",,;;q=,/,*":        "json",
		"application/+json": "json",
		// too far behind
		strings.Repeat("a/b,", 2000) + "text/plain": "json",
	} {
		contentType, _ := render(r, accepted, refusal)
		if !strings.Contains(contentType, map[string]string{"json": "json", "html": "html", "text": "plain"}[want]) {
			t.Errorf("%q gets %s, want %s", message.Clip(accepted), contentType, want)
		}
	}
}

// A response is rendered by many at once.
func TestRenderConcurrently(t *testing.T) {
	r := answers(t,
		"headers: { X: '{{.ID}}' }\nbody: { json: '{\"id\": {{json .ID}}}', html: '<a href=\"?{{.ID}}\">{{.ID}}</a>' }")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			data := refusal
			data.ID = fmt.Sprint("id", i)
			for range 50 {
				if _, body := r.Render(1, data); string(body) != fmt.Sprintf(`<a href="?id%d">id%d</a>`, i, i) {
					t.Errorf("got %s", body)
				}
				if _, body := r.Render(0, data); string(body) != fmt.Sprintf(`{"id": "id%d"}`, i) {
					t.Errorf("got %s", body)
				}
			}
		})
	}
	wg.Wait()
}

// A template that loads gives something for every refusal that the samples stand for, and JSON
// stays JSON.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{{.Limit}}", "{{json .Limit}}", `{"a": {{json .Limit}}}`, "{{if .ID}}a{{else}}b{{end}}", "{{with .Domain}}{{.}}{{end}}", "{{range 5}}x{{end}}", "{{define \"a\"}}{{end}}",
		"<a href=\"{{.ID}}\">", "{{- .Status -}}", "{{printf \"%s\" .Limit | json}}", "{{$x := 1}}{{$x}}", "{{(.Limit).X}}", "{{break}}", "{{template \"template\"}}", "{{call .ID}}", "{{.", "}}{{",
	} {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, text string, html bool) {
		if len(text) > 1<<12 || !strings.Contains(text, "{{") {
			return
		}
		syntax := plainTemplate
		if html {
			syntax = htmlTemplate
		}
		template, samples, err := compileTemplate(text, syntax)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		for i := range sampleData {
			got := []byte(text)
			if template != nil {
				got = template.render(&sampleData[i])
			}
			if got == nil || string(got) != samples[i] && template != nil {
				t.Errorf("%q gives %q at load and %q later", text, samples[i], got)
			}
		}
		if !html && allJSON(samples) && !json.Valid([]byte(samples[0])) {
			t.Errorf("%q is taken for JSON", samples[0])
		}
	})
}
