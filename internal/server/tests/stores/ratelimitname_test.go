//go:build unix

package stores

import (
	"crypto/tls"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/xdstest"
)

// gatewayPod is the program as Envoy Gateway starts it, in a folder of its own: under the name
// ratelimit, with its certificates, and as its user where the test may choose one.
type gatewayPod struct {
	t         *testing.T
	dir       string
	authority *certtest.Authority
	server    *xdstest.Server
	grpcPort  string
}

func newGatewayPod(t *testing.T) *gatewayPod {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-ratelimit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &gatewayPod{t: t, dir: dir, authority: certtest.New(t, "envoy-gateway")}
	p.authority.IssueTo(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	p.authority.Write(filepath.Join(dir, "ca.crt"))
	program, err := os.ReadFile(servertest.BuiltProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "weir"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("weir", filepath.Join(dir, "ratelimit")); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, nobody, nobody)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	p.server = xdstest.New(t, &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: p.authority.Pool(),
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12})
	return p
}

// nobody is the user and the group of the limiter in Envoy Gateway's pod.
const nobody = 65534

// start starts the program with the environment of Envoy Gateway, but for its ports.
func (p *gatewayPod) start(env []string, args ...string) *servertest.Process {
	p.t.Helper()
	p.grpcPort = servertest.FreePort(p.t)
	file := func(name string) string { return filepath.Join(p.dir, name) }
	cmd := exec.Command(file("ratelimit"), args...)
	cmd.Dir = "/"
	cmd.Env = slices.Concat([]string{
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + p.server.Addr,
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + file("tls.crt"), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + file("tls.key"),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + file("ca.crt"), "GRPC_SERVER_USE_TLS=true",
		"GRPC_SERVER_TLS_CERT=" + file("tls.crt"), "GRPC_SERVER_TLS_KEY=" + file("tls.key"),
		"GRPC_SERVER_TLS_CA_CERT=" + file("ca.crt"), "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"HOST=127.0.0.1", "PORT=" + servertest.FreePort(p.t), "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + p.grpcPort,
		"WEIR_LISTEN_ADMIN=127.0.0.1:0",
	}, env)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return servertest.Begin(p.t, cmd)
}

// ask asks over TLS, as an Envoy does.
func (p *gatewayPod) ask(domain string, hits uint32, entries ...string) rls.RateLimitResponse_Code {
	p.t.Helper()
	conn, err := grpc.NewClient("127.0.0.1:"+p.grpcPort, grpc.WithTransportCredentials(credentials.NewTLS(p.authority.Client(""))))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	d := &rlspb.RateLimitDescriptor{}
	for i := 0; i < len(entries); i += 2 {
		d.Entries = append(d.Entries, &rlspb.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(p.t.Context(), &rls.RateLimitRequest{Domain: domain,
		HitsAddend: hits, Descriptors: []*rlspb.RateLimitDescriptor{d}})
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.GetOverallCode()
}

// TestNamedRateLimit: as Envoy Gateway starts it, the program takes its rules and decides, opens no
// other doors than envoyproxy/ratelimit, ignores arguments, and writes its log alone.
func TestNamedRateLimit(t *testing.T) {
	t.Parallel()
	p := newGatewayPod(t)
	p.server.Set("1", xdstest.Config("default/eg/http", 1, "k"))
	metrics := "127.0.0.1:" + servertest.FreePort(t)
	run := p.start([]string{"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + metrics,
		"PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml"}, "--quotaRateLimitServiceAddr=x", "serve", "--help")
	run.Addr("grpc")
	p.server.AwaitAck("1") // a busy machine may take longer than the start waits
	if got := p.ask("default/eg/http", 0, "k", "v"); got != rls.RateLimitResponse_OK {
		t.Errorf("the first request: %v", got)
	}
	if got := p.ask("default/eg/http", 0, "k", "v"); got != rls.RateLimitResponse_OVER_LIMIT {
		t.Errorf("the second request: %v", got)
	}
	if code, body := servertest.Ask(t, http.DefaultClient, "GET", "http://"+run.Addr("http")+"/healthcheck", ""); code != 200 ||
		body != "OK" {
		t.Errorf("/healthcheck: %d %s", code, body)
	}
	get := func(url string) (int, string) { return servertest.Ask(t, http.DefaultClient, "GET", url, "") }
	code, body := get("http://" + metrics + "/metrics")
	for _, want := range []string{
		`ratelimit_service_rate_limit_over_limit{domain="default/eg/http",key1="k",key2=""} 1`,
		`ratelimit_service_rate_limit_within_limit{domain="default/eg/http",key1="k",key2=""} 1`,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 2`,
		"\nratelimit_service_config_load_success ", "\nweir_xds_connected ", "\nprocess_resident_memory_bytes ",
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("/metrics: %d, without %s", code, want)
		}
	}
	if code, _ := get("http://" + metrics + "/api/v1/rules"); code != http.StatusNotFound {
		t.Errorf("the metrics' door answers %d for rules", code)
	}
	if code, body := get("http://" + run.Addr("admin") + "/rlconfig"); code != 200 ||
		body != "default/eg/http.k: unit=YEAR requests_per_unit=1, shadow_mode: false, quota_mode: false\n" {
		t.Errorf("/rlconfig: %d %s", code, body)
	}
	run.Stderr.Await(t, `level=WARN msg="arguments are ignored under the name ratelimit.* arguments=3`)
	run.Signal(syscall.SIGTERM)
	if status := run.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, run.Stderr)
	}
	var doors []string
	for _, m := range regexp.MustCompile(`door=(\S+) addr=`).FindAllStringSubmatch(run.Stderr.String(), -1) {
		doors = append(doors, m[1])
	}
	slices.Sort(doors)
	if got := strings.Join(slices.Compact(doors), " "); got != "admin grpc http metrics" {
		t.Errorf("open were %s", got)
	}
	if run.Stdout.String() != "" {
		t.Errorf("stdout: %s", run.Stdout)
	}
}
