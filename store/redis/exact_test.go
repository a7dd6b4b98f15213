package redis_test

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store/redis"
)

// TestExactAcrossNodes: 4 nodes make many more attempts on one limit than it allows. What is
// admitted, and each answer, is exactly what the pure algorithm gives at the instants that the
// store names. WEIR_ATTEMPTS says how many attempts, 200000 for a soak; a twentieth of them is the
// limit.
func TestExactAcrossNodes(t *testing.T) {
	testExactAcrossNodes(t, redistest.Start(t).URL(), effort.Of(8_000, 40_000))
}

func testExactAcrossNodes(t *testing.T, url string, attempts int) {
	if n, err := strconv.Atoi(os.Getenv("WEIR_ATTEMPTS")); err == nil {
		attempts = n
	}
	fleet := startFleet(t, 4)
	fleet.open(redis.Options{URL: url})
	for _, test := range []struct {
		name string
		c    algo.Config
	}{
		{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, Window: 24 * time.Hour}},
		{"sliding_window K=1", algo.Config{Algorithm: algo.SlidingWindow, Window: 24 * time.Hour}},
		{"sliding_window K=60", algo.Config{Algorithm: algo.SlidingWindow, Window: time.Hour, Buckets: 60}},
		{"sliding_log", algo.Config{Algorithm: algo.SlidingLog, Window: 24 * time.Hour}},
		{"token_bucket", algo.Config{Algorithm: algo.TokenBucket, Window: time.Second}},
		{"leaky_bucket", algo.Config{Algorithm: algo.LeakyBucket, Window: time.Second}},
		{"concurrency", algo.Config{Algorithm: algo.Concurrency, Timeout: time.Hour}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.c.N = int64(attempts / 20)
			testExact(t, fleet.in(t), test.c, attempts)
		})
	}
}

func testExact(t *testing.T, fleet *fleet, c algo.Config, attempts int) {
	const clients = 100
	h := fleet.run(workload{
		Limits: []limitSpec{spec(t, c)}, Calls: [][]chargeSpec{{{Key: "hot", Cost: 1}}}, Tally: true,
		Clients: clients, Each: attempts / clients / len(fleet.nodes),
	})
	for _, o := range h.ops { // those that failed are listed
		t.Fatal(o.Err)
	}
	limit, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	// Redis decides one after the other, at instants that do not go back. At one of them, the same
	// results must have come out, in whatever order.
	at := map[int64]map[algo.Result]int{}
	made, admitted := 0, int64(0)
	for _, same := range h.tallies {
		if at[same.Now] == nil {
			at[same.Now] = map[algo.Result]int{}
		}
		at[same.Now][same.Result] += same.N
		made += same.N
		if same.Result.Allowed {
			admitted += int64(same.N)
		}
	}
	if made != attempts {
		t.Fatalf("%d attempts came out, want %d", made, attempts)
	}
	instants := make([]int64, 0, len(at))
	for now := range at {
		instants = append(instants, now)
	}
	slices.Sort(instants)
	var state algo.State
	slot, would := uint64(0), int64(0)
	for _, now := range instants {
		got := at[now]
		for n := 0; len(got) > 0; n++ {
			slot++
			want := limit.Take(&state, now, algo.Ask{Cost: 1, MaxDelay: -1, Slot: slot})
			if got[want] == 0 {
				t.Fatalf(
					"at %d, after %d decisions of that instant, the algorithm gives %+v; the store gave, and how often, %v", now, n, want, got)
			}
			if want.Allowed {
				would++
				got[want]--
			}
			if !want.Allowed || got[want] == 0 {
				// once one is denied, so are all others of that instant
				delete(got, want)
			}
		}
	}
	if admitted != would {
		t.Errorf("%d were admitted, the algorithm admits %d", admitted, would)
	}
	first, last := instants[0], instants[len(instants)-1]
	switch window := c.Window.Microseconds(); c.Algorithm {
	case algo.TokenBucket, algo.LeakyBucket:
		if admitted < c.N {
			t.Errorf("%d were admitted, the bucket alone holds %d", admitted, c.N)
		}
	default:
		if admitted != c.N && (c.Algorithm == algo.Concurrency || first/window == last/window) {
			t.Errorf("%d were admitted of %d", admitted, c.N)
		}
	}
	t.Logf("%d admitted of %d attempts in %v", admitted, made, time.Duration(last-first)*time.Microsecond)
}
