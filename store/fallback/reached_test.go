package fallback_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// scarce are limits of which more is asked for than there is.
func scarce() []kind {
	list := []kind{
		{Name: "fixed_window", Config: algo.Config{Algorithm: algo.FixedWindow, N: 300, Window: 366 * days}, Key: "k"},
		{Name: "sliding_log", Config: algo.Config{Algorithm: algo.SlidingLog, N: 300, Window: 366 * days}, Key: "k"},
		{Name: "token_bucket", Config: algo.Config{Algorithm: algo.TokenBucket, N: 300, Window: 360 * days}, Key: "k"},
		// Beyond the limit it goes by compare-and-swap.
		{Name: "margin", Config: algo.Config{Algorithm: algo.FixedWindow, N: 200, Window: 366 * days, Soft: 50}, Key: "k"},
	}
	for i := range list {
		list[i].ID = rand.Uint64()
	}
	return list
}

// reached runs a load on three nodes while something happens to them, though Redis can be reached.
// No node may decide by its share, and no limit be exceeded. A node waits for Redis for a minute,
// and as long as timeout for an answer, so that a slow machine makes no difference.
func reached(
	t *testing.T, server *redistest.Server, url string, timeout time.Duration, happen func(f *fleet),
) []report {
	t.Helper()
	f := startFleet(t, nodes)
	f.ask(order{Open: &setup{URL: url, Heartbeat: heartbeat, Deadline: time.Minute, MaxDeadline: time.Minute,
		Timeout: timeout, Nodes: nodes}})
	f.await("all nodes know of each other", func(_ int, r *report) bool { return r.Redis.Nodes == nodes })
	limits := scarce()
	f.all(func(int) order {
		return order{Load: &load{Kinds: limits, Clients: 8, Pause: 4 * time.Millisecond, Seed: rand.Uint64()}}
	})
	f.goOn(before, 20)
	happen(f)
	used := make([]int64, len(limits))
	eventually(t, "all limits are used up", func() bool {
		server.Do("PING")
		var asked int64
		for _, r := range f.ask(order{}) {
			asked += r.Decisions[before]
		}
		return asked > 12*int64(300)
	})
	reports := f.ask(order{Stop: true})
	for i, r := range reports {
		if s := &r.Stats; s.LocalAllowed+s.LocalDenied+s.Unanswered+s.Lost+s.Excess > 0 {
			t.Errorf("node %d decided by itself: %+v", i, *s)
		}
		if r.Redis.Disagreements > 0 {
			t.Errorf("node %d: Lua and Go disagreed", i)
		}
		for j := range r.Outcomes {
			used[j] += r.Outcomes[j].Admitted
		}
	}
	for j, n := range used {
		if n != 300 {
			t.Errorf("%s: %d were admitted, want 300", limits[j].Name, n)
		}
	}
	return reports
}

// TestConnectionsCut: connections are cut again and again while Redis is there.
func TestConnectionsCut(t *testing.T) {
	server := redistest.Start(t)
	reports := reached(t, server, server.URL(), time.Minute, func(f *fleet) {
		want := uint64(effort.Of(3, 40))
		f.await("each node has lost some answers", func(_ int, r *report) bool {
			server.Do("CLIENT", "KILL", "TYPE", "normal")
			return r.Redis.Again >= want
		})
	})
	for i, r := range reports {
		t.Logf("node %d sent %d calls again", i, r.Redis.Again)
	}
}

// TestNodeStopped: a node is stopped while its calls are under way, for longer than a call may
// take, and goes on. Time in which it did not run does not count.
func TestNodeStopped(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.Proxy(t, server.Addr())
	proxy.Delay(10 * time.Millisecond) // so that a call is under way at nearly all times
	const timeout = 3 * time.Second    // in which a busy machine answers
	stops := []time.Duration{timeout + 300*time.Millisecond}
	if effort.All() {
		stops = []time.Duration{300 * time.Millisecond, timeout - 100*time.Millisecond,
			timeout + 300*time.Millisecond, 2 * timeout}
	}
	reached(t, server, "redis://"+proxy.Addr(), timeout, func(f *fleet) {
		for _, stop := range stops {
			node := f.nodes[0].cmd.Process
			if err := testproc.Pause(node.Pid); err != nil {
				t.Fatal(err)
			}
			time.Sleep(stop) // what is tried is how long it is
			if err := testproc.Resume(node); err != nil {
				t.Fatal(err)
			}
			f.goOn(before, 20)
		}
	})
}
