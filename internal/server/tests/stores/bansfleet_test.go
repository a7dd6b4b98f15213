//go:build unix

package stores

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestBansOfFleet: a network that is banned everywhere in the domain on one node is refused by the
// others, and each node says the same of what the ban refused. A node that starts later says that
// there may be more.
func TestBansOfFleet(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), `
domain: shop
exempt: {ip: [198.51.100.9]}
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 100000/min}
  - {name: all, per: [ip], allow: 100000/min}
`)
	start := func() *servertest.Node {
		p := servertest.Launch(t, program, dir,
			append([]string{"serve", "--rules=rules.yaml", "--store=" + redis.URL()}, servertest.Patient...)...)
		return servertest.NodeOf(t, p.Stderr, p.Addr)
	}
	nodes := []*servertest.Node{start(), start()}
	for _, n := range nodes {
		n.AwaitNodes(2)
	}
	if status, out, errs := servertest.RunBuilt(t, "ban", "set", "login", "198.51.100.7/24", "--for=1h", "--scope=domain",
		"--server", nodes[0].Admin); status != 0 ||
		!strings.Contains(out, "shop/login ip=198.51.100.0/24") || !strings.Contains(out, "everywhere in the domain") {
		t.Fatalf("%d: %s%s", status, out, errs)
	}
	for i, n := range nodes {
		servertest.Eventually(t, "the ban holds", func() bool { return n.Ask("domain=shop&ip=198.51.100.1&path=/&hits=0") == 429 })
		for host := range 10 * (i + 1) {
			if got := n.Ask(fmt.Sprintf("domain=shop&ip=198.51.100.%d&path=/x", 100+host)); got != 429 {
				t.Errorf("node %d: %d", i, got)
			}
		}
		if a, b := n.Ask("domain=shop&ip=198.51.100.9&path=/"), n.Ask("domain=shop&ip=198.51.101.1&path=/"); a != 200 || b != 200 {
			t.Errorf("node %d: the exempt address %d, one of another network %d", i, a, b)
		}
	}
	listed := func(n *servertest.Node, says string) {
		t.Helper()
		servertest.Eventually(t, "the list says "+says, func() bool {
			status, out, errs := servertest.RunBuilt(t, "ban", "list", "--server", n.Admin)
			if status != 0 {
				t.Fatal(errs)
			}
			return strings.Contains(out, "shop/login  ip=198.51.100.0/24  domain  "+says+"  ")
		})
	}
	for _, n := range nodes {
		listed(n, "30")
	}
	late := start()
	for _, n := range append(nodes, late) {
		n.AwaitNodes(3)
	}
	if got := late.Ask("domain=shop&ip=198.51.100.5&path=/x"); got != 429 {
		t.Errorf("a node that starts later: %d", got)
	}
	for _, n := range append(nodes, late) {
		listed(n, "at least 31")
	}
	if status, _, errs := servertest.RunBuilt(t, "ban", "lift", "login", "198.51.100.0/24", "--server", late.Admin); status != 0 {
		t.Fatal(errs)
	}
	for _, n := range nodes {
		servertest.Eventually(t, "the lift is known", func() bool { return n.Ask("domain=shop&ip=198.51.100.1&path=/") == 200 })
	}
}
