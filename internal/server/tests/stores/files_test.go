package stores

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestFilesAreLeft: clients that have many requests on few connections through the proxy leave
// files for all doors, and connections to the upstream for others.
func TestFilesAreLeft(t *testing.T) {
	program := servertest.BuildProgram(t)
	release := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	}))
	defer upstream.Close()
	defer close(release)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "a.yaml"), "limits: [{ name: all, per: [ip], allow: 1000000/min }]\n")
	cmd := exec.Command("bash", "-c",
		fmt.Sprintf("ulimit -n 300 && exec %s serve --rules=. --listen-http=127.0.0.1:0 --listen-grpc=127.0.0.1:0 "+
			"--listen-resp=127.0.0.1:0 --listen-admin=127.0.0.1:0 --listen-proxy=127.0.0.1:0 --proxy-upstream=%s", program, upstream.URL))
	cmd.Dir = dir
	p := servertest.Begin(t, cmd)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = p.Cmd.Process.Kill() }()
	proxy := "http://" + p.Addr("proxy")
	for range 4 {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		for range 100 {
			wg.Go(func() {
				if answer, err := (&http.Client{Transport: transport}).Get(proxy + "/hang"); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
			})
		}
	}
	metrics := "http://" + p.Addr("admin") + "/metrics"
	patience.Until(t, "requests were answered 503, since no place was free", func() bool {
		_, _, body := servertest.Get(t, metrics)
		return strings.Contains(body, "\nweir_upstream_full_total ") &&
			!strings.Contains(body, "\nweir_upstream_full_total 0\n")
	})
	for range 10 {
		for _, url := range []string{"http://" + p.Addr("admin") + "/readyz",
			"http://" + p.Addr("http") + "/healthcheck", proxy + "/"} {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			answer, err := client.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", url, answer.Status)
			}
		}
	}
	if strings.Contains(p.Stderr.String(), "too many open files") {
		t.Errorf("%s", p.Stderr)
	}
	if n := strings.Count(p.Stderr.String(), "level=WARN"); n > 10 {
		t.Errorf("%d warnings were logged", n)
	}
}
