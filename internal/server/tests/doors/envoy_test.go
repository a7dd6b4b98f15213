//go:build linux

package doors

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/envoytest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// envoyBed is an Envoy with a Weir and an application, all on free ports in place of those that the
// files name.
type envoyBed struct {
	t        *testing.T
	dir      string
	ports    *strings.Replacer
	front    string // of Envoy: http://127.0.0.1:port
	closed   string // its second listener, if it has one
	admin    string
	program  string // weir
	envoy    string
	upstream *upstreamOfEnvoy
	weir     *servertest.Process
}

// upstreamOfEnvoy counts what it sees. It answers with the header X-Cost that the client asks for
// by X-Want-Cost.
type upstreamOfEnvoy struct{ seen atomic.Int64 }

func (u *upstreamOfEnvoy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.seen.Add(1)
	if cost := r.Header.Get("X-Want-Cost"); cost != "" {
		w.Header().Set("X-Cost", cost)
	}
	fmt.Fprintln(w, "hello")
}

// newEnvoyBed lays a copy of folder out with free ports, and starts the application.
func newEnvoyBed(t *testing.T, program, envoy, folder string) *envoyBed {
	t.Helper()
	b := &envoyBed{t: t, dir: t.TempDir(), program: program, envoy: envoy, upstream: new(upstreamOfEnvoy)}
	app := httptest.NewServer(b.upstream)
	t.Cleanup(app.Close)
	ports := map[string]string{"3000": app.URL[strings.LastIndex(app.URL, ":")+1:]}
	for _, port := range []string{"10000", "10001", "9901", "8081", "6070"} {
		ports[port] = servertest.FreePort(t)
	}
	b.front, b.closed, b.admin = "http://127.0.0.1:"+ports["10000"], "http://127.0.0.1:"+ports["10001"],
		"http://127.0.0.1:"+ports["9901"]
	var replace []string
	for port, free := range ports {
		replace = append(replace, "127.0.0.1, port_value: "+port+" ", "127.0.0.1, port_value: "+free+" ",
			"127.0.0.1:"+port, "127.0.0.1:"+free)
	}
	// A machine that is busy is not to be taken for a Weir that is away.
	b.ports = strings.NewReplacer(append(replace, "timeout: 0.1s", "timeout: 30s")...)
	if err := os.CopyFS(b.dir, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"envoy.yaml", "weir.yaml"} {
		path := filepath.Join(b.dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		servertest.WriteRules(t, path, b.ports.Replace(string(data)))
	}
	return b
}

func (b *envoyBed) write(name string, data []byte) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// begin starts a program in the bed's folder, with nothing but the folder's files to tell it what
// to do.
func (b *envoyBed) begin(name string, args ...string) *servertest.Process {
	b.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = b.dir
	return servertest.Begin(b.t, cmd)
}

func (b *envoyBed) startWeir(args ...string) {
	b.t.Helper()
	b.weir = b.begin(b.program, append([]string{"serve"}, args...)...)
	b.weir.Addr("grpc")
}

// startEnvoy starts Envoy and waits until it has found Weir healthy.
func (b *envoyBed) startEnvoy() {
	b.t.Helper()
	p := b.begin(b.envoy, "-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
	servertest.Eventually(b.t, "Envoy is ready", func() bool {
		select {
		case err := <-p.Exited:
			b.t.Fatalf("Envoy ended: %v\n%s", err, p.Stderr)
		default:
		}
		status, _ := servertest.StatusOf(http.DefaultClient, b.admin+"/ready")
		return status == http.StatusOK
	})
	b.awaitHealth("healthy")
}

// awaitHealth waits until Envoy's health checks report Weir's health as want.
func (b *envoyBed) awaitHealth(want string) {
	b.t.Helper()
	flags := regexp.MustCompile(`(?m)^weir::.*::health_flags::(.*)$`)
	servertest.Eventually(b.t, "Envoy finds Weir "+want, func() bool {
		_, _, body := servertest.Get(b.t, b.admin+"/clusters")
		found := flags.FindStringSubmatch(body)
		return found != nil && found[1] == want
	})
}

// runReadme runs the commands of the folder's README, and checks that it starts what the bed has
// started.
func (b *envoyBed) runReadme() {
	b.t.Helper()
	servertest.Needs(b.t, "bash", "curl")
	background := map[string]bool{}
	for _, block := range servertest.Blocks(b.t, filepath.Join(b.dir, "README.md")) {
		if what := block.Directive("background"); what != nil {
			background[what[0]] = true
			continue
		}
		if block.Language != "sh" {
			continue
		}
		out, err := exec.Command("bash", "-e", "-c", b.ports.Replace(block.Text)).CombinedOutput()
		if err != nil {
			b.t.Fatalf("README.md:%d: %v\n%s", block.Line, err, out)
		}
		for _, want := range block.Directive("expect") {
			if !strings.Contains(string(out), want) {
				b.t.Errorf("README.md:%d: no %q in\n%s", block.Line, want, out)
			}
		}
	}
	if want := map[string]bool{"app": true, "weir": true, "envoy": true}; !maps.Equal(background, want) {
		b.t.Errorf("the README starts %v, the test %v", background, want)
	}
}

func (b *envoyBed) killWeir() {
	b.t.Helper()
	b.weir.Signal(syscall.SIGKILL)
	b.weir.Wait()
}

// envoyClient sends requests from an address of its own.
type envoyClient struct {
	t    *testing.T
	http *http.Client
}

func envoyClientFrom(t *testing.T, ip string) *envoyClient {
	t.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	tr := &http.Transport{DialContext: d.DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &envoyClient{t: t, http: &http.Client{Transport: tr}}
}

// do sends a request with headers "Name: value"; "" is none.
func (c *envoyClient) do(method, url string, headers ...string) (int, http.Header) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, url, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, h := range headers {
		if name, value, ok := strings.Cut(h, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	answer, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		c.t.Fatal(err)
	}
	return answer.StatusCode, answer.Header
}

// wantSeconds checks a header of whole seconds.
func wantSeconds(t *testing.T, h http.Header, name string, low, high int) {
	t.Helper()
	if n, err := strconv.Atoi(h.Get(name)); err != nil || n < low || n > high {
		t.Errorf("%s is %q, want %d to %d", name, h.Get(name), low, high)
	}
}

// wantHeaders checks headers; "" wants none.
func wantHeaders(t *testing.T, h http.Header, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := h.Get(name); got != value {
			t.Errorf("%s is %q, want %q\n%v", name, got, value, h)
		}
	}
}

func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoy := envoytest.Program(t)
	program := servertest.BuiltProgram(t)
	t.Run("example", func(t *testing.T) {
		t.Parallel()
		testEnvoyExample(t, newEnvoyBed(t, program, envoy,
			filepath.Join(servertest.RepositoryRoot(t), "examples", "envoy")))
	})
	t.Run("quota example", func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "starts one more Envoy")
		testEnvoyQuotaExample(t, newEnvoyBed(t, program, envoy,
			filepath.Join(servertest.RepositoryRoot(t), "examples", "envoy-rlqs")))
	})
	t.Run("features", func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "starts one more Envoy")
		testEnvoyFeatures(t, newEnvoyBed(t, program, envoy,
			filepath.Join(servertest.RepositoryRoot(t), "internal", "server", "tests", "doors", "testdata", "envoy")))
	})
}

