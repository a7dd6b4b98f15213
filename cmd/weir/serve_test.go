package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// output collects what a program writes, and lets one wait for it.
type output struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// lines returns what is there of the output in whole lines: of the last one some may be on its way.
func (o *output) lines() string {
	text := o.String()
	return text[:strings.LastIndexByte(text, '\n')+1]
}

// await waits until pattern is in the output, and returns its submatches.
func (o *output) await(t *testing.T, pattern string) []string {
	t.Helper()
	expression := regexp.MustCompile(pattern)
	limit := time.After(patience.Left(t))
	for {
		o.mu.Lock()
		found, changed := expression.FindStringSubmatch(o.b.String()), o.changed
		o.mu.Unlock()
		if found != nil {
			return found
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%q did not come; the output is\n%s", pattern, o)
		}
	}
}

// running is a program that runs in this process.
type running struct {
	t              *testing.T
	stdout, stderr *output
	stop           context.CancelFunc
	status         chan int
}

// patient are settings under which a slow machine is not taken for a Redis that is away.
var patient = []string{"--store-deadline=30s", "--store-timeout=30s"}

// command runs weir with args, as main does, and returns its exit status.
type command func(ctx context.Context, args, env []string, stdout, stderr io.Writer) int

// start runs weir with args in a folder of its own, or in the present one if a test has changed to
// one. Doors take free ports.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	return startWith(t, func(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
		return Run(ctx, args, env, strings.NewReader(""), stdout, stderr)
	}, args...)
}

// startServer is start for weir serve and weir proxy, without the commands.
func startServer(t *testing.T, args ...string) *running {
	t.Helper()
	return startWith(t, serveCommand, args...)
}

// serveCommand is weir serve or weir proxy, which is the first of args that is no flag.
func serveCommand(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("weir", pflag.ContinueOnError)
	check, upstream := flags.Bool("check", false, ""), flags.String("upstream", "", "")
	addSettingFlags(flags)
	err := flags.Parse(args)
	if err == nil && *upstream != "" {
		err = flags.Set("proxy-upstream", *upstream)
	}
	var c *config
	if err == nil {
		c, err = loadConfig(flags, env)
	}
	if err == nil && flags.Arg(0) == "proxy" {
		c.onlyProxy(flags)
	}
	status := 2 // of what is wrong before anything has begun
	if err == nil {
		err = serve(ctx, c, *check, "(devel)", stdout, stderr)
		if _, early := errors.AsType[*setupError](err); !early {
			status = 1
		}
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "weir:", redact(err.Error()))
	return status
}

// startWith is start by a way to run weir.
func startWith(t *testing.T, run command, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &running{t: t, stdout: newOutput(), stderr: newOutput(), stop: cancel, status: make(chan int, 1)}
	env := append([]string{"WEIR_LISTEN_HTTP=127.0.0.1:0", "WEIR_LISTEN_GRPC=127.0.0.1:0", "WEIR_LISTEN_RESP=127.0.0.1:0", "WEIR_LISTEN_ADMIN=127.0.0.1:0"}, withoutLine...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.status <- run(ctx, args, env, p.stdout, p.stderr)
	}()
	// The next test begins when it has ended: until then it may write into folders that are removed
	// with the test, and has what there is once in a process, as the pace of the garbage collector.
	t.Cleanup(func() {
		cancel()
		patience.Receive(t, "the end of weir "+strings.Join(args, " "), ended)
	})
	return p
}

// end stops the program as SIGTERM does and checks that it exits well.
func (p *running) end() {
	p.t.Helper()
	p.stop()
	p.exits(0)
}

func (p *running) exits(want int) {
	p.t.Helper()
	select {
	case status := <-p.status:
		if status != want {
			p.t.Errorf("exit status %d, want %d; it wrote\n%s", status, want, p.stderr)
		}
	case <-time.After(patience.Left(p.t)):
		p.t.Fatalf("it does not end; it wrote\n%s", p.stderr)
	}
}

// addr waits for a door.
func (p *running) addr(door string) string {
	p.t.Helper()
	return p.stderr.await(p.t, `door=`+door+` addr=(\S+)`)[1]
}

