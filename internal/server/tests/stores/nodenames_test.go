//go:build unix

package stores

import (
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestNodeNames: a node is called as node.name says, in the API, the metrics and its audit log,
// also after it started anew. Two nodes of one name on one host are two: they differ by their
// address, and each request is counted once.
func TestNodeNames(t *testing.T) {
	t.Parallel()
	program, redis := servertest.BuildProgram(t), redistest.Start(t)
	ports := []string{servertest.FreePort(t), servertest.FreePort(t)}
	var all [2]*fleetNode
	start := func(n *fleetNode, i int) {
		n.process = servertest.Launch(t, program, n.dir, "serve", "--rules=rules", "--store="+redis.URL(), "--store-deadline=30s", "--store-timeout=30s",
			"--node-name=tills", "--listen-admin=127.0.0.1:"+ports[i])
		n.Node = servertest.NodeOf(t, n.process.Stderr, n.process.Addr)
	}
	for i := range all {
		all[i] = &fleetNode{dir: t.TempDir()}
		all[i].write(t, fleetRules)
		start(all[i], i)
	}
	type nodesAnswer struct {
		Nodes insight.Nodes       `json:"nodes"`
		List  []insight.NodeState `json:"list"`
	}
	asThey := func(what string) {
		t.Helper()
		for i, n := range all {
			n.AwaitNodes(2)
			var a nodesAnswer
			servertest.Eventually(t, what, func() bool {
				a = get[nodesAnswer](t, n.Admin+"/api/v1/nodes")
				return len(a.List) == 2
			})
			for _, s := range a.List {
				if s.Node != "tills "+s.Address || s.Self != (s.Address == "127.0.0.1:"+ports[i]) {
					t.Errorf("%s: %+v", what, s)
				}
			}
			if info := n.Metric(`weir_node_info{address="127.0.0.1:` + ports[i] + `",node="tills"}`); info != "1" {
				t.Errorf("%s: weir_node_info is %q", what, info)
			}
		}
	}
	asThey("two nodes of one name")
	for i, n := range all {
		for user := range 3 {
			n.probe(t, 3*i+user)
		}
	}
	for i, n := range all {
		servertest.Eventually(t, "all requests are counted once", func() bool {
			r := get[figures](t, n.Admin+"/api/v1/insight/rules/shop/probe?over=1h")
			return r.Met == 6 && r.Keys == 6 && r.Nodes.Answered == 2
		})
		servertest.Eventually(t, "the other node answers for itself", func() bool {
			status, _, body := servertest.Get(t, n.Admin+"/api/v1/decisions?node=tills+127.0.0.1:"+ports[1-i])
			if strings.Contains(body, `"node": "tills 127.0.0.1:`+ports[i]) {
				t.Fatalf("of this node: %.300s", body)
			}
			return status == 200
		})
	}
	all[1].process.Signal(syscall.SIGTERM)
	if status := all[1].process.Wait(); status != 0 {
		t.Fatalf("a node ended with status %d", status)
	}
	all[0].AwaitNodes(1)
	start(all[1], 1)
	asThey("a node that started anew")
}
