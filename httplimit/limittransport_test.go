package httplimit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/store/memory"
)

// wallLimiter is a limiter by the clock of time, which may be virtual.
func wallLimiter(t testing.TB, rules string) *weir.Limiter {
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
	return l
}

func newLimited(t testing.TB, l *weir.Limiter, base http.RoundTripper, o LimitOptions) *LimitTransport {
	t.Helper()
	lt, err := NewLimitTransport(l, base, o)
	if err != nil {
		t.Fatal(err)
	}
	return lt
}

func outgoing(t testing.TB, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var pong = handled(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "pong") }))

// A request that the rules refuse is not sent, and its error says why, also through a http.Client.
func TestLimitTransport(t *testing.T) {
	l := newLimiter(t, &clock{}, `
limits:
  - { name: third-party, when: { host: api.example, path: /v1/** }, allow: 2/min, algorithm: sliding_log }
  - { name: per-customer, when: { method: POST, header.x-kind: bulk }, per: [customer], allow: 1/hour, algorithm: sliding_log }
`)
	var sent []string
	client := http.Client{Transport: newLimited(t, l, roundTrips(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.Method+" "+r.URL.String())
		return pong.RoundTrip(r)
	}),
		LimitOptions{Attributes: map[string]func(
			*http.Request) string{"customer": func(r *http.Request) string { return r.Header.Get("X-Customer") }}})}
	for i, want := range []bool{true, true, false} {
		resp, err := client.Get("http://api.example/v1/x?y=1")
		if want {
			if text, _ := io.ReadAll(resp.Body); err != nil || string(text) != "pong" {
				t.Fatalf("request %d: %v", i, err)
			}
			continue
		}
		limited, ok := errors.AsType[*LimitedError](err)
		if !ok || !slices.Equal(limited.Limits, []string{"third-party"}) || limited.RetryAfter != time.Minute ||
			limited.ID == 0 ||
			!strings.HasSuffix(err.Error(),
				"httplimit: GET api.example: not sent: refused by third-party; it may be sent in 1m0s") {
			t.Errorf("%+v: %v", limited, err)
		}
	}
	if _, err := client.Get("http://other.example/v1/x"); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		customer string
		want     bool
	}{{"ada", true}, {"ada", false}, {"bob", true}} {
		body := &closeNote{Reader: strings.NewReader("x")}
		r, _ := http.NewRequest("POST", "http://api.example/bulk", body)
		r.Header.Set("X-Customer", c.customer)
		r.Header.Set("X-Kind", "bulk")
		if _, err := client.Do(r); err == nil != c.want || !body.closed {
			t.Errorf("%s: %v; body closed: %v", c.customer, err, body.closed)
		}
	}
	if len(sent) != 5 {
		t.Errorf("sent were %q", sent)
	}
}

