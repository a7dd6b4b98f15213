//go:build unix

package stores

import (
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/xdstest"
)

// xdsNode starts a server that follows a control plane.
func xdsNode(t *testing.T, s *xdstest.Server, parameters string, args ...string) *servertest.Process {
	t.Helper()
	cmd := exec.Command(servertest.BuildProgram(t), "serve", "--rules=xds://"+s.Addr+"?node="+xdstest.Node+parameters,
		"--listen-http=127.0.0.1:0", "--listen-grpc=127.0.0.1:0", "--listen-resp=127.0.0.1:0", "--listen-admin=127.0.0.1:0")
	cmd.Args = append(cmd.Args, args...)
	cmd.Dir = t.TempDir()
	return servertest.Begin(t, cmd)
}

// askJSON asks /json about one descriptor.
func askJSON(t *testing.T, addr, domain, key string) (int, string) {
	t.Helper()
	return servertest.Ask(t, http.DefaultClient, "POST", "http://"+addr+"/json",
		`{"domain": "`+domain+`", "descriptors": [{"entries": [{"key": "`+key+`", "value": "v"}]}]}`)
}

// TestXDSAwaited: until the first rules come no door decides anything, and what is asked fails so
// that whoever asks knows. Then all do.
func TestXDSAwaited(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	p := xdsNode(t, s, "&require=nothing&wait=1ms", "--listen-proxy=127.0.0.1:0", "--proxy-upstream=http://127.0.0.1:1",
		"--client-ip-trusted-proxies=loopback")
	web, admin := "http://"+p.Addr("http"), "http://"+p.Addr("admin")
	get := func(url string) (int, string) {
		return servertest.Ask(t, http.DefaultClient, "GET", url, "", "X-Original-Method", "GET", "X-Original-URI", "/")
	}
	for _, url := range []string{web + "/api/v1/limit?domain=a&k=v", web + "/api/v1/forward-auth/nginx", "http://" + p.Addr("proxy") + "/"} {
		if code, body := get(url); code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", url, code, body)
		}
	}
	if code, body := askJSON(t, p.Addr("http"), "a", "k"); code != http.StatusServiceUnavailable {
		t.Errorf("/json: %d %s", code, body)
	}
	if got := servertest.RedisCLI(t, p.Addr("resp"), "WEIR.LIMIT", "1", "k", "v"); !strings.Contains(got, "ERR") {
		t.Errorf("RESP: %s", got)
	}
	conn, err := grpc.NewClient(p.Addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() (*rls.RateLimitResponse, error) {
		return rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "a",
			Descriptors: []*rlspb.RateLimitDescriptor{{Entries: []*rlspb.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}}}})
	}
	if _, err := ask(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "no rules are in force yet" {
		t.Errorf("RLS: %v", err)
	}
	for url, want := range map[string]string{
		web + "/healthcheck":           "OK",
		admin + "/readyz":              "no rules have come from xds://" + s.Addr + "?node=envoy-ratelimit yet",
		admin + "/api/v1/rules":        `"rules": []`,
		admin + "/api/v1/insight":      "{",
		admin + "/api/v1/keys":         "{",
		admin + "/":                    "",
		admin + "/metrics":             "weir_xds_answers_total",
		admin + "/api/v1/rules/source": "{",
	} {
		if code, body := get(url); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.300s", url, code, body)
		}
	}
	s.Set("1", xdstest.Config("a", 1, "k"))
	servertest.Eventually(t, "there are rules", func() bool { code, _ := get(web + "/api/v1/limit?domain=other&k=v"); return code == 200 })
	answer, err := ask()
	if err != nil || answer.GetOverallCode() != rls.RateLimitResponse_OK {
		t.Errorf("the first request: %v, %v", answer, err)
	}
	if answer, err = ask(); err != nil || answer.GetOverallCode() != rls.RateLimitResponse_OVER_LIMIT {
		t.Errorf("the second request: %v, %v", answer, err)
	}
	if code, body := get(admin + "/readyz"); code != 200 || strings.Contains(body, "have come") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	// A set that is refused is told, and the one before stays.
	s.Set("2", &configpb.RateLimitConfig{Name: "a", Domain: "a", Descriptors: []*configpb.RateLimitDescriptor{{}}})
	servertest.Eventually(t, "the fault is told", func() bool {
		_, body := get(admin + "/api/v1/rules")
		return strings.Contains(body, `resource \"a\": descriptors[0].key: descriptor has empty key`)
	})
	if code, body := askJSON(t, p.Addr("http"), "a", "k"); code != http.StatusTooManyRequests {
		t.Errorf("/json: %d %s", code, body)
	}
}

// TestXDSRequired: a start needs rules unless the URL says otherwise, and may succeed later.
func TestXDSRequired(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	p := xdsNode(t, s, "&wait=1ms")
	if code := p.Wait(); code != 1 {
		t.Errorf("exit status %d, want 1\n%s", code, p.Stderr)
	}
	p.Stderr.Await(t, "weir: rules: none have come from xds://"+s.Addr)
	p = xdsNode(t, s, "&wait=1ms&require=ready")
	health := func() (int, string) {
		return servertest.Ask(t, http.DefaultClient, "GET", "http://"+p.Addr("http")+"/healthcheck", "")
	}
	if code, body := health(); code != http.StatusInternalServerError {
		t.Errorf("/healthcheck: %d %s", code, body)
	}
	s.Set("1", xdstest.Config("a", 1, "k"))
	servertest.Eventually(t, "it is ready", func() bool { code, _ := health(); return code == 200 })
}

// TestXDSSwaps: while sets are swapped no request fails, and a limit that all of them have admits
// exactly its number.
func TestXDSSwaps(t *testing.T) {
	t.Parallel()
	const limit, swaps, askers = 1000, 200, 4
	s := xdstest.New(t, nil)
	s.Set("start", xdstest.Config("counted", limit, "k"), xdstest.Config("other", 1, "k"))
	p := xdsNode(t, s, "&wait=10m")
	addr := p.Addr("http")
	var admitted, refused, failed atomic.Int64
	var done atomic.Bool
	var all sync.WaitGroup
	for range askers {
		all.Go(func() {
			for !done.Load() || admitted.Load()+refused.Load() < limit+100 {
				r, err := http.Post("http://"+addr+"/json", "application/json", strings.NewReader(
					`{"domain": "counted", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`))
				if err != nil {
					failed.Add(1)
					return
				}
				r.Body.Close()
				switch r.StatusCode {
				case 200:
					admitted.Add(1)
				case 429:
					refused.Add(1)
				default:
					failed.Add(1)
					return
				}
			}
		})
	}
	for i := range swaps {
		version := "swap-" + strings.Repeat("i", i+1)
		s.Set(version, xdstest.Config("counted", limit, "k"), xdstest.Config("other", uint32(i+2), "k"))
		s.AwaitAck(version)
	}
	done.Store(true)
	all.Wait()
	if admitted.Load() != limit || failed.Load() > 0 {
		t.Errorf("%d admitted, want %d; %d failed", admitted.Load(), limit, failed.Load())
	}
	// The server goes, and decisions go on.
	s.Stop()
	if code, body := askJSON(t, addr, "counted", "k"); code != http.StatusTooManyRequests {
		t.Errorf("without the server: %d %s", code, body)
	}
}
