package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// hearing is a limiter that reports answers, by path and status.
func hearing(t testing.TB) (l *weir.Limiter, told chan string) {
	t.Helper()
	told = make(chan string, 100)
	return newLimiter(t, `limits: [{name: a, allow: 99/year}, {name: closed, when: {path: /closed}, allow: 0/min}]`,
		weir.WithHooks(weir.Hooks{
			Answered: func(r *weir.Request, d *weir.Decision, a weir.Answer) {
				path, _ := r.Attributes.Attribute("path")
				if r.Door != "proxy" || len(d.Limits) != 1 || !d.Allowed {
					path = fmt.Sprintf("%+v %+v %+v", r, d, a)
				}
				told <- fmt.Sprint(path, " ", a.Status)
			},
		})), told
}

// The hooks hear once of each request that was passed on, on both ways to the upstream, and of no
// other.
func TestAnswered(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			http.NotFound(w, r)
		case "/stream":
			for range 5 {
				_, _ = io.WriteString(w, "text")
				w.(http.Flusher).Flush()
			}
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusNoContent)
		case "/broken":
			_, _ = io.WriteString(w, "text")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/upgrade":
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
			_ = rw.Flush()
			_ = conn.Close()
		}
	}
	for _, upstream := range []string{newUpstream(t, h).URL, h2cServer(t, h)} {
		l, told := hearing(t)
		addr, _ := serveProxy(t, upstream, l, nil)
		for _, chunked := range []bool{false, true} { // a body of unknown length takes the long way
			for path, want := range map[string]int{"/": 200, "/missing": 404, "/stream": 200, "/hints": 204,
				"/broken": 200, "/reset": 502, "/closed": -1} {
				r, err := http.NewRequest("POST", "http://"+addr+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if chunked {
					r.Body, r.ContentLength = io.NopCloser(strings.NewReader("x")), -1
				}
				resp, err := client(t, false).Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if want < 0 {
					if resp.StatusCode != http.StatusTooManyRequests {
						t.Errorf("%s: %s", path, resp.Status)
					}
					continue
				}
				if got := patience.Receive(t, "an answer", told); got != fmt.Sprint(path, " ", want) {
					t.Errorf("chunked %v: heard %s, want %s %d", chunked, got, path, want)
				}
			}
		}
		if strings.HasPrefix(upstream, "http:") {
			raw(t, addr, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
			if got := patience.Receive(t, "an answer", told); got != "/upgrade 101" {
				t.Errorf("heard %s", got)
			}
		}
		if len(told) > 0 {
			t.Errorf("heard %s besides", <-told)
		}
	}
}

// Without an answer of the upstream it is what the client was told, and nothing if the client was
// gone.
func TestAnsweredWithoutUpstream(t *testing.T) {
	l, told := hearing(t)
	addr, _ := serveProxy(t, "http://127.0.0.1:1", l, nil) // nobody listens
	resp, err := client(t, false).Get("http://" + addr + "/")
	read(t, resp, err)
	if got := patience.Receive(t, "an answer", told); got != "/ 502" {
		t.Errorf("heard %s", got)
	}

	leave := make(chan struct{})
	came := make(chan struct{}, 10)
	slow := newUpstream(t, func(http.ResponseWriter, *http.Request) { came <- struct{}{}; <-leave })
	defer close(leave)
	addr, _ = serveProxy(t, slow.URL, l, nil, func(o *Options) { o.Timeout = time.Millisecond })
	resp, err = client(t, false).Get("http://" + addr + "/")
	read(t, resp, err)
	if got := patience.Receive(t, "an answer", told); got != "/ 504" {
		t.Errorf("heard %s", got)
	}
	for len(came) > 0 {
		<-came
	}

	addr, _ = serveProxy(t, slow.URL, l, nil)
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-came; hangUp() }()
	if _, err := client(t, false).Do(r); err == nil {
		t.Error("it was answered")
	}
	if got := patience.Receive(t, "an answer", told); got != "/ 0" {
		t.Errorf("heard %s", got)
	}
}

// The proxy knows the status itself: hearing of answers puts no writer in between.
func TestAnsweredAddsNoWriter(t *testing.T) {
	l, _ := hearing(t)
	u, err := url.Parse("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(l, Options{Upstream: u})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	pass := p.gate.Enter(w, httptest.NewRequest("GET", "/", nil))
	if got := p.watch(w, pass); got != http.ResponseWriter(w) {
		t.Errorf("the response goes through %T", got)
	}
	pass.Leave()
}
