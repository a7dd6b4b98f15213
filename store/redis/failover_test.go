package redis_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// Histories over failures. Of an operation that failed it is not known whether it was made, nor
// when; so all limits have windows in which that when makes no difference.

const days = 24 * time.Hour

// lasting are limits whose windows outlast any test.
var lasting = []struct {
	name string
	c    algo.Config
}{
	{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, N: 250, Window: 366 * days}},
	{"sliding_window K=1", algo.Config{Algorithm: algo.SlidingWindow, N: 250, Window: 366 * days}},
	{"sliding_window K=60", algo.Config{Algorithm: algo.SlidingWindow, N: 250, Window: 360 * days, Buckets: 60}},
	{"sliding_log", algo.Config{Algorithm: algo.SlidingLog, N: 250, Window: 366 * days}},
	{"token_bucket", algo.Config{Algorithm: algo.TokenBucket, N: 250, Window: 360 * days}},
	{"leaky_bucket", algo.Config{Algorithm: algo.LeakyBucket, N: 250, Window: 360 * days}},
	{"concurrency", algo.Config{Algorithm: algo.Concurrency, N: 100, Timeout: 24 * time.Hour}},
}

// TestLinearizableOverRestarts: Redis is killed and started again under 3 nodes. It writes what it
// has done to its file before it says so; then no charge is lost that was acknowledged.
func TestLinearizableOverRestarts(t *testing.T) {
	effort.Long(t, "waits for real failures")
	t.Parallel()
	server := redistest.Start(t, "appendonly yes", "appendfsync always")
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: server.URL()})
	for i, v := range lasting {
		t.Run(v.name, func(t *testing.T) {
			costs := []int64{1, 1, 1, 1, 2}
			w := workload{Limits: []limitSpec{spec(t, v.c)}, Calls: eachKey(costs...), Clients: 8, Release: true}
			testRestarts(t, server, fleet.in(t), w, i%2 == 0)
		})
	}
	t.Run("two limits", func(t *testing.T) {
		w := workload{Limits: []limitSpec{spec(t, lasting[0].c), spec(t, lasting[4].c)}, Clients: 8}
		for i := range 3 {
			w.Calls = append(w.Calls, []chargeSpec{{Limit: 0, Key: key(0), Cost: 1}, {Limit: 1, Key: key(i), Cost: 1}})
		}
		testRestarts(t, server, fleet.in(t), w, true)
	})
}

// testRestarts runs a workload while a server is restarted twice, and looks at all keys in the end.
func testRestarts(t *testing.T, server *redistest.Server, fleet *fleet, w workload, kill bool) {
	// All keys have been charged before the first failure, so that no bucket stands empty.
	w.Each = 10
	h := fleet.run(w)
	w.Each, w.Pause = 0, 4*time.Millisecond
	wait := fleet.start(w)
	for range 2 {
		fleet.goOn(40)
		_, failed := fleet.progress()
		if kill {
			server.Kill()
		} else {
			server.Stop()
		}
		eventually(t, "a decision fails", func() bool {
			_, now := fleet.progress()
			return now > failed
		})
		server.Restart()
	}
	fleet.goOn(40)
	fleet.stop()
	h.join(wait())
	h.join(fleet.run(peeks(w)))
	m := newMachine(t, &h)
	m.loose = true
	checkLinearizable(t, m)
}

// peeks is a workload that looks at all that another one charges.
func peeks(w workload) workload {
	seen := map[chargeSpec]bool{}
	var calls [][]chargeSpec
	for _, call := range w.Calls {
		for _, ch := range call {
			ch.Cost = 0
			if !seen[ch] {
				calls = append(calls, []chargeSpec{ch})
			}
			seen[ch] = true
		}
	}
	return workload{Limits: w.Limits, Calls: calls, Clients: 1, Each: 20}
}

