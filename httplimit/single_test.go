package httplimit

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/store/memory"
)

// newSingle is a limiter with a limit that names no key.
func newSingle(t *testing.T) *weir.Limiter {
	t.Helper()
	store, err := memory.New(memory.Options{Clock: func() int64 { return epoch }}) // no window turns
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := weir.New(store, weir.Limit("all", "2/year"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A limit without per holds for all requests together, in a middleware and in a transport.
func TestSingleLimit(t *testing.T) {
	limit, err := New(newSingle(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, path := range []string{"/a", "/b", "/c"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if want := [...]int{200, 200, 429}[i]; w.Code != want {
			t.Errorf("middleware: %s: %d, want %d", path, w.Code, want)
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	transport, err := NewLimitTransport(newSingle(t), nil, LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	for i := range 3 {
		answer, err := client.Get(s.URL)
		if err == nil {
			answer.Body.Close()
		}
		if _, limited := errors.AsType[*LimitedError](err); limited != (i == 2) || err != nil && !limited {
			t.Errorf("transport: request %d: %v", i+1, err)
		}
	}
}

// A limit is a promise of at most q in any w seconds, apart from the first: a leaky bucket's is the
// time in which it drains.
func TestLeakyBucketPolicy(t *testing.T) {
	for allow, want := range map[string]string{
		"{rate: 1/s, burst: 4}":    `"q";q=5;w=5`,
		"{rate: 10/min, burst: 4}": `"q";q=5;w=30`,
		"{rate: 3/s, burst: 9}":    `"q";q=10;w=4`,
		"{rate: 100/s, burst: 4}":  `"q";q=5`,
		"{rate: 2/s, burst: 0}":    `"q";q=1`,
		"1/min":                    `"q";q=2;w=120`,
	} {
		l := newLimiter(t, nil, `limits: [{name: q, algorithm: leaky_bucket, allow: `+allow+`}]`)
		d, err := l.Allow(t.Context(), weir.Request{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []Headers{Draft11, Next} {
			h := http.Header{}
			f.Write(h, d)
			if got := h.Get("RateLimit-Policy"); got != want {
				t.Errorf("%s: %s, want %s", allow, got, want)
			}
		}
	}
	l := newLimiter(t, nil, `limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 4}}]`)
	d, err := l.Allow(t.Context(), weir.Request{})
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range map[Headers][2]string{Draft03: {"RateLimit-Policy", "5;w=5"},
		Envoy03: {"X-RateLimit-Limit", `5, 5;w=5;name="q"`}} {
		h := http.Header{}
		f.Write(h, d)
		if got := h.Get(want[0]); got != want[1] {
			t.Errorf("%s: %s, want %s", want[0], got, want[1])
		}
	}
}
