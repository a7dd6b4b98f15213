//go:build unix

package stores

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

const regionalRules = `domain: default
limits:
  - { name: search, when: { path: /search }, per: [user], allow: 90/day, algorithm: sliding_log, consistency: { regions: { over: 20% } } }
  - { name: tokens, when: { path: /complete }, per: [tenant], allow: 1000/day, algorithm: sliding_log, consistency: { regions: { over: 0% } } }
  - { name: login, when: { path: /login }, per: [ip], allow: 50/day, algorithm: sliding_log, consistency: { regions: sync } }
  - { name: local, when: { path: /local }, per: [user], allow: 10/day }
`

// regionsOf asks a node for the regions.
func regionsOf(t *testing.T, n *servertest.Node) (r admin.RegionsReport) {
	t.Helper()
	if status, _, body := servertest.Get(t, n.Admin+"/api/v1/regions"); status != 200 ||
		json.Unmarshal([]byte(body), &r) != nil {
		t.Fatalf("%d %s", status, body)
	}
	return r
}

// TestRegionsSeen: operators see two regions, one of which has two nodes, the use of each limit
// over them, and of a key the use in each, no matter which node they ask.
func TestRegionsSeen(t *testing.T) {
	t.Parallel()
	eu, us := redistest.Start(t), redistest.Start(t)
	rules := filepath.Join(t.TempDir(), "shop.yaml")
	servertest.WriteRules(t, rules, regionalRules)
	in := func(region string, own, other *redistest.Server, peer string) *servertest.Node {
		p := servertest.StartOn(t, own.URL(), "--rules="+rules, "--region="+region, "--regions-weights=eu=2,us=1",
			"--regions-stores="+peer+"="+other.URL())
		t.Cleanup(p.End)
		return servertest.NodeOf(t, p.Stderr, p.Addr)
	}
	first, second, far := in("eu", eu, us, "us"), in("eu", eu, us, "us"), in("us", us, eu, "eu")
	first.AwaitNodes(2)
	second.AwaitNodes(2)
	heard := func(n *servertest.Node, peer string) {
		t.Helper()
		servertest.Eventually(t, peer+" is heard", func() bool {
			for _, r := range regionsOf(t, n).Regions {
				if r.Region == peer {
					return r.State == "heard"
				}
			}
			return false
		})
	}
	heard(first, "us")
	heard(second, "us")
	heard(far, "eu")

	// No ceiling is short, so that nothing is borrowed.
	if n := first.Admitted(12, "path=/search&user=ada") + second.Admitted(8, "path=/search&user=ada") + far.Admitted(25, "path=/search&user=ada"); n != 45 {
		t.Fatalf("%d admitted", n)
	}
	if n := second.Admitted(30, "path=/complete&tenant=acme") + far.Admitted(5, "path=/login&ip=192.0.2.1"); n != 35 {
		t.Fatalf("%d admitted", n)
	}
	for _, n := range []*servertest.Node{first, second} {
		// The answer that shows it is checked: the nodes are asked only so often in a second, and
		// one that asks once more may get its own numbers alone.
		var r admin.RegionsReport
		servertest.Eventually(t, "all was heard in eu", func() bool {
			r = regionsOf(t, n)
			return r.Nodes.Answered == 2 && len(r.Limits) == 3 && r.Limits[0].Heard.Units == 25 &&
				r.Limits[2].Heard.Units == 5
		})
		search, tokens, login := r.Limits[0], r.Limits[1], r.Limits[2]
		if search.Used.Units != 20 || tokens.Used.Units != 30 || login.Used.Units != 0 ||
			search.OverUnits+search.CeilingRefusals != 0 {
			t.Errorf("%+v", r.Limits)
		}
		if search.Windows[0].Ceiling != 72 || tokens.Windows[0].Ceiling != 667 || login.Windows[0].Ceiling != 50 ||
			search.Over != 20 || !login.Sync {
			t.Errorf("%+v", r.Limits)
		}
		if r.Region != "eu" || r.Regions[0].State != "own" || r.Regions[1].Uses == 0 || r.Regions[1].Weights ||
			r.Regions[1].Rules || strings.Join(r.Each, " ") != "default/local" {
			t.Errorf("%+v", r)
		}
	}
	servertest.Eventually(t, "both say that the same one leads", func() bool {
		a, b := regionsOf(t, first).Leader, regionsOf(t, second).Leader
		return a == b && a != ""
	})
	servertest.Eventually(t, "all was heard in us",
		func() bool { return regionsOf(t, far).Limits[0].Heard.Units == 20 })

	server := func(n *servertest.Node) string { return "--server=" + n.Admin }
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"keys", "show", "search", "ada", server(second)}, `search +user=ada +45 of 90 +45 .* passes, eu: 20 of 72 \(ceiling\), all regions: 45 of 90 as heard\n`},
		{[]string{"keys", "list", "search", server(far)}, `search +user=ada +45 of 90 +11 .* passes, us: 25 of 36 \(ceiling\), all regions: 45 of 90 as heard\n`},
		{[]string{"keys", "show", "tokens", "acme", server(first)}, `tokens +tenant=acme +30 of 1000 +637 .* passes, eu: 30 of 667 \(ceiling\)\n`},
		{[]string{"keys", "show", "login", "192.0.2.1", server(first)}, `login +ip=192.0.2.1 +5 of 50 +45 .* passes, all regions: 5 of 50 as heard\n`},
		{[]string{"explain", "path=/search", "user=ada", server(first)}, `now: used 45 of 90, 45 remaining, .*; eu: 20 of 72 \(ceiling\), all regions: 45 of 90 as heard\n`},
		{[]string{"explain", "--json", "path=/search", "user=ada", server(first)}, `(?s)"regions": \{\s+"region": "eu",\s+"own": \{\s+"used": 20,\s+"limit": 72\s+\},\s+"all": \{\s+"used": 45,\s+"limit": 90`},
	} {
		if status, out, errs := servertest.RunBuilt(t, c.args...); status != 0 ||
			!regexp.MustCompile(c.says).MatchString(out) {
			t.Errorf("weir %s: %d %s%s\nwant %s", strings.Join(c.args, " "), status, out, errs, c.says)
		}
	}

	// A limit of one region is shown as ever.
	first.Admitted(1, "path=/local&user=ada")
	if _, _, body := servertest.Get(t, first.Admin+"/api/v1/keys?limit=local&key=ada"); strings.Contains(body,
		`"regions"`) {
		t.Errorf("%s", body)
	}

	us.Kill()
	for _, n := range []*servertest.Node{first, second} {
		var r admin.RegionsReport
		servertest.Eventually(t, "us is silent", func() bool {
			r = regionsOf(t, n)
			// An attempt that fails may end later than it takes to be called silent.
			return r.Nodes.Answered == 2 && r.Regions[1].State == "silent" && r.Regions[1].Errors > 0
		})
		if *r.Regions[1].Staleness < 3 {
			t.Errorf("%+v", r.Regions[1])
		}
	}
}