// testEnvoyExample: the example does what its README says, and what a client should see.
func testEnvoyExample(t *testing.T, b *envoyBed) {
	b.startWeir()
	b.startEnvoy()
	b.runReadme()
	if seen := b.upstream.seen.Load(); seen != 10 {
		t.Errorf("the application has seen %d requests of the README, want 10", seen)
	}

	// Another client has ten of its own.
	c := envoyClientFrom(t, "127.0.0.2")
	for i := range 10 {
		status, h := c.do("GET", b.front+"/")
		if status != http.StatusOK {
			t.Fatalf("request %d: %d", i+1, status)
		}
		left := strconv.Itoa(9 - i)
		wantHeaders(t, h, map[string]string{
			"RateLimit-Limit": "10", "RateLimit-Remaining": left, "Retry-After": "",
			"X-RateLimit-Limit": `10, 10;w=60;name="per-client"`, "X-RateLimit-Remaining": left,
		})
		wantSeconds(t, h, "X-RateLimit-Reset", 1, 60)
		wantSeconds(t, h, "RateLimit-Reset", 1, 60)
	}
	// What it says of its address is not believed, nor does another spelling help it.
	for _, target := range []string{"/", "/?a=b", "//x/../y"} {
		status, h := c.do("GET", b.front+target, "X-Forwarded-For: 192.0.2.7", "X-Envoy-External-Address: 192.0.2.7",
			"Forwarded: for=192.0.2.7")
		if status != http.StatusTooManyRequests {
			t.Fatalf("the eleventh: %d %v", status, h)
		}
		wantHeaders(t, h, map[string]string{
			"RateLimit-Limit": "10", "RateLimit-Remaining": "0", "X-Envoy-RateLimited": "true",
			"X-RateLimit-Limit": `10, 10;w=60;name="per-client"`, "X-RateLimit-Remaining": "0",
		})
		wantSeconds(t, h, "Retry-After", 1, 60)
		wantSeconds(t, h, "X-RateLimit-Reset", 1, 60)
		if h.Get("X-RateLimit-Decision") == "" {
			t.Errorf("no id of the decision: %v", h)
		}
	}
	if seen := b.upstream.seen.Load(); seen != 20 {
		t.Errorf("the application has seen %d requests, want 20", seen)
	}

	// A native limit, whatever the spelling of the path; the headers speak of it, which refuses,
	// not of the other, which would pass.
	c = envoyClientFrom(t, "127.0.0.3")
	for _, target := range []string{"/orders", "//orders?a=b", "/x/../orders"} {
		if status, h := c.do("POST", b.front+target); status != http.StatusOK {
			t.Fatalf("POST %s: %d %v", target, status, h)
		}
	}
	status, h := c.do("POST", b.front+"/%6frders")
	if status != http.StatusTooManyRequests {
		t.Fatalf("the fourth order: %d %v", status, h)
	}
	wantHeaders(t, h, map[string]string{"RateLimit-Limit": "6", "RateLimit-Remaining": "0"})
	wantSeconds(t, h, "Retry-After", 1, 10)
	wantSeconds(t, h, "RateLimit-Reset", 1, 10)
	// A user has a bucket of their own.
	if status, h := c.do("POST", b.front+"/orders", "X-User: ada"); status != http.StatusOK {
		t.Errorf("an order of a user: %d %v", status, h)
	}
	if seen := b.upstream.seen.Load(); seen != 24 {
		t.Errorf("the application has seen %d requests, want 24", seen)
	}

	// Without Weir requests pass, as failure_mode_deny: false says.
	c = envoyClientFrom(t, "127.0.0.2")
	b.killWeir()
	for range 3 {
		status, h := c.do("GET", b.front+"/")
		if status != http.StatusOK {
			t.Errorf("without Weir: %d %v", status, h)
		}
		wantHeaders(t, h, map[string]string{"RateLimit-Limit": "", "X-RateLimit-Limit": ""})
	}
	if seen := b.upstream.seen.Load(); seen != 27 {
		t.Errorf("the application has seen %d requests, want 27", seen)
	}
	// It is back, and limits again.
	b.startWeir()
	servertest.Eventually(t, "Envoy asks the new Weir", func() bool {
		_, h := c.do("GET", b.front+"/")
		return h.Get("X-RateLimit-Limit") != ""
	})
	b.weir.Signal(syscall.SIGTERM)
	if status := b.weir.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, b.weir.Stderr)
	}
}

