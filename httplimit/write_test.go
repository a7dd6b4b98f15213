package httplimit

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/rule"
)

func TestParseHeaders(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  Headers
		err   string
	}{
		{nil, 0, ""},
		{[]string{"x-delta"}, XDelta, ""},
		{[]string{"draft11", " X-Delta "}, XDelta | Draft11, ""},
		{[]string{"off"}, Off, ""},
		{[]string{"off", "x-delta"}, 0, "off stands alone"},
		{[]string{"x-epoch", "draft03"}, XEpoch | Draft03, ""},
		{[]string{"envoy03", "next"}, Envoy03 | Next, ""},
		{[]string{"x-delta", "draft11", "x-epoch"}, 0, "x-delta and x-epoch write X-RateLimit-Limit and X-RateLimit-Reset in different ways; keep one of them"},
		{[]string{"draft03", "draft11"}, 0, "draft03 and draft11 write RateLimit-Policy or RateLimit in different ways; keep one of them"},
		{[]string{"next", "draft11"}, 0, "draft11 and next write RateLimit-Policy"},
		{[]string{"draft12"}, 0, `"draft12" is no family of headers; known are x-delta, x-epoch, envoy03, draft03, draft11, next and off`},
	} {
		got, err := ParseHeaders(c.names)
		if c.err == "" && (err != nil || got != c.want || got.check() != nil) ||
			c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("ParseHeaders(%q) = %v, %v; want %v, %q", c.names, got, err, c.want, c.err)
		}
	}
	if got := Headers(0).String(); got != "x-delta,draft11" {
		t.Errorf("the default is %q", got)
	}
}

