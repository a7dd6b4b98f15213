package httplimit

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/internal/door/answer"
)

type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies"`
	Retry    *float64 `json:"retry_after"`
}

func TestRefuse(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		before      int
		wait        time.Duration
		hits        int64
		status      int
		detail      string
		violated    string
		retry       float64 // -1 for null
	}{
		{"a window", `limits: [{name: logins, allow: 1/min, algorithm: sliding_log}]`, 1, 18500 * time.Millisecond, 1, 429,
			`The limit "logins" allows 1 request per minute. Try again in 42 seconds.`, "logins", 41.5},
		{"two windows, the longer refuses", `limits: [{name: a, allow: [2/15m, 2/hour], algorithm: sliding_log}]`, 2, time.Minute, 1, 429,
			`The limit "a:3600s" allows 2 requests per hour. Try again in 59 minutes.`, "a:900s,a:3600s", 3540},
		{"a token bucket", `limits: [{name: a, allow: {rate: 4/min, burst: 6}}]`, 6, 0, 1, 429,
			`The limit "a" allows 4 requests per minute, with bursts of up to 6. Try again in 15 seconds.`, "a", 15},
		{"a leaky bucket", `limits: [{name: a, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 2}}]`, 3, 0, 1, 429,
			`The limit "a" lets 1 request per second through, one after the other, and too many are waiting. Try again in 1 second.`, "a", 1},
		{"concurrency", `limits: [{name: a, allow: 2 concurrent}]`, 2, 0, 1, 429,
			`The limit "a" allows 2 requests at the same time. Try again in 30 seconds.`, "a", 30},
		{"never", `limits: [{name: a, allow: 2/min}]`, 0, 0, 3, 429,
			`The limit "a" allows 2 requests per minute. This request asks for more than that at once, so it can never be admitted.`, "a", -1},
		{"closed", `limits: [{name: a, allow: 0/min}]`, 0, 0, 1, 429, `The limit "a" allows no requests per minute.`, "a", -1},
		{"units", `limits: [{name: a, allow: 3/day, algorithm: sliding_log, cost: 2}]`, 1, 0, 1, 429,
			`The limit "a" allows 3 units per day. Try again in 1 day.`, "a", 86400},
		{"another status", `limits: [{name: a, allow: 1/min, algorithm: sliding_log, response: {status: 503}}]`, 1, 0, 1, 503,
			`The limit "a" allows 1 request per minute. Try again in 1 minute.`, "a", 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			clk := &clock{}
			l := newLimiter(t, clk, c.rules)
			for range c.before {
				decide(t, l, 1)
			}
			clk.wait(c.wait)
			d := decide(t, l, c.hits)
			if d.Allowed {
				t.Fatal("admitted")
			}
			w := httptest.NewRecorder()
			Headers(0).Refuse(w, httptest.NewRequest("GET", "/", nil), d)
			if w.Code != c.status || w.Header().Get("Content-Type") != "application/problem+json" ||
				w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("status %d, headers %v", w.Code, w.Header())
			}
			var p problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
				t.Fatalf("%v in %s", err, w.Body)
			}
			if p.Type != TypeQuotaExceeded || p.Title == "" || p.Status != c.status || p.Detail != c.detail ||
				strings.Join(p.Violated, ",") != c.violated {
				t.Errorf("got %+v", p)
			}
			if c.retry < 0 && p.Retry != nil || c.retry >= 0 && (p.Retry == nil || *p.Retry != c.retry) {
				t.Errorf("retry_after: %s, want %v", w.Body, c.retry)
			}
			if has := w.Header().Get("Retry-After") != ""; has != (c.retry >= 0) {
				t.Errorf("Retry-After: %q", w.Header().Get("Retry-After"))
			}

			w = httptest.NewRecorder()
			Headers(0).Refuse(w, httptest.NewRequest("HEAD", "/", nil), d)
			if w.Body.Len() != 0 || w.Code != c.status || w.Header().Get("Content-Length") == "0" {
				t.Errorf("HEAD: %d, %q, %v", w.Code, w.Body, w.Header())
			}
		})
	}
}

