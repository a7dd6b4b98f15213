package redis_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// The fate of units that are out when Redis has forgotten them. A record that is not there is none:
// reports on it are ignored, and count for nothing. So the units used of it come on top of the
// limit, once.

// borrowed is a key of which ten units are out.
type borrowed struct {
	name string
	c    *rule.Counter
	told algo.Told // of all ten
}

// borrowTen takes 40 of each form of state, and then borrows ten. between is called in between.
func borrowTen(t *testing.T, s *redis.Store, between func()) (all []borrowed) {
	t.Helper()
	for name, cfg := range leases() {
		for _, group := range []uint64{0, rand.Uint64()} {
			cfg.LeaseFor = algo.MaxLeaseFor // it ends long after the test
			b := borrowed{name: fmt.Sprint(name, " ", group > 0), c: lending(t, cfg, group)}
			if r, _ := borrow(t, s, b.c, "k", 40, &algo.Ahead{}); !r.Allowed {
				t.Fatalf("%s: %+v", b.name, r)
			}
			all = append(all, b)
		}
	}
	between()
	for i := range all {
		b := &all[i]
		h := algo.Ahead{Want: 10}
		if _, _ = borrow(t, s, b.c, "k", 0, &h); h.Got != 10 {
			t.Fatalf("%s: %+v", b.name, h)
		}
		b.told = algo.Told{End: h.Until, Used: 10}
	}
	return all
}

// answers waits until Redis decides again.
func answers(t *testing.T, s *redis.Store) {
	t.Helper()
	c := lending(t, algo.Config{N: 100, Window: days, Lease: 10}, 0)
	eventually(t, "Redis decides again", func() bool {
		_, err := s.Take(t.Context(), []store.Charge{charge(c, "peek", 0)}, make([]algo.Result, 1))
		return err == nil
	})
}

// drain takes one unit after the other until one is refused, and returns how many it got.
func drain(t *testing.T, s *redis.Store, c *rule.Counter) (n int64) {
	t.Helper()
	for {
		if r, _ := take(t, s, charge(c, "k", 1)); !r[0].Allowed {
			return n
		}
		n++
	}
}

// TestLendRestart: Redis starts again and knows nothing. Holders report on units that it has
// forgotten, and borrow anew.
func TestLendRestart(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	all := borrowTen(t, s, func() {})
	server.Kill()
	server.Restart()
	answers(t, s)
	for _, b := range all {
		h := algo.Ahead{Want: 4}
		h.Told[0] = b.told
		h.Told[1] = algo.Told{End: b.told.End, Returned: 5}
		if r, _ := borrow(t, s, b.c, "k", 1, &h); !r.Allowed || r.Remaining != 99 || h.Got != 4 || h.Out != 4 {
			t.Errorf("%s: %+v, %+v", b.name, r, h)
		}
		again := algo.Ahead{Told: [2]algo.Told{{End: h.Until, Used: 3}, b.told}}
		if r, _ := borrow(t, s, b.c, "k", 0, &again); r.Remaining != 95 || again.Out != 1 {
			t.Errorf("%s: %+v, %+v", b.name, r, again)
		}
		if n := drain(t, s, b.c); n != 95 {
			t.Errorf("%s: %d more are admitted, want 95", b.name, n)
		}
	}
	if st := s.Stats(); st.Disagreements > 0 || st.Loads == 0 {
		t.Errorf("%+v", st)
	}
}

// TestLendPartLost: where the record has a key of its own, either may be lost alone, as when a
// failover comes between two calls.
func TestLendPartLost(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	for _, record := range []bool{false, true} {
		found := 0
		for _, b := range borrowTen(t, s, func() {}) {
			keyOf := func(c *rule.Counter) (name string) {
				id := string(binary.BigEndian.AppendUint64(nil, c.ID))
				keys, _ := server.Do("KEYS", "*").([]any)
				for _, key := range keys {
					if strings.Contains(key.(string), id) {
						name = key.(string)
					}
				}
				return name
			}
			state, own := keyOf(b.c), keyOf(b.c.Lease)
			if state == "" || own == "" { // they lie together
				continue
			}
			found++
			lost, want, out := state, int64(100-10), int64(0)
			if record {
				lost, want = own, 100-40
			}
			server.Do("DEL", lost)
			h := algo.Ahead{Told: [2]algo.Told{b.told}}
			if r, _ := borrow(t, s, b.c, "k", 0, &h); r.Remaining != want || h.Out != out {
				t.Errorf("%s without %q: %+v, %+v", b.name, lost, r, h)
			}
			if n := drain(t, s, b.c); n != want {
				t.Errorf("%s without %q: %d are admitted, want %d", b.name, lost, n, want)
			}
		}
		if found == 0 {
			t.Error("no record has a key of its own")
		}
	}
	if st := s.Stats(); st.Disagreements > 0 {
		t.Errorf("%+v", st)
	}
}

// TestLendFailover: Sentinel makes a replica the master that has not heard of the last loans, and
// then one that has.
func TestLendFailover(t *testing.T) {
	effort.Long(t, "waits for real failures")
	t.Parallel() // it waits most of the time
	sentinel := redistest.StartSentinel(t)
	s := open(t, redis.Options{URL: sentinel.URL()})
	replicas := func(f func(*redistest.Server)) {
		master := sentinel.Master()
		for _, server := range sentinel.Servers() {
			if server != master {
				f(server)
			}
		}
	}
	copied := func() {
		eventually(t, "the replicas have all", func() bool {
			all, at := true, sentinel.Master().Info("master_repl_offset")
			replicas(func(r *redistest.Server) { all = all && r.Info("master_repl_offset") == at })
			return all
		})
	}
	await := func(old *redistest.Server) {
		sentinel.AwaitMaster(old)
		answers(t, s)
	}
	check := func(all []borrowed, n int64) {
		t.Helper()
		for _, b := range all {
			h := algo.Ahead{Told: [2]algo.Told{b.told}}
			if r, _ := borrow(t, s, b.c, "k", 0, &h); r.Remaining != n || h.Out != 0 {
				t.Errorf("%s: %+v, %+v; want %d", b.name, r, h, n)
			}
			if got := drain(t, s, b.c); got != n {
				t.Errorf("%s: %d more are admitted, want %d", b.name, got, n)
			}
		}
		if st := s.Stats(); st.Disagreements > 0 {
			t.Errorf("%+v", st)
		}
	}

	// What the replicas have not read yet goes with their connections to the master.
	lost := borrowTen(t, s, func() {
		copied()
		replicas((*redistest.Server).Pause)
		sentinel.Master().Do("CLIENT", "KILL", "TYPE", "replica")
	})
	old := sentinel.Master()
	old.Kill()
	for _, server := range sentinel.Servers() {
		if server != old {
			server.Resume()
		}
	}
	await(old)
	check(lost, 100-40) // ten more than the limit: all that may be out
	old.Restart()

	kept := borrowTen(t, s, func() {})
	copied()
	await(sentinel.KillMaster())
	check(kept, 100-40-10)
}
