//go:build unix

package doors

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// haproxyBed is the example for HAProxy as it stands, with free ports in place of its own, in front
// of an API that counts.
type haproxyBed struct {
	t       *testing.T
	page    *servertest.DocsPage
	program string
	seen    atomic.Int64 // by the API
}

func newHAProxyBed(t *testing.T) *haproxyBed {
	t.Helper()
	servertest.Needs(t, "haproxy")
	dir := filepath.Join(t.TempDir(), "haproxy")
	b := &haproxyBed{t: t, page: servertest.NewPage(t, dir, "8000", "9907", "6070", "3000")}
	for _, item := range b.page.Env {
		if path, ok := strings.CutPrefix(item, "PATH="); ok {
			b.program = filepath.Join(strings.SplitN(path, ":", 2)[0], "weir")
		}
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(servertest.RepositoryRoot(t), "examples", "haproxy"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"haproxy.cfg", "rl-spoe.conf", "weir.yaml"} {
		b.edit(name, name, b.page.Ports)
	}
	check := exec.Command("haproxy", "-c", "-f", "haproxy.cfg")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Skipf("this haproxy does not take the example: %v\n%s", err, out)
	}
	// A machine that is busy is not to be taken for a Weir that is away, but where it is.
	b.edit("rl-spoe.conf", "hasty.conf", strings.NewReplacer())
	b.edit("rl-spoe.conf", "rl-spoe.conf", strings.NewReplacer("timeout processing 100ms", "timeout processing 30s",
		"timeout hello 200ms", "timeout hello 30s"))
	return b
}

func (b *haproxyBed) edit(from, to string, r *strings.Replacer) {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.page.Dir, from))
	if err != nil {
		b.t.Fatal(err)
	}
	servertest.WriteRules(b.t, filepath.Join(b.page.Dir, to), r.Replace(string(data)))
}

// begin starts a program in the folder, with nothing but the folder's files to tell it what to do.
func (b *haproxyBed) begin(name string, args ...string) *servertest.Process {
	b.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = b.page.Dir
	return servertest.Begin(b.t, cmd)
}

func (b *haproxyBed) startWeir() *servertest.Process {
	b.t.Helper()
	p := b.begin(b.program, "serve")
	p.Addr("spoe")
	return p
}

// StartHAProxy starts HAProxy with a configuration, and waits until it takes connections at an
// address.
func (b *haproxyBed) startHAProxy(file, address string) {
	b.t.Helper()
	b.begin("haproxy", "-db", "-f", file).Listens(address)
}

// serveAPI serves what stands behind HAProxy, at the port of the example.
func (b *haproxyBed) serveAPI() {
	b.t.Helper()
	l, err := net.Listen("tcp", b.page.Address("3000"))
	if err != nil {
		b.t.Fatal(err)
	}
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b.seen.Add(1)
		fmt.Fprint(w, "hello")
	}))
	api.Listener.Close()
	api.Listener = l
	api.Start()
	b.t.Cleanup(api.Close)
}

