//go:build unix

package stores

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// What is used of a limit that a commit overdrew is told as it is, at each store.
func TestOverdrawnLimitIsTold(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), `
domain: llm
limits:
  - {name: budget, per: [user], allow: 60000/year, algorithm: fixed_window}
  - {name: hour, per: [user], allow: 50000/hour, algorithm: sliding_window, buckets: 60, throttle: {soft: 10%}}
`)
			args := []string{"serve", "--rules=rules.yaml"}
			if store == "redis" {
				args = append(append(args, "--store="+redistest.Start(t).URL()), servertest.Patient...)
			}
			p := servertest.Launch(t, program, dir, args...)
			n := servertest.NodeOf(t, p.Stderr, p.Addr)
			post := func(path, body string, want int) (answer struct{ Reservation string }) {
				t.Helper()
				resp, err := http.Post(n.Http+path, "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.StatusCode != want {
					t.Fatalf("%s: %s", path, resp.Status)
				}
				if want == http.StatusOK {
					if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
						t.Fatal(err)
					}
				}
				return answer
			}
			r := post("/api/v1/reserve", `{"attributes": {"user": "ada"}, "hits": 900}`, http.StatusOK)
			post("/api/v1/commit", `{"reservation": "`+r.Reservation+`", "hits": 61234}`, http.StatusNoContent)
			for _, c := range []struct {
				args []string
				says []string
			}{
				{[]string{"keys", "show", "budget", "ada"}, []string{"61234 of 60000"}},
				{[]string{"keys", "list", "hour"}, []string{"61234 of 50000 (soft 55000)"}},
				{[]string{"explain", "user=ada"}, []string{"used 61234 of 60000, 0 remaining", "used 61234 of 50000 (soft 55000), 0 remaining"}},
			} {
				status, stdout, stderr := servertest.RunBuilt(t, append(c.args, "--server="+n.Admin)...)
				for _, says := range c.says {
					if status != 0 || !strings.Contains(stdout, says) {
						t.Errorf("weir %s: exit status %d\n%s%s\nwant %s", strings.Join(c.args, " "), status, stdout,
							stderr, says)
					}
				}
			}
		})
	}
}
