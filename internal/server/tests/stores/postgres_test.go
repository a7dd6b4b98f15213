//go:build unix

package stores

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestPostgreSQL: two nodes on one PostgreSQL enforce one limit as one would, and share
// reservations. While it is killed, each goes on with its share; then they find it again.
func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	rules := t.TempDir() + "/rules.yaml"
	servertest.WriteRules(t, rules, sharedRules)
	var nodes []*servertest.Node
	for range 2 {
		p := servertest.StartOn(t, server.URL(), "--rules="+rules)
		n := servertest.NodeOf(t, p.Stderr, p.Addr)
		nodes = append(nodes, n)
		p.Stderr.Await(t, `the counters live in PostgreSQL" store=postgres://`+server.Addr()+"/weir")
		n.AwaitBack()
	}
	servertest.Eventually(t, "the nodes know of each other",
		func() bool { return nodes[0].Metric("weir_database_nodes") == "2" })
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { admitted.Add(int64(nodes[i%2].Admitted(50, "key=exact"))) })
	}
	all.Wait()
	if n := admitted.Load(); n != 300 {
		t.Errorf("of 400 attempts at two nodes %d were admitted by a limit of 300", n)
	}
	if nodes[0].Metric("weir_database_decisions_total") == "0" {
		t.Error("the database has decided nothing")
	}
	post := func(n *servertest.Node, path, body string) (status int, id string) {
		t.Helper()
		answer, err := http.Post(n.Http+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var out struct {
			ID string `json:"reservation"`
		}
		_ = json.NewDecoder(answer.Body).Decode(&out) // what is no JSON has no reservation
		return answer.StatusCode, out.ID
	}
	status, id := post(nodes[0], "/api/v1/reserve", `{"attributes": {"key": "r"}, "hits": 5}`)
	if status != http.StatusOK || id == "" {
		t.Fatalf("a reservation: %d %q", status, id)
	}
	for i, want := range []int{http.StatusNoContent, http.StatusNotFound} {
		if status, _ := post(nodes[1], "/api/v1/commit", `{"reservation": "`+id+`", "hits": 2}`); status != want {
			t.Errorf("commit %d at another node: %d, want %d", i, status, want)
		}
	}
	if status := nodes[1].Delete("default/exact/key=exact"); status != 204 {
		t.Errorf("reset: %d", status)
	}
	servertest.Eventually(t, "the other node admits a key that was reset",
		func() bool { return nodes[0].Admitted(1, "key=exact") == 1 })

	server.Kill()
	for _, n := range nodes {
		n.AwaitAway()
	}
	if n := nodes[0].Admitted(20, "key=more"); n == 0 || n > 20 {
		t.Errorf("alone, %d of 20 were admitted", n)
	}
	server.Restart()
	for _, n := range nodes {
		n.AwaitBack()
	}
	if n := nodes[0].Admitted(1, "key=after"); n != 1 {
		t.Errorf("%d of 1 were admitted by a PostgreSQL that is back", n)
	}
}