func get(t *testing.T, url string) (int, http.Header, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header, string(b)
}

// writeRules replaces a file as a whole. In place it would be empty for a moment, and for longer on
// a busy machine: a server that watches it could load that, and log it, where a test counts the
// lines.
func writeRules(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// The starter rules give way to a folder ./rules that appears while the server runs.
func TestServeFindsRules(t *testing.T) {
	t.Chdir(t.TempDir())
	p := startServer(t, "serve")
	url := "http://" + p.addr("http") + "/api/v1/limit?"
	p.stderr.await(t, `the built-in starter rules are in force until it is there`)
	if status, _, body := get(t, url+"key=ada"); status != 200 || !strings.Contains(body, `"limit":10`) {
		t.Fatalf("starter rules: %d %s", status, body)
	}
	if err := os.Mkdir("rules", 0o700); err != nil {
		t.Fatal(err)
	}
	writeRules(t, "rules/shop.yaml", "domain: shop\nlimits: [{ name: one, per: [key], allow: 1/hour, algorithm: sliding_log }]\n")
	p.stderr.await(t, `rules loaded" path=./rules files=1`)
	for i, want := range []int{200, 429} {
		if status, _, body := get(t, url+"key=ada"); status != want || !strings.Contains(body, `"limit":1,`) {
			t.Errorf("request %d: %d %s, want %d by rule one", i, status, body, want)
		}
	}
	if _, _, body := get(t, "http://"+p.addr("admin")+"/api/v1/rules"); !strings.Contains(body, "./rules") {
		t.Errorf("the admin API tells %s", body)
	}
	if strings.Contains(p.stderr.String(), "level=ERROR") {
		t.Errorf("an error was logged:\n%s", p.stderr)
	}
	p.end()
}

// With nothing configured the starter rules are in force at all doors, on the same counters.
func TestServeStarter(t *testing.T) {
	t.Parallel()
	p := startServer(t, "serve")
	base := "http://" + p.addr("http") + "/api/v1/limit?key=ada"
	for i := range 9 {
		if status, _, body := get(t, base); status != 200 {
			t.Fatalf("request %d: %d %s", i+1, status, body)
		}
	}
	// The tenth comes by gRPC: one engine behind every door.
	conn, err := grpc.NewClient(p.addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rls := rlspb.NewRateLimitServiceClient(conn)
	question := &rlspb.RateLimitRequest{Domain: "default", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key", Value: "ada"}}}}}
	for i, want := range []rlspb.RateLimitResponse_Code{rlspb.RateLimitResponse_OK, rlspb.RateLimitResponse_OVER_LIMIT} {
		answer, err := rls.ShouldRateLimit(t.Context(), question)
		if err != nil || answer.OverallCode != want {
			t.Errorf("gRPC %d: %v %v, want %v", i, answer, err, want)
		}
	}
	status, header, body := get(t, base)
	if status != 429 || header.Get("Retry-After") == "" || !strings.Contains(body, `"limited_by":["starter"]`) {
		t.Errorf("the eleventh: %d %v %s", status, header, body)
	}
	for _, want := range []string{base, "curl -i -X POST http://" + p.addr("http") + "/api/v1/limit", "grpcurl -plaintext", p.addr("grpc"), "http://" + p.addr("admin") + "/metrics"} {
		p.stdout.await(t, regexp.QuoteMeta(want))
	}
	admin := "http://" + p.addr("admin")
	if status, _, body := get(t, admin+"/api/v1/keys?limit=starter"); status != 200 || !strings.Contains(body, `"key": "key=ada"`) || !strings.Contains(body, `"refused": true`) {
		t.Errorf("keys: %d %s", status, body)
	}
	if status, _, body := get(t, admin+"/metrics"); status != 200 ||
		!strings.Contains(body, `weir_requests_total{domain="default",door="http",outcome="denied"} 1`) ||
		!strings.Contains(body, `weir_requests_total{domain="default",door="rls",outcome="denied"} 1`) {
		t.Errorf("metrics: %d %s", status, body)
	}
	if status, _, _ := get(t, admin+"/readyz"); status != 200 {
		t.Errorf("readyz: %d", status)
	}
	if status, _, body := get(t, admin+"/api/v1/rules"); status != 200 || !strings.Contains(body, "built-in starter rules") {
		t.Errorf("rules: %d %s", status, body)
	}
	p.end()
	if !strings.Contains(p.stderr.String(), "stopped") {
		t.Errorf("it wrote\n%s", p.stderr)
	}
}

func TestUsageErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		"good/a.yaml":    "limits: [{ name: a, allow: 1/min }]\n",
		"bad/a.yaml":     "limits:\n  - name: a\n    alow: 1/min\n",
		"empty/a.yaml":   "",
		"norule/a.yaml":  "domain: shop\n",
		"domains/a.yaml": "domain: a\nlimits: [{ name: a, allow: 1/min }]\n",
		"domains/b.yaml": "domain: b\nlimits: [{ name: a, allow: 1/min }]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		writeRules(t, name, text)
	}
	if err := os.Mkdir("nothing", 0o700); err != nil {
		t.Fatal(err)
	}
	writeRules(t, "damaged", "this is no snapshot")
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"port in use", []string{"serve", "--rules=good", "--listen-http=" + taken.Addr().String()}, []string{"listen.http: " + taken.Addr().String() + " is in use", "--listen-http"}},
		{"broken rules", []string{"serve", "--rules=bad"}, []string{"a.yaml:3:5", "alow", "allow"}},
		{"empty file", []string{"serve", "--rules=empty"}, []string{"the file is empty"}},
		{"no rule", []string{"serve", "--rules=norule"}, []string{"no rule is left"}},
		{"no file", []string{"serve", "--rules=nothing"}, []string{"holds no rule file"}},
		{"no folder", []string{"serve", "--rules=absent"}, []string{"absent"}},
		{"no folder, checked", []string{"serve", "--check", "--rules=absent"}, []string{"absent"}},
		{"unknown flag", []string{"serve", "--lisen=:1"}, []string{"--lisen", "weir serve --help"}},
		{"unknown command", []string{"serv"}, []string{`unknown command "serv"`, `did you mean "serve"?`}},
		{"argument", []string{"serve", "now"}, []string{"now"}},
		{"no door", []string{"serve", "--rules=good", "--listen-http=off", "--listen-grpc=off", "--listen-resp=off", "--listen-admin=off"}, []string{"no door"}},
		{"proxy to nowhere", []string{"proxy", "--rules=good"}, []string{"proxy.upstream"}},
		{"proxy to no URL", []string{"proxy", "--rules=good", "--upstream=ftp://x"}, []string{"proxy.upstream"}},
		{"proxy with two upstreams", []string{"proxy", "--rules=good", "--upstream=http://x", "--proxy-upstream=http://y"}, []string{"give one"}},
		{"proxy without rules", []string{"proxy", "--upstream=http://127.0.0.1:1"}, []string{"rules"}},
		{"proxy with two domains", []string{"proxy", "--rules=domains", "--upstream=http://127.0.0.1:1"}, []string{"proxy.domain", "a, b"}},
		{"identity without keys", []string{"proxy", "--rules=good", "--upstream=http://127.0.0.1:1", "--identity=user=jwt:sub"}, []string{"identity"}},
		{"no tokens", []string{"serve", "--rules=good", "--auth-tokens-file=absent"}, []string{"auth.tokens_file", "absent"}},
		{"doors with tokens, no tokens", []string{"serve", "--rules=good", "--auth-doors=http"}, []string{"auth.doors: needs auth.tokens_file"}},
		{"certificate without a key", []string{"serve", "--check", "--rules=good", "--tls-cert=good/a.yaml"}, []string{"tls.key: has 0 files, and tls.cert 1"}},
		{"no certificate", []string{"serve", "--check", "--rules=good", "--tls-cert=good/a.yaml", "--tls-key=good/a.yaml"}, []string{"good/a.yaml and good/a.yaml are no pair"}},
		{"clients without a certificate", []string{"serve", "--check", "--rules=good", "--tls-client-ca=good/a.yaml"}, []string{"tls.cert: is missing"}},
		{"clients' certificates, no authority", []string{"serve", "--check", "--rules=good", "--tls-client-doors=grpc"}, []string{"tls.client_doors: needs tls.client_ca"}},
		{"clients' certificates, no TLS", []string{"serve", "--check", "--rules=good", "--tls-client-ca=x", "--tls-client-doors=grpc,http", "--tls-doors=http", "--tls-cert=x", "--tls-key=x"}, []string{"tls.client_doors: grpc is not in tls.doors"}},
		{"doors with TLS, no certificate", []string{"serve", "--check", "--rules=good", "--tls-doors=http"}, []string{"tls.doors: needs tls.cert and tls.key"}},
		{"headers from anybody", []string{"serve", "--rules=good", "--proxy-protocol-doors=http"}, []string{"proxy_protocol.peers: is missing"}},
		{"a socket in no folder", []string{"serve", "--rules=good", "--listen-http=unix:absent/weir.sock"}, []string{"listen.http: the folder of the socket"}},
		{"a socket that is a file", []string{"serve", "--rules=good", "--listen-http=unix:good/a.yaml"}, []string{"listen.http: good/a.yaml is there, and is no socket"}},
		{"bad configuration", []string{"serve", "--log-level=loud"}, []string{"--log-level"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, c.args...)
			p.exits(exitUsage)
			for _, want := range c.want {
				if !strings.Contains(p.stderr.String(), want) {
					t.Errorf("it wrote\n%s\nwant %q in it", p.stderr, want)
				}
			}
		})
	}
	p := start(t, "serve", "--check", "--rules=good", "--listen-http="+taken.Addr().String(), "--snapshot-path=damaged")
	p.exits(0)
	if !strings.Contains(p.stdout.String(), "good") {
		t.Errorf("--check wrote %q", p.stdout)
	}
	if b, err := os.ReadFile("damaged"); err != nil || string(b) != "this is no snapshot" {
		t.Errorf("--check touched the snapshot: %q %v", b, err)
	}
}

func TestOtherCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"version"}, "weir "},
		{[]string{"--help"}, "weir replay"},
		{nil, "weir serve"},
		{[]string{"serve", "--help"}, "--listen-http"},
		{[]string{"completion", "bash"}, "complete"},
		{[]string{"completion", "zsh"}, "compdef"},
	} {
		p := start(t, c.args...)
		p.exits(0)
		if !strings.Contains(p.stdout.String(), c.want) {
			t.Errorf("weir %v wrote %.300s, want %q in it", c.args, p.stdout, c.want)
		}
	}
	// Every setting is in the help.
	p := start(t, "serve", "--help")
	p.exits(0)
	for _, s := range settings {
		if !strings.Contains(p.stdout.String(), "--"+s.flag()) || !strings.Contains(p.stdout.String(), s.variable()) {
			t.Errorf("--help does not show %s and %s", s.flag(), s.variable())
		}
	}
}

func TestProxyCommand(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		fmt.Fprintf(w, "%s for %s", r.URL.Path, r.Header.Get("X-User-Id"))
	}))
	defer upstream.Close()
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "a.yaml"), "domain: shop\nlimits: [{ name: api, per: [user], allow: 2/hour, algorithm: sliding_log }]\n")
	p := start(t, "proxy", "--upstream", upstream.URL, "--rules", dir, "--listen-proxy=127.0.0.1:0", "--identity=user=header:X-User-Id")
	addr := p.addr("proxy")
	ask := func(user string) (int, string) {
		r, err := http.NewRequest("GET", "http://"+addr+"//x/../login", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User-Id", user)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(b)
	}
	for i, want := range []int{200, 200, 429} {
		status, body := ask("ada")
		if status != want || want == 200 && body != "/login for ada" {
			t.Errorf("request %d: %d %s, want %d", i, status, body, want)
		}
	}
	if status, body := ask("bob"); status != 200 {
		t.Errorf("somebody else: %d %s", status, body)
	}
	if n := reached.Load(); n != 3 {
		t.Errorf("the upstream was reached %d times", n)
	}
	if strings.Contains(p.stderr.String(), "door=http") || strings.Contains(p.stderr.String(), "door=grpc") {
		t.Errorf("other doors are open:\n%s", p.stderr)
	}
	p.addr("admin")
	p.end()
}

