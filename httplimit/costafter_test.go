package httplimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// costRules has a rule of 10,000 units with an estimate of 100 and the given cost_after.
func costRules(after string) string {
	return fmt.Sprintf(
		`limits: [{name: units, when: {path: /x}, allow: 10000/hour, algorithm: fixed_window, cost: 100, cost_after: %q}]`, after)
}

func unitsUsed(t testing.TB, l *weir.Limiter) int64 {
	t.Helper()
	var d weir.Decision
	if err := l.Decide(t.Context(), &weir.Request{Attributes: weir.Map{"path": "/x"}, Peek: true}, &d); err != nil {
		t.Fatal(err)
	}
	return d.Limits[0].Limit - d.Limits[0].Remaining
}

const tokens = `int(response.header["x-tokens"])`

// What a response says of its cost is what is charged in the end, wherever in the response it
// stands.
func TestCostAfter(t *testing.T) {
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, s) }
	}
	for name, tt := range map[string]struct {
		after, method string
		handler       http.HandlerFunc
		want          int64
		unknown       uint64
	}{
		"header": {tokens, "GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Tokens", "7")
		}, 7, 0},
		"more than the estimate": {tokens, "GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Tokens", "7000")
			w.WriteHeader(201)
		}, 7000, 0},
		"below nothing": {tokens, "GET", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Tokens", "-7") }, 0, 0},
		"several, the last": {tokens, "GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("X-Tokens", "7")
			w.Header().Add("X-Tokens", "8")
		}, 8, 0},
		"announced trailer": {tokens, "GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Tokens")
			_, _ = io.WriteString(w, "a stream of tokens")
			w.Header().Set("X-Tokens", "42")
		}, 42, 0},
		"trailer": {tokens, "GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Tokens", "1")
			_, _ = io.WriteString(w, "a stream of tokens")
			w.Header().Set(http.TrailerPrefix+"X-Tokens", "43")
		}, 43, 0},
		"not told": {tokens, "GET", text("hello"), 100, 1},
		"no number": {tokens, "GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Tokens", "many")
		}, 100, 1},
		"estimate":      {`estimate * 3`, "GET", text("hello"), 300, 0},
		"bytes":         {`response.bytes`, "GET", text("hello"), 5, 0},
		"bytes of HEAD": {`response.bytes`, "HEAD", text("hello"), 0, 0},
		"bytes in all ways": {`response.bytes`, "GET", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("12"))
			_, _ = io.WriteString(w, "345")
			_, _ = io.Copy(w, strings.NewReader(strings.Repeat("6", 100_000)))
			_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader("7")})
		}, 100_006, 0},
		"status by default": {`response.status`, "GET", text(""), 200, 0},
		"status": {`response.status`, "GET", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(100 + 3)
			w.WriteHeader(404)
			w.WriteHeader(500)
		}, 404, 0},
		"duration": {`response.duration >= 0.0 && response.duration < 60.0 ? 1 : 2`, "GET", text(""), 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, &clock{}, strings.Replace(costRules(tt.after), "10000/", "1000000/", 1))
			s := httptest.NewServer(newMiddleware(t, l, Options{}, tt.handler))
			defer s.Close() // waits for the handler
			r, _ := http.NewRequest(tt.method, s.URL+"/x", nil)
			resp, err := s.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			s.Close()
			if got := unitsUsed(t, l); got != tt.want {
				t.Errorf("charged %d, want %d", got, tt.want)
			}
			if s := l.Reservations().Stats(); s.Unknown != tt.unknown {
				t.Errorf("unknown %d, want %d", s.Unknown, tt.unknown)
			}
		})
	}
}

// A handler that panics before it answers has status 500, one whose client hung up 499.
func TestCostAfterWithoutAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		hungUp  bool
		handler http.HandlerFunc
		want    int64
	}{
		"panic":              {false, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 500},
		"panic after header": {false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(206); panic(http.ErrAbortHandler) }, 206},
		"hung up":            {true, func(http.ResponseWriter, *http.Request) {}, 499},
		"hung up later":      {true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(206) }, 206},
		"hung up, failed":    {true, func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.Context().Err().Error(), 500) }, 499},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, &clock{}, costRules("response.status"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
				if tt.hungUp {
					cancel()
				}
				tt.handler(w, r)
			})
			func() {
				defer func() { _ = recover() }()
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil).WithContext(ctx))
			}()
			if got := unitsUsed(t, l); got != tt.want {
				t.Errorf("charged %d, want %d", got, tt.want)
			}
		})
	}
}

// Only rules with cost_after are settled; each has its own estimate, and all its windows are
// settled alike. What waits for the limit is let through as soon as something comes back.
func TestCostAfterOfManyRules(t *testing.T) {
	l := newLimiter(t, &clock{}, `
limits:
  - {name: tokens, allow: [1000/min, 9000/hour], cost: 100, cost_after: "int(response.header['x-tokens'])"}
  - {name: bytes, allow: 5000/hour, cost: 500, cost_after: "response.bytes + estimate"}
  - {name: requests, allow: 50/hour}
  - {name: dark, allow: 3000/hour, cost: 100, cost_after: "response.bytes", on_limit: shadow}
`)
	h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Tokens", "7")
		_, _ = io.WriteString(w, "hello")
	})
	for range 3 {
		if w := get(h, "/x"); w.Code != 200 {
			t.Fatal(w.Code)
		}
	}
	d := decide(t, l, 0)
	var used []int64
	for _, r := range d.Limits {
		used = append(used, r.Limit-r.Remaining)
	}
	if got := fmt.Sprint(used); got != "[21 21 1515 3 15]" {
		t.Errorf("used %s", got)
	}
}

