package redis_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// TestCluster has the tests that need a cluster share one: it takes two seconds until it takes
// writes. Each begins with none of their keys.
func TestCluster(t *testing.T) {
	redistest.NeedsFunctions(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, cluster *redistest.Cluster)
		long string // why it is left out of a quick run
	}{
		{"Parted", testParted, ""},
		{"Contract", testContractInCluster, "TestContract runs the same on one server"},
		{"Lender", testLenderInCluster, "TestLender runs the same on one server"},
		{"Regional", testRegionalInCluster, "TestRegional runs the same on one server"},
		{"Board", testBoardInCluster, ""},
		{"Reservations", func(t *testing.T, cluster *redistest.Cluster) { testReservations(t, cluster.URL()) }, ""},
		{"RefusalForgotten", func(t *testing.T, cluster *redistest.Cluster) { testRefusalForgotten(t, cluster.URL()) }, ""},
		{"LendAcross", testLendAcross, ""},
		{"ExactAcrossNodes", func(t *testing.T, cluster *redistest.Cluster) { testExactAcrossNodes(t, cluster.URL(), 8_000) }, "TestExactAcrossNodes runs the same on one server"},
		{"Linearizable", func(t *testing.T, cluster *redistest.Cluster) {
			testLinearizable(t, redis.Options{URL: cluster.URL()}, cluster.Nodes()...)
		}, "TestLinearizable runs the same on one server"},
		{"AcrossPartitions", testAcrossPartitions, ""},
		{"ForgottenWhileSlotMoves", testForgottenWhileSlotMoves, ""},
		{"SplitDecisions", testSplitDecisions, ""},
		{"LinearizableOverSlotMigration", testLinearizableOverSlotMigration, "moves slots under three nodes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.long != "" {
				effort.Long(t, test.long)
			}
			for _, node := range cluster.Nodes() {
				node.Do("FLUSHALL")
			}
			test.run(t, cluster)
		})
	}
}

// fullest returns the slot of a cluster that holds most keys, and how many.
func fullest(t *testing.T, cluster *redistest.Cluster) (slot, n int) {
	t.Helper()
	count := map[int]int{}
	for _, server := range cluster.Nodes() {
		keys, _ := server.Do("KEYS", "*").([]any)
		for _, key := range keys {
			s := cluster.Slot(fmt.Sprint(key))
			if count[s]++; count[s] > n {
				slot, n = s, count[s]
			}
		}
	}
	return slot, n
}

// another returns a master that does not serve a slot.
func another(cluster *redistest.Cluster, slot int) *redistest.Server {
	owner := cluster.OwnerOf(slot)
	for _, server := range cluster.Nodes() {
		if server != owner {
			return server
		}
	}
	return nil
}

// everything is a workload of all kinds of limits, on each key one charge at a time.
func everything(t *testing.T) workload {
	t.Helper()
	w := workload{Clients: 8, Each: 60, Release: true}
	for _, v := range append(slices.Clone(lasting), variants...) {
		c := v.c
		c.N = 5 // so that something is denied, though the keys are many
		if c.Burst > 0 {
			c.Burst = 5
		}
		for i := range keyCount {
			for _, cost := range []int64{1, 1, 1, 2, 0, -1} {
				if c.Algorithm == algo.Concurrency && cost < 0 {
					continue // slots go back by Release
				}
				w.Calls = append(w.Calls, []chargeSpec{{Limit: len(w.Limits), Key: key(i), Cost: cost}})
			}
		}
		w.Limits = append(w.Limits, spec(t, c))
	}
	return w
}

