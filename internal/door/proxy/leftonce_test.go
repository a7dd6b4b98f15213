package proxy

import (
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/overload"
)

// An answer that has come before anybody waits for it frees the place of an upload whose client has
// left: nothing more comes on that connection.
func TestAnsweredBeforeLingering(t *testing.T) {
	h, guard := newGuarded(t, "http://upstream", func(o *Options) { o.Timeout = time.Hour })
	h.direct = nil
	begun := make(chan bool)
	here, there := net.Pipe()
	defer there.Close()
	h.reverse.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{Conn: &halfConn{Conn: here}})
		begun <- true
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}, Request: r}, nil
	})
	addr := serveGuarded(t, newServer(h), h)
	u := beginUpload(t, addr, false, -1)
	patience.Receive(t, "the upstream is asked", begun)
	u.leave()
	patience.Until(t, "it was kept, and is not any more", func() bool {
		s := h.Abandoned()
		return s.Kept == 1 && s.Now == 0 && guard.Stats().InFlight == 0
	})
	if _, err := there.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection to the upstream: %v", err)
	}
}

// A request that is cut, since its address has enough abandoned ones, is counted once.
func TestCutCountsOnce(t *testing.T) {
	const places = 8
	begun, release := make(chan bool), make(chan bool)
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		begun <- true
		<-release
	})
	defer close(release)
	guard, err := overload.New(overload.Options{Fixed: places})
	if err != nil {
		t.Fatal(err)
	}
	addr, h := serveProxy(t, up.URL, newLimiter(t, noLimits), nil, trustLoopback,
		func(o *Options) { o.Overload = guard })
	h.direct = nil
	var uploads []*upload
	for range places {
		u := beginUploadWith(t, addr, false, 10, http.Header{"X-Forwarded-For": {"192.0.2.1"}})
		u.end(10)
		patience.Receive(t, "the upstream is asked", begun)
		uploads = append(uploads, u)
	}
	for _, u := range uploads {
		u.leave()
	}
	patience.Until(t, "half of them are kept, and the others have gone", func() bool {
		s := h.Abandoned()
		return s.Kept == places/2 && guard.Stats().InFlight == places/2
	})
	if s := h.Abandoned(); s.Cut != places/2 {
		t.Errorf("%+v", s)
	}
	h.Drain()
}
