package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

func newMiddleware(t testing.TB, l *weir.Limiter, o Options, h http.HandlerFunc) http.Handler {
	t.Helper()
	limit, err := New(l, o)
	if err != nil {
		t.Fatal(err)
	}
	return limit(h)
}

func get(h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestMiddleware(t *testing.T) {
	l := newLimiter(t, &clock{}, `
domain: shop
limits:
  - {name: per-user, when: {path: /api/**}, per: [user|ip], allow: 3/min, algorithm: sliding_log}
`)
	id, err := ParseIdentity(map[string]string{"user": "header:X-User-Id"}, "")
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	h := newMiddleware(t, l, Options{Identity: id}, func(w http.ResponseWriter, r *http.Request) {
		served++
		// it may change them
		w.Header().Set("X-RateLimit-Remaining", w.Header().Get("X-RateLimit-Remaining")+" of the handler's")
		_, _ = io.WriteString(w, "hello")
	})
	for i := range 5 {
		w := get(h, []string{"/api/x", "//api/x", "/%61pi/./x", "/api/y", "/api"}[i], "X-User-Id", "ada")
		if want := []int{200, 200, 200, 429, 429}[i]; w.Code != want {
			t.Errorf("request %d: %d, want %d", i, w.Code, want)
		}
		if i == 0 && (w.Header().Get("X-RateLimit-Remaining") != "2 of the handler's" ||
			w.Header().Get("RateLimit") != `"per-user";r=2;t=60` || w.Body.String() != "hello") {
			t.Errorf("a pass: %v %s", w.Header(), w.Body)
		}
		if i == 3 && w.Header().Get("Retry-After") != "60" {
			t.Errorf("a refusal: %v", w.Header())
		}
	}
	if w := get(h, "/api/x", "X-User-Id", "bob"); w.Code != 200 {
		t.Errorf("another user: %d", w.Code)
	}
	if w := get(h, "/api/x"); w.Code != 200 {
		t.Errorf("by address: %d", w.Code)
	}
	if w := get(h, "/elsewhere", "X-User-Id", "ada"); w.Code != 200 || w.Header().Get("RateLimit") != "" {
		t.Errorf("no limit met: %d %v", w.Code, w.Header())
	}
	if served != 6 {
		t.Errorf("the handler was called %d times, want 6", served)
	}
}

func TestNewErrors(t *testing.T) {
	set, _, err := file.Load([]file.Source{
		{Name: "a.yaml", Data: []byte("domain: a\nlimits: [{name: x, allow: 1/min}]")}, {Name: "b.yaml", Data: []byte("domain: b\nlimits: [{name: x, allow: 1/min}]")},
	}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(t, nil, `limits: [{name: a, allow: 1/min}]`)
	l.SetRules(set)
	if _, err := New(l, Options{}); err == nil || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("several domains: %v", err)
	}
	if _, err := New(l, Options{Domain: "b"}); err != nil {
		t.Error(err)
	}
	if _, err := New(nil, Options{}); err == nil {
		t.Error("a nil limiter is accepted")
	}
}

// The golden case of algorithms.md: queue 4, outflow 1 per second, 6 at once leave at 0, 1, 2, 3, 4
// s, and the sixth is refused. In virtual time, with the real store on the wall clock.
func TestLeakyBucketHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, nil, `limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 4}}]`)
		var mu sync.Mutex
		var left []time.Duration
		start := time.Now()
		h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, time.Since(start))
		})
		var wg sync.WaitGroup
		var refused atomic.Int64
		for range 6 {
			wg.Go(func() {
				if w := get(h, "/"); w.Code == 429 {
					refused.Add(1)
					if w.Header().Get("Retry-After") != "1" {
						t.Errorf("Retry-After: %v", w.Header())
					}
				}
			})
		}
		wg.Wait()
		want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}
		if !slices.Equal(left, want) || refused.Load() != 1 {
			t.Errorf("left at %v, %d refused; want %v and 1", left, refused.Load(), want)
		}
	})
}

// `wait` bounds the hold: who would have to wait longer is refused, uncharged.
func TestLeakyBucketWaitsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, nil,
			`limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 9}, on_limit: {wait: 2s}}]`)
		h := newMiddleware(t, l, Options{}, func(http.ResponseWriter, *http.Request) {})
		var wg sync.WaitGroup
		var passed atomic.Int64
		start := time.Now()
		for range 6 {
			wg.Go(func() {
				if get(h, "/").Code == 200 {
					passed.Add(1)
				}
			})
		}
		wg.Wait()
		if passed.Load() != 3 || time.Since(start) != 2*time.Second {
			t.Errorf("%d passed in %v, want 3 in 2s", passed.Load(), time.Since(start))
		}
	})
}

