//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/effort"
	"github.com/weir-rl/weir/internal/patience"
	"github.com/weir-rl/weir/internal/testproc"
	"github.com/weir-rl/weir/internal/wheel"
)

// TestServersThatClose: whenever Node or gunicorn closes a connection that the proxy keeps, also
// one that it keeps for far longer than they do, no client notices.
func TestServersThatClose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		start func(t *testing.T, port string) string
		least time.Duration // a pause between two requests of a client, after which the server closes
		most  time.Duration
	}{
		{"Node", func(t *testing.T, port string) string {
			needs(t, "node")
			return startUpstream(t, port, nil, "node", upstreamFile("closing.js"), port)
		}, 0, 4 * time.Millisecond},
		{"gunicorn", func(t *testing.T, port string) string {
			needs(t, "python3")
			effort.Long(t, "gunicorn closes after a second")
			const version = "gunicorn-23.0.0"
			dir := testproc.Parts(t, version, func(dir string) *exec.Cmd {
				return wheel.Install(t, dir, "gunicorn==23.0.0", "packaging==25.0")
			})
			return startUpstream(t, port, []string{"PYTHONPATH=" + dir}, "python3", "-B", "-m", "gunicorn", "--chdir", upstreamFile(""),
				"--worker-class=gthread", "--threads=8", "--keep-alive=1", "--bind=127.0.0.1:"+port, "closing:app")
		}, 980 * time.Millisecond, 1100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			upstream := c.start(t, freePort(t))
			rules := t.TempDir()
			writeRules(t, filepath.Join(rules, "rules.yaml"), dailyRules)
			p := start(t, "serve", "--rules="+rules, "--listen-proxy=127.0.0.1:0", "--proxy-upstream=http://"+upstream, "--proxy-upstream-idle=1h")
			url := "http://" + p.addr("proxy") + "/"
			ctx := patience.Context(t)
			var wg sync.WaitGroup
			for client := range 8 {
				wg.Go(func() {
					for i := range 12 {
						method := []string{"GET", "PUT", "DELETE"}[(client+i)%3]
						r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(strings.Repeat("x", 100*(i%3))))
						if err != nil {
							t.Error(err)
							return
						}
						resp, err := http.DefaultClient.Do(r)
						if err != nil {
							t.Error(err)
							return
						}
						_ = resp.Body.Close()
						if resp.StatusCode != 200 {
							t.Errorf("%s: %s", method, resp.Status)
						}
						time.Sleep(c.least + rand.N(c.most-c.least)) // what is tried, and nothing waits for it
					}
				})
			}
			wg.Wait()
			if _, metrics := ask(t, http.DefaultClient, "GET", fmt.Sprintf("http://%s/metrics", p.addr("admin")), ""); !strings.Contains(metrics, "\nweir_upstream_resent_total ") {
				t.Error("nothing tells how many requests were sent once more")
			}
		})
	}
}
