//go:build unix

package doors

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// traefikAsks are the requests by which Traefik 3.7 (pkg/middlewares/auth/forward.go, behind an
// entry point that believes nobody's X-Forwarded headers) asks about
//
//	POST /api/x?page=1&user=ada HTTP/1.1
//	Host: shop.example
//	User-Agent: curl/8.14.1
//	Accept: */*
//	X-Api-Key: k1
//	X-Forwarded-For: 198.51.100.66
//	X-Forwarded-Uri: /free
//	X-Forwarded-Method: OPTIONS
//	X-Forwarded-Host: free.example
//	Content-Type: application/json
//	Content-Length: 2
//
// of the client CLIENT, for each value of trustForwardHeader. The last one is of an entry point
// that believes everybody (insecure: true), before which another proxy has set these headers.
var traefikAsks = map[string]string{
	"unset": `GET /api/v1/forward-auth/forwarded HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
Content-Type: application/json
X-Api-Key: k1
X-Forwarded-For: CLIENT
X-Forwarded-Host: shop.example
X-Forwarded-Method: POST
X-Forwarded-Port: 80
X-Forwarded-Proto: http
X-Forwarded-Server: edge
X-Forwarded-Uri: /api/x?page=1&user=ada
X-Real-Ip: CLIENT
Accept-Encoding: gzip

`,
	"false": `GET /api/v1/forward-auth/forwarded HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
Content-Type: application/json
X-Api-Key: k1
X-Forwarded-For: CLIENT
X-Forwarded-Host: shop.example
X-Forwarded-Method: POST
X-Forwarded-Port: 80
X-Forwarded-Proto: http
X-Forwarded-Uri: /api/x?page=1&user=ada
Accept-Encoding: gzip

`,
	"true": `GET /api/v1/forward-auth/forwarded HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
Content-Type: application/json
X-Api-Key: k1
X-Forwarded-For: CLIENT
X-Forwarded-Host: shop.example
X-Forwarded-Method: POST
X-Forwarded-Port: 80
X-Forwarded-Proto: http
X-Forwarded-Server: edge
X-Forwarded-Uri: /api/x?page=1&user=ada
X-Real-Ip: CLIENT
Accept-Encoding: gzip

`,
	"true, behind another proxy": `GET /api/v1/forward-auth/forwarded HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
Content-Type: application/json
X-Api-Key: k1
X-Forwarded-For: CLIENT, 127.0.0.1
X-Forwarded-Host: shop.example
X-Forwarded-Method: POST
X-Forwarded-Port: 80
X-Forwarded-Proto: http
X-Forwarded-Server: edge
X-Forwarded-Uri: /api/x?page=1&user=ada
X-Real-Ip: 127.0.0.1
Accept-Encoding: gzip

`,
}

// TestTraefik plays what Traefik sends to Weir as examples/traefik sets it up, byte for byte, and
// does what Traefik does with the answers; where a traefik is installed it runs the example as it
// stands, too.
func TestTraefik(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	t.Run("replayed", func(t *testing.T) {
		e := newEdge(t, program, "traefik")
		e.rules(`
domain: shop
limits:
  - {name: per-client, when: {method: POST, path: /api/x, host: shop.example, query.user: ada, header.x-api-key: k1}, per: [ip], allow: 10/min, algorithm: sliding_log}
`)
		e.startWeir()
		client := 0
		for trust, text := range traefikAsks {
			client++
			text = strings.NewReplacer("\n", "\r\n", "CLIENT", fmt.Sprintf("198.51.100.%d", client), ":8080",
				":"+e.ports[weirPort]).Replace(text)
			conn, err := net.Dial("tcp", "127.0.0.1:"+e.ports[weirPort])
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			in := bufio.NewReader(conn)
			ask := func() (int, http.Header, string) {
				if _, err := io.WriteString(conn, text); err != nil {
					t.Fatal(err)
				}
				r, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatalf("trustForwardHeader %s: %v", trust, err)
				}
				b, err := io.ReadAll(r.Body)
				if err != nil || r.Close {
					t.Fatalf("trustForwardHeader %s: %v, close %v", trust, err, r.Close)
				}
				return r.StatusCode, r.Header, string(b)
			}
			for i := range 10 {
				if status, header, body := ask(); status != 200 || body != "" || header.Get("Location") != "" ||
					header.Get("Set-Cookie") != "" {
					t.Fatalf("trustForwardHeader %s: request %d: %d %v %s", trust, i+1, status, header, body)
				}
			}
			status, header, body := ask()
			if a := (edgeAnswer{status, header, body}); status != 429 || header.Get("Retry-After") == "" ||
				header.Get("Content-Type") != "application/problem+json" || !strings.Contains(body, `"per-client"`) {
				t.Errorf("trustForwardHeader %s: %v", trust, a)
			} else {
				e.showsLimit(a, "0")
			}
		}
	})
	t.Run("installed", func(t *testing.T) {
		path, err := exec.LookPath("traefik")
		if err != nil {
			t.Log("no traefik is installed, and Debian has none")
			return
		}
		start := func(e *edge) { e.startProxy(path, "--configFile=traefik.yml") }
		e := newEdge(t, program, "traefik")
		e.blind = true
		e.startWeir()
		start(e)
		e.limits()
		e.killWeir()
		before := e.app.count()
		for range 3 {
			if a := e.do("GET", "/things"); a.status != 500 {
				t.Errorf("without weir: %v", a)
			}
		}
		if n := e.app.count() - before; n != 0 {
			t.Errorf("the application saw %d", n)
		}
		e.startWeir()
		e.limits()
		e = newEdge(t, program, "traefik")
		e.rules(loginRules)
		e.startWeir()
		start(e)
		e.limited("shop.example")
		testEdgeAttributes(t, program, "traefik", start)
	})
}
