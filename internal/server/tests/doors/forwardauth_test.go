//go:build unix

package doors

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// edge is a folder of examples/ at work: the proxy in front, the application behind it, and Weir,
// which the proxy asks. The files equal the folder's byte for byte, except that each port in them
// is replaced by a free one, and the proxy waits longer for Weir.
type edge struct {
	t       *testing.T
	dir     string
	program string
	app     *application
	weir    *servertest.Process
	ports   map[string]string // of the example → here
	blind   bool              // the proxy cannot show the headers of a request that passes
}

// The ports of the examples.
const (
	edgePort  = "8000" // the proxy
	appPort   = "3000"
	weirPort  = "8080"
	adminPort = "6070"
)

// newEdge copies the folder and starts the application.
func newEdge(t *testing.T, program, name string) *edge {
	t.Helper()
	e := &edge{t: t, dir: t.TempDir(), program: program, ports: map[string]string{}}
	for _, port := range []string{edgePort, appPort, weirPort, adminPort} {
		e.ports[port] = servertest.FreePort(t)
	}
	ports := regexp.MustCompile(`:(8000|3000|8080|6070)\b`)
	// A machine that is busy is not to be taken for a Weir that is away.
	timeouts := regexp.MustCompile(`\b(50|100)ms\b`)
	e.copy(name, func(data []byte) []byte {
		data = timeouts.ReplaceAll(data, []byte("10s"))
		return ports.ReplaceAllFunc(data, func(found []byte) []byte { return []byte(":" + e.ports[string(found[1:])]) })
	})
	e.app = newApplication(t, e.ports[appPort])
	return e
}

func (e *edge) copy(name string, change func(data []byte) []byte) {
	e.t.Helper()
	from := filepath.Join(servertest.RepositoryRoot(e.t), "examples", name)
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(e.dir, rest)
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, change(data), 0o644)
	})
	if err != nil {
		e.t.Fatal(err)
	}
}

// change replaces text in a file of the folder; it has to be there once.
func (e *edge) change(file, old, text string) {
	e.t.Helper()
	path := filepath.Join(e.dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		e.t.Fatal(err)
	}
	if n := strings.Count(string(data), old); n != 1 {
		e.t.Fatalf("%s has %q %d times", file, old, n)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), old, text, 1)), 0o644); err != nil {
		e.t.Fatal(err)
	}
}

// rules puts other rules in place of the example's, before Weir starts.
func (e *edge) rules(text string) {
	e.t.Helper()
	servertest.WriteRules(e.t, filepath.Join(e.dir, "rules", "shop.yaml"), text)
}

// run starts a program in the folder.
func (e *edge) run(name string, args ...string) *servertest.Process {
	e.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = e.dir
	cmd.Env = append(servertest.PlainEnvironment(), "HOME="+e.dir, "XDG_CONFIG_HOME="+e.dir, "XDG_DATA_HOME="+e.dir)
	p := servertest.Begin(e.t, cmd)
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.t.Logf("%s wrote\n%s%s", filepath.Base(name), p.Stdout, p.Stderr)
		}
	})
	return p
}

// startWeir starts the built program as the example's README does.
func (e *edge) startWeir(args ...string) {
	e.t.Helper()
	e.weir = e.run(e.program, append([]string{"serve"}, args...)...)
	e.weir.Addr("http")
}

// killWeir ends it without a warning.
func (e *edge) killWeir() {
	e.t.Helper()
	e.weir.Signal(syscall.SIGKILL)
	e.weir.Wait()
}

// startProxy starts the proxy in front, and returns when it listens.
func (e *edge) startProxy(name string, args ...string) *servertest.Process {
	e.t.Helper()
	p := e.run(name, args...)
	p.Listens("127.0.0.1:" + e.ports[edgePort])
	return p
}

// url is the URL of a path at the proxy.
func (e *edge) url(path string) string { return "http://127.0.0.1:" + e.ports[edgePort] + path }

// do sends a request to the proxy. Headers are name, value pairs.
func (e *edge) do(method, path string, headers ...string) edgeAnswer {
	e.t.Helper()
	return e.send(method, path, "", headers...)
}

// edgeAnswer is what the client got.
type edgeAnswer struct {
	status int
	header http.Header
	body   string
}

func (e *edge) send(method, path, body string, headers ...string) edgeAnswer {
	e.t.Helper()
	r, err := http.NewRequest(method, e.url(path), strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	a, err := edgeClient.Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return edgeAnswer{a.StatusCode, a.Header, string(b)}
}

var edgeClient = &http.Client{
	Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 8},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// raw sends bytes on a connection of their own and returns the status that comes back; 0 if there
// is none.
func (e *edge) raw(data string) int {
	e.t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+e.ports[edgePort])
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(patience.End(e.t)); err != nil {
		e.t.Fatal(err)
	}
	_, _ = io.WriteString(conn, data) // a server that has seen enough does not read all
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	r.Body.Close()
	return r.StatusCode
}

