package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/overload"
)

// TestUpstreamPlaces: one client over HTTP/2, with as many requests as it may have, takes half of
// the connections to the upstream; another one is served, and a request that finds none gets a 503.
func TestUpstreamPlaces(t *testing.T) {
	const most = 8
	var hanging, peak atomic.Int64
	release := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hang" {
			return
		}
		n := hanging.Add(1)
		defer hanging.Add(-1)
		for old := peak.Load(); n > old && !peak.CompareAndSwap(old, n); old = peak.Load() {
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer upstream.Close()
	defer close(release)
	u, _ := url.Parse(upstream.URL)
	for _, direct := range []bool{true, false} {
		h, err := New(newLimiter(t, noLimits), Options{Upstream: u, MaxUpstream: most, Logf: logf(t)})
		if err != nil {
			t.Fatal(err)
		}
		if h.placeWait = 20 * time.Millisecond; !direct {
			h.direct = nil
		}
		s := httptest.NewUnstartedServer(nil)
		s.Config = newServer(h)
		s.Start()
		client := func() *http.Client {
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetUnencryptedHTTP2(true)
			t.Cleanup(transport.CloseIdleConnections)
			return &http.Client{Transport: transport}
		}
		get := func(c *http.Client, path string) (status int, answer *http.Response) {
			answer, err := c.Get(s.URL + path)
			if err != nil {
				return 0, nil // it was cut off at the end
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			return answer.StatusCode, answer
		}
		greedy := client()
		if status, _ := get(greedy, "/"); status != 200 {
			t.Fatal(status)
		}
		var full atomic.Int64
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if status, answer := get(greedy, "/hang"); status == http.StatusServiceUnavailable {
					if answer.Header.Get("Retry-After") == "" ||
						!strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
						t.Errorf("%v", answer.Header)
					}
					full.Add(1)
				}
			})
		}
		patience.Until(t, "one has its half, and the others are answered", func() bool {
			return full.Load() == 100-most/2 && hanging.Load() == most/2
		})
		for range 20 {
			if status, _ := get(http.DefaultClient, "/"); status != 200 {
				t.Errorf("another client gets %d", status)
			}
			if status, _ := get(client(), "/"); status != 200 {
				t.Errorf("another client over HTTP/2 gets %d", status)
			}
		}
		if stats := h.Upstream(); stats.Refused != 100-most/2 || stats.Max != most {
			t.Errorf("%+v", stats)
		}
		if n := h.connections.Open(); n > most {
			t.Errorf("%d connections are open", n)
		}
		s.CloseClientConnections()
		wg.Wait()
		patience.Until(t, "all places are free again",
			func() bool { return h.Upstream().Used == 0 && hanging.Load() == 0 })
		s.Close()
	}
	if n := peak.Load(); n > most/2 {
		t.Errorf("%d requests of one client were at the upstream", n)
	}
}

