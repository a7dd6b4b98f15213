//go:build unix

package stores

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// One user who is over the limit fills half of the queue of deferred requests: another one's are
// still deferred. What finds no room is refused, counted and logged.
func TestDeferShares(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"),
		"limits: [{ name: once, per: [header.x-user], allow: 1/day, algorithm: sliding_log, on_limit: { defer: later } }]\n")
	p := servertest.Start(t, "proxy", "--upstream="+upstream.URL, "--rules="+filepath.Join(dir, "rules.yaml"),
		"--listen-proxy=127.0.0.1:0", "--listen-admin=127.0.0.1:0",
		"--defer-path="+filepath.Join(dir, "deferred.db"), "--defer-max-bytes=200KiB")
	base, admin := "http://"+p.Addr("proxy"), "http://"+p.Addr("admin")
	post := func(user string, times int) map[int]int {
		t.Helper()
		answers := map[int]int{}
		for range times {
			r, _ := http.NewRequest(http.MethodPost, base+"/", strings.NewReader("order"))
			r.Header.Set("X-User", user)
			answer, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			answers[answer.StatusCode]++
		}
		return answers
	}
	if got := post("mallory", 41); got[200] != 1 || got[202] != 10 || got[429] != 30 {
		t.Errorf("mallory: %v", got)
	}
	if got := post("ada", 4); got[200] != 1 || got[202] != 3 {
		t.Errorf("ada: %v", got)
	}
	_, _, metrics := servertest.Get(t, admin+"/metrics")
	if !strings.Contains(metrics, `weir_deferred_total{event="share"} 30`) ||
		!strings.Contains(metrics, `weir_deferred_total{event="full"} 0`) {
		t.Error("the refusals are not counted")
	}
	if got := strings.Count(p.Stderr.String(), "the queue is full for this line"); got != 1 {
		t.Errorf("%d lines of the log tell of it", got)
	}
	p.End()
}
