package fallback_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store/redis"
)

// TestOneMasterDies: of a Cluster without replicas, whose other masters go on. Users whose
// partition is there are limited exactly, the dead master's users within the bound, and only its
// partitions are away. Nodes wait for a minute for a master that takes connections, so that one
// that is slow is none that is away.
func TestOneMasterDies(t *testing.T) {
	effort.Long(t, "kills a master of a real cluster")
	t.Parallel()
	const users, limit = 90, 15
	cluster := redistest.StartCluster(t, 3, 0, "cluster-require-full-coverage no")
	var list []kind
	for i := range users {
		list = append(list, kind{Name: "user", ID: 1 + rand.Uint64()>>1, Key: fmt.Sprint("user ", i),
			Config: algo.Config{Algorithm: algo.FixedWindow, N: limit, Window: 366 * days}})
	}
	fleet := startFleet(t, nodes)
	fleet.ask(order{Open: &setup{
		URL: cluster.URL(), Heartbeat: heartbeat, Deadline: time.Minute, MaxDeadline: time.Minute,
		Timeout: time.Minute, Nodes: nodes,
	}})
	fleet.await("all nodes know of each other", func(_ int, r *report) bool { return r.Redis.Nodes == nodes })
	fleet.all(func(int) order {
		return order{Load: &load{Kinds: list, Clients: 8, Pause: 8 * time.Millisecond, Seed: rand.Uint64()}}
	})
	fleet.goOn(before, 100)
	fleet.ask(order{Phase: during})
	cluster.Nodes()[2].Kill()
	fleet.goOn(during, 60*users)
	outcomes := make([]outcome, users)
	for _, r := range fleet.ask(order{Stop: true}) {
		for i, o := range r.Outcomes {
			outcomes[i].add(o)
		}
	}

	// Which partitions are there is asked without the nodes.
	store, err := redis.Open(redis.Options{URL: cluster.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	gone := map[int]bool{}
	for part := range store.Parts() {
		if err := store.PingPart(t.Context(), part); err != nil {
			gone[part] = true
		}
	}
	if n := len(gone); n == 0 || n > store.Parts()/2 {
		t.Fatalf("%d of %d partitions are away", n, store.Parts())
	}
	exact, shared := 0, 0
	for i := range list {
		counter, err := list[i].counter()
		if err != nil {
			t.Fatal(err)
		}
		n := outcomes[i].Admitted
		switch {
		case !gone[store.PartOf(counter, []byte(list[i].Key))]:
			if exact++; n != limit {
				t.Errorf("%s, whose master is there, was admitted %d times", list[i].Key, n)
			}
		default:
			if shared++; n > 2*limit || n < limit/nodes {
				t.Errorf("%s, whose master is away, was admitted %d times", list[i].Key, n)
			}
		}
	}
	for i, r := range fleet.ask(order{}) {
		if r.Away > len(gone) || r.Away == 0 {
			t.Errorf("for node %d %d parts are away, of %d that are", i, r.Away, len(gone))
		}
	}
	t.Logf("%d users of masters that are there, %d of the one that is not; %d of %d partitions are away",
		exact, shared, len(gone), store.Parts())
	cluster.Nodes()[2].Restart()
	fleet.await("all parts are back, and nothing is open", func(_ int, r *report) bool {
		return r.Away == 0 && r.Stats.Open == 0
	})
}
