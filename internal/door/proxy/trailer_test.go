package proxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// Trailers of a request over HTTP/1.1 reach the upstream if the header has announced them, and if
// they may be trailers; and the answer's trailers reach the client, if they may.
func TestTrailersDropped(t *testing.T) {
	seen := make(chan http.Header, 1)
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r.Trailer
		_, _ = io.WriteString(w, "body")
		_ = http.NewResponseController(w).Flush()
		for _, name := range []string{"X-Sum", "Content-Length", "Transfer-Encoding", "Authorization", "Set-Cookie2"} {
			w.Header().Set(http.TrailerPrefix+name, "1")
		}
	}
	for way, url := range map[string]string{"direct": newUpstream(t, handler).URL, "h2c": h2cServer(t, handler)} {
		addr := newProxy(t, url, noLimits)
		answer := raw(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"+
			"Trailer: X-Sum, Authorization, Host\r\n\r\n4\r\nbody\r\n0\r\n"+
			"X-Sum: 1\r\nX-Other: 2\r\nContent-Length: 3\r\nAuthorization: x\r\nHost: y\r\nTransfer-Encoding: chunked\r\n\r\n")
		trailer := patience.Receive(t, "a request", seen)
		if len(trailer) != 1 || trailer.Get("X-Sum") != "1" {
			t.Errorf("%s: the upstream gets the trailers %v", way, trailer)
		}
		_, rest, _ := strings.Cut(answer, "\r\n0\r\n")
		if !strings.Contains(rest, "X-Sum: 1\r\n") {
			t.Errorf("%s: the client gets %q", way, answer)
		}
		for _, name := range []string{"Content-Length", "Transfer-Encoding", "Authorization"} {
			if strings.Contains(rest, name) {
				t.Errorf("%s: the client gets the trailer %s: %q", way, name, rest)
			}
		}
	}
}

// The trailers of an answer that goes the direct way are judged as any others.
func TestDirectTrailersDropped(t *testing.T) {
	up := answerHeads(t, func(conn net.Conn) {
		say(conn,
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\nConnection: close\r\n\r\n")
	})
	answer := raw(t, newProxy(t, up, noLimits), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	_, rest, _ := strings.Cut(answer, "\r\n0\r\n")
	if rest != "X-Sum: 1\r\n\r\n" {
		t.Errorf("the client gets %q", answer)
	}
}