// testEnvoyQuotaExample: the example of quotas does what its README says.
func testEnvoyQuotaExample(t *testing.T, b *envoyBed) {
	b.startWeir()
	b.startEnvoy()
	b.runReadme()
	if seen := b.upstream.seen.Load(); seen != 30 {
		t.Errorf("the application has seen %d requests of the README, want 30", seen)
	}
	// A request without the header is not limited.
	if status, _ := servertest.StatusOf(http.DefaultClient, b.front+"/"); status != http.StatusOK {
		t.Errorf("a request of no tenant: %d", status)
	}
	// The other requests of the day are refused, another tenant has its own.
	c := envoyClientFrom(t, "127.0.0.2")
	if status, h := c.do("GET", b.front+"/", "X-Tenant: acme"); status != http.StatusTooManyRequests {
		t.Errorf("the 31st of acme: %d %v", status, h)
	}
	servertest.Eventually(t, "another tenant is let through", func() bool {
		status, _ := c.do("GET", b.front+"/", "X-Tenant: globex")
		return status == http.StatusOK
	})
}

// testEnvoyFeatures: what Envoy can ask for, of one route each; see envoy.yaml beside it.
func testEnvoyFeatures(t *testing.T, b *envoyBed) {
	authority := certtest.New(t, "authority")
	b.write("ca.pem", authority.PEM)
	for _, name := range []string{"weir", "envoy"} {
		cert, key := authority.Issue(name, time.Hour, name+".test")
		b.write(name+".pem", cert)
		b.write(name+".key", key)
	}
	b.write("tokens", []byte(envoyToken+"\n"))
	b.startWeir()
	testEnvoyOnly(t, b.weir.Addr("grpc"), authority)
	b.startEnvoy()
	c := envoyClientFrom(t, "127.0.0.1")
	const pass, refuse = http.StatusOK, http.StatusTooManyRequests
	type headers map[string]string
	for _, s := range []struct {
		what, target, user string
		send               string // one header more
		status             int
		want               headers
	}{
		{"three hits of a descriptor", "/three", "a", "", pass, headers{"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "1080", "X-RateLimit-Limit": "10, 10;w=3600"}},
		{"three more", "/three", "a", "", pass, headers{"X-RateLimit-Remaining": "4"}},
		{"and three", "/three", "a", "", pass, headers{"X-RateLimit-Remaining": "1"}},
		{"which are too many", "/three", "a", "", refuse, headers{"X-RateLimit-Remaining": "1"}},
		{"two come back", "/back", "a", "", pass, headers{"X-RateLimit-Remaining": "3"}},
		{"so that three are there", "/three", "a", "", pass, headers{"X-RateLimit-Remaining": "0"}},

		// docs/guides/envoy.md says where hits_addend stands in vain. Should an Envoy heed it
		// there, the page is to say so.
		{"hits of a route are ignored", "/ignored", "i", "", pass, headers{"X-RateLimit-Remaining": "9"}},
		{"and again", "/ignored", "i", "", pass, headers{"X-RateLimit-Remaining": "8"}},

		{"hits from a header", "/said", "b", "X-Hits: 7", pass, headers{"X-RateLimit-Remaining": "3"}},
		{"too many", "/said", "b", "X-Hits: 4", refuse, nil},
		{"none: a look", "/said", "b", "X-Hits: 0", pass, headers{"X-RateLimit-Remaining": "3"}},
		{"more than can ever be", "/said", "b", "X-Hits: 1000000000", refuse, nil},
		{"exactly what is left", "/said", "b", "X-Hits: 3", pass, headers{"X-RateLimit-Remaining": "0"}},

		{"three hits of the request", "/request", "c", "", pass, headers{"X-RateLimit-Remaining": "7"}},
		{"three more of it", "/request", "c", "", pass, headers{"X-RateLimit-Remaining": "4"}},

		{"a limit from metadata", "/override", "a", "", pass, headers{"X-RateLimit-Limit": "2, 2;w=31536000", "X-RateLimit-Remaining": "1"}},
		{"its second", "/override", "a", "", pass, headers{"X-RateLimit-Remaining": "0"}},
		{"its third", "/override", "a", "", refuse, headers{"X-RateLimit-Limit": "2, 2;w=31536000"}},

		{"another domain", "/elsewhere", "d", "", pass, headers{"X-RateLimit-Limit": "1, 1;w=3600", "X-Plan": ""}},
		{"is full", "/elsewhere", "d", "", refuse, nil},
		{"the filter's own is not, and its rules' metadata comes back", "/", "d", "", pass, headers{"X-RateLimit-Limit": `2, 2;w=3600;name="per-user"`, "X-Plan": "free"}},

		{"a native limit", "/native/a", "", "", pass, headers{"X-RateLimit-Limit": ""}},
		{"refuses", "/native/b", "", "", refuse, headers{"X-RateLimit-Limit": "", "X-Envoy-RateLimited": "true"}},
		{"no descriptor, so nobody is asked", "/", "", "", pass, headers{"X-RateLimit-Limit": ""}},
	} {
		before := b.upstream.seen.Load()
		var send []string
		if s.user != "" {
			send = append(send, "X-User: "+s.user)
		}
		status, h := c.do("GET", b.front+s.target, append(send, s.send)...)
		if status != s.status {
			t.Fatalf("%s: %d %v", s.what, status, h)
		}
		wantHeaders(t, h, s.want)
		reached := b.upstream.seen.Load() - before
		if (status == pass) != (reached == 1) {
			t.Errorf("%s: %d, and the application saw %d", s.what, status, reached)
		}
	}
	testEnvoyRetryAfter(t, b, c)
	testEnvoyStreamDone(t, b, c)
	testEnvoyParallel(t, b, c)

	// Limits are the same at the other listener, which answers in its own way.
	for _, want := range []int{pass, pass, http.StatusServiceUnavailable} {
		status, h := c.do("GET", b.closed+"/", "X-User: e")
		if status != want {
			t.Errorf("at the closed listener: %d %v, want %d", status, h, want)
		}
		if status != pass {
			wantHeaders(t, h, map[string]string{"X-Why": "too many"})
		}
	}
	// Without Weir the one lets all pass, and the other nothing.
	b.killWeir()
	b.awaitHealth("/failed_active_hc")
	before := b.upstream.seen.Load()
	if status, h := c.do("GET", b.front+"/", "X-User: e"); status != pass {
		t.Errorf("failure_mode_deny: false: %d %v", status, h)
	}
	if status, h := c.do("GET", b.closed+"/", "X-User: f"); status != http.StatusBadGateway {
		t.Errorf("failure_mode_deny: true: %d %v", status, h)
	}
	if seen := b.upstream.seen.Load() - before; seen != 1 {
		t.Errorf("the application saw %d, want 1", seen)
	}
	b.startWeir()
	b.awaitHealth("healthy")
	servertest.Eventually(t, "Envoy's worker has heard of it too", func() bool {
		status, _ := c.do("GET", b.closed+"/", "X-User: f")
		return status == pass
	})
}

// envoyToken is the token in testdata/envoy/envoy.yaml.
const envoyToken = "0123456789abcdef0123456789abcdef"

// testEnvoyOnly: this Weir answers nobody without a certificate of the authority, and a token.
func testEnvoyOnly(t *testing.T, addr string, authority *certtest.Authority) {
	for _, c := range []struct {
		certificate, token string
		want               codes.Code
	}{
		{"", envoyToken, codes.Unavailable},
		{"envoy", "", codes.Unauthenticated},
		{"envoy", strings.Repeat("x", 32), codes.Unauthenticated},
		{"envoy", envoyToken, codes.OK},
	} {
		config := authority.Client(c.certificate)
		config.ServerName = "weir.test"
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx := t.Context()
		if c.token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
		}
		_, err = rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlspb.RateLimitRequest{Domain: "none",
			Descriptors: []*ratelimit.RateLimitDescriptor{{}}})
		if status.Code(err) != c.want {
			t.Errorf("certificate %q, token %q: %v, want %v", c.certificate, c.token, err, c.want)
		}
	}
}