// Who hangs up gives its turn back if nobody stands behind it; else the turn goes unused. Another
// limit that was met stays charged.
func TestHangUpGivesTurnBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, nil, `
limits:
  - {name: q, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 10}}
  - {name: day, algorithm: sliding_log, allow: 100/day}
`)
		served := make(chan time.Time, 100)
		h := newMiddleware(t, l, Options{}, func(http.ResponseWriter, *http.Request) { served <- time.Now() })
		enter := func(ctx context.Context) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
			return w
		}
		start := time.Now()
		enter(t.Context()) // leaves at once
		<-served
		last, hangUp := context.WithCancel(t.Context())
		done := make(chan *httptest.ResponseRecorder, 1)
		go func() { done <- enter(last) }() // turn at 1 s
		synctest.Wait()
		hangUp()
		if w := <-done; w.Code != statusHungUp {
			t.Errorf("who hung up got %d", w.Code)
		}
		enter(t.Context())
		if at := (<-served).Sub(start); at != time.Second {
			t.Errorf("the next left at %v; the turn at 1s was free again", at)
		}

		middle, hangUp := context.WithCancel(t.Context())
		go func() { done <- enter(middle) }() // turn at 2 s
		synctest.Wait()
		go func() { done <- enter(t.Context()) }() // turn at 3 s
		synctest.Wait()
		hangUp()
		<-done
		go func() { done <- enter(t.Context()) }() // turn at 4 s: 2 s goes unused
		<-done
		<-done
		for i, want := range []time.Duration{3 * time.Second, 4 * time.Second} {
			if at := (<-served).Sub(start); at != want {
				t.Errorf("%d left at %v, want %v", i, at, want)
			}
		}
		d := weir.Decision{}
		if err := l.Decide(t.Context(), &weir.Request{Peek: true}, &d); err != nil {
			t.Fatal(err)
		}
		if used := 100 - d.Limits[1].Remaining; used != 6 {
			t.Errorf("the daily limit counts %d, want all 6 that were admitted", used)
		}
	})
}

// A client that hangs up while its POST is held is noticed, though nobody reads the body, and makes
// room for the next.
func TestHangUpOverTheWire(t *testing.T) {
	decided := make(chan bool, 1)
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store,
		weir.WithRules(load(t, `limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1/h, burst: 1}}]`)),
		weir.WithHooks(weir.Hooks{Decided: func(_ *weir.Request, d *weir.Decision) { decided <- d.Allowed }}))
	if err != nil {
		t.Fatal(err)
	}
	h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "hello" {
			t.Errorf("the handler read %q, %v", body, err)
		}
		w.WriteHeader(200)
	})
	status := make(chan int, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &statusRecorder{ResponseWriter: w}
		h.ServeHTTP(rec, r)
		status <- rec.status
	}))
	defer s.Close()
	for i, want := range []int{200, statusHungUp, statusHungUp} {
		// the third would be refused if the second had kept its place
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
		if !<-decided {
			t.Errorf("request %d was refused", i)
		}
		if want == statusHungUp {
			_ = conn.Close()
		}
		if got := <-status; got != want {
			t.Errorf("request %d ended with %d, want %d", i, got, want)
		}
		_ = conn.Close()
	}
}

// A held request's body reaches the handler whole.
func TestHeldBody(t *testing.T) {
	l := newLimiter(t, nil, `limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 50/s, burst: 10}}]`)
	s := httptest.NewServer(newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
	}))
	defer s.Close()
	for _, size := range []int{0, 1, 5000, readAheadMax, readAheadMax + 1, 300_000} {
		for _, chunked := range []bool{false, true} {
			sent := strings.Repeat("x", size)
			var body io.Reader = strings.NewReader(sent)
			if chunked {
				body = io.MultiReader(body)
			}
			resp, err := http.Post(s.URL, "text/plain", body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(got) != sent || resp.StatusCode != 200 {
				t.Errorf("%d bytes, chunked %v: %d, got %d bytes, %v", size, chunked, resp.StatusCode, len(got), err)
			}
		}
	}
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(code int) { s.status = code; s.ResponseWriter.WriteHeader(code) }

func TestConcurrencyIsReleased(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: c, allow: 1 concurrent}]`)
	inside, proceed := make(chan bool), make(chan bool)
	h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			inside <- true
			<-proceed
		case "/panic":
			panic("x")
		}
	})
	done := make(chan int)
	go func() { done <- get(h, "/slow").Code }()
	<-inside
	if w := get(h, "/"); w.Code != 429 {
		t.Errorf("a second at the same time: %d", w.Code)
	}
	proceed <- true
	if code := <-done; code != 200 {
		t.Errorf("the slow one: %d", code)
	}
	func() {
		defer func() { _ = recover() }()
		get(h, "/panic")
	}()
	if w := get(h, "/"); w.Code != 200 {
		t.Errorf("after a panic: %d", w.Code)
	}
}

// failing is a store that is away.
type failing struct{}

var errAway = errors.New("the store is away")

func (failing) Take(ctx context.Context, _ []store.Charge, _ []algo.Result) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return 0, errAway
}
func (failing) Release(context.Context, *rule.Counter, []byte, uint64) (bool, error) {
	return false, errAway
}
func (failing) Close() error { return nil }

func TestStoreError(t *testing.T) {
	l, err := weir.New(failing{}, weir.WithRules(load(t, `
limits:
  - {name: open, when: {path: /open/**}, allow: 1/min, on_store_error: allow}
  - {name: closed, when: {path: ["/closed", "/open/closed"]}, allow: 1/min, on_store_error: deny}
  - {name: local, when: {path: /local}, allow: 1/min}
  - {name: dark, when: {path: /open/**}, allow: 1/min, on_limit: shadow, on_store_error: deny}
`)))
	if err != nil {
		t.Fatal(err)
	}
	var told atomic.Int64
	h := newMiddleware(t, l, Options{OnError: func(_ *http.Request, err error) {
		if errors.Is(err, errAway) {
			told.Add(1)
		}
	}}, func(http.ResponseWriter, *http.Request) {})
	for path, want := range map[string]int{"/open/x": 200, "/closed": 503, "/open/closed": 503, "/local": 503,
		"/unlimited": 200} {
		if w := get(h, path); w.Code != want || w.Header().Get("RateLimit") != "" {
			t.Errorf("%s: %d %v, want %d", path, w.Code, w.Header(), want)
		}
	}
	if told.Load() != 4 {
		t.Errorf("OnError was called %d times, want 4", told.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/closed", nil).WithContext(ctx))
	if w.Code != statusHungUp || told.Load() != 4 {
		t.Errorf("a client that is gone: %d, %d", w.Code, told.Load())
	}
}
