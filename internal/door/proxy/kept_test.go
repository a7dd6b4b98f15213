package proxy

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"testing"

	"github.com/weir-rl/weir/httplimit"
)

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestKeptHeader: a transport whose request was cancelled may still be about to write its header,
// which must not change when the door serves the next request.
func TestKeptHeader(t *testing.T) {
	u, err := url.Parse("https://upstream.example")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(newLimiter(t, noLimits), Options{
		Upstream: u, Logf: logf(t), ClientIP: httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	kept := make(chan http.Header, 2)
	p.reverse.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		kept <- r.Header
		return nil, errors.New("cancelled")
	})
	addr, _ := serveDoor(t, newServer(p), nil)
	hosts := []string{"a.example", "b.example"}
	for _, host := range hosts {
		raw(t, addr,
			"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: "+host+
				"\r\nX-Forwarded-Proto: https\r\n\r\n")
	}
	for _, host := range hosts {
		h := <-kept
		if h.Get("X-Forwarded-Host") != host || h.Get("X-Forwarded-Proto") != "https" ||
			h.Get("X-Forwarded-For") != "192.0.2.1, 127.0.0.1" {
			t.Errorf("%q, want the host %s", h, host)
		}
	}
}
