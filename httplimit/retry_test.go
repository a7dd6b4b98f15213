package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store/memory"
)

// roundTrips is a server as a function.
type roundTrips func(*http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// handled makes a RoundTripper of a handler, without a network, so that time may be virtual.
func handled(h http.Handler) http.RoundTripper {
	return roundTrips(func(r *http.Request) (*http.Response, error) {
		in := r.Clone(r.Context())
		in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "192.0.2.1:1234"
		if in.Body == nil {
			in.Body = http.NoBody
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, in)
		if r.Body != nil {
			_ = r.Body.Close()
		}
		resp := w.Result()
		resp.Request = r
		return resp, nil
	})
}

func newRetry(t *testing.T, base http.RoundTripper, o RetryOptions) *RetryTransport {
	t.Helper()
	rt, err := NewRetryTransport(base, o)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// answers is a server that gives one answer after another, and remembers the requests.
type answers struct {
	t      *testing.T
	list   []http.Header // with Status as a field of its own
	times  []time.Time
	bodies []string
	open   int // bodies of answers that nobody has closed
}

type countedBody struct {
	io.Reader
	open *int
}

func (b countedBody) Close() error { *b.open--; return nil }

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			a.t.Error(err)
		}
		body = string(data)
		_ = r.Body.Close()
	}
	h := a.list[min(len(a.times), len(a.list)-1)].Clone()
	a.times, a.bodies = append(a.times, time.Now()), append(a.bodies, body)
	status := 200
	if s := h.Get("Status"); s != "" {
		if _, err := fmt.Sscan(s, &status); err != nil {
			a.t.Error(err)
		}
	}
	h.Del("Status")
	a.open++
	return &http.Response{StatusCode: status, Header: h, Body: countedBody{strings.NewReader("text"), &a.open},
		ContentLength: 4, Request: r}, nil
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

var ok = header()

// After a refusal a request is sent again, when the server says so and not before, with its body
// from the beginning.
func TestRetry(t *testing.T) {
	const key = "Idempotency-Key"
	for _, c := range []struct {
		name    string
		method  string
		body    io.Reader
		header  http.Header
		answers []http.Header
		status  int
		sent    int
		least   time.Duration // between the first two
		most    time.Duration
	}{
		{"seconds", "GET", nil, nil, []http.Header{header("Status", "429", "Retry-After", "5"), ok}, 200, 2, 5 * time.Second, 7 * time.Second},
		{"a date, by the server's clock", "GET", nil, nil, []http.Header{header("Status", "503", "Retry-After", "Sat, 01 Jan 2000 00:01:10 GMT", "Date", "Sat, 01 Jan 2000 00:01:00 GMT"), ok}, 200, 2, 10 * time.Second, 13 * time.Second},
		{"a date, by ours", "GET", nil, nil, []http.Header{header("Status", "503", "Retry-After", "Sat, 01 Jan 2000 00:00:10 GMT"), ok}, 200, 2, 10 * time.Second, 13 * time.Second},
		{"a date that has passed", "GET", nil, nil, []http.Header{header("Status", "503", "Retry-After", "Fri, 31 Dec 1999 00:00:10 GMT"), ok}, 200, 2, 0, 200 * time.Millisecond},
		{"nothing said", "GET", nil, nil, []http.Header{header("Status", "429"), ok}, 200, 2, 0, 200 * time.Millisecond},
		{"nonsense", "GET", nil, nil, []http.Header{header("Status", "429", "Retry-After", "soon"), ok}, 200, 2, 0, 200 * time.Millisecond},
		{"a body that can be read again", "PUT", strings.NewReader("body"), nil, []http.Header{header("Status", "429", "Retry-After", "1"), ok}, 200, 2, time.Second, 2 * time.Second},
		{"a body that cannot", "PUT", io.MultiReader(strings.NewReader("body")), nil, []http.Header{header("Status", "429", "Retry-After", "1"), ok}, 429, 1, 0, 0},
		{"a POST", "POST", strings.NewReader("body"), nil, []http.Header{header("Status", "429", "Retry-After", "1"), ok}, 429, 1, 0, 0},
		{"a POST with a key", "POST", strings.NewReader("body"), header(key, "1"), []http.Header{header("Status", "429", "Retry-After", "1"), ok}, 200, 2, time.Second, 2 * time.Second},
		{"another failure", "GET", nil, nil, []http.Header{header("Status", "500", "Retry-After", "1"), ok}, 500, 1, 0, 0},
		{"too long", "GET", nil, nil, []http.Header{header("Status", "429", "Retry-After", "61"), ok}, 429, 1, 0, 0},
		{"absurd", "GET", nil, nil, []http.Header{header("Status", "429", "Retry-After", "99999999999999999999"), ok}, 429, 1, 0, 0},
		{"for ever", "GET", nil, nil, []http.Header{header("Status", "429")}, 429, 4, 0, 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{t: t, list: c.answers}
				r, err := http.NewRequest(c.method, "http://api.example/x", c.body)
				if err != nil {
					t.Fatal(err)
				}
				for k, v := range c.header {
					r.Header[k] = v
				}
				resp, err := newRetry(t, a, RetryOptions{}).RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != c.status || len(a.times) != c.sent || resp.Request != r || a.open != 1 {
					t.Fatalf("status %d after %d attempts, %d answers open; want %d after %d", resp.StatusCode,
						len(a.times), a.open, c.status, c.sent)
				}
				if text, _ := io.ReadAll(resp.Body); string(text) != "text" {
					t.Errorf("the answer says %q", text)
				}
				if c.sent > 1 {
					if d := a.times[1].Sub(a.times[0]); d < c.least || d > c.most {
						t.Errorf("sent again after %v; want %v to %v", d, c.least, c.most)
					}
					for _, body := range a.bodies {
						if c.body != nil && body != "body" {
							t.Errorf("the server got %q", a.bodies)
						}
					}
				}
			})
		})
	}
}