// ask sends a request that claims to come from somewhere else.
func (b *haproxyBed) ask(address, path string) (*http.Response, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	forged := fmt.Sprintf("192.0.2.%d", b.seen.Load()%250)
	for _, name := range []string{"X-Forwarded-For", "X-Real-IP", "Forwarded", "Client-IP"} {
		r.Header.Set(name, forged)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer, string(body)
}

// passes checks that a request passes, with this remaining; below 0 without a word of limits.
func (b *haproxyBed) passes(address, path string, remaining int) {
	b.t.Helper()
	before := b.seen.Load()
	answer, body := b.ask(address, path)
	if answer.StatusCode != http.StatusOK || body != "hello" || b.seen.Load() != before+1 {
		b.t.Fatalf("%s: %s %q; the API saw %d", path, answer.Status, body, b.seen.Load()-before)
	}
	h := answer.Header
	if remaining < 0 {
		if h.Get("RateLimit")+h.Get("X-RateLimit-Limit")+h.Get("RateLimit-Policy") != "" {
			b.t.Errorf("%s: %v", path, h)
		}
		return
	}
	if want := fmt.Sprintf(`"api-per-address";r=%d;t=`, remaining); !strings.HasPrefix(h.Get("RateLimit"), want) ||
		h.Get("RateLimit-Policy") != `"api-per-address";q=10;w=60` || h.Get("X-RateLimit-Limit") != "10" ||
		h.Get("X-RateLimit-Remaining") != strconv.Itoa(remaining) || h.Get("X-RateLimit-Reset") == "" ||
		h.Get("Retry-After") != "" {
		b.t.Errorf("%s: %v, want %d remaining", path, h, remaining)
	}
}

// refuses checks that a request is refused, and does not reach the API.
func (b *haproxyBed) refuses(address, path string) {
	b.t.Helper()
	before := b.seen.Load()
	answer, body := b.ask(address, path)
	h := answer.Header
	if answer.StatusCode != http.StatusTooManyRequests || b.seen.Load() != before {
		b.t.Fatalf("%s: %s %q; the API saw %d", path, answer.Status, body, b.seen.Load()-before)
	}
	if retry, err := strconv.Atoi(h.Get("Retry-After")); err != nil || retry < 1 || retry > 60 ||
		h.Get("X-RateLimit-Remaining") != "0" ||
		!strings.HasPrefix(h.Get("RateLimit"), `"api-per-address";r=0;t=`) || h.Get("X-RateLimit-Decision") == "" ||
		h.Get("Content-Type") != "application/problem+json" {
		b.t.Errorf("%s: %v", path, h)
	}
	var problem struct {
		Status   int      `json:"status"`
		Violated []string `json:"violated-policies"`
		Decision string   `json:"decision"`
	}
	if err := json.Unmarshal([]byte(body), &problem); err != nil || problem.Status != 429 ||
		len(problem.Violated) != 1 || problem.Violated[0] != "api-per-address" ||
		problem.Decision != h.Get("X-RateLimit-Decision") {
		b.t.Errorf("%q: %v", body, err)
	}
}

// TestHAProxyFields: a rule of the example's by a key holds, whatever the client sends beside it.
func TestHAProxyFields(t *testing.T) {
	t.Parallel()
	b := newHAProxyBed(t)
	servertest.WriteRules(t, filepath.Join(b.page.Dir, "rules", "keys.yaml"),
		"domain: api\nlimits: [{name: keys, when: {path: /keys}, per: [header.x-api-key], allow: 3/day}]\n")
	b.serveAPI()
	b.startWeir()
	open := b.page.Address("8000")
	b.startHAProxy("haproxy.cfg", open)
	ask := func(lines ...string) string {
		return rawAsk(t, open, spelling{"/keys", lines})
	}
	for i := range 4 {
		want := "200 hello"
		if i == 3 {
			want = "429"
		}
		if got := ask("X-Api-Key: k"); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{[]string{"X-Api-Key: k", "X-Api-Key: a"}, "400"},
		{[]string{"X-Api-Key: b", "X-Api-Key: k"}, "400"},
		{[]string{"X-Api-Key: c", "X_Api_Key: k"}, "400"},
		{[]string{"X_Api_Key: k"}, "400"},
		{[]string{"X-Api-Key: k", "X-Api-Key: k"}, "429"},
		{[]string{"X-Api-Key:  k "}, "429"},
		{[]string{"X-Api-Key: d"}, "200 hello"},
	} {
		if got := ask(c.lines...); got != c.want {
			t.Errorf("%q: %s, want %s", c.lines, got, c.want)
		}
	}
}

// TestHAProxy runs the example in a real HAProxy: what it lets through, what it refuses and with
// which headers, and what happens when Weir is killed and comes back.
func TestHAProxy(t *testing.T) {
	t.Parallel()
	b := newHAProxyBed(t)
	b.serveAPI()
	weir := b.startWeir()
	open := b.page.Address("8000")
	b.startHAProxy("haproxy.cfg", open)
	for i := range 10 {
		b.passes(open, "/api/orders?page="+strconv.Itoa(i), 9-i)
	}
	b.refuses(open, "/api/orders")
	b.refuses(open, "/api//./other")
	b.passes(open, "/free", -1)
	if n := b.seen.Load(); n != 11 {
		t.Errorf("the API saw %d requests, 11 passed", n)
	}

	// The same with the line that fails closed.
	closed := "127.0.0.1:" + servertest.FreePort(t)
	b.edit("haproxy.cfg", "closed.cfg", strings.NewReplacer("#http-request return status 503",
		"http-request return status 503", open, closed))
	b.startHAProxy("closed.cfg", closed)
	b.refuses(closed, "/api/orders")
	b.passes(closed, "/free", -1)

	// With larger buffers a request that is made long is asked about too.
	large := "127.0.0.1:" + servertest.FreePort(t)
	b.edit("haproxy.cfg", "large.cfg", strings.NewReplacer("defaults\n", "global\n    tune.bufsize 65536\n\ndefaults\n",
		open, large))
	b.startHAProxy("large.cfg", large)
	b.passes(large, "/free?"+strings.Repeat("a", 40_000), -1)
	for _, n := range []int{16_300, 20_000, 40_000, 60_000} {
		b.refuses(large, "/api/orders?"+strings.Repeat("a", n))
	}

	// While Weir is away, requests wait as long as the example says.
	const hastily, fails = "config hasty.conf", "http-request return status 503"
	hastyOpen, hastyClosed := "127.0.0.1:"+servertest.FreePort(t), "127.0.0.1:"+servertest.FreePort(t)
	b.edit("haproxy.cfg", "hasty-open.cfg", strings.NewReplacer("config rl-spoe.conf", hastily, open, hastyOpen))
	b.edit("haproxy.cfg", "hasty-closed.cfg",
		strings.NewReplacer("config rl-spoe.conf", hastily, "#"+fails, fails, open, hastyClosed))
	b.startHAProxy("hasty-open.cfg", hastyOpen)
	b.startHAProxy("hasty-closed.cfg", hastyClosed)
	for _, address := range []string{hastyOpen, hastyClosed} {
		servertest.Eventually(t, "HAProxy asks in time", func() bool {
			answer, _ := b.ask(address, "/api/orders")
			return answer.StatusCode == http.StatusTooManyRequests
		})
	}
	weir.Signal(syscall.SIGKILL)
	weir.Wait()
	for range 3 {
		b.passes(hastyOpen, "/api/orders", -1)
		before := b.seen.Load()
		if answer, body := b.ask(hastyClosed, "/free"); answer.StatusCode != http.StatusServiceUnavailable ||
			answer.Header.Get("Retry-After") != "1" || b.seen.Load() != before {
			t.Fatalf("%s %q; the API saw %d", answer.Status, body, b.seen.Load()-before)
		}
	}

	// Counters live in the process that was killed: it counts from the beginning.
	b.startWeir()
	for _, address := range []string{open, closed} {
		servertest.Eventually(t, "HAProxy asks again", func() bool {
			answer, _ := b.ask(address, "/api/orders")
			return answer.Header.Get("RateLimit") != ""
		})
	}
	for i := range 8 {
		b.passes(open, "/api/orders", 7-i)
	}
	b.refuses(open, "/api/orders")
	b.refuses(closed, "/api/orders")
}

// TestHAProxyPage runs the example's page.
func TestHAProxyPage(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts one more HAProxy")
	b := newHAProxyBed(t)
	if ran := b.page.Run(t, filepath.Join(servertest.RepositoryRoot(t), "examples", "haproxy", "README.md")); ran < 5 &&
		!b.page.Lacks {
		t.Fatalf("only %d blocks ran", ran)
	}
}

// TestHAProxyTrace: a real HAProxy passes the traceparent of a request on, and the span of the
// decision is under the client's.
func TestHAProxyTrace(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts one more HAProxy")
	b := newHAProxyBed(t)
	b.edit("rl-spoe.conf", "rl-spoe.conf", strings.NewReplacer("args ip=src",
		"args traceparent=req.hdr(traceparent) ip=src"))
	b.serveAPI()
	got, _, endpoint := receive(t, "http")
	b.begin(b.program, "serve", endpoint).Addr("spoe")
	address := b.page.Address("8000")
	b.startHAProxy("haproxy.cfg", address)
	const trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	servertest.Eventually(t, "HAProxy asks, and the span has come", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Traceparent", "00-"+trace+"-"+caller+"-01")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return len(got.in(trace, "weir decide")) > 0
	})
	if s := got.in(trace, "weir decide")[0]; attribute(s.Attributes, "weir.door") != "spoe" ||
		fmt.Sprintf("%x", s.ParentSpanId) != caller {
		t.Errorf("%v", s)
	}
}