// testEnvoyRetryAfter: Envoy's own Retry-After, made from our statuses, is right for each
// algorithm.
func testEnvoyRetryAfter(t *testing.T, b *envoyBed, c *envoyClient) {
	for _, s := range []struct {
		target, user string
		send         string
		low, high    int
	}{
		{"/three", "a", "", 720, 1080},           // a token bucket of 10 an hour
		{"/", "g", "", 3500, 3600},               // a log
		{"/override", "a", "", 1, 31_536_000},    // a fixed window
		{"/said", "b", "X-Hits: 11", 3600, 3600}, // more than can ever be
	} {
		var status int
		var h http.Header
		for range 3 { // at the latest then it is refused
			status, h = c.do("GET", b.front+s.target, "X-User: "+s.user, s.send)
		}
		if status != http.StatusTooManyRequests {
			t.Errorf("%s: %d %v", s.target, status, h)
			continue
		}
		wantSeconds(t, h, "Retry-After", s.low, s.high)
	}
}

// testEnvoyStreamDone: costs that a response tells are charged when it has ended.
func testEnvoyStreamDone(t *testing.T, b *envoyBed, c *envoyClient) {
	// In the rate_limits of a route Envoy sends such a cost as 1, whatever the response says.
	if status, h := c.do("GET", b.front+"/untold", "X-User: j", "X-Want-Cost: 5"); status != http.StatusOK ||
		h.Get("X-Cost") != "5" {
		t.Fatalf("/untold: %d %v", status, h)
	}
	servertest.Eventually(t, "1 of 10 is charged", func() bool {
		_, h := c.do("GET", b.front+"/said", "X-User: j", "X-Hits: 0")
		return h.Get("X-RateLimit-Remaining") == "9"
	})
	ask := func(cost string) (int, http.Header) {
		return c.do("POST", b.front+"/tokens", "X-User: t", "X-Want-Cost: "+cost)
	}
	if status, h := ask("40"); status != http.StatusOK || h.Get("X-RateLimit-Remaining") != "100" {
		t.Fatalf("before any cost is known: %d %v", status, h)
	}
	servertest.Eventually(t, "40 of 100 are charged", func() bool {
		_, h := ask("0")
		return h.Get("X-RateLimit-Remaining") == "60"
	})
	// More than is left: the response has gone out, and is charged all the same.
	if status, h := ask("75"); status != http.StatusOK {
		t.Fatalf("with 60 left: %d %v", status, h)
	}
	var h http.Header
	servertest.Eventually(t, "nothing is left", func() bool {
		var status int
		status, h = ask("0")
		return status == http.StatusTooManyRequests
	})
	wantSeconds(t, h, "Retry-After", 86_000, 86_400)
	seen := b.upstream.seen.Load()
	if status, _ := ask("0"); status != http.StatusTooManyRequests || b.upstream.seen.Load() != seen {
		t.Errorf("it comes through again: %d", status)
	}
}

