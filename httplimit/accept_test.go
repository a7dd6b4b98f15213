package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/golden"
	"github.com/weir-rl/weir/rule"
)

// chrome and firefox are what browsers send when somebody follows a link.
const (
	chrome  = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7"
	firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
)

func TestPreferredForm(t *testing.T) {
	for accept, want := range map[string]form{
		"":                                     formJSON,
		"*/*":                                  formJSON,
		"application/json":                     formJSON,
		"application/problem+json":             formJSON,
		"application/json, text/plain, */*":    formJSON, // axios
		"image/avif,image/webp,*/*;q=0.8":      formJSON, // an <img>
		"image/png":                            formJSON, // nothing that we have
		"*/*;q=0":                              formJSON,
		chrome:                                 formHTML,
		firefox:                                formHTML,
		"TEXT/HTML":                            formHTML,
		"text/html, text/plain, */*;q=0.01":    formHTML, // lynx
		"text/html;q=0.5, application/json":    formJSON,
		"text/plain":                           formText,
		"text/plain, text/html;q=0.9":          formText,
		"text/plain;q=0.5, text/html;q=0.4":    formText,
		"text/plain;q=0.001, */*;q=0":          formText,
		"text/html;q=0, text/plain;q=0.1":      formText,
		"text/html;q=nonsense, text/plain":     formText,
		strings.Repeat("x/y,", 1<<20) + chrome: formJSON, // too long to be read
	} {
		if got := preferred(accept); got != want {
			t.Errorf("Accept: %.60s: form %d, want %d", accept, got, want)
		}
	}
}

// The default refusal in its three forms, through a real server with the middleware in front.
func TestDefaultRefusalByAccept(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: logins, allow: 2/15m, algorithm: sliding_log, warn: 50%}]`)
	limit, err := New(l, Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	ask := func(method, accept string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(body)
	}
	for i, want := range []string{`near_limit; limit="logins"`, `near_limit; limit="logins"`} {
		if a, _ := ask("GET", ""); a.StatusCode != 200 || a.Header.Get("X-RateLimit-Warning") != want ||
			a.Header.Get("X-RateLimit-Decision") != "" || a.Header.Get("Vary") != "" {
			t.Fatalf("request %d: %d %v", i, a.StatusCode, a.Header)
		}
	}
	for _, c := range []struct{ accept, contentType, file string }{
		{"", "application/problem+json", "refusal.json"},
		{"*/*", "application/problem+json", "refusal.json"},
		{chrome, "text/html; charset=utf-8", "refusal.html"},
		{"text/plain", "text/plain; charset=utf-8", "refusal.txt"},
	} {
		a, body := ask("GET", c.accept)
		id := a.Header.Get("X-RateLimit-Decision")
		if _, err := weir.ParseDecisionID(id); err != nil {
			t.Fatalf("X-RateLimit-Decision: %v", err)
		}
		for name, want := range map[string]string{
			"Content-Type": c.contentType, "Vary": "Accept", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-RateLimit-Warning": "",
		} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("Accept %s: %s: %q, want %q", c.accept, name, got, want)
			}
		}
		if a.StatusCode != 429 || strings.Count(body, id) != 1 {
			t.Errorf("Accept %s: status %d, id %s in %s", c.accept, a.StatusCode, id, body)
		}
		golden.Check(t, c.file, strings.ReplaceAll(body, id, "0123456789abc"))

		head, nothing := ask("HEAD", c.accept)
		if nothing != "" || head.StatusCode != 429 || head.Header.Get("Content-Type") != c.contentType ||
			head.ContentLength <= 0 {
			t.Errorf("HEAD with Accept %s: %d, %q, %v", c.accept, head.StatusCode, nothing, head.Header)
		}
	}
}

// The page loads and runs nothing, its policy lets its own style in, and names are text in it,
// whatever they hold.
func TestRefusalPageIsInert(t *testing.T) {
	limit, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: 5, Window: 60e9})
	if err != nil {
		t.Fatal(err)
	}
	name := `</title><script src="//evil.example">"'&`
	d := weir.Decision{Limits: []weir.LimitResult{{
		Window: &rule.Window{Rule: &rule.Rule{Name: name}, Name: name, Seconds: 60, Limit: limit}, Result: algo.Result{Limit: 5, RetryAfter: 61e6},
	}}, RetryAfter: 61e6}
	w := httptest.NewRecorder()
	w.Header().Set("Vary", "Origin")
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Accept", firefox)
	Headers(0).Refuse(w, r, &d)
	page := w.Body.String()
	for _, bad := range []string{"<script", "src=", "href=", "url(", "@import", "style="} {
		if strings.Contains(strings.ReplaceAll(page, `src=&#34;`, ""), bad) {
			t.Errorf("%s in %s", bad, page)
		}
	}
	if !strings.Contains(page, "&lt;/title&gt;&lt;script src=&#34;//evil.example&#34;&gt;&#34;&#39;&amp;") ||
		!strings.Contains(page, "Try again in 1 minute 1 second.") {
		t.Errorf("got %s", page)
	}
	_, style, _ := strings.Cut(page, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'"
	if got := w.Header().Get("Content-Security-Policy"); got != want || style == "" {
		t.Errorf("policy %s, want %s", got, want)
	}
	if got := w.Header()["Vary"]; len(got) != 2 || got[1] != "Accept" {
		t.Errorf("Vary: %q", got)
	}
}

