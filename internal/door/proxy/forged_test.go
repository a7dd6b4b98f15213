package proxy

import (
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// A name that servers behind CGI take for a field which only proxies set does not reach the
// upstream, on either way to it, of strangers and of trusted proxies; nor does such a trailer.
func TestForgedNames(t *testing.T) {
	seen := make(chan *http.Request, 1)
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r
	})
	forged := []string{"CF_Connecting_IP", "CF.Connecting-IP", "X_Forwarded_For", "X-Forwarded_Host",
		"X!Forwarded+Proto", "x_forwarded_port", "X_Weir_Ticket"}
	others := []string{"X_Other", "X-Forwarded-Port", "X_Forward", "CF_Ray"}
	forgedTrailers := []string{"X_Forwarded_For", "X-Forwarded-For", "Forwarded", "CF-Connecting-IP", "Content_Length",
		"X-Weir-Ticket"}
	for _, trusted := range []bool{false, true} {
		guard := &httplimit.FieldGuard{}
		client := httplimit.ClientIP{Header: "CF-Connecting-IP",
			Trusted: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
		if trusted {
			client.Trusted = append(client.Trusted, netip.MustParsePrefix("127.0.0.0/8"))
		}
		addr := newProxy(t, up.URL, noLimits, func(o *Options) { o.ClientIP, o.Fields = client, guard })
		head := "Host: x\r\nConnection: close\r\n" + strings.Join(forged, ": 192.0.2.7\r\n") + ": 192.0.2.7\r\n" +
			strings.Join(others, ": 1\r\n") + ": 1\r\n"
		for way, request := range map[string]string{
			"direct": "GET / HTTP/1.1\r\n" + head + "\r\n",
			"chunks": "POST / HTTP/1.1\r\n" + head + "Trailer: X-Sum, " + strings.Join(forgedTrailers, ", ") + "\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 1\r\n" +
				strings.Join(forgedTrailers, ": 1\r\n") + ": 1\r\n\r\n",
		} {
			if answer := raw(t, addr, request); !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
				t.Fatalf("%s: %.200q", way, answer)
			}
			r := patience.Receive(t, "a request", seen)
			for _, name := range forged {
				if got := r.Header[http.CanonicalHeaderKey(name)]; got != nil {
					t.Errorf("%s, trusted %t: the upstream gets %s: %q", way, trusted, name, got)
				}
			}
			for _, name := range others {
				if r.Header[http.CanonicalHeaderKey(name)] == nil {
					t.Errorf("%s, trusted %t: the upstream does not get %s", way, trusted, name)
				}
			}
			if got := slices.Collect(maps.Keys(r.Trailer)); way == "chunks" && !slices.Equal(got, []string{"X-Sum"}) {
				t.Errorf("trusted %t: the upstream gets the trailers %q", trusted, got)
			}
		}
		if got := guard.Stats().Dropped; got != 2*uint64(len(forged)) {
			t.Errorf("trusted %t: %d fields were dropped", trusted, got)
		}
	}
	addr := newProxy(t, up.URL, noLimits,
		func(o *Options) { o.Fields = &httplimit.FieldGuard{Lookalikes: httplimit.KeepLookalikeFields} })
	raw(t, addr, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX_Forwarded_For: 192.0.2.7\r\n\r\n")
	if r := patience.Receive(t, "a request", seen); r.Header["X_forwarded_for"] == nil {
		t.Error("it is dropped though such fields are kept")
	}
}

// Over HTTP/2 it is the same.
func TestForgedNamesH2(t *testing.T) {
	seen := make(chan *http.Request, 1)
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r
	})
	addr := newProxy(t, up.URL, noLimits)
	r, err := http.NewRequest("POST", "http://"+addr+"/", io.MultiReader(strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"x_forwarded_for": {"192.0.2.7"}, "x_other": {"1"}}
	r.Trailer = http.Header{"X-Sum": {"1"}, "X-Forwarded-For": {"192.0.2.7"}, "X_forwarded_for": {"192.0.2.7"}}
	resp, err := client(t, true).Do(r)
	read(t, resp, err)
	got := patience.Receive(t, "a request", seen)
	if got.Header["X_forwarded_for"] != nil || got.Header["X_other"] == nil || len(got.Trailer) != 1 ||
		got.Trailer.Get("X-Sum") != "1" {
		t.Errorf("the upstream gets %v and the trailers %v", got.Header, got.Trailer)
	}
}
