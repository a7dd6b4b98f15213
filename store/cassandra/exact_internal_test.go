package cassandra

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
)

// TestExactAcrossNodes: 4 processes make 20,000 attempts on one limit of 2,000. Each unit of it is
// admitted once, and no other.
func TestExactAcrossNodes(t *testing.T) {
	const limit, processes, clients, each = 2000, 4, 100, 50
	server := cassandratest.Shared(t)
	began := time.Now()
	all := startFleet(t, processes, job{
		URL: server.URL(server.Keyspace()), Timeout: 30 * time.Second, Limit: limit, Keys: 1, Clients: clients, Each: each,
	}).wait()
	if len(all) != processes*clients*each {
		t.Fatalf("%d attempts came out, want %d", len(all), processes*clients*each)
	}
	admitted, left := 0, map[int64]int{}
	for _, one := range all {
		switch {
		case one.Err != "":
			t.Fatal(one.Err)
		case one.Allowed:
			admitted++
			left[one.Remaining]++
		case one.Remaining != 0:
			t.Fatalf("one was refused while %d were left", one.Remaining)
		}
	}
	if admitted != limit {
		t.Errorf("%d were admitted, want %d", admitted, limit)
	}
	for n := range int64(limit) {
		if left[n] != 1 {
			t.Errorf("%d attempts were told that %d are left", left[n], n)
		}
	}
	t.Logf("%d of %d attempts in %v", admitted, len(all), time.Since(began))
}
