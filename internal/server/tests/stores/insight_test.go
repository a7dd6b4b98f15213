package stores

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Who may not see rule files sees why they are not in force, and no line of them.
func TestBrokenQuotesNothing(t *testing.T) {
	folder := servertest.InFolder(t, "limits: [{name: all, allow: 100/day}]\n")
	tokens := filepath.Join(t.TempDir(), "tokens")
	servertest.WriteRules(t, tokens, "of-a-viewer role=viewer\nof-support role=support\nof-an-admin\n")
	p := servertest.Start(t, "serve", "--rules="+folder, "--auth-tokens-file="+tokens)
	admin := "http://" + p.Addr("admin") // it runs
	servertest.WriteRules(t, filepath.Join(folder, "broken.yaml"),
		"domain: broken\nlimits: [{name: all, alow: 5/day, when: {user: the-secret-customer}}]\n")
	// The verdict broken says the first of these.
	for _, token := range []string{"of-a-viewer", "of-support", "of-an-admin"} {
		servertest.Eventually(t, "/api/v1/rules tells what is broken", func() bool {
			r, err := http.NewRequestWithContext(t.Context(), "GET", admin+"/api/v1/rules", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			a, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Body.Close()
			body, err := io.ReadAll(a.Body)
			if err != nil || a.StatusCode != 200 {
				t.Fatal(a.Status, err)
			}
			if strings.Contains(string(body), "the-secret-customer") {
				t.Errorf("%s: %s", token, body)
				return true
			}
			return strings.Contains(string(body), "broken.yaml:2:") && strings.Contains(string(body), "alow")
		})
	}
	p.End()
}

// A server that only proxies knows how long its decisions take. It times each by a chance of 1 in
// 16, so it is asked until one was timed.
func TestP99OfProxy(t *testing.T) {
	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	p := servertest.Start(t, "proxy", "--rules="+servertest.InFolder(t, "limits: [{name: all, allow: 100/day}]\n"),
		"--listen-proxy=127.0.0.1:0", "--upstream="+upstream.URL)
	servertest.Eventually(t, "the time of decisions shows", func() bool {
		servertest.Get(t, "http://"+p.Addr("proxy")+"/")
		_, _, body := servertest.Get(t, "http://"+p.Addr("admin")+"/api/v1/insight")
		var a struct{ P99 float64 }
		if err := json.Unmarshal([]byte(body), &a); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return a.P99 > 0
	})
	p.End()
}