// Requests wait for their turn as long as they may, and not beyond their deadline.
func TestLimitTransportWaits(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		o           LimitOptions
		n, sent     int
		timeout     time.Duration
		took        time.Duration
	}{
		{"a leaky bucket, by the rules", `limits: [{name: a, algorithm: leaky_bucket, allow: {rate: 2/s, burst: 10}}]`, LimitOptions{}, 5, 5, time.Hour, 2 * time.Second},
		{"a leaky bucket, at most so long", `limits: [{name: a, algorithm: leaky_bucket, allow: {rate: 2/s, burst: 10}}]`, LimitOptions{MaxWait: time.Second}, 5, 3, time.Hour, time.Second},
		{"a leaky bucket, by the deadline", `limits: [{name: a, algorithm: leaky_bucket, allow: {rate: 2/s, burst: 10}}]`, LimitOptions{MaxWait: time.Minute}, 5, 3, 1200 * time.Millisecond, time.Second},
		{"a leaky bucket, one turn at the deadline", `limits: [{name: a, algorithm: leaky_bucket, allow: {rate: 2/s, burst: 10}}]`, LimitOptions{MaxWait: time.Minute}, 5, 2, time.Second, 500 * time.Millisecond},
		{"a leaky bucket whose queue is full", `limits: [{name: a, algorithm: leaky_bucket, allow: {rate: 2/s, burst: 1}}]`, LimitOptions{MaxWait: time.Minute}, 5, 5, time.Hour, 2 * time.Second},
		{"a log whose rule does not wait", `limits: [{name: a, allow: 2/s, algorithm: sliding_log}]`, LimitOptions{}, 5, 2, time.Hour, 0},
		{"a log whose rule waits", `limits: [{name: a, allow: 2/s, algorithm: sliding_log, on_limit: {wait: 1500ms}}]`, LimitOptions{}, 5, 4, time.Hour, time.Second},
		{"a log, waited for", `limits: [{name: a, allow: 2/s, algorithm: sliding_log}]`, LimitOptions{MaxWait: time.Minute}, 5, 5, time.Hour, 2 * time.Second},
		{"a log, by the deadline", `limits: [{name: a, allow: 2/s, algorithm: sliding_log}]`, LimitOptions{MaxWait: time.Minute}, 5, 4, 1500 * time.Millisecond, time.Second},
		{"slots, waited for", `limits: [{name: a, allow: 2 concurrent}]`, LimitOptions{MaxWait: time.Minute}, 6, 6, time.Hour, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lt := newLimited(t, wallLimiter(t, c.rules), pong, c.o)
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				var mu sync.Mutex
				var wg sync.WaitGroup
				sent := 0
				for range c.n {
					wg.Go(func() {
						resp, err := lt.RoundTrip(outgoing(t, "http://api.example/").WithContext(ctx))
						if err != nil {
							if _, ok := errors.AsType[*LimitedError](err); !ok {
								t.Error(err)
							}
							return
						}
						_ = resp.Body.Close()
						mu.Lock()
						defer mu.Unlock()
						sent++
					})
				}
				wg.Wait()
				if took := time.Since(begin); sent != c.sent || took < c.took || took > c.took+600*time.Millisecond {
					t.Errorf("%d were sent within %v; want %d within %v", sent, took, c.sent, c.took)
				}
			})
		})
	}
}

// A limit that counts refusals is not waited for: those that ask again would go uncharged, all at
// once.
func TestLimitTransportCountDenied(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_log", "sliding_window"} {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := wallLimiter(t, `limits: [{name: a, allow: 2/min, count_denied: true, algorithm: `+algorithm+
					`}, {name: b, allow: 5/min, algorithm: sliding_log}]`)
				lt := newLimited(t, l, pong, LimitOptions{MaxWait: 90 * time.Second})
				begin := time.Now()
				var sent, refused atomic.Int64
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						_, err := lt.RoundTrip(outgoing(t, "http://api.example/"))
						switch limited, ok := errors.AsType[*LimitedError](err); {
						case err == nil:
							sent.Add(1)
						case ok && slices.Equal(limited.Limits, []string{"a"}):
							refused.Add(1)
						default:
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(begin); sent.Load() != 2 || refused.Load() != 8 || took != 0 {
					t.Errorf("%d were sent and %d refused within %v; want 2 and 8 at once", sent.Load(), refused.Load(),
						took)
				}
			})
		})
	}
}

// A wait that is given up costs nothing.
func TestLimitTransportCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lt := newLimited(t, wallLimiter(t, `limits: [{name: a, allow: 1/s, algorithm: sliding_log}]`), pong,
			LimitOptions{MaxWait: time.Minute})
		if _, err := lt.RoundTrip(outgoing(t, "http://api.example/")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if _, err := lt.RoundTrip(outgoing(t, "http://api.example/").WithContext(ctx)); !errors.Is(err,
			context.Canceled) {
			t.Errorf("got %v", err)
		}
		begin := time.Now()
		if _, err := lt.RoundTrip(outgoing(t, "http://api.example/")); err != nil ||
			time.Since(begin) != 900*time.Millisecond {
			t.Errorf("sent after %v: %v", time.Since(begin), err)
		}
	})
}