// failsOpen kills Weir, without which all requests pass unchecked until it is back.
func (e *edge) failsOpen() {
	e.t.Helper()
	e.killWeir()
	before := e.app.count()
	for range 20 {
		if a := e.send("POST", "/things", "a body"); a.status != 200 || a.body != "hello from the app" ||
			a.header.Get("RateLimit") != "" {
			e.t.Fatalf("without weir: %v", a)
		}
	}
	if n := e.app.count() - before; n != 20 {
		e.t.Errorf("the application saw %d of 20", n)
	}
	e.startWeir()
	e.limits()
}

// failsClosed kills Weir, without which all requests are answered with status until it is back.
func (e *edge) failsClosed(status int) {
	e.t.Helper()
	e.killWeir()
	before := e.app.count()
	for range 3 {
		if a := e.do("GET", "/things"); a.status != status {
			e.t.Errorf("without weir: %v", a)
		}
	}
	if n := e.app.count() - before; n != 0 {
		e.t.Errorf("the application saw %d", n)
	}
	e.startWeir()
	e.limits()
}

// limits checks that ten requests pass and the eleventh does not, and that the application saw the
// ten.
func (e *edge) limits() {
	e.t.Helper()
	before := e.app.count()
	for i := range 10 {
		a := e.do("GET", "/things?page="+fmt.Sprint(i))
		if a.status != 200 || a.body != "hello from the app" || a.header.Get("Retry-After") != "" {
			e.t.Fatalf("request %d: %v", i+1, a)
		}
		e.showsLimit(a, fmt.Sprint(9-i))
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		a := e.do(method, "/things")
		if a.status != 429 || strings.Contains(a.body, "hello") {
			e.t.Fatalf("%s after ten: %v", method, a)
		}
		var seconds int
		if _, err := fmt.Sscan(a.header.Get("Retry-After"), &seconds); err != nil || seconds < 1 || seconds > 60 {
			e.t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
		}
		if !strings.HasPrefix(a.header.Get("Content-Type"), "application/problem+json") ||
			!strings.Contains(a.body, "quota-exceeded") ||
			!strings.Contains(a.header.Get("Cache-Control"), "no-store") {
			e.t.Errorf("a refusal: %v", a)
		}
		e.showsLimit(a, "0")
	}
	if n := e.app.count() - before; n != 10 {
		e.t.Errorf("the application saw %d requests, want 10", n)
	}
}

// showsLimit checks the rate-limit headers of an answer, where the proxy can show them.
func (e *edge) showsLimit(a edgeAnswer, remaining string) {
	e.t.Helper()
	if e.blind && a.status == 200 {
		return
	}
	if !strings.HasPrefix(a.header.Get("RateLimit"), `"per-client";r=`+remaining+";t=") ||
		a.header.Get("RateLimit-Policy") != `"per-client";q=10;w=60` {
		e.t.Errorf("%d: RateLimit %q, RateLimit-Policy %q; want %s remaining", a.status, a.header.Values("RateLimit"),
			a.header.Values("RateLimit-Policy"), remaining)
	}
}

// application is what the proxy protects.
type application struct {
	mu       sync.Mutex
	requests []*http.Request
	instead  http.Handler // answers all requests, if it is set before the first
}

func newApplication(t *testing.T, port string) *application {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	app := new(application)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: app}}
	s.Start()
	t.Cleanup(s.Close)
	return app
}

// ServeHTTP implements http.Handler.
func (a *application) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.instead != nil {
		a.instead.ServeHTTP(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	seen := r.Clone(r.Context())
	seen.Body = io.NopCloser(bytes.NewReader(body))
	a.mu.Lock()
	a.requests = append(a.requests, seen)
	a.mu.Unlock()
	if r.URL.Path == "/forbidden" {
		http.Error(w, "the app's own", http.StatusForbidden)
		return
	}
	if r.URL.Path == "/broken" {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, "hello from the app")
}

func (a *application) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

// last returns the newest request.
func (a *application) last() *http.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[len(a.requests)-1]
}

// paths returns the paths that were asked for, from the nth on.
func (a *application) paths(from int) (paths []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests[from:] {
		paths = append(paths, r.RequestURI)
	}
	return paths
}

