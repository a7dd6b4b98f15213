package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// A client that is answered before anybody asks for its body, and does not send it, is waited for
// no longer than others.
func TestAnsweredAloneWithoutBody(t *testing.T) {
	addr, h := newDeferring(t, func(o *Options) { o.BodyTimeout = 20 * time.Millisecond })
	s := newServer(Bound(h, 10, 20*time.Millisecond))
	bounded, _ := serveDoor(t, s, nil)
	for _, c := range []struct {
		name, addr, header string
		status             int
	}{
		{"CONNECT", addr, "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n", http.StatusMethodNotAllowed},
		{"two Authorization fields", addr, "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nAuthorization: b\r\n", http.StatusBadRequest},
		{"no path", addr, "POST mailto:a HTTP/1.1\r\nHost: x\r\n", http.StatusBadRequest},
		{"a ticket", addr, "PUT /.weir/tickets/x HTTP/1.1\r\nHost: x\r\n", http.StatusNotFound},
		{"an odd path", addr, "POST /a%2Fb HTTP/1.1\r\nHost: x\r\n", http.StatusBadRequest},
		{"too large", bounded, "POST / HTTP/1.1\r\nHost: x\r\n", http.StatusRequestEntityTooLarge},
	} {
		for _, framing := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
			if c.addr == bounded && framing[0] == 'T' {
				continue // it is not known to be large
			}
			t.Run(c.name+", "+framing, func(t *testing.T) {
				conn, err := net.Dial("tcp", c.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_ = conn.SetDeadline(patience.End(t))
				_, _ = io.WriteString(conn, c.header+framing+"\r\n\r\n")
				all, err := io.ReadAll(conn)
				var status int
				_, _ = fmt.Sscanf(string(all), "HTTP/1.1 %d", &status)
				if status != c.status || err != nil {
					t.Errorf("%.200q, %v", all, err)
				}
			})
		}
	}
}