func TestRefuseWithResponse(t *testing.T) {
	for _, c := range []struct{ response, contentType, body, header string }{
		{`{headers: {X-Plan: free, Retry-After: "7"}, body: "Too fast."}`, "text/plain; charset=utf-8", "Too fast.", "free"},
		{`{content_type: text/html, body: "<p>slow</p>"}`, "text/html", "<p>slow</p>", ""},
		{`{body: '{"slow": true}'}`, "application/problem+json", `{"slow": true}`, ""},
	} {
		l := newLimiter(t, &clock{}, `limits: [{name: a, allow: 1/min, response: `+c.response+`}]`)
		decide(t, l, 1)
		w := httptest.NewRecorder()
		Headers(0).Refuse(w, httptest.NewRequest("GET", "/", nil), decide(t, l, 1))
		if got := w.Header(); got.Get("Content-Type") != c.contentType || w.Body.String() != c.body ||
			got.Get("X-Plan") != c.header || got.Get("X-RateLimit-Limit") != "1" {
			t.Errorf("%s: %v %q", c.response, got, w.Body)
		}
		if c.header != "" && w.Header().Get("Retry-After") != "7" {
			t.Errorf("the rule's own header does not win: %v", w.Header())
		}
	}
}

func TestProblem(t *testing.T) {
	w := httptest.NewRecorder()
	answer.ProblemDetails(w, 400, "", "", "a \"quoted\"\n\x01 \xff ü",
		map[string]any{"zeta": 1, "alpha": []string{"x"}, "status": 7, "bad": math.NaN()})
	want := `{"title":"Bad Request","status":400,"detail":"a \"quoted\"\u000a\u0001 ` + "\ufffd" +
		` ü","alpha":["x"],"zeta":1}` + "\n"
	if w.Body.String() != want || w.Code != 400 || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("got %s, want %s; %v", w.Body, want, w.Header())
	}
}

func TestStoreErrorIs503(t *testing.T) {
	w := httptest.NewRecorder()
	answer.StoreError(w)
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusServiceUnavailable ||
		p.Type != answer.TypeReducedCapacity {
		t.Errorf("%d %s (%v)", w.Code, w.Body, err)
	}
}

func TestDurationText(t *testing.T) {
	for s, want := range map[int64]string{
		1: "1 second", 59: "59 seconds", 60: "1 minute", 61: "1 minute 1 second", 3599: "59 minutes 59 seconds", 3600: "1 hour",
		3601: "1 hour 1 minute", 7199: "2 hours", 86399: "1 day", 86400: "1 day", 90001: "1 day 2 hours", 2 * 86400: "2 days", 172799: "2 days",
	} {
		if got := durationText(s); got != want {
			t.Errorf("%d s: %q, want %q", s, got, want)
		}
	}
}

// A body never says less than the truth, and what it writes is JSON.
func TestAppendProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		var back string
		if err := json.Unmarshal(answer.AppendJSON(nil, s), &back); err != nil || back != s {
			t.Fatalf("%q became %q (%v)", s, back, err)
		}
		us := rapid.Int64Range(0, 1<<53).Draw(t, "us")
		var f float64
		if err := json.Unmarshal(answer.AppendSeconds(nil, us), &f); err != nil ||
			int64(math.Round(f*1e6)) != us && us < 1<<50 {
			t.Fatalf("%d µs became %s", us, answer.AppendSeconds(nil, us))
		}
		var seconds int64
		n := int64(0)
		for _, word := range strings.Fields(durationText(us/1e6 + 1)) {
			switch strings.TrimSuffix(word, "s") {
			case "day":
				seconds += n * 86400
			case "hour":
				seconds += n * 3600
			case "minute":
				seconds += n * 60
			case "second":
				seconds += n
			default:
				if err := json.Unmarshal([]byte(word), &n); err != nil {
					t.Fatal(err)
				}
			}
		}
		if want := us/1e6 + 1; seconds < want || seconds > want+want/24+1 {
			t.Fatalf("%d s became %q", want, durationText(want))
		}
	})
}
