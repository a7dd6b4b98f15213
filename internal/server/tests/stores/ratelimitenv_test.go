//go:build unix

package stores

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// A server in the place of envoyproxy/ratelimit, with its environment and nothing else, limits by
// its rules.
func TestServeInPlaceOfRateLimit(t *testing.T) {
	t.Parallel()
	program, root := servertest.BuiltProgram(t), t.TempDir()
	folder := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	servertest.WriteRules(t, filepath.Join(folder, "mail.yaml"),
		"domain: mail\ndescriptors: [{ key: to, rate_limit: { unit: year, requests_per_unit: 1, algorithm: sliding_log } }]\n")
	httpPort, grpc := servertest.FreePort(t), servertest.FreePort(t)
	cmd := exec.Command(program, "serve", "--listen-resp=off", "--listen-admin=127.0.0.1:0")
	cmd.Dir = t.TempDir()
	cmd.Env = append(servertest.PlainEnvironment(), "RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit",
		"USE_STATSD=true",
		"HOST=127.0.0.1", "PORT="+httpPort, "GRPC_HOST=127.0.0.1", "GRPC_PORT="+grpc, "LOG_LEVEL=INFO")
	p := servertest.Begin(t, cmd)
	if got := p.Addr("grpc"); got != "127.0.0.1:"+grpc {
		t.Errorf("the gRPC door is at %s", got)
	}
	url := "http://127.0.0.1:" + httpPort + "/json"
	for i, want := range []int{200, 429} {
		status, body := servertest.Ask(t, http.DefaultClient, "POST", url,
			`{"domain": "mail", "descriptors": [{"entries": [{"key": "to", "value": "ada"}]}]}`)
		if status != want {
			t.Errorf("request %d: %d %s", i, status, body)
		}
	}
	p.Stderr.Await(t, `variables of envoyproxy/ratelimit are read" settings="rules=`+folder+` \(RUNTIME_ROOT\), `)
	p.Stderr.Await(t, `level=WARN .*USE_STATSD is not read: Prometheus' metrics are at /metrics`)
}