// SIGHUP reads rules and tokens anew.
func TestHangup(t *testing.T) {
	dir := t.TempDir()
	rules, tokens := filepath.Join(dir, "rules"), filepath.Join(dir, "tokens")
	if err := os.Mkdir(rules, 0o700); err != nil {
		t.Fatal(err)
	}
	rule := func(n int) {
		writeRules(t, filepath.Join(rules, "a.yaml"), fmt.Sprintf("limits: [{ name: all, allow: %d/hour }]\n", n))
	}
	rule(5)
	writeRules(t, tokens, "old\n")
	p := startServer(t, "serve", "--rules", rules, "--auth-tokens-file", tokens)
	admin := "http://" + p.addr("admin")
	authorized := func(token string) int {
		r, err := http.NewRequest("GET", admin+"/api/v1/rules", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if got := fmt.Sprint(authorized("old"), authorized("new")); got != "200 401" {
		t.Errorf("before: %s", got)
	}
	writeRules(t, tokens, "new\n")
	rule(7)
	if err := hangUp(); err != nil {
		t.Fatal(err)
	}
	p.stderr.await(t, `msg=reloading`) // the folder's watcher may have loaded the rules before
	eventually(t, "the new tokens hold", func() bool { return authorized("old") == 401 && authorized("new") == 200 })
	base := "http://" + p.addr("http") + "/api/v1/limit?hits=0"
	eventually(t, "the new rules are in force", func() bool {
		_, _, body := get(t, base)
		return strings.Contains(body, `"limit":7`)
	})
	writeRules(t, tokens, "")
	if err := hangUp(); err != nil {
		t.Fatal(err)
	}
	p.stderr.await(t, "auth.tokens_file not loaded")
	if status := authorized("new"); status != 200 {
		t.Errorf("after a broken tokens file: %d", status)
	}
	p.end()
}

var eventually = patience.Until

// Requests under way when the program is asked to end are finished.
func TestDrain(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-leave
		_, _ = io.WriteString(w, "finished")
	}))
	defer upstream.Close()
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "a.yaml"), "limits: [{ name: a, allow: 100/min }]\n")
	p := startServer(t, "proxy", "--upstream", upstream.URL, "--rules", dir, "--listen-proxy=127.0.0.1:0", "--drain=1m")
	addr, admin := p.addr("proxy"), p.addr("admin")
	answers := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + addr)
		if err != nil {
			answers <- err.Error()
			return
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		answers <- fmt.Sprint(string(b), err)
	}()
	<-arrived
	p.stop()
	eventually(t, "the server is not ready", func() bool {
		status, _, _ := get(t, "http://"+admin+"/readyz")
		return status == 503
	})
	eventually(t, "the door is closed", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	close(leave)
	if got := <-answers; got != "finished<nil>" {
		t.Errorf("the request under way got %q", got)
	}
	p.exits(0)
}

