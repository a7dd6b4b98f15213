//go:build unix

package stores

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestStoreFaults: a store that cannot be used, and will not be without its operator, fails the
// check with a sentence that says what to do. A node that meets it limits by its share, and is not
// ready, with that sentence; when it was mended, the node is ready again.
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	servertest.WriteRules(t, rules, sharedRules)
	permit := func(more ...string) {
		t.Helper()
		redis.Do(append([]string{"ACL", "SETUSER", "node", "on", ">p", "~*", "&*", "+@all"}, more...)...)
	}
	permit("-fcall")
	url := "redis://node:p@" + redis.Addr()
	const advice = "does not let the user node do what Weir needs: give it the permissions that docs/operating/redis.md lists"
	status, out, errs := servertest.RunBuilt(t, "serve", "--check", "--rules="+rules, "--store="+url)
	if status != 78 || !strings.Contains(errs, advice) || strings.Contains(out, "are good") {
		t.Errorf("a check: %d %s %s", status, out, errs)
	}
	p := servertest.StartOn(t, url, "--rules="+rules)
	n := servertest.NodeOf(t, p.Stderr, p.Addr)
	notReady := func(when string) {
		t.Helper()
		servertest.Eventually(t, when+": the node is not ready, and says why", func() bool {
			n.Admitted(1, "key=more")
			status, body := n.Readyz()
			return status == 503 && strings.Contains(body, advice) && strings.Contains(body, "this node limits alone")
		})
		_, _, nodes := servertest.Get(t, n.Admin+"/api/v1/nodes")
		if !strings.Contains(nodes, `"store_fault": "`) || !strings.Contains(nodes, advice) {
			t.Errorf("%s: the page is not told: %s", when, nodes)
		}
	}
	notReady("at the start")
	p.Stderr.Await(t, `level=ERROR msg="Redis at .*`+advice)
	if got := n.Admitted(30, "key=few"); got != 20 {
		t.Errorf("%d of 30 were admitted, and the share is 20", got)
	}
	permit()
	n.AwaitBack()
	permit("-fcall")
	notReady("later")
	permit()
	n.AwaitBack()
	status, out, errs = servertest.RunBuilt(t, "serve", "--check", "--rules="+rules, "--store="+url)
	if status != 0 || !strings.Contains(out, "are good") {
		t.Errorf("a check of a store that is well: %d %s %s", status, out, errs)
	}
}
