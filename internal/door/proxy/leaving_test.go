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

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/upstream"
	"github.com/weir-rl/weir/overload"
)

// newGuarded is a proxy with a bound on concurrency, before it serves.
func newGuarded(t *testing.T, up string, change func(*Options)) (h *Proxy, guard *overload.Limiter) {
	t.Helper()
	u, err := url.Parse(up)
	if err != nil {
		t.Fatal(err)
	}
	if guard, err = overload.New(overload.Options{Fixed: 1000}); err != nil {
		t.Fatal(err)
	}
	o := Options{Upstream: u, Overload: guard, Logf: logf(t)}
	change(&o)
	if h, err = New(newLimiter(t, noLimits), o); err != nil {
		t.Fatal(err)
	}
	return h, guard
}

// serveGuarded serves it, and drains it before it stops.
func serveGuarded(t *testing.T, s *http.Server, h *Proxy) (addr string) {
	addr, _ = serveDoor(t, s, nil)
	t.Cleanup(h.Drain)
	return addr
}

// A request whose client leaves before the upstream was asked is cut.
func TestLeftBeforeAsked(t *testing.T) {
	for _, direct := range []bool{true, false} {
		up, url := newWorking(t, "http")
		h, guard := newGuarded(t, url, func(o *Options) { o.MaxUpstream = 1 })
		if h.placeWait = 0; !direct { // for ever
			h.direct = nil
		}
		addr := serveGuarded(t, newServer(h), h)
		v := visitors{t, client(t, false), addr}
		v.visit("", "/")
		patience.Receive(t, "the upstream is asked", up.begun)
		_, hangUp := v.visit("", "/")
		patience.Until(t, "another one waits for a place", func() bool { return h.Upstream().Waiting == 1 })
		hangUp()
		patience.Until(t, "the hang-up is noticed",
			func() bool { return guard.Stats().InFlight == 1 || h.Abandoned().Kept > 0 })
		if n := h.Abandoned().Kept; n != 0 {
			t.Errorf("direct=%v: %d are kept that the upstream knows nothing of", direct, n)
		}
	}
}

// A request whose client leaves before its body has come whole ends when the upstream is told so,
// and has closed the connection.
func TestLeftBeforeBodyWhole(t *testing.T) {
	begun, gone := make(chan bool), make(chan bool)
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		begun <- true
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Error("the upstream has got a whole body")
		}
		gone <- true
	})
	for _, h2c := range []bool{false, true} {
		for _, length := range []int64{-1, 1 << 20} {
			h, guard := newGuarded(t, up.URL, func(*Options) {})
			addr := serveGuarded(t, newServer(h), h)
			u := beginUpload(t, addr, h2c, length)
			if length > 0 {
				u.write(upstream.MaxBody + 100)
			}
			patience.Receive(t, "the upstream is asked", begun)
			u.leave()
			patience.Receive(t, "the upstream sees it", gone)
			patience.Until(t, "the place is free",
				func() bool { return guard.Stats().InFlight == 0 && h.Abandoned().Now == 0 })
		}
	}
}

// Where the upstream works on without the rest of the body, the request keeps its place until the
// upstream has answered or closed the connection, for Options.Timeout at most.
func TestWorksWithoutBody(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		for _, length := range []int64{-1, 1 << 20} {
			for _, direct := range []bool{true, false} {
				for _, end := range []string{"answer", "close", "timeout", "drain", "cut"} {
					t.Run(fmt.Sprintf("h2c=%v, %d bytes, direct=%v, %s", h2c, length, direct, end), func(t *testing.T) {
						begun, release := make(chan bool), make(chan bool)
						up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
							begun <- true
							<-release
							if end == "close" {
								panic(http.ErrAbortHandler)
							}
						})
						defer func() {
							if end != "answer" && end != "close" {
								close(release)
							}
						}()
						h, guard := newGuarded(t, up.URL, func(o *Options) {
							if o.CutAbandoned = end == "cut"; end == "timeout" {
								o.Timeout = 500 * time.Millisecond
							}
						})
						if !direct {
							h.direct = nil
						}
						addr := serveGuarded(t, newServer(h), h)
						u := beginUpload(t, addr, h2c, length)
						if length > 0 {
							u.write(upstream.MaxBody + 100)
						}
						patience.Receive(t, "the upstream is asked", begun)
						u.leave()
						if end != "cut" {
							patience.Until(t, "it is kept", func() bool { return h.Abandoned().Kept == 1 })
						}
						switch end {
						case "answer", "close":
							if n := guard.Stats().InFlight; n != 1 {
								t.Errorf("while the upstream works %d are under way", n)
							}
							close(release)
						case "drain":
							h.Drain()
						}
						patience.Until(t, "the place is free",
							func() bool { return guard.Stats().InFlight == 0 && h.Abandoned().Now == 0 })
						if s := h.Abandoned(); end == "cut" && s.Kept != 0 {
							t.Errorf("%+v", s)
						}
					})
				}
			}
		}
	}
}