// Waits that would go beyond the deadline are not begun: the refusal is returned, and later
// requests fail at once.
func TestRetryDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{t: t, list: []http.Header{header("Status", "429", "Retry-After", "30"), ok}}
		rt := newRetry(t, a, RetryOptions{})
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
		if resp, err := rt.RoundTrip(r); err != nil || resp.StatusCode != 429 {
			t.Fatal(resp, err)
		}
		body := &closeNote{Reader: strings.NewReader("x")}
		r, _ = http.NewRequestWithContext(ctx, "POST", "http://api.example/", body)
		_, err := rt.RoundTrip(r)
		var wait *WaitError
		if !errors.As(err, &wait) || !errors.Is(err, context.DeadlineExceeded) || wait.Wait != 30*time.Second ||
			!body.closed ||
			err.Error() != "httplimit: POST api.example: not sent: the server asks to wait for 30s, beyond the deadline" {
			t.Errorf("got %v; body closed: %v", err, body.closed)
		}
		r, _ = http.NewRequest("GET", "http://other.example/", nil)
		if resp, err := rt.RoundTrip(r); err != nil || resp.StatusCode != 200 {
			t.Errorf("another server: %v", err)
		}
		if time.Since(begin) != 0 || rt.Stats() != (RetryStats{Waits: 1}) {
			t.Errorf("took %v, %+v", time.Since(begin), rt.Stats())
		}
		// What was told ends; then requests go again.
		r, _ = http.NewRequest("POST", "http://api.example/", nil)
		if resp, err := rt.RoundTrip(r); err != nil || resp.StatusCode != 200 {
			t.Error(err)
		}
		if d := time.Since(begin); d < 30*time.Second || d > 40*time.Second {
			t.Errorf("sent after %v", d)
		}
	})
}

type closeNote struct {
	io.Reader
	closed bool
}

func (c *closeNote) Close() error { c.closed = true; return nil }

// A wait ends with the context, and the request leaves nothing behind.
func TestRetryCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{t: t,
			list: []http.Header{header("RateLimit", `"a";r=0;t=10`, "RateLimit-Policy", `"a";q=10;w=10`), ok}}
		rt := newRetry(t, a, RetryOptions{})
		r, _ := http.NewRequest("GET", "http://api.example/", nil)
		if _, err := rt.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
				if _, err := rt.RoundTrip(r); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		begin := time.Now()
		if _, err := rt.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 10*time.Second || d > 11*time.Second || len(a.times) != 2 {
			t.Errorf("went after %v: the places of those that were cancelled were not given back", d)
		}
	})
}

// A server that refuses everything gets few retries.
func TestRetryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{t: t, list: []http.Header{header("Status", "503")}}
		rt := newRetry(t, a, RetryOptions{})
		for range 1000 {
			r, _ := http.NewRequest("GET", "http://api.example/", nil)
			resp, err := rt.RoundTrip(r)
			if err != nil || resp.StatusCode != 503 {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
		if n := len(a.times) - 1000; n < 100 || n > 110 || a.open != 0 || rt.Stats().Retries != uint64(n) ||
			rt.Stats().Spent == 0 {
			t.Errorf("%d retries of 1000 requests; a tenth and 10 more are allowed; %+v", n, rt.Stats())
		}
	})
}

