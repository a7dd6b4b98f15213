package h1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// vector is a request of llhttp's own tests.
type vector struct {
	good  bool // llhttp's strict mode reads it
	name  string
	bytes string
}

func vectors(t testing.TB) (list []vector) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "llhttp.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.Split(strings.TrimSpace(line), "\t")
		if len(parts) != 3 || strings.HasPrefix(line, "#") {
			continue
		}
		s, err := strconv.Unquote(parts[2])
		if err != nil {
			t.Fatalf("%s: %v", parts[1], err)
		}
		list = append(list, vector{parts[0] == "good", parts[1], s})
	}
	if len(list) < 100 {
		t.Fatalf("%d vectors", len(list))
	}
	return list
}

// withHost returns the bytes with a Host in the first request, if there is none.
func (v vector) withHost() string {
	const version = " HTTP/1.1\r\n"
	if strings.Contains(strings.ToLower(v.bytes), "\nhost:") {
		return v.bytes
	}
	return strings.Replace(v.bytes, version, version+"Host: a\r\n", 1)
}

// TestVectors gives the loop the requests of llhttp's tests, also with the Host that most of them
// lack. It answers as net/http does, and serves by itself none that llhttp refuses.
func TestVectors(t *testing.T) {
	loop, plain := newSides(t, http.HandlerFunc(tell))
	served := 0
	for _, v := range vectors(t) {
		for _, s := range []string{v.bytes, v.withHost()} {
			before := loop.handed.Load()
			if got := same(t, loop, plain, s); got != "" && loop.handed.Load() == before {
				served++
				// Behind a request that ends the connection llhttp wants nothing, and the loop
				// looks at nothing.
				if !v.good && !strings.Contains(got, "Connection: close") {
					t.Errorf("%s: the loop serves %q, which llhttp refuses", v.name, s)
				}
			}
		}
	}
	if served < 10 {
		t.Errorf("the loop has served %d of them by itself", served)
	}
}

// other is another HTTP server, on a unix socket.
type other struct{ name, socket string }