// TestIdleMakesRoom: connections that are idle do not keep new ones from being opened, nor do they
// count for nothing.
func TestIdleMakesRoom(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer upstream.Close()
	u, _ := url.Parse(upstream.URL)
	h, err := New(newLimiter(t, noLimits), Options{Upstream: u, MaxUpstream: 1, Logf: logf(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	defer s.Close()
	for range 3 {
		for _, body := range []io.Reader{nil, struct{ io.Reader }{strings.NewReader("of unknown length")}} { // direct, and not
			r, _ := http.NewRequest("POST", s.URL, body)
			answer, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			if answer.StatusCode != 200 {
				t.Fatal(answer.Status)
			}
			if n := h.connections.Open(); n > 1 {
				t.Errorf("%d connections are open", n)
			}
		}
	}
}

// TestPlacesOfTrustedProxy: a proxy in front brings the requests of many clients over one
// connection, and has no share of its own.
func TestPlacesOfTrustedProxy(t *testing.T) {
	const most = 8
	up, url := newWorking(t, "http")
	addr, _ := serveProxy(t, url, newLimiter(t, noLimits), nil, trustLoopback,
		func(o *Options) { o.MaxUpstream = most })
	v := visitors{t, client(t, true), addr}
	for i := range most {
		status, _ := v.visit("192.0.2.1", "/")
		select {
		case <-up.begun:
		case got := <-status:
			t.Fatalf("request %d of %d gets %d", i+1, most, got)
		}
	}
}

// TestNoPlaceTeachesNothing: requests that never reach the upstream, since there is no place for
// them or their bodies do not come, say nothing of how busy it is.
func TestNoPlaceTeachesNothing(t *testing.T) {
	grace(t, 20*time.Millisecond)
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	u, _ := url.Parse(up.URL)
	const initial = 20
	guard, err := overload.New(overload.Options{Initial: initial})
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(newLimiter(t, noLimits), Options{Upstream: u, MaxUpstream: initial, Overload: guard,
		BodyRate: 1 << 40, Logf: logf(t)})
	if err != nil {
		t.Fatal(err)
	}
	h.placeWait = 10 * time.Millisecond
	addr, _ := serveDoor(t, newServer(h), nil)
	c := client(t, false)
	all := func(want int, ask func() int) {
		t.Helper()
		for range 10 {
			var wg sync.WaitGroup
			for range initial - 2 {
				wg.Go(func() {
					if status := ask(); status != want {
						t.Errorf("%d, want %d", status, want)
					}
				})
			}
			wg.Wait()
			// A client has its answer a moment before its place is free.
			patience.Until(t, "the places are free", func() bool {
				used := h.Upstream().Used
				return guard.Stats().InFlight == 0 && (used == 0 || used == initial) // all are taken below
			})
		}
		if s := guard.Stats(); s.Limit != initial || s.Latency != 0 {
			t.Errorf("after answers of %d the limit is %d, by a latency of %v", want, s.Limit, s.Latency)
		}
	}
	all(http.StatusRequestTimeout, func() int { return beginUpload(t, addr, true, -1).answered() })
	for range initial {
		if _, err := h.places.Enter(t.Context(), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	all(http.StatusServiceUnavailable, func() int { return statusOf(c.Get("http://" + addr + "/")) })
}

// TestWaitForPlaceIsNoLatency: what a request waits for a place, the upstream has not spent.
func TestWaitForPlaceIsNoLatency(t *testing.T) {
	for _, body := range []string{"", "a body that is read behind the wait"} {
		synctest.Test(t, func(t *testing.T) {
			load := new(doortest.Loads)
			h, err := New(newLimiter(t, noLimits), Options{Upstream: &url.URL{Scheme: "http", Host: "upstream"},
				MaxUpstream: 1, Load: load})
			if err != nil {
				t.Fatal(err)
			}
			h.direct = nil
			h.reverse.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Body != nil {
					_, _ = io.Copy(io.Discard, r.Body)
				}
				time.Sleep(10 * time.Millisecond)
				return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}, Request: r}, nil
			})
			if _, err := h.places.Enter(t.Context(), nil, 0); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Second, func() { h.places.Leave(nil) })
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(body)))
			if _, answered := load.Told(); w.Code != 200 || len(answered) != 1 || answered[0] != 10*time.Millisecond {
				t.Errorf("%d, latencies %v", w.Code, answered)
			}
		})
	}
}

// TestUpgradeTellsNothing: an upstream that answers by HTTP/2, and by HTTP/1.1 where that is asked
// for, carries many requests over a connection all the same.
func TestUpgradeTellsNothing(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
	}))
	up.EnableHTTP2 = true
	up.StartTLS()
	defer up.Close()
	roots := x509.NewCertPool()
	roots.AddCert(up.Certificate())
	addr, h := serveProxy(t, up.URL, newLimiter(t, noLimits), nil, func(o *Options) {
		o.TLS, o.MaxUpstream = &tls.Config{RootCAs: roots}, 1
	})
	for _, upgrade := range []string{"", "websocket", ""} {
		r, _ := http.NewRequest("GET", "http://"+addr+"/", nil)
		want := "HTTP/2.0"
		if upgrade != "" {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", upgrade)
			want = "HTTP/1.1"
		}
		resp, err := client(t, false).Do(r)
		if read(t, resp, err); resp.Header.Get("X-Proto") != want {
			t.Errorf("asked by %s, want %s", resp.Header.Get("X-Proto"), want)
		}
		if !h.multiplexed.Load() {
			t.Errorf("with Upgrade %q: each request takes a connection", upgrade)
		}
	}
}
