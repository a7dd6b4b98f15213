//go:build unix

package main

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
)

// TestCassandra: two nodes on one Cassandra enforce one limit as one would; they say what they do
// not have with it; and while it is killed, each goes on with its share.
func TestCassandra(t *testing.T) {
	t.Parallel()
	program := buildProgram(t)
	server := cassandratest.Start(t)
	t.Run("collector", func(t *testing.T) {
		testCollectorStore(t, newCollector(t), program, "cassandra", server.URL(server.Keyspace()))
	})
	url := server.URL(server.Keyspace())
	dir := t.TempDir()
	rules := dir + "/rules.yaml"
	writeRules(t, rules, sharedRules)
	var nodes []*node
	begin := func(settings ...string) *node {
		p := launch(t, program, dir, append([]string{"serve", "--store=" + url, "--rules=" + rules}, settings...)...)
		n := nodeOf(t, p.stderr, p.addr)
		p.stderr.await(t, `the counters live in Cassandra" store=cassandra://`+server.Addr())
		p.stderr.await(t, "bans and grants are not shared")
		n.awaitBack()
		return n
	}
	for range 2 {
		nodes = append(nodes, begin(patient...))
	}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { admitted.Add(int64(nodes[i%2].admitted(50, "key=exact"))) })
	}
	all.Wait()
	if n := admitted.Load(); n != 300 {
		t.Errorf("of 400 attempts at two nodes %d were admitted by a limit of 300", n)
	}
	answer, err := http.Post(nodes[0].http+"/api/v1/reserve", "application/json", strings.NewReader(`{"attributes": {"key": "r"}, "hits": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusNotImplemented || !strings.Contains(string(body), "cannot hold reservations") {
		t.Errorf("a reservation: %d %s %v", answer.StatusCode, body, err)
	}
	if status := nodes[1].delete("default/exact/key=exact"); status != 204 {
		t.Errorf("reset: %d", status)
	}
	// It remembers for a second that the key was refused.
	eventually(t, "the other node admits a key that was reset", func() bool { return nodes[0].admitted(1, "key=exact") == 1 })

	alone := []*node{begin(), begin()} // the others would wait for half a minute five times
	server.Pause()
	for _, n := range alone {
		n.awaitAway()
	}
	server.Resume()
	for _, n := range alone {
		n.awaitBack()
	}
	server.Kill()
	for _, n := range alone {
		n.awaitAway()
	}
	if n := alone[0].admitted(20, "key=more"); n == 0 || n > 20 {
		t.Errorf("alone, %d of 20 were admitted", n)
	}
}