// TestReloadUnderLoad: rules are rewritten again and again while eight clients ask without pause.
// No request fails, none is decided by half-loaded rules, and the counters are kept.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	const clients = 8
	versions := effort.Of(8, 40)
	dir := t.TempDir()
	// A version has its number in both of its limits, which must always be seen together. The
	// counter that is kept is the counter of "kept".
	version := func(n int) string {
		return fmt.Sprintf("domain: shop\nlimits:\n"+
			"  - { name: first-%[1]d, when: { kind: load }, allow: %[2]d/hour }\n"+
			"  - { name: kept, when: { kind: kept }, allow: 1000000/day, algorithm: fixed_window }\n"+
			"  - { name: second-%[1]d, when: { kind: load }, allow: %[2]d/hour }\n", n, 1_000_000+n)
	}
	file := filepath.Join(dir, "a.yaml")
	// In place, as many editors write: a server may see the file half written.
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(version(0))
	p := startServer(t, "serve", "--rules", dir, "--log-level=error")
	p.stdout.await(t, "api/v1/limit") // at level error no door is logged; the examples are
	addr := regexp.MustCompile(`http://([^/]+)/api/v1/limit`).FindStringSubmatch(p.stdout.String())[1]
	admin := regexp.MustCompile(`http://([^/]+)/metrics`).FindStringSubmatch(p.stdout.String())[1]

	var asked, seen atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n, err := checkLoaded(client, addr); err != nil {
					t.Error(err)
					return
				} else {
					for old := seen.Load(); n > old && !seen.CompareAndSwap(old, n); old = seen.Load() {
					}
				}
				asked.Add(1)
				if status, err := statusOf(client, "http://"+addr+"/api/v1/limit?kind=kept"); err != nil || status != 200 {
					t.Errorf("kept: %d %v", status, err)
					return
				}
			}
		})
	}
	for n := 1; n <= versions; n++ {
		write(version(n))
		eventually(t, fmt.Sprintf("version %d is in force", n), func() bool { return seen.Load() == int64(n) || t.Failed() })
		if t.Failed() {
			break
		}
		if n%(versions/4) != 0 {
			continue
		}
		// What is broken in between changes nothing, and is reported.
		whole := version(n + 1000)
		for i, broken := range []string{"", whole[:len(whole)-20], "limits: [\n"} {
			before := failures(t, admin)
			write(broken)
			eventually(t, fmt.Sprintf("broken file %d is reported", i), func() bool { return failures(t, admin) > before })
			if s := seen.Load(); s != int64(n) {
				t.Errorf("broken file %d: version %d is in force", i, s)
			}
			if _, _, body := get(t, "http://"+admin+"/api/v1/rules"); !strings.Contains(body, "a.yaml") || strings.Contains(body, `"errors": []`) {
				t.Errorf("broken file %d is not shown: %.500s", i, body)
			}
		}
	}
	close(stop)
	all.Wait()
	kept := asked.Load()
	_, _, body := get(t, "http://"+addr+"/api/v1/limit?kind=kept&hits=0")
	if want := fmt.Sprintf(`"remaining":%d,`, 1_000_000-kept); !strings.Contains(body, want) && !t.Failed() {
		t.Errorf("after %d requests: %s, want %s", kept, body, want)
	}
	if kept < int64(versions) {
		t.Errorf("only %d requests were made", kept)
	}
	p.end()
}