// A request that is refused is not settled, and one whose limits have no cost_after gets the writer
// itself where no rate-limit headers are to be joined.
func TestCostAfterNotMet(t *testing.T) {
	l := newLimiter(t, &clock{}, `
limits:
  - {name: units, when: {path: /x}, allow: 150/hour, cost: 100, cost_after: "100"}
  - {name: plain, when: {path: /y}, allow: 100/hour}
`)
	var seen http.ResponseWriter
	h := newMiddleware(t, l, Options{Headers: Off}, func(w http.ResponseWriter, r *http.Request) { seen = w })
	if w := get(h, "/y"); seen != http.ResponseWriter(w) {
		t.Errorf("the handler got a %T", seen)
	}
	if get(h, "/x"); fmt.Sprintf("%T", seen) == fmt.Sprintf("%T", httptest.NewRecorder()) {
		t.Errorf("the handler got the plain writer")
	}
	if w := get(h, "/x"); w.Code != 429 || unitsUsed(t, l) != 100 {
		t.Errorf("%d, %d used", w.Code, unitsUsed(t, l))
	}
}

// The writer can do what the server's can: of HTTP/1 all, of HTTP/2 flush; and
// http.ResponseController works.
func TestCostAfterWriter(t *testing.T) {
	l := newLimiter(t, &clock{}, costRules("1"))
	for proto, want := range map[int]string{1: "true true true", 2: "true false false"} {
		h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
			_, flusher := w.(http.Flusher)
			_, hijacker := w.(http.Hijacker)
			_, readerFrom := w.(io.ReaderFrom)
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute))
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			_, _ = fmt.Fprint(w, flusher, hijacker, readerFrom)
		})
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2 = proto == 2
		s.StartTLS()
		defer s.Close()
		resp, err := s.Client().Get(s.URL + "/x")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != want || resp.ProtoMajor != proto {
			t.Errorf("HTTP/%d: %s, %v, want %s", resp.ProtoMajor, body, err, want)
		}
	}
	// A writer that can do nothing more than it must.
	type plain struct{ http.ResponseWriter }
	h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(http.Flusher); ok {
			t.Error("the writer pretends to flush")
		}
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Error(err)
		}
	})
	h.ServeHTTP(plain{httptest.NewRecorder()}, httptest.NewRequest("GET", "/x", nil))
}

// What is flushed is at the client while the handler goes on: nothing is held back to be counted.
func TestCostAfterStreams(t *testing.T) {
	l := newLimiter(t, &clock{}, costRules("response.bytes"))
	more := make(chan struct{})
	s := httptest.NewServer(newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		w.(http.Flusher).Flush()
		<-more
		_, _ = io.WriteString(w, "second\n")
	}))
	defer s.Close()
	resp, err := s.Client().Get(s.URL + "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "first\n" {
		t.Fatal(line, err)
	}
	if got := unitsUsed(t, l); got != 100 {
		t.Errorf("while it streams %d is charged, want the estimate", got)
	}
	close(more)
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "second\n" {
		t.Fatal(string(rest), err)
	}
	s.Close()
	if got := unitsUsed(t, l); got != 13 {
		t.Errorf("%d charged", got)
	}
}

// What is written to a connection that a handler took over counts, buffered or not.
func TestCostAfterHijack(t *testing.T) {
	l := newLimiter(t, &clock{}, costRules("response.status * 10 + response.bytes"))
	left := make(chan struct{})
	s := httptest.NewServer(newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		defer close(left)
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("12345")
		if err := rw.Flush(); err != nil {
			t.Error(err)
		}
		_, _ = conn.Write([]byte("678"))
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, rw)
	}))
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "12345678" {
		t.Errorf("%q, %v", got, err)
	}
	_ = conn.Close()
	<-left
	patience.Until(t, "it is settled", func() bool { return unitsUsed(t, l) != 100 })
	if got := unitsUsed(t, l); got != 1018 {
		t.Errorf("%d charged", got)
	}
}

// unsettled is a store whose settlements fail.
type unsettled struct{ store.Reserver }

var errSettle = errors.New("the store is gone")

func (unsettled) Settle(context.Context, []store.Settlement) error { return errSettle }

// If the store fails at the end, or cannot settle at all, the estimate stays, the answer is not
// harmed, and OnError hears of it.
func TestCostAfterStoreError(t *testing.T) {
	inner, err := memory.New(memory.Options{Clock: func() int64 { return epoch }}) // no window turns
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	for name, tt := range map[string]struct {
		store store.Store
		want  error
	}{
		"fails":  {unsettled{any(inner).(store.Reserver)}, errSettle},
		"cannot": {struct{ store.Store }{inner}, store.ErrNoReservations},
	} {
		l, err := weir.New(tt.store, weir.WithRules(load(t, costRules("1"))))
		if err != nil {
			t.Fatal(err)
		}
		before := unitsUsed(t, l)
		var told []error
		h := newMiddleware(t, l, Options{OnError: func(_ *http.Request, err error) { told = append(told, err) }},
			func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "hello")
			})
		if w := get(h, "/x"); w.Code != 200 || w.Body.String() != "hello" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if len(told) != 1 || !errors.Is(told[0], tt.want) || unitsUsed(t, l)-before != 100 {
			t.Errorf("%s: told %v, %d charged", name, told, unitsUsed(t, l)-before)
		}
	}
}
