//go:build unix

package doors

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// TestServersThatClose: where Node or gunicorn closes a connection under a request that it has not
// answered, no client notices, unless the request may not be sent twice; and where no connection is
// kept, none does, and nothing is sent twice.
func TestServersThatClose(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T, port string) string{
		"Node": func(t *testing.T, port string) string {
			servertest.Needs(t, "node")
			return startUpstream(t, port, nil, "node", upstreamFile("closing.js"), port)
		},
		"gunicorn": func(t *testing.T, port string) string {
			servertest.Needs(t, "python3")
			dir := testproc.Parts(t, "gunicorn-23.0.0", func(dir string) *exec.Cmd {
				return testproc.PipInstall(t, dir, "gunicorn==23.0.0", "packaging==25.0")
			})
			return startUpstream(t, port, []string{"PYTHONPATH=" + dir}, "python3", "-B", "-m", "gunicorn", "--chdir",
				upstreamFile(""),
				"--worker-class=gthread", "--threads=8", "--keep-alive=3600", "--bind=127.0.0.1:"+port, "closing:app")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream, rules := begin(t, servertest.FreePort(t)), t.TempDir()
			servertest.WriteRules(t, filepath.Join(rules, "rules.yaml"), servertest.DailyRules)
			for _, kept := range []bool{true, false} {
				idle := "1h"
				if !kept {
					idle = "0s"
				}
				p := servertest.Start(t, "serve", "--rules="+rules, "--listen-proxy=127.0.0.1:0",
					"--proxy-upstream=http://"+upstream, "--proxy-upstream-idle="+idle)
				ask := func(method string) int {
					r, err := http.NewRequestWithContext(patience.Context(t), method, "http://"+p.Addr("proxy")+"/",
						strings.NewReader("body"))
					if err != nil {
						t.Fatal(err)
					}
					resp, err := http.DefaultClient.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					// To its end: else the next one comes over another connection, while Weir still
					// holds the one to the server.
					if _, err := io.Copy(io.Discard, resp.Body); err != nil {
						t.Error(err)
					}
					return resp.StatusCode
				}
				for _, method := range []string{"GET", "PUT", "DELETE", "POST"} {
					first, second := ask("POST"), ask(method)
					want := 200
					if kept && method == "POST" {
						want = 502
					}
					if first != 200 || second != want {
						t.Errorf("connections kept %v: a POST: %d; %s after it: %d, want %d", kept, first, method,
							second, want)
					}
					if kept && want == 200 { // the new connection has carried one request, too
						if status := ask("POST"); status != 502 {
							t.Errorf("a POST over the new connection: %d, want 502", status)
						}
					}
				}
				resent := 3
				if !kept {
					resent = 0
				}
				metrics := "http://" + p.Addr("admin") + "/metrics"
				if _, _, text := servertest.Get(t, metrics); !strings.Contains(text,
					fmt.Sprintf("\nweir_upstream_resent_total %d\n", resent)) {
					t.Errorf("connections kept %v: not counted as %d requests sent again", kept, resent)
				}
			}
		})
	}
}