// relay passes connections on, and counts them.
type relay struct {
	port   string // of its own
	to     string
	opened atomic.Int64
	mu     sync.Mutex
	open   []net.Conn
}

// newRelay passes on to a port of this machine.
func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{port: fmt.Sprint(l.Addr().(*net.TCPAddr).Port), to: "127.0.0.1:" + to}
	t.Cleanup(func() { l.Close(); r.cut() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			behind, err := net.Dial("tcp", r.to)
			if err != nil {
				conn.Close()
				continue
			}
			r.opened.Add(1)
			r.mu.Lock()
			r.open = append(r.open, conn, behind)
			r.mu.Unlock()
			go func() { _, _ = io.Copy(behind, conn); behind.Close() }()
			go func() { _, _ = io.Copy(conn, behind); conn.Close() }()
		}
	}()
	return r
}

// cut closes all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.open {
		c.Close()
	}
	r.open = nil
}

// spellings are ways to ask for /login that a server behind the proxy may take for it.
var spellings = []string{
	"/login", "//login", "/./login", "/x/../login", "/%6cogin", "/%6Cogin", "/login?a", "/login?", "/login?a=/../../x", "/login#x", "/login?#", "/login#?x=1", "/%6c%6f%67%69%6e",
	"/.//login", "/%2e/login", "/a/%2e%2e/login", "/a/..%2flogin/../../login", "http://other.example/login", "HTTP://other.example/login",
}