// A rule's own response: templates, several bodies by Accept, and what is left to the default.
func TestResponsesByAccept(t *testing.T) {
	type want struct{ accept, contentType, body, vary string }
	for _, c := range []struct {
		response string
		status   int
		header   string // X-Plan
		wants    []want
	}{
		{
			`{status: 503, headers: {X-Plan: "free, {{.Limit}}"}, body: {json: '{"limit": {{json .Limit}}, "retry": {{.RetryAfter}}, "id": {{json .ID}}}', html: "<p>{{.Limit}}</p>", text: "come back in {{.RetryAfterText}}"}}`,
			503, "free, a", []want{
				{"", "application/json", `{"limit": "a", "retry": 60, "id": "0123456789abc"}`, "Accept"},
				{firefox, "text/html; charset=utf-8", "<p>a</p>", "Accept"},
				{"text/plain", "text/plain; charset=utf-8", "come back in 1 minute", "Accept"},
			},
		},
		{
			`{body: {text: "{{.LimitValue}} per {{.Window}}"}}`, 429, "", []want{
				{firefox, "text/plain; charset=utf-8", "1 per minute", ""},
				{"application/json", "text/plain; charset=utf-8", "1 per minute", ""},
			},
		},
		{
			`{status: 403}`, 403, "", []want{{"text/plain", "text/plain; charset=utf-8", "403 Forbidden\n\nThe limit \"a\" allows 1 request per minute. Try again in 1 minute.\n\nDecision: 0123456789abc\n", "Accept"}},
		},
		{
			`{content_type: application/json}`, 429, "", []want{{firefox, "application/json", "", ""}},
		},
	} {
		l := newLimiter(t, &clock{}, `limits: [{name: a, allow: 1/min, algorithm: sliding_log, response: `+c.response+
			`}]`)
		decide(t, l, 1)
		for _, x := range c.wants {
			d := decide(t, l, 1)
			id := d.ID.String()
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Accept", x.accept)
			Headers(0).Refuse(w, r, d)
			got := strings.ReplaceAll(w.Body.String(), id, "0123456789abc")
			if w.Code != c.status || w.Header().Get("Content-Type") != x.contentType ||
				w.Header().Get("Vary") != x.vary || w.Header().Get("X-Plan") != c.header ||
				x.body != "" && got != x.body {
				t.Errorf("%s with Accept %s: %d %v %q", c.response, x.accept, w.Code, w.Header(), got)
			}
			if x.body == "" && !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s with Accept %s: no JSON: %s", c.response, x.accept, got)
			}
		}
	}
}

// A banned client is told so, and until when.
func TestRefusalOfABannedClient(t *testing.T) {
	l := newLimiter(t, nil, `limits: [{name: logins, per: [ip], allow: 5/min, ban: {after: 3, within: 1m, for: 1h}}]`)
	if _, err := l.Bans().Set(t.Context(), "", "logins", []string{"192.0.2.1"}, time.Now().Add(48*time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	d := decide(t, l, 1, rule.Pair{Name: "ip", Value: "192.0.2.1"})
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Accept", "text/plain")
	Headers(0).Refuse(w, r, d)
	if want := "The limit \"logins\" was exceeded too often: requests like this one are blocked for a while. Try again in 2 days.\n"; !strings.Contains(w.Body.String(), want) {
		t.Errorf("got %s", w.Body)
	}
}

// The Lyft form takes the same response.
func TestResponseOfDescriptor(t *testing.T) {
	l := newLimiter(t, &clock{}, `
domain: shop
descriptors:
  - key: kind
    rate_limit: { unit: minute, requests_per_unit: 1, response: { status: 418, body: { text: "{{.Limit}} is empty" } } }
`)
	var d weir.Decision
	for range 2 {
		r := weir.Request{Domain: "shop",
			Descriptors: []rule.Descriptor{{Entries: []rule.Entry{{Key: "kind", Value: "tea"}}}}, Hits: 1}
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	w := httptest.NewRecorder()
	Headers(0).Refuse(w, httptest.NewRequest("GET", "/", nil), &d)
	if w.Code != 418 || w.Body.String() != "kind is empty" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A refusal by Accept is never cheaper to ask for than to answer: hostile Accept headers are
// answered like any other.
func FuzzRefuseAccept(f *testing.F) {
	for _, seed := range []string{"", "*/*", chrome, "text/plain;q=0.5,,;q=,text/html ;Q=1.0", `a/b;x="\",",text/html`,
		"text/html;q=1.001", strings.Repeat(",", 5000)} {
		f.Add(seed)
	}
	l := newLimiter(f, &clock{}, `limits: [{name: a, allow: 0/min}]`)
	f.Fuzz(func(t *testing.T, accept string) {
		d := decide(t, l, 1)
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header["Accept"] = []string{accept}
		Headers(0).Refuse(w, r, d)
		switch kind := w.Header().Get("Content-Type"); kind {
		case "application/problem+json":
			if !json.Valid(w.Body.Bytes()) {
				t.Fatalf("no JSON: %s", w.Body)
			}
		case "text/html; charset=utf-8", "text/plain; charset=utf-8":
			if !strings.Contains(strings.ToLower(accept), "text/") {
				t.Fatalf("Accept %q was answered with %s", accept, kind)
			}
		default:
			t.Fatalf("Accept %q was answered with %s", accept, kind)
		}
		if w.Code != 429 || w.Body.Len() == 0 || w.Header().Get("Vary") != "Accept" {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
	})
}
