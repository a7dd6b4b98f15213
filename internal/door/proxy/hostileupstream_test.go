package proxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// An upstream may do what it wants: the client gets its answer or an error, never a part that it
// takes for the whole, and the next client is served.
func TestHostileUpstreams(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 2<<20)
	endless := func(part string) func(net.Conn) {
		return func(conn net.Conn) {
			for {
				if _, err := io.WriteString(conn, part); err != nil {
					return
				}
			}
		}
	}
	answer := func(text string) func(net.Conn) { return func(conn net.Conn) { say(conn, text) } }
	const broken = -1 // the client sees that it is incomplete
	for name, c := range map[string]struct {
		say  func(net.Conn)
		want int
		body string
	}{
		"a field of 2 MiB":               {answer("HTTP/1.1 200 OK\r\nX-Big: " + big + "\r\n\r\n"), 502, ""},
		"2 MiB of fields":                {answer("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Many: y\r\n", 200_000) + "\r\n"), 502, ""},
		"fields without end":             {endless("HTTP/1.1 200 OK\r\nX-A: b\r\n"), 502, ""},
		"no line end":                    {endless("HTTP/1.1 200 OK"), 502, ""},
		"a header of 100 KB":             {answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Big: " + big[:100_000] + "\r\n\r\nok"), 200, "ok"},
		"100 fields":                     {answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + strings.Repeat("X-A: b\r\n", 100) + "\r\nok"), 200, "ok"},
		"hints without end":              {endless("HTTP/1.1 103 Early Hints\r\n\r\n"), 504, ""},
		"nothing":                        {func(conn net.Conn) {}, 502, ""},
		"half a header":                  {answer("HTTP/1.1 200 OK\r\nContent-Le"), 502, ""},
		"nothing for long":               {func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) }, 504, ""},
		"half a header for long":         {func(conn net.Conn) { say(conn, "HTTP/1.1 200 OK\r\nX"); _, _ = conn.Read(make([]byte, 1)) }, 504, ""},
		"no HTTP":                        {answer("SSH-2.0-OpenSSH_9.2\r\n\r\n"), 502, ""},
		"HTTP/2":                         {answer("\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80\r\n\r\n"), 502, ""},
		"a status of two digits":         {answer("HTTP/1.1 99 OK\r\n\r\n"), 502, ""},
		"status 099":                     {answer("HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n"), 502, ""},
		"a switch that nobody asked for": {answer("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), 502, ""},
		"two lengths":                    {answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!"), 502, ""},
		"lengths in a list":              {answer("HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok"), 502, ""},
		"a negative length":              {answer("HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok"), 502, ""},
		"a length with a sign":           {answer("HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok"), 502, ""},
		"a length beyond 2^63":           {answer("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\nok"), 502, ""},
		"an empty length":                {answer("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nok"), 502, ""},
		"an unknown encoding":            {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok"), 502, ""},
		"two encodings":                  {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 502, ""},
		"a field without a colon":        {answer("HTTP/1.1 200 OK\r\nX-A\r\nContent-Length: 0\r\n\r\n"), 502, ""},
		"a field without a name":         {answer("HTTP/1.1 200 OK\r\n: a\r\nContent-Length: 0\r\n\r\n"), 502, ""},
		"a folded first line":            {answer("HTTP/1.1 200 OK\r\n X-A: b\r\nContent-Length: 0\r\n\r\n"), 502, ""},
		"a zero byte in a field":         {answer("HTTP/1.1 200 OK\r\nX-A: b\x00c\r\nContent-Length: 0\r\n\r\n"), 502, ""},
		"a carriage return in a field":   {answer("HTTP/1.1 200 OK\r\nX-A: b\rX-B: c\r\nContent-Length: 0\r\n\r\n"), 502, ""},
		"less than it said":              {answer("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"), broken, ""},
		"much less than it said":         {answer("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + big[:50_000]), broken, ""},
		"a chunk that is short":          {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nonly this"), broken, ""},
		"no last chunk":                  {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"), broken, ""},
		"no end after the last chunk":    {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"), broken, ""},
		"a chunk of nonsense":            {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n"), broken, ""},
		"a chunk of 2^64":                {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nok\r\n0\r\n\r\n"), broken, ""},
		"chunks with line feeds":         {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n"), broken, ""},
		"extensions without end":         {endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y"), broken, ""},
		"trailers without end": {func(conn net.Conn) {
			say(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n")
			endless("X-A: b\r\n")(conn)
		}, broken, ""},
		"a bad trailer":                {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-A\r\n\r\n"), broken, ""},
		"until it closes":              {answer("HTTP/1.1 200 OK\r\n\r\nok"), 200, "ok"},
		"a reason with anything":       {answer("HTTP/1.1 200 \x01\xff\r\nContent-Length: 2\r\n\r\nok"), 200, "ok"},
		"a body to a HEAD-like status": {answer("HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello"), 204, ""},
	} {
		var calm atomic.Bool
		up := newScripted(t, func(conn net.Conn, r *http.Request, _ []byte) bool {
			if calm.Load() {
				say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ncalm")
				return true
			}
			c.say(conn)
			return false
		})
		addr := newProxy(t, up.url(), noLimits, func(o *Options) {
			if c.want == http.StatusGatewayTimeout {
				o.Timeout = 100 * time.Millisecond
			}
		})
		resp, err := client(t, false).Get("http://" + addr)
		switch {
		case err != nil:
			if c.want != broken {
				t.Errorf("%s: %v", name, err)
			}
		default:
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if (err != nil) != (c.want == broken) || c.want != broken && resp.StatusCode != c.want ||
				c.body != "" && string(body) != c.body {
				t.Errorf("%s: %d %.80q %v, want %d", name, resp.StatusCode, body, err, c.want)
			}
		}
		calm.Store(true)
		if c.want == http.StatusGatewayTimeout { // the calm one too has no longer than that
			patience.Until(t, "a busy machine asks in time after "+name, func() bool {
				resp, err = client(t, false).Get("http://" + addr)
				body := read(t, resp, err)
				if resp.StatusCode != http.StatusGatewayTimeout && (resp.StatusCode != 200 || body != "calm") {
					t.Fatalf("after %s: %d %q", name, resp.StatusCode, body)
				}
				return resp.StatusCode == 200
			})
			continue
		}
		for try := range 2 {
			resp, err = client(t, false).Get("http://" + addr)
			body := read(t, resp, err)
			// net/http may give a connection to the next request before it has seen that more came
			// on it than the answer. What goes directly never does.
			if try == 0 && !directWorks && c.want == http.StatusNoContent && resp.StatusCode == http.StatusBadGateway {
				continue
			}
			if resp.StatusCode != 200 || body != "calm" {
				t.Errorf("after %s: %d %q", name, resp.StatusCode, body)
			}
		}
	}
}