// testLinearizableOverSlotMigration: a slot moves from master to master, key by key, under 3 nodes.
// No decision on one subject fails, and nothing is lost.
func testLinearizableOverSlotMigration(t *testing.T, cluster *redistest.Cluster) {
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: cluster.URL(), Partitions: 2})
	checkRuns(t, cluster.Nodes(), func() history {
		w := everything(t)
		h := fleet.run(w)
		slot, n := fullest(t, cluster)
		t.Logf("%d keys move", n)
		w.Each, w.Pause = 0, 4*time.Millisecond
		wait := fleet.start(w)
		for range 2 {
			cluster.MigrateSlot(slot, another(cluster, slot), func(moved int) {
				if moved%10 == 0 { // there are some dozens
					fleet.goOn(20)
				}
			})
		}
		fleet.goOn(20)
		fleet.stop()
		h.join(wait())
		for i := range h.ops {
			if o := &h.ops[i]; o.Err != "" {
				t.Fatalf("a decision on one subject failed: %s", o.Err)
			}
		}
		h.join(fleet.run(peeks(w)))
		return h
	}, nil)
}

// testSplitDecisions: while a slot moves, keys of one decision can lie on two masters. Such a
// decision waits, as long as its caller does, and is not made; those on one key alone go on.
func testSplitDecisions(t *testing.T, cluster *redistest.Cluster) {
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: cluster.URL(), Partitions: 1})
	w := workload{Limits: []limitSpec{spec(t, lasting[0].c), spec(t, lasting[4].c)}, Clients: 4, Each: 20,
		Wait: 100 * time.Millisecond}
	for i := range 3 {
		w.Calls = append(w.Calls,
			[]chargeSpec{{Limit: 0, Key: key(0), Cost: 1}, {Limit: 1, Key: key(i), Cost: 1}},
			[]chargeSpec{{Limit: 0, Key: key(0), Cost: 1}}, []chargeSpec{{Limit: 1, Key: key(i), Cost: 1}})
	}
	h := fleet.run(w)
	slot, _ := fullest(t, cluster)
	w.Each, w.Pause = 0, 10*time.Millisecond
	wait := fleet.start(w)
	for range 2 {
		cluster.MigrateSlot(slot, another(cluster, slot), func(moved int) {
			if moved != 1 {
				return
			}
			_, failed := fleet.progress()
			eventually(t, "a decision on keys of two masters fails", func() bool {
				_, now := fleet.progress()
				return now > failed
			})
		})
		fleet.goOn(20)
	}
	fleet.stop()
	h.join(wait())
	for i := range h.ops {
		switch o := &h.ops[i]; {
		case o.Err == "":
		case len(h.Calls[o.What]) == 1:
			t.Errorf("a decision on one key failed: %s", o.Err)
		case !strings.Contains(o.Err, "TRYAGAIN") && !strings.Contains(o.Err, "deadline exceeded"):
			t.Errorf("a decision on two keys failed with %s", o.Err)
		}
	}
	h.join(fleet.run(peeks(w)))
	m := newMachine(t, &h)
	m.loose = true
	checkLinearizable(t, m)
}