// testEnvoyParallel: of many requests at once exactly as many pass as the limit allows.
func testEnvoyParallel(t *testing.T, b *envoyBed, c *envoyClient) {
	before := b.upstream.seen.Load()
	var passed atomic.Int64
	var wait sync.WaitGroup
	for range 40 {
		wait.Go(func() {
			if status, _ := c.do("GET", b.front+"/three", "X-User: p"); status == http.StatusOK {
				passed.Add(1)
			}
		})
	}
	wait.Wait()
	if seen := b.upstream.seen.Load() - before; passed.Load() != 3 || seen != 3 {
		t.Errorf("%d of 40 passed and the application saw %d, want 3", passed.Load(), seen)
	}
}

// TestEnvoyDocs: the pieces of configuration in docs/guides/envoy.md are of the files that
// TestEnvoy runs.
func TestEnvoyDocs(t *testing.T) {
	root := servertest.RepositoryRoot(t)
	// flat leaves out indentation, blank lines and comments.
	flat := func(text string) string {
		var out strings.Builder
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				fmt.Fprintln(&out, line)
			}
		}
		return out.String()
	}
	var files []string
	for _, name := range []string{"examples/envoy/envoy.yaml", "internal/server/tests/doors/testdata/envoy/envoy.yaml",
		"internal/server/tests/doors/testdata/envoy/weir.yaml"} {
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, flat(string(data)))
	}
	seen := 0
	for _, b := range servertest.Blocks(t, filepath.Join(root, "docs", "guides", "envoy.md")) {
		if b.Language != "yaml" || strings.Contains(b.Text, "descriptors:\n") {
			// rules: TestRulesInDocsLoad
			continue
		}
		seen++
		if !slices.ContainsFunc(files, func(file string) bool { return strings.Contains(file, flat(b.Text)) }) {
			t.Errorf("docs/guides/envoy.md:%d is of no file that is tested:\n%s", b.Line, b.Text)
		}
	}
	if seen < 10 {
		t.Fatalf("only %d pieces found", seen)
	}
}