// others starts Node's server, whose parser is llhttp, and nginx. Both answer each request with its
// method, its target and the length of its body.
func others(t *testing.T) (list []other) {
	t.Helper()
	start := func(name, socket string, cmd *exec.Cmd) {
		if _, err := exec.LookPath(cmd.Path); err != nil {
			t.Skipf("%s is not installed; on Debian: apt-get install nodejs nginx-light", name)
		}
		out := new(strings.Builder)
		cmd.Stderr = out
		p, err := testproc.Launch(cmd)
		if err != nil {
			t.Skipf("%s does not start: %v", name, err)
		}
		t.Cleanup(func() {
			_ = p.Cmd.Process.Kill()
			<-p.Ended
		})
		patience.Until(t, name+" accepts connections", func() bool {
			select {
			case <-p.Ended:
				t.Skipf("%s does not start; it says: %s", name, out)
			default:
			}
			c, err := net.Dial("unix", socket)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		list = append(list, other{name, socket})
	}
	dir := testproc.SocketDir(t)
	node := filepath.Join(dir, "node")
	start("node", node, exec.Command("node", "-e", `require("http").createServer((q, r) => {
		let n = 0
		q.on("data", d => n += d.length)
		q.on("end", () => r.end(q.method + " " + q.url + " " + n + "\n"))
	}).listen(process.argv[1])`, node))
	nginx, conf := filepath.Join(dir, "nginx"), filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr crit; events {}
http {
	access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
	large_client_header_buffers 4 32k; client_header_buffer_size 32k; keepalive_requests 100000;
	map $content_length $length { "" 0; ~^0*(?<n>[0-9]+)$ $n; }
	server { listen unix:%[1]s/nginx; location / { return 200 "$request_method $request_uri $length\n"; } }
}`, dir)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start("nginx", nginx, exec.Command("nginx", "-p", dir, "-c", conf, "-e", "stderr"))
	return list
}

// requests returns the requests that a server has seen in the bytes, the last of which ends the
// connection.
func requests(t testing.TB, network, address, bytes string) (list []string) {
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(patience.End(t)); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.WriteString(c, bytes)
		if tcp, ok := c.(*net.TCPConn); ok { // Node would not answer any more
			_ = tcp.CloseWrite()
		}
	}()
	in := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			return list
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return list
		}
		list = append(list, strings.TrimSpace(string(body)))
	}
}

// TestOthers: in input that the loop serves by itself no other server sees other requests, so that
// nobody can smuggle one past them. It may refuse some of it.
func TestOthers(t *testing.T) {
	list := others(t)
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body) // it fails only in net/http, of which nothing is asked here
		fmt.Fprintf(w, "%s %s %d\n", r.Method, r.RequestURI, n)
	}))
	last := get("/the-last-one", "Connection: close")
	served, alike := 0, map[string]int{}
	check := func(t testing.TB, bytes string) {
		before := loop.handed.Load()
		want := requests(t, "tcp", loop.addr, bytes+last)
		if n := len(want); loop.handed.Load() > before || n == 0 || want[n-1] != "GET /the-last-one 0" {
			return
		}
		served++
		for _, o := range list {
			got := requests(t, "unix", o.socket, bytes+last)
			if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
				t.Fatalf("in %q\nthe loop sees %q\nand %s sees %q", bytes, want, o.name, got)
			}
			if len(got) == len(want) {
				alike[o.name]++
			}
		}
	}
	for _, v := range vectors(t) {
		check(t, v.withHost())
	}
	for _, odd := range oddRequests() {
		check(t, odd)
		check(t, get("/first")+odd)
	}
	for _, o := range list {
		if alike[o.name] < served/2 {
			t.Errorf("%s agrees with the loop in %d of %d", o.name, alike[o.name], served)
		}
	}
	t.Logf("%d streams, alike %v", served, alike)
	if effort.All() {
		rapid.Check(t, func(rt *rapid.T) { check(fatal{t, rt}, stream().Draw(rt, "stream")) })
	}
}

// fatal is a test whose failures are rapid's.
type fatal struct {
	*testing.T
	rt *rapid.T
}

func (f fatal) Fatalf(format string, args ...any) { f.rt.Fatalf(format, args...) }
func (f fatal) Errorf(format string, args ...any) { f.rt.Errorf(format, args...) }
func (f fatal) Helper()                           {}

// stream makes requests in a row, most of them good, and some with a few bytes changed.
func stream() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		for range rapid.IntRange(1, 3).Draw(t, "requests") {
			var fields []string
			for range rapid.IntRange(0, 4).Draw(t, "fields") {
				plain := rapid.SampledFrom([]string{
					"Connection: keep-alive", "Accept: */*", "Pragma: no-cache", "Cookie: a=b; c=\"d\"", "TE: trailers", "Content_Length: 5", "X-Content-Length: 5", "X: \u00e4", "X:", "X: \t y\t ", "Keep-Alive: 1",
				})
				fields = append(fields, rapid.OneOf(plain, plain, plain, plain,
					rapid.SampledFrom([]string{
						"connection: close", "Transfer-Encoding: chunked", "Transfer-Encoding : chunked", "Content-Length: 3", "Content-Length: 0", "content-length:\t2", "Host: b", "Expect: 100-continue", "Upgrade: h2c",
					}),
					rapid.StringMatching(`[a-zA-Z0-9!#$%&'*+.^_|~-]{1,20}:[ \t]?[ -~]{0,30}`),
				).Draw(t, "field"))
			}
			target := rapid.OneOf(
				rapid.SampledFrom([]string{"/", "/a?b=c", "//a", "/a%2Fb", "/?", "/a/../b", "/*", "/.", "/%61?%zz",
					"/a;b=c", "/?a=b&c=/?d"}),
				rapid.StringMatching(`/[!-~]{0,20}`),
			).Draw(t, "target")
			method := rapid.SampledFrom([]string{"GET", "POST", "POST", "PUT", "DELETE", "HEAD"}).Draw(t, "method")
			if strings.HasPrefix(method, "P") {
				b.WriteString(method + strings.TrimPrefix(
					post(target,
						rapid.SampledFrom([]string{"", "x", "{}", "GET / HTTP/1.1\r\nHost: smuggled\r\n\r\n",
							strings.Repeat("long", 1200), "0\r\n\r\n"}).Draw(t, "body"), fields...), "POST"))
			} else {
				b.WriteString(ask(method, target, fields...))
			}
		}
		bytes := []byte(b.String())
		for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "changes") {
			i := rapid.IntRange(0, len(bytes)-1).Draw(t, "at")
			c := rapid.SampledFrom([]byte("\r\n\t :;,/?#%\x00\x0b\x7f\x80\xff0aAGPC")).Draw(t, "byte")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				bytes[i] = c
			case 1:
				bytes = slices.Insert(bytes, i, c)
			default:
				bytes = slices.Delete(bytes, i, i+1)
			}
		}
		return string(bytes)
	})
}

// TestStreams compares the answers to any stream of requests with net/http's.
func TestStreams(t *testing.T) {
	loop, plain := newSides(t, http.HandlerFunc(tell))
	rapid.Check(t, func(rt *rapid.T) {
		s := stream().Draw(rt, "stream")
		cut := rapid.IntRange(0, len(s)).Draw(rt, "cut")
		same(fatal{t, rt}, loop, plain, s[:cut], s[cut:])
	})
}