func statusOf(client *http.Client, url string) (int, error) {
	r, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err
}

// checkLoaded asks once and returns the version of the rules that decided; an error if it was not
// one whole version.
func checkLoaded(client *http.Client, addr string) (int64, error) {
	r, err := client.Get("http://" + addr + "/api/v1/limit?kind=load")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	var got struct {
		Limits []struct {
			Name  string
			Limit int64
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.StatusCode != 200 {
		return 0, fmt.Errorf("%s: %v", r.Status, err)
	}
	if len(got.Limits) != 2 {
		return 0, fmt.Errorf("half-loaded rules: %+v", got)
	}
	n := got.Limits[0].Limit - 1_000_000
	if got.Limits[0].Name != fmt.Sprint("first-", n) || got.Limits[1].Name != fmt.Sprint("second-", n) || got.Limits[1].Limit != got.Limits[0].Limit {
		return 0, fmt.Errorf("rules of two versions: %+v", got)
	}
	return n, nil
}

// failures reads how many loads of rules have failed.
func failures(t *testing.T, admin string) (n int) {
	t.Helper()
	_, _, body := get(t, "http://"+admin+"/metrics")
	found := regexp.MustCompile(`(?m)^weir_rules_load_errors_total (\d+)$`).FindStringSubmatch(body)
	if found == nil {
		t.Fatal("the metric of load errors is not there")
	}
	if _, err := fmt.Sscan(found[1], &n); err != nil {
		t.Fatal(err)
	}
	return n
}