// limitedServer is a server behind our own middleware, on virtual time. It counts what it refused.
func limitedServer(t *testing.T, rules string, f Headers, took time.Duration, refused *int,
	passed *[]time.Time) http.RoundTripper {
	t.Helper()
	store, err := memory.New(memory.Options{Clock: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := weir.New(store, weir.WithRules(load(t, rules)))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	limit, err := New(l, Options{Headers: f,
		Refused: func(http.ResponseWriter, *http.Request, *weir.Decision, *Attributes) bool {
			mu.Lock()
			defer mu.Unlock()
			*refused++
			return false
		}})
	if err != nil {
		t.Fatal(err)
	}
	return handled(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		*passed = append(*passed, time.Now())
		mu.Unlock()
		time.Sleep(took)
	})))
}

// Many requests at a time against each kind of limit, told in each form: all of them pass in the
// end, hardly one is refused, and after the first burst they come evenly.
func TestRetryObeys(t *testing.T) {
	for _, rules := range []string{
		`limits: [{name: a, allow: 10/s, algorithm: fixed_window}]`,
		`limits: [{name: a, allow: 10/s, algorithm: sliding_log}]`,
		`limits: [{name: a, allow: [10/s, 40/5s], algorithm: sliding_log}]`,
		`limits: [{name: a, allow: {rate: 10/s, burst: 10}}]`,
	} {
		for _, f := range []Headers{Draft11, Next, Draft03, XDelta, XEpoch, Envoy03, XDelta | Draft11} {
			t.Run(rules+f.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var refused int
					var passed []time.Time
					rt := newRetry(t, limitedServer(t, rules, f, 20*time.Millisecond, &refused, &passed),
						RetryOptions{})
					var wg sync.WaitGroup
					for range 100 {
						wg.Go(func() {
							r, _ := http.NewRequest("GET", "http://api.example/", nil)
							if resp, err := rt.RoundTrip(r); err != nil || resp.StatusCode != 200 {
								t.Errorf("%v %v", resp, err)
							}
						})
						// they do not all come before the first answer
						time.Sleep(5 * time.Millisecond)
					}
					wg.Wait()
					took := passed[len(passed)-1].Sub(passed[0])
					if refused > 8 || took > 30*time.Second || len(passed) != 100 {
						t.Errorf("%d were refused, all took %v", refused, took)
					}
				})
			})
		}
	}
}

// What one request is told holds for the others: while one is left, only one is sent at a time.
func TestRetryAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused int
		var passed []time.Time
		rt := newRetry(t, limitedServer(t, `limits: [{name: a, allow: 3 concurrent}]`, 0, time.Second, &refused,
			&passed), RetryOptions{})
		r, _ := http.NewRequest("GET", "http://api.example/", nil)
		if _, err := rt.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				r, _ := http.NewRequest("GET", "http://api.example/", nil)
				if resp, err := rt.RoundTrip(r); err != nil || resp.StatusCode != 200 {
					t.Errorf("%v %v", resp, err)
				}
			})
		}
		wg.Wait()
		if refused != 0 || len(passed) != 13 {
			t.Errorf("%d passed, %d were refused", len(passed), refused)
		}
	})
}

// However many servers are asked, no more are remembered than wanted.
func TestRetryServers(t *testing.T) {
	a := &answers{t: t, list: []http.Header{header("RateLimit", `"a";r=5;t=10`)}}
	rt := newRetry(t, a, RetryOptions{MaxServers: 10})
	for i := range 1000 {
		r, _ := http.NewRequest("GET", fmt.Sprintf("http://%d.example/", i), nil)
		if _, err := rt.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(rt.peers); n != 10 {
		t.Errorf("%d are remembered", n)
	}
}

func TestRetryOptionsErrors(t *testing.T) {
	for want, o := range map[string]RetryOptions{"must not be below 0": {MaxWait: -1},
		"RetryShare": {RetryShare: 1.5}} {
		if _, err := NewRetryTransport(nil, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Over a real connection: the refusal is read, so that the connection serves the next attempt, and
// the body is sent anew.
func TestRetryKeepsConnection(t *testing.T) {
	// On a busy machine a client that has not heard for 50 ms that its body is sent gives up the
	// connection.
	patience.Until(t, "all attempts are made on one connection", func() bool { return retriesOver(t) == 2 })
}

// retriesOver has a request refused twice, and returns how many attempts were made on the
// connection of the one before.
func retriesOver(t *testing.T) (reused int) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if got = append(got, string(body)); len(got) < 3 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(429)
		}
		_, _ = io.WriteString(w, "answer")
	}))
	defer server.Close()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if i.Reused {
			reused++
		}
	}})
	r, err := http.NewRequestWithContext(ctx, "PUT", server.URL, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: newRetry(t, server.Client().Transport, RetryOptions{Backoff: time.Millisecond})}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if _ = resp.Body.Close(); err != nil || string(text) != "answer" || strings.Join(got, ",") != "body,body,body" {
		t.Fatalf("%d %q, the server got %q; %v", resp.StatusCode, text, got, err)
	}
	return reused
}