// A slot is taken until the response has ended, in whatever way, and given back once.
func TestLimitTransportSlots(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: a, allow: 1 concurrent}]`)
	answer := func(body io.ReadCloser, err error) http.RoundTripper {
		return roundTrips(func(r *http.Request) (*http.Response, error) {
			if err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 200, Body: body}, nil
		})
	}
	text := func() io.ReadCloser { return io.NopCloser(strings.NewReader("text")) }
	lt := newLimited(t, l, nil, LimitOptions{})
	free := func() bool { return decide(t, l, 0).Limits[0].Remaining == 1 }
	for name, end := range map[string]func() error{
		"read to the end": func() error {
			lt.base = answer(text(), nil)
			resp, err := lt.RoundTrip(outgoing(t, "http://a/"))
			if err != nil {
				return err
			}
			if free() {
				t.Error("the slot is free while the body is read")
			}
			_, err = io.ReadAll(resp.Body)
			return err
		},
		"closed, twice": func() error {
			lt.base = answer(text(), nil)
			resp, err := lt.RoundTrip(outgoing(t, "http://a/"))
			if err != nil || free() {
				t.Error("the slot is free while the body is open")
			}
			return errors.Join(err, resp.Body.Close(), resp.Body.Close())
		},
		"no body": func() error {
			lt.base = answer(http.NoBody, nil)
			_, err := lt.RoundTrip(outgoing(t, "http://a/"))
			return err
		},
		"no answer": func() error {
			lt.base = answer(nil, io.ErrUnexpectedEOF)
			if _, err := lt.RoundTrip(outgoing(t, "http://a/")); err != io.ErrUnexpectedEOF {
				return err
			}
			return nil
		},
		"an upgraded connection": func() error {
			lt.base = answer(struct {
				io.ReadCloser
				io.Writer
			}{text(), io.Discard}, nil)
			resp, err := lt.RoundTrip(outgoing(t, "http://a/"))
			if err != nil {
				return err
			}
			if n, err := resp.Body.(io.Writer).Write([]byte("abc")); n != 3 || err != nil || free() {
				t.Errorf("%d, %v", n, err)
			}
			return resp.Body.Close()
		},
	} {
		if err := end(); err != nil || !free() {
			t.Errorf("%s: %v; the slot is free: %v", name, err, free())
		}
	}
}

// What a request really cost is settled when its response has ended.
func TestLimitTransportCostAfter(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: tokens, allow: 1000/hour, algorithm: sliding_log, cost: 100,
		cost_after: 'response.status == 429 ? 0 : response.status == 502 ? 7 : int(response.header["x-tokens"]) + response.bytes'}]`)
	left := func() int64 { return decide(t, l, 0).Limits[0].Remaining }
	before := left()
	lt := newLimited(t, l, nil, LimitOptions{OnError: func(_ *http.Request, err error) { t.Error(err) }})
	step := func(name string, base http.RoundTripper, cost int64) {
		t.Helper()
		lt.base = base
		if resp, err := lt.RoundTrip(outgoing(t, "http://a/")); err == nil {
			_, _ = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if now := left(); before-now != cost {
			t.Errorf("%s cost %d, want %d", name, before-now, cost)
		}
		before = left()
	}
	step("a header", handled(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Tokens", "30")
		_, _ = io.WriteString(w, "four")
	})), 34)
	step("a trailer", handled(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Tokens", "1")
		_, _ = io.WriteString(w, "x")
		w.Header().Set(http.TrailerPrefix+"X-Tokens", "50")
	})), 51)
	step("a refusal of the other side",
		handled(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) })), 0)
	step("no answer", roundTrips(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }), 7)
	step("no such header: the estimate", pong, 100)
}

func TestLimitTransportWithoutStore(t *testing.T) {
	for _, c := range []struct {
		rules string
		sent  bool
	}{
		{`limits: [{name: a, allow: 1 concurrent, on_store_error: allow}]`, true},
		{`limits: [{name: a, allow: 1/min, on_store_error: deny}]`, false},
	} {
		l, err := weir.New(failingStore{}, weir.WithRules(load(t, c.rules)))
		if err != nil {
			t.Fatal(err)
		}
		told := 0
		lt := newLimited(t, l, pong, LimitOptions{OnError: func(*http.Request, error) { told++ }})
		resp, err := lt.RoundTrip(outgoing(t, "http://a/"))
		if (err == nil) != c.sent || err != nil &&
			!strings.Contains(err.Error(), "httplimit: GET a: not sent: the limits could not be checked") ||
			c.sent != (told == 1) {
			t.Errorf("%s: %v, %v, told %d times", c.rules, resp, err, told)
		}
	}
}

func TestLimitOptionsErrors(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: a, allow: 1/min}]`)
	for want, o := range map[string]LimitOptions{
		"MaxWait":                {MaxWait: -1},
		"every request has this": {Attributes: map[string]func(*http.Request) string{"host": func(*http.Request) string { return "" }}},
	} {
		if _, err := NewLimitTransport(l, nil, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := NewLimitTransport(nil, nil, LimitOptions{}); err == nil {
		t.Error("a nil Limiter is taken")
	}
}