func TestWrite(t *testing.T) {
	type want map[string]string
	for _, c := range []struct {
		name   string
		rules  string
		before int // requests that pass before
		wait   time.Duration
		hits   int64
		family Headers
		want   want
	}{
		{
			name: "a pass", rules: `limits: [{name: a, allow: 10/min, algorithm: fixed_window}]`,
			before: 2, wait: 1500 * time.Millisecond, hits: 1,
			want: want{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "59",
				"RateLimit-Policy": `"a";q=10;w=60`, "RateLimit": `"a";r=7;t=59`},
		},
		{
			name: "a refusal", rules: `limits: [{name: a, allow: 2/min, algorithm: sliding_log}]`,
			before: 2, wait: 500 * time.Millisecond, hits: 1,
			want: want{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60", "X-RateLimit-Retry-After": "60", "Retry-After": "60",
				"RateLimit-Policy": `"a";q=2;w=60`, "RateLimit": `"a";r=0;t=60`},
		},
		{
			name: "never", rules: `limits: [{name: a, allow: 2/min}]`, hits: 3,
			want: want{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "0",
				"RateLimit-Policy": `"a";q=2;w=60`, "RateLimit": `"a";r=2`},
		},
		{
			name: "token bucket: w is the time to fill it", rules: `limits: [{name: a, allow: {rate: 4/min, burst: 10}}]`, hits: 1,
			want: want{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "15",
				"RateLimit-Policy": `"a";q=10;w=150`, "RateLimit": `"a";r=9;t=15`},
		},
		{
			name: "a window below a second has no w", rules: `limits: [{name: a, allow: 5/100ms, algorithm: fixed_window}]`, hits: 1, family: Draft11,
			want: want{"RateLimit-Policy": `"a";q=5`, "RateLimit": `"a";r=4;t=1`},
		},
		{
			name: "a bucket that fills below a second has no w", rules: `limits: [{name: a, allow: {rate: 20/s, burst: 10}}]`, hits: 1, family: Draft11,
			want: want{"RateLimit-Policy": `"a";q=10`, "RateLimit": `"a";r=9;t=1`},
		},
		{
			name:  "two windows and another rule: each an item, the nearest in the x family",
			rules: `limits: [{name: a, allow: [10/min, 500/hour], algorithm: fixed_window}, {name: b, allow: 3/hour, algorithm: fixed_window}]`,
			hits:  1,
			want: want{"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "3600",
				"RateLimit-Policy": `"a:60s";q=10;w=60, "a:3600s";q=500;w=3600, "b";q=3;w=3600`,
				"RateLimit":        `"a:60s";r=9;t=60, "a:3600s";r=499;t=3600, "b";r=2;t=3600`},
		},
		{
			name:  "shadow limits never appear",
			rules: `limits: [{name: a, allow: 10/min, algorithm: fixed_window}, {name: b, allow: 1/min, on_limit: shadow}]`, before: 3, hits: 1,
			want: want{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "6", "X-RateLimit-Reset": "60",
				"RateLimit-Policy": `"a";q=10;w=60`, "RateLimit": `"a";r=6;t=60`},
		},
		{
			name: "only a shadow limit: nothing", rules: `limits: [{name: b, allow: 1/min, on_limit: shadow}]`, before: 3, hits: 1, want: want{},
		},
		{
			name:   "in the soft margin",
			rules:  `limits: [{name: a, allow: 10/min, algorithm: fixed_window, throttle: {soft: 20%}}]`,
			before: 10, hits: 1,
			want: want{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60", "X-RateLimit-Soft": "exceeded", "X-RateLimit-Warning": `near_limit; limit="a"`,
				"RateLimit-Policy": `"a";q=10;w=60`, "RateLimit": `"a";r=0;t=60`},
		},
		{
			name:   "near two limits of three, one of them in shadow",
			rules:  `limits: [{name: a, allow: [5/min, 10/hour], algorithm: fixed_window}, {name: b, allow: 5/min, on_limit: shadow}]`,
			before: 3, hits: 1, family: XDelta,
			want: want{"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "60", "X-RateLimit-Warning": `near_limit; limit="a:60s"`},
		},
		{
			name:  "near both windows",
			rules: `limits: [{name: a, allow: [5/min, 5/hour], algorithm: fixed_window}]`, before: 4, hits: 1, family: XDelta,
			want: want{"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "3600",
				"X-RateLimit-Warning": `near_limit; limit="a:60s", near_limit; limit="a:3600s"`},
		},
		{
			name: "off, a pass", rules: `limits: [{name: a, allow: 10/min}]`, hits: 1, family: Off, want: want{},
		},
		{
			name: "off, a refusal: Retry-After alone", rules: `limits: [{name: a, allow: 1/min, algorithm: sliding_log}]`, before: 1, hits: 1, family: Off,
			want: want{"Retry-After": "60"},
		},
		{
			name: "x-epoch: the instant of the reset", rules: `limits: [{name: a, allow: 10/min, algorithm: fixed_window}]`,
			before: 2, wait: 1500 * time.Millisecond, hits: 1, family: XEpoch,
			want: want{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "1767225660"},
		},
		{
			name: "x-epoch, a refusal: rounded up", rules: `limits: [{name: a, allow: 1/min, algorithm: sliding_log}]`,
			wait: 1500 * time.Millisecond, before: 1, hits: 1, family: XEpoch,
			want: want{"X-RateLimit-Limit": "1", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1767225660", "X-RateLimit-Retry-After": "59", "Retry-After": "59"},
		},
		{
			name: "draft03: the nearest in the triple, and the policies", family: Draft03,
			rules:  `limits: [{name: a, allow: [10/s, 50/min], algorithm: fixed_window}, {name: b, allow: 3 concurrent}, {name: c, allow: 5/100ms, algorithm: fixed_window}]`,
			before: 1, wait: 500 * time.Millisecond, hits: 1,
			want: want{"RateLimit-Limit": "3", "RateLimit-Remaining": "1", "RateLimit-Reset": "30", "RateLimit-Policy": "10;w=1, 50;w=60"},
		},
		{
			name: "draft03, a refusal: reset and Retry-After name one instant", rules: `limits: [{name: a, allow: {rate: 4/min, burst: 2}}]`,
			before: 2, hits: 1, family: Draft03,
			want: want{"RateLimit-Limit": "2", "RateLimit-Remaining": "0", "RateLimit-Reset": "15", "RateLimit-Policy": "2;w=30", "Retry-After": "15"},
		},
		{
			name: "draft03 without a window: no policy", rules: `limits: [{name: b, allow: 3 concurrent}]`, hits: 1, family: Draft03,
			want: want{"RateLimit-Limit": "3", "RateLimit-Remaining": "2", "RateLimit-Reset": "30"},
		},
		{
			name: "next", rules: `limits: [{name: a, allow: 10/min, algorithm: fixed_window}]`, before: 2, hits: 1, family: Next,
			want: want{"RateLimit-Policy": `"a";q=10;w=60`, "RateLimit": `"a";a=7;w=60`},
		},
		{
			name: "envoy03", rules: `limits: [{name: a, allow: [10/min, 500/hour], algorithm: fixed_window}, {name: b, allow: 20 concurrent}]`, before: 2, hits: 1, family: Envoy03,
			want: want{"X-RateLimit-Limit": `10, 10;w=60;name="a:60s", 500;w=3600;name="a:3600s"`, "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "60"},
		},
		{
			name: "envoy03, a refusal", rules: `limits: [{name: a, allow: 1/min, algorithm: sliding_log}]`, before: 1, hits: 1, family: Envoy03,
			want: want{"X-RateLimit-Limit": `1, 1;w=60;name="a"`, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60", "Retry-After": "60"},
		},
		{
			name: "two families", rules: `limits: [{name: a, allow: 1/min, algorithm: sliding_log}]`, before: 1, hits: 1, family: XEpoch | Draft03,
			want: want{"X-RateLimit-Limit": "1", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1767225660", "X-RateLimit-Retry-After": "60", "Retry-After": "60",
				"RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": "60", "RateLimit-Policy": "1;w=60"},
		},
		{
			name: "concurrency", rules: `limits: [{name: a, allow: 10 concurrent}]`, hits: 1, family: Draft11,
			want: want{"RateLimit-Policy": `"a";q=10;qu="concurrent-requests"`, "RateLimit": `"a";r=9;t=30`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			clk := &clock{}
			l := newLimiter(t, clk, c.rules)
			for range c.before {
				if d := decide(t, l, 1); !d.Allowed {
					t.Fatal("a request before was refused")
				}
			}
			clk.wait(c.wait)
			d := decide(t, l, c.hits)
			got := http.Header{}
			c.family.Write(got, d)
			want := http.Header{}
			for k, v := range c.want {
				want.Set(k, v)
			}
			if !d.Allowed && c.family != Off {
				want.Set("X-RateLimit-Decision", d.ID.String())
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			for _, k := range []string{"RateLimit-Policy", "RateLimit", "X-RateLimit-Warning"} {
				if got.Get(k) != "" {
					if _, err := httpsfv.UnmarshalList(got[http.CanonicalHeaderKey(k)]); err != nil {
						t.Errorf("%s: %s is no structured field: %v", k, got.Get(k), err)
					}
				}
			}
		})
	}
}

// The fields of a family that an upstream sent are replaced as a whole if they cannot be compared,
// and kept where no limit was met. Marks of another limit stay.
func TestWriteReplaces(t *testing.T) {
	clk := &clock{}
	l := newLimiter(t, clk, `limits: [{name: a, allow: 10/min, when: {user: ada}}]`)
	foreign := func() http.Header {
		return http.Header{"X-Ratelimit-Retry-After": {"9"}, "X-Ratelimit-Soft": {"exceeded"},
			"X-Ratelimit-Warning": {"near_limit"}, "X-Ratelimit-Decision": {"x"}, "Ratelimit": {`"x";r=1`,
				`"y";r=2`}, "X-Ratelimit-Limit": {"1"}}
	}
	h := foreign()
	XDelta.Write(h, decide(t, l, 1, rule.Pair{Name: "user", Value: "ada"}))
	want := http.Header{"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"9"},
		"Ratelimit":        {`"x";r=1`, `"y";r=2`},
		"X-Ratelimit-Soft": {"exceeded"}, "X-Ratelimit-Warning": {"near_limit"}, "X-Ratelimit-Decision": {"x"}}
	want["X-Ratelimit-Reset"] = h["X-Ratelimit-Reset"]
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got %v, want %v", h, want)
	}
	h = foreign()
	h["Ratelimit-Limit"], h["Ratelimit-Remaining"], h["Ratelimit-Reset"], h["Ratelimit-Policy"] = []string{"9"},
		[]string{"8"}, []string{"7"}, []string{"9;w=1"}
	d := decide(t, l, 1, rule.Pair{Name: "user", Value: "ada"})
	d.Limits[0].ResetAfter = algo.Never
	Draft03.Write(h, d)
	if h.Get("RateLimit-Limit") != "9" || h.Get("RateLimit-Remaining") != "8" || h.Get("RateLimit-Reset") != "7" ||
		h.Get("RateLimit-Policy") != "9;w=1, 10;w=60" {
		t.Errorf("a limit without a reset, of which those fields do not tell: %v", h)
	}
	h = foreign()
	XDelta.Write(h, decide(t, l, 1))
	if !reflect.DeepEqual(h, foreign()) {
		t.Errorf("a decision that met no limit changed %v", h)
	}
}

func TestNamesAreStructuredStrings(t *testing.T) {
	limit, err := algo.New(algo.Config{N: 5, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"api-per-user:60s": "api-per-user:60s",
		`say "hi" \ there`: `say "hi" \ there`,
		"größe\n":          "gr%C3%B6%C3%9Fe%0A",
		"a, b;c=1":         "a, b;c=1",
		"":                 "",
	} {
		d := weir.Decision{Allowed: true, Limits: []weir.LimitResult{{
			Window: &rule.Window{Rule: &rule.Rule{Name: name}, Name: name, Seconds: 60, Limit: limit},
			Result: algo.Result{Limit: 5, Remaining: 3, ResetAfter: 61e6, Allowed: true},
		}}}
		h := http.Header{}
		Draft11.Write(h, &d)
		for field, params := range map[string]map[string]int64{"Ratelimit-Policy": {"q": 5, "w": 60},
			"Ratelimit": {"r": 3, "t": 61}} {
			list, err := httpsfv.UnmarshalList(h[field])
			if err != nil || len(list) != 1 {
				t.Errorf("%q: %s: %s: %v", name, field, h.Get(field), err)
				continue
			}
			item := list[0].(httpsfv.Item)
			if item.Value != want {
				t.Errorf("%q became %q, want %q", name, item.Value, want)
			}
			for k, v := range params {
				if got, _ := item.Params.Get(k); got != v {
					t.Errorf("%q: %s has %s = %v, want %d", name, field, k, got, v)
				}
			}
		}
	}
}

// The w of the largest bucket that rules can define fits the 15 digits of a structured Integer, and
// nothing overflows.
func TestWindowSecondsLarge(t *testing.T) {
	limit, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: 1, Window: algo.MaxWindow, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	w := &rule.Window{Limit: limit}
	if got, want := answer.WindowSeconds(&weir.LimitResult{Window: w, Result: algo.Result{Limit: 1000}}, limit), int64(366*86400*1000); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
	// What would not fit 64 bits is left out.
	if got := answer.WindowSeconds(&weir.LimitResult{Window: w, Result: algo.Result{Limit: algo.MaxN}}, limit); got != 0 {
		t.Errorf("got %d", got)
	}
}

func TestWriteAllocations(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: a, allow: [10/min, 500/hour]}]`)
	d := decide(t, l, 1)
	h := http.Header{}
	Headers(0).Write(h, d) // grows the map
	if n := testing.AllocsPerRun(100, func() { clear(h); Headers(0).Write(h, d) }); n > 2 {
		t.Errorf("%v allocations; one string and one slice are enough", n)
	}
}

// A bucket that is refilled no more is never full again: no time of a reset is told.
func TestWriteResetNever(t *testing.T) {
	d := decide(t, newLimiter(t, &clock{}, `limits: [{name: a, allow: 10/min, algorithm: token_bucket}]`), 1)
	d.Limits[0].ResetAfter = algo.Never
	h := http.Header{"X-Ratelimit-Reset": {"9"}}
	Headers(0).Write(h, d)
	if got := h.Get("RateLimit"); got != `"a";r=9` || h["X-Ratelimit-Reset"] != nil {
		t.Errorf("RateLimit: %s, X-RateLimit-Reset: %q", got, h["X-Ratelimit-Reset"])
	}
}
