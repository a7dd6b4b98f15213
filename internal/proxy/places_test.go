package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/patience"
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
		s.Config = NewServer(h)
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
					if answer.Header.Get("Retry-After") == "" || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
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
		patience.Until(t, "all places are free again", func() bool { return h.Upstream().Used == 0 && hanging.Load() == 0 })
		s.Close()
	}
	if n := peak.Load(); n > most/2 {
		t.Errorf("%d requests of one client were at the upstream", n)
	}
}

// TestIdleMakesRoom: connections that are idle do not keep new ones from being opened, nor do they
// count for nothing.
func TestIdleMakesRoom(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
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