// testAcrossPartitions: decisions on subjects of several partitions of a Cluster, of which one soon
// refuses. Never are more admitted than a limit allows, and what the others were charged for those
// that were refused is given back.
func testAcrossPartitions(t *testing.T, cluster *redistest.Cluster) {
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: cluster.URL()})
	store := open(t, redis.Options{URL: cluster.URL()})
	const limit = 200
	for _, a := range []algo.Algorithm{algo.FixedWindow, algo.SlidingWindow, algo.SlidingLog, algo.TokenBucket,
		algo.LeakyBucket, algo.Concurrency} {
		t.Run(a.String(), func(t *testing.T) {
			fleet := fleet.in(t)
			wide := algo.Config{Algorithm: a, N: 50_000, Window: 366 * 24 * time.Hour}
			if a == algo.Concurrency {
				wide.Window, wide.Timeout = 0, 24*time.Hour
			}
			w := workload{
				Limits:  []limitSpec{spec(t, algo.Config{Algorithm: algo.FixedWindow, N: limit, Window: 366 * 24 * time.Hour}), spec(t, wide)},
				Clients: 8, Each: 40,
			}
			// Some subject first, some the one that refuses.
			for i := range keyCount {
				pair := []chargeSpec{{Limit: 0, Key: "tight", Cost: 1}, {Limit: 1, Key: key(i), Cost: 1}}
				w.Calls = append(w.Calls, pair, []chargeSpec{pair[1], pair[0]})
			}
			h := fleet.run(w)
			admitted, denied, failed, _ := h.counts()
			t.Logf("%d admitted, %d denied, %d charges given back so far", admitted, denied, h.stats.GivenBack)
			if failed > 0 || admitted != limit {
				t.Errorf("%d were admitted and %d failed, want %d and 0", admitted, failed, limit)
			}
			if h.stats.GivenBack == 0 {
				t.Error("nothing was given back")
			}
			tight, err := w.Limits[0].counter()
			if err != nil {
				t.Fatal(err)
			}
			other, err := w.Limits[1].counter()
			if err != nil {
				t.Fatal(err)
			}
			if n := used(t, store, tight, "tight"); n != limit {
				t.Errorf("the limit that refuses is charged %d, want %d", n, limit)
			}
			eventually(t, "what was refused is given back", func() bool {
				sum := int64(0)
				for i := range keyCount {
					sum += used(t, store, other, key(i))
				}
				switch a {
				case algo.LeakyBucket:
					// A turn cannot be given back once another one stands behind it.
					return sum >= limit-keyCount && sum <= int64(admitted+denied)
				case algo.TokenBucket:
					// It drains a little meanwhile, and what has drained is not given back.
					return sum <= limit+keyCount && sum >= limit-keyCount
				}
				return sum == limit
			})
		})
	}
	// Two limits that both refuse, each in its own partition. What one took for a decision that the
	// other refuses is gone until it is given back; so fewer may be admitted, but never more.
	t.Run("both refuse", func(t *testing.T) {
		c := algo.Config{Algorithm: algo.FixedWindow, N: limit, Window: 366 * 24 * time.Hour}
		w := workload{Limits: []limitSpec{spec(t, c), spec(t, c)}, Clients: 8, Each: 60}
		for i := range keyCount {
			for j := range keyCount {
				w.Calls = append(w.Calls, []chargeSpec{{Limit: 0, Key: key(i), Cost: 1},
					{Limit: 1, Key: key(j), Cost: 1}})
			}
		}
		h := fleet.in(t).run(w)
		admitted := [2]map[string]int64{{}, {}}
		for i := range h.ops {
			o := &h.ops[i]
			if o.Results[0].Allowed && o.Results[1].Allowed {
				for j, ch := range h.Calls[o.What] {
					admitted[j][ch.Key]++
				}
			}
		}
		for j := range admitted {
			counter, err := w.Limits[j].counter()
			if err != nil {
				t.Fatal(err)
			}
			for i := range keyCount {
				n := admitted[j][key(i)]
				if n > limit {
					t.Errorf("%d were admitted by limit %d under %s, of %d", n, j, key(i), limit)
				}
				eventually(t, "what was refused is given back",
					func() bool { return used(t, store, counter, key(i)) == n })
			}
		}
	})
}

// testForgottenWhileSlotMoves: a refund makes a key fresh, and a later decision of the same call
// asks for it again, while its slot is half-way.
func testForgottenWhileSlotMoves(t *testing.T, cluster *redistest.Cluster) {
	s := open(t, redis.Options{URL: cluster.URL(), Partitions: 1})
	counter := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: 100 * days})
	const n = 300
	for i := range n {
		take(t, s, charge(counter, key(i), 1))
	}
	slot, _ := fullest(t, cluster)
	cluster.MigrateSlot(slot, another(cluster, slot), func(moved int) {
		if moved > 0 {
			return
		}
		var wg sync.WaitGroup
		for i := range 4 * n {
			wg.Go(func() {
				cost := int64(1 - 2*(i%2)) // by turns -1 and 1, four of each key
				var results [1]algo.Result
				if _, err := s.Take(t.Context(), []store.Charge{charge(counter, key(i/4), cost)}, results[:]); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