// TestLinearizableOverFailover: Sentinel puts a replica in the master's place, first while the
// master lives, then when it was killed. As replication does not wait, the new master may lack
// charges that the old one acknowledged last. They are counted here, by the slots that they took.
// What is promised: nothing is charged twice; all that the new master knows is a linearizable
// history; and no more is admitted than the limit and what was lost.
func TestLinearizableOverFailover(t *testing.T) {
	effort.Long(t, "waits for real failures")
	t.Parallel() // it waits most of the time
	sentinel := redistest.StartSentinel(t)
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: sentinel.URL(), Timeout: 10 * time.Second})
	t.Run("planned", func(t *testing.T) {
		testFailover(t, sentinel, fleet.in(t), func() {
			old := sentinel.Master()
			sentinel.Failover()
			// Until it hears of it the old master goes on, and what it takes is lost.
			eventually(t, "the old master gives up", func() bool {
				reply, _ := old.Try("ROLE")
				role, _ := reply.([]any)
				return len(role) > 0 && role[0] == "slave"
			})
		})
	})
	t.Run("killed", func(t *testing.T) {
		testFailover(t, sentinel, fleet.in(t), func() {
			old := sentinel.KillMaster()
			sentinel.AwaitMaster(old)
			old.Restart()
		})
	})
}

func testFailover(t *testing.T, sentinel *redistest.Sentinel, fleet *fleet, failover func()) {
	const limit = 500
	c := algo.Config{Algorithm: algo.Concurrency, N: limit, Timeout: 24 * time.Hour}
	w := workload{Limits: []limitSpec{spec(t, c)}, Calls: eachKey(1), Clients: 8, Pause: 50 * time.Millisecond}
	wait := fleet.start(w)
	fleet.goOn(100)
	begin := clock()
	failover()
	end := clock()
	fleet.goOn(100)
	fleet.stop()
	h := wait()

	// A slot that can be given back is known to the new master.
	store := open(t, redis.Options{URL: sentinel.URL()})
	counter, err := w.Limits[0].counter()
	if err != nil {
		t.Fatal(err)
	}
	var known []op
	var lost []*op
	admitted, failed, kept := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for i := range h.ops {
		o := &h.ops[i]
		k := w.Calls[o.What][0].Key
		switch {
		case o.Err != "":
			if !o.NotCharged {
				failed[k]++
				known = append(known, *o)
			}
		case o.Results[0].Allowed:
			admitted[k]++
			ok, err := store.Release(t.Context(), counter, []byte(k), o.Slots[0])
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				kept[k]++
				known = append(known, *o)
			} else {
				lost = append(lost, o)
			}
		}
	}
	for i := range keyCount {
		k := key(i)
		info, _, err := storetest.Peek(t.Context(), store, counter, []byte(k))
		if err != nil {
			t.Fatal(err)
		}
		unknown := int64(0) // charged by decisions that failed
		if info.Key != nil {
			unknown = limit - info.Result.Remaining
		}
		gone := admitted[k] - kept[k]
		t.Logf("%s: %d admitted, of which %d are lost; %d failed, of which %d were charged", k, admitted[k], gone,
			failed[k], unknown)
		if unknown > failed[k] {
			t.Errorf("%s: %d units are charged that nobody was told of, but only %d decisions failed", k, unknown,
				failed[k])
		}
		if kept[k]+unknown > limit {
			t.Errorf("%s: the new master knows of %d charges, the limit is %d", k, kept[k]+unknown, limit)
		}
		if admitted[k] > limit+gone {
			t.Errorf("%s: %d were admitted, of which %d are lost; the limit is %d", k, admitted[k], gone, limit)
		}
	}
	if len(lost) > 0 {
		last := slices.MaxFunc(lost, func(a, b *op) int { return cmp.Compare(a.Return, b.Return) })
		first := slices.MinFunc(lost, func(a, b *op) int { return cmp.Compare(a.Call, b.Call) })
		at := func(ns int64) string { return fmt.Sprint(time.Duration(ns - begin).Round(100 * time.Microsecond)) }
		t.Logf(
			"%d acknowledged charges are lost: asked from %s on, answered up to %s after the failover began, which took %s", len(lost), at(first.Call), at(last.Return), at(end))
	} else {
		t.Log("no acknowledged charge is lost")
	}
	h.ops = known
	m := newMachine(t, &h)
	m.loose = true
	checkLinearizable(t, m)
}
