//go:build unix

package stores

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestCassandra: two nodes on one Cassandra enforce one limit as one would; they say what they do
// not have with it; and while it is killed, each goes on with its share.
func TestCassandra(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	server := cassandratest.Start(t)
	t.Run("collector", func(t *testing.T) {
		testCollectorStore(t, newCollector(t), program, "cassandra", server.URL(server.Keyspace()))
	})
	url := server.URL(server.Keyspace())
	dir := t.TempDir()
	rules := dir + "/rules.yaml"
	servertest.WriteRules(t, rules, sharedRules)
	var nodes []*servertest.Node
	begin := func(settings ...string) *servertest.Node {
		p := servertest.Launch(t, program, dir, append([]string{"serve", "--store=" + url, "--rules=" + rules},
			settings...)...)
		n := servertest.NodeOf(t, p.Stderr, p.Addr)
		p.Stderr.Await(t, `the counters live in Cassandra" store=cassandra://`+server.Addr())
		p.Stderr.Await(t, "bans and grants are not shared")
		n.AwaitBack()
		return n
	}
	for range 2 {
		nodes = append(nodes, begin(servertest.Patient...))
	}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { admitted.Add(int64(nodes[i%2].Admitted(50, "key=exact"))) })
	}
	all.Wait()
	if n := admitted.Load(); n != 300 {
		t.Errorf("of 400 attempts at two nodes %d were admitted by a limit of 300", n)
	}
	answer, err := http.Post(nodes[0].Http+"/api/v1/reserve", "application/json",
		strings.NewReader(`{"attributes": {"key": "r"}, "hits": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusNotImplemented ||
		!strings.Contains(string(body), "cannot hold reservations") {
		t.Errorf("a reservation: %d %s %v", answer.StatusCode, body, err)
	}
	if status := nodes[1].Delete("default/exact/key=exact"); status != 204 {
		t.Errorf("reset: %d", status)
	}
	// It remembers for a second that the key was refused.
	servertest.Eventually(t, "the other node admits a key that was reset",
		func() bool { return nodes[0].Admitted(1, "key=exact") == 1 })

	alone := []*servertest.Node{begin(), begin()} // the others would wait for half a minute five times
	server.Pause()
	for _, n := range alone {
		n.AwaitAway()
	}
	server.Resume()
	for _, n := range alone {
		n.AwaitBack()
	}
	server.Kill()
	for _, n := range alone {
		n.AwaitAway()
	}
	if n := alone[0].Admitted(20, "key=more"); n == 0 || n > 20 {
		t.Errorf("alone, %d of 20 were admitted", n)
	}
}