// A request that is kept ends after Options.Timeout, whatever the transport waits for.
func TestKeptForTimeout(t *testing.T) {
	h, guard := newGuarded(t, "http://upstream", func(o *Options) { o.Timeout = 20 * time.Millisecond })
	h.direct = nil
	begun := make(chan bool)
	h.reverse.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		begun <- true
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	addr := serveGuarded(t, newServer(h), h)
	_, hangUp := visitors{t, client(t, false), addr}.visit("", "/")
	patience.Receive(t, "the upstream is asked", begun)
	hangUp()
	patience.Until(t, "it was kept, and is not any more", func() bool {
		s := h.Abandoned()
		return s.Kept == 1 && s.Now == 0 && guard.Stats().InFlight == 0
	})
}

// Requests that are kept for clients who have left end when the memory for HTTP/2 is needed, though
// their connections have ended before: others are served.
func TestKeptWhileThereIsMemory(t *testing.T) {
	const budget = 8 << 20
	for _, way := range []string{"http", "h2c"} {
		up, url := newWorking(t, way)
		h, _ := newGuarded(t, url, func(o *Options) { o.Timeout = time.Hour })
		server, memory := NewServer(h, h2.HTTPOptions{MaxMemory: budget})
		addr := serveGuarded(t, server, h)
		large := strings.Repeat("x", 60_000) // 180 KB and more for each
		for n := range 12 {
			c := client(t, true)
			ctx, leave := context.WithCancel(t.Context())
			for range 5 {
				r, _ := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/", nil)
				r.Header.Set("X-Large", large)
				status := make(chan int, 1)
				go func() { status <- statusOf(c.Do(r)) }()
				select {
				case <-up.begun:
				case got := <-status:
					t.Fatalf("%s: a request of client %d is answered %d; %+v, %+v", way, n, got, memory(),
						h.Abandoned())
				}
			}
			leave()
			patience.Until(t, "the hang-ups are noticed", func() bool { return h.Abandoned().Kept == uint64(5*n+5) })
			c.CloseIdleConnections()
		}
		m := memory()
		if m.Bytes > budget || m.Connections == 0 {
			t.Errorf("%s: %+v of %d", way, m, budget)
		}
		patience.Until(t, "some were cut", func() bool { return h.Abandoned().Now*len(large) < budget })
		h.Drain()
		patience.Until(t, "all is given back", func() bool { return memory().Bytes == 0 && h.Abandoned().Now == 0 })
	}
}

// Where places are few, and where a client has no address, its abandoned requests do not keep it
// out.
func TestAbandonedFewPlaces(t *testing.T) {
	for _, yaml := range []string{`limits: [{name: few, allow: 2 concurrent}]`,
		`limits: [{name: few, allow: 3 concurrent}]`} {
		up, url := newWorking(t, "http")
		addr, h := serveProxy(t, url, newLimiter(t, yaml), nil, trustLoopback)
		t.Cleanup(h.Drain)
		v := visitors{t, client(t, false), addr}
		_, hangUp := v.visit("192.0.2.1", "/")
		patience.Receive(t, "the upstream is asked", up.begun)
		hangUp()
		patience.Until(t, "the hang-up is noticed", func() bool { return h.Abandoned().Kept == 1 })
		status, _ := v.visit("192.0.2.1", "/")
		select {
		case <-up.begun:
		case got := <-status:
			t.Errorf("%s: the same address gets %d", yaml, got)
		}
	}

	up, url := newWorking(t, "http")
	h, _ := newGuarded(t, url, func(o *Options) { o.Overload, _ = overload.New(overload.Options{Fixed: 8}) })
	visit := func() (out chan int, hangUp context.CancelFunc) {
		ctx, hangUp := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
		r.RemoteAddr = "@" // a unix socket
		out = make(chan int, 1)
		go func() {
			w := httptest.NewRecorder()
			defer func() { _ = recover(); out <- w.Code }()
			h.ServeHTTP(w, r)
		}()
		return out, hangUp
	}
	t.Cleanup(h.Drain)
	for i := range 7 {
		status, hangUp := visit()
		select {
		case <-up.begun:
		case got := <-status:
			t.Fatalf("request %d without an address gets %d", i+1, got)
		}
		hangUp()
		patience.Until(t, fmt.Sprintf("hang-up %d is noticed", i+1),
			func() bool { return h.Abandoned().Kept == uint64(i+1) })
	}
}