// limited checks that no spelling of a path gets past a limit that is used up, nor any forged
// header: the application must see none of them.
func (e *edge) limited(host string) {
	e.t.Helper()
	if a := e.do("GET", "/login"); a.status != 200 {
		e.t.Fatalf("%v", a)
	}
	before := e.app.count()
	for _, spelling := range spellings {
		status := e.raw("GET " + spelling + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
		// Caddy makes the # a character of the path, for the application too: then it is another
		// path.
		if status != 429 && status != 400 && !strings.Contains(spelling, "#") {
			e.t.Errorf("%s: %d", spelling, status)
		}
	}
	if status := e.raw("GET /login HTTP/1.0\r\n\r\n"); status != 429 && status != 400 {
		e.t.Errorf("HTTP/1.0: %d", status)
	}
	if status := e.raw("POST /login HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n"); status != 429 {
		e.t.Errorf("chunks: %d", status)
	}
	if status := e.raw("GET /login HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"); status != 429 {
		e.t.Errorf("an upgrade: %d", status)
	}
	names := []string{"X-Original-URI", "X-Original-Method", "X-Forwarded-Uri", "X-Forwarded-Method",
		"X-Forwarded-Host", "X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Request-Id", "X_Original_URI", "X-Forwarded-URI"}
	for _, name := range names {
		for _, value := range []string{"/free", "OPTIONS", "free.example", "198.51.100.99", "for=198.51.100.99", "1",
			""} {
			for _, connection := range []string{"close", "close, " + name} {
				// a header that is named there is taken off by the way
				status := e.raw("GET /login HTTP/1.1\r\nHost: " + host + "\r\nConnection: " + connection + "\r\n" +
					name + ": " + value + "\r\n" + name + ": " + value + "\r\n\r\n")
				if status != 429 && status != 400 {
					e.t.Errorf("%s: %s (Connection: %s): %d", name, value, connection, status)
				}
			}
		}
	}
	// Headers of any size, up to what the proxy takes, are no way to make the check fail.
	for _, n := range []int{4 << 10, 7 << 10, 20 << 10, 30 << 10, 60 << 10, 100 << 10, 500 << 10, 1 << 20} {
		for _, each := range []int{n, 2 << 10} {
			var b strings.Builder
			for i := range n / each {
				fmt.Fprintf(&b, "X-Big-%d: %s\r\n", i, strings.Repeat("a", each))
			}
			if status := e.raw("GET /login HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + b.String() + "\r\n"); status == 200 || status == 502 || status == 504 {
				e.t.Errorf("%d bytes of headers, %d each: %d", n, each, status)
			}
		}
		if status := e.raw("GET /login?" + strings.Repeat("a", n) + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"); status == 200 || status == 502 || status == 504 {
			e.t.Errorf("%d bytes of query: %d", n, status)
		}
	}
	paths := slices.DeleteFunc(e.app.paths(before),
		func(path string) bool { return strings.HasPrefix(path, "/login%23") })
	if len(paths) != 0 {
		for i := range paths {
			paths[i] = paths[i][:min(len(paths[i]), 80)]
		}
		slices.Sort(paths)
		e.t.Errorf("the application was asked for %q", slices.Compact(paths))
	}
}

// loginRules limits one path, for all clients together.
const loginRules = `
domain: shop
limits:
  - {name: login, when: {path: /login}, allow: 1/day, algorithm: sliding_log}
  - {name: free, when: {path: /free}, allow: 1000/day, algorithm: sliding_log}
`

// testEdgeAttributes checks that rules see the client's request, and none of its forgeries: neither
// to be another one, nor to use up the limit of another one.
func testEdgeAttributes(t *testing.T, program, name string, startProxy func(*edge)) {
	e := newEdge(t, program, name)
	e.rules(`
domain: shop
limits:
  - {name: login, when: {path: /login}, allow: 2/day, algorithm: sliding_log}
  - {name: deletes, when: {method: DELETE}, allow: 2/day, algorithm: sliding_log}
  - {name: hosts, when: {host: other.example}, allow: 2/day, algorithm: sliding_log}
  - {name: users, when: {path: /search}, per: [query.user], allow: 2/day, algorithm: sliding_log}
  - {name: keys, when: {path: /keys}, per: [header.x-api-key], allow: 2/day, algorithm: sliding_log}
  - {name: clients, when: {path: /ip}, per: [ip], allow: 2/day, algorithm: sliding_log}
`)
	e.startWeir()
	startProxy(e)
	forged := []string{
		"X-Original-URI", "/login", "X-Original-Method", "DELETE", "X-Forwarded-Uri", "/login", "X-Forwarded-Method", "DELETE", "X-Forwarded-Host", "other.example",
		"X-Forwarded-For", "127.0.0.1", "X-Request-Id", "1",
	}
	for range 5 { // of no limit, whatever it says
		if a := e.do("GET", "/other?user=a", forged...); a.status != 200 {
			t.Fatalf("%v", a)
		}
	}
	for what, ask := range map[string]func(i int) edgeAnswer{
		"path": func(int) edgeAnswer { return e.do("GET", "/login", "X-Original-URI", "/x", "X-Forwarded-Uri", "/x") },
		"method": func(int) edgeAnswer {
			return e.do("DELETE", "/d", "X-Original-Method", "GET", "X-Forwarded-Method", "GET")
		},
		"host":  func(int) edgeAnswer { return e.do("GET", "/h", "Host", "other.example", "X-Forwarded-Host", "x") },
		"query": func(i int) edgeAnswer { return e.do("GET", fmt.Sprintf("/search?x=%d&user=a&other=%d", i, i)) },
		"header": func(i int) edgeAnswer {
			return e.do("GET", "/keys", "X-Api-Key", "a", "X-Request-Id", "1", "X-Other", fmt.Sprint(i))
		},
		"ip": func(i int) edgeAnswer {
			return e.do("GET", "/ip", "X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i), "X-Real-IP",
				fmt.Sprintf("198.51.100.%d", i), "Forwarded", fmt.Sprintf("for=198.51.100.%d", i))
		},
	} {
		for i := range 4 {
			if a, want := ask(i), map[bool]int{true: 200, false: 429}[i < 2]; a.status != want {
				t.Errorf("%s: request %d is answered %d, want %d", what, i+1, a.status, want)
			}
		}
	}
	if a := e.do("GET", "/search?user=b"); a.status != 200 {
		t.Errorf("another user: %v", a)
	}
	// nginx makes a 500 of Weir's 400.
	if a := e.do("GET", "/search?user=c&user=d"); a.status != 400 && a.status != 500 {
		t.Errorf("a user twice: %v", a)
	}
	// A body goes to the application, not to Weir.
	if a := e.send("POST", "/post", strings.Repeat("body", 50_000)); a.status != 200 {
		t.Errorf("%v", a)
	}
	if b, _ := io.ReadAll(e.app.last().Body); len(b) != 200_000 {
		t.Errorf("of the body the application got %d bytes", len(b))
	}
}

// runReadme does what the README of an example says, in a copy of its folder.
func runReadme(t *testing.T, name string) {
	dir := filepath.Join(t.TempDir(), name)
	p := servertest.NewPage(t, dir, edgePort, appPort, weirPort, adminPort)
	p.Env = append(p.Env, "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	e := &edge{t: t, dir: dir}
	e.copy(name, func(data []byte) []byte {
		return []byte(strings.ReplaceAll(p.Ports.Replace(string(data)), "\n:"+edgePort+" {",
			"\n:"+p.Address(edgePort)[len("127.0.0.1:"):]+" {"))
	})
	if ran := p.Run(t, filepath.Join(servertest.RepositoryRoot(t), "examples", name, "README.md")); ran != 5 &&
		!p.Lacks {
		t.Errorf("%d blocks ran", ran)
	}
}
