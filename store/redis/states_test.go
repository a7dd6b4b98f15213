package redis_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// TestFunctionFlush: somebody throws the functions away under load. Nothing fails, and nothing is
// charged twice.
func TestFunctionFlush(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: server.URL()})
	checkRuns(t, []*redistest.Server{server}, func() history {
		w := everything(t)
		for i := range 4 { // and some pairs
			w.Calls = append(w.Calls, []chargeSpec{{Limit: 0, Key: "pair", Cost: 1},
				{Limit: 3, Key: fmt.Sprint("pair ", i), Cost: 1}})
		}
		w.Each, w.Pause = 0, 4*time.Millisecond
		wait := fleet.start(w)
		for range 20 {
			fleet.goOn(20)
			server.Do("FUNCTION", "FLUSH")
		}
		fleet.goOn(20)
		fleet.stop()
		h := wait()
		for i := range h.ops {
			if o := &h.ops[i]; o.Err != "" {
				t.Fatalf("a decision failed: %s", o.Err)
			}
		}
		if h.stats.Loads == 0 {
			t.Error("the functions were never loaded again")
		}
		h.join(fleet.run(peeks(w)))
		return h
	}, nil)
}

// counterOf is a counter of its own.
func counterOf(t testing.TB, c algo.Config) *rule.Counter {
	t.Helper()
	counter, err := spec(t, c).counter()
	if err != nil {
		t.Fatal(err)
	}
	return counter
}

// shapes are limits of each form in which a state lies in Redis. Their windows outlast any test.
var shapes = []struct {
	name string
	c    algo.Config
}{
	{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: 100 * days}},
	{"fixed_window from the first request", algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Hour, FirstRequest: true}},
	{"fixed_window by the calendar", algo.Config{Algorithm: algo.FixedWindow, N: 10, Calendar: algo.Year}},
	{"sliding_window K=1", algo.Config{Algorithm: algo.SlidingWindow, N: 10, Window: 100 * days}},
	{"sliding_window K=60", algo.Config{Algorithm: algo.SlidingWindow, N: 10, Window: 60 * days, Buckets: 60}},
	{"sliding_log", algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: time.Hour}},
	{"sliding_log of weeks", algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: 20 * days}},
	{"token_bucket", algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour}},
	{"token_bucket of minutes", algo.Config{Algorithm: algo.TokenBucket, N: 100_000, Window: 360 * days, Burst: 10}},
	{"token_bucket at intervals", algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour, RefillInterval: true}},
	{"leaky_bucket", algo.Config{Algorithm: algo.LeakyBucket, N: 10, Window: time.Hour}},
	{"concurrency", algo.Config{Algorithm: algo.Concurrency, N: 10, Timeout: time.Hour}},
}

// onlyKey returns the one key of a server that begins with a prefix.
func onlyKey(t *testing.T, server *redistest.Server, prefix string) string {
	t.Helper()
	keys, _ := server.Do("KEYS", prefix+"*").([]any)
	if len(keys) != 1 {
		t.Fatalf("there are %d keys, want one: %q", len(keys), keys)
	}
	return keys[0].(string)
}

// TestForeignStates: what lies at a key is no state: of another type, cut off, too long, or noise.
// It counts as fresh and is written over; and the decisions that go along are as ever.
func TestForeignStates(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	rnd := rand.New(rand.NewPCG(redis.Seed(t), 0))
	step := effort.Of(7, 1) // 15 bytes are among them
	for i, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			g := startGate(t, server)
			f := &foreign{gate: g, counter: counterOf(t, shape.c), beside: counterOf(t, lasting[0].c)}
			prefix := fmt.Sprintf("foreign%d:", i)
			f.store = open(t, redis.Options{URL: g.url(), Prefix: prefix})
			// The state says that all is used up, so that it shows whether anything of it counts.
			for range f.counter.Limit.Check(&algo.State{}, 0, algo.Ask{}).Limit {
				take(t, f.store, charge(f.counter, "k", 1))
			}
			name := onlyKey(t, server, prefix)
			valid := server.Do("GET", name).(string)
			set := func(value string) func() { return func() { server.Do("SET", name, value) } }
			f.test(t, "a list", func() { server.Do("DEL", name); server.Do("RPUSH", name, "x") })
			f.test(t, "a hash", func() { server.Do("DEL", name); server.Do("HSET", name, "x", "y") })
			f.test(t, "an empty string", set(""))
			f.test(t, "text", set(strings.Repeat("what is this? ", 40)))
			for size := 1; size < len(valid); size += step + size/16 {
				// The state of a window that has one bucket has 15 bytes, so those may be one.
				f.noise = size == 15
				f.test(t, fmt.Sprintf("%d of the %d bytes of a state", size, len(valid)), set(valid[:size]))
			}
			f.noise = false
			f.test(t, "a state but its last byte", set(valid[:len(valid)-1]))
			// A value with the size of a state can be one. Whatever it says, the others are
			// decided. (Lua reads only the head of a sliding window, so it can decide by a value
			// that the node then cannot read; that is counted as if they disagreed.)
			f.noise = true
			store, err := redis.Open(redis.Options{URL: g.url(), Prefix: prefix, Timeout: 30 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			f.store = store
			f.test(t, "a state with a byte more", set(valid+"x"))
			for range effort.Of(5, 20) {
				noise := []byte(valid)
				for range 1 + rnd.IntN(len(noise)) {
					noise[rnd.IntN(len(noise))] = byte(rnd.Uint32())
				}
				f.test(t, fmt.Sprintf("%x", noise), set(string(noise)))
			}
		})
	}
}

// foreign is a key under which no state lies.
type foreign struct {
	gate    *gate
	store   *redis.Store
	counter *rule.Counter
	beside  *rule.Counter // of other keys
	rounds  int
	noise   bool // it may be a state
}

func (f *foreign) test(t *testing.T, what string, put func()) {
	t.Helper()
	// Alone.
	if f.counter.Limit.Algorithm() == algo.Concurrency {
		put()
		if _, err := f.store.Release(t.Context(), f.counter, []byte("k"), 1); err != nil {
			t.Errorf("%v, where there is %s", err, what)
		}
	}
	put()
	var st algo.State
	f.check(t, what, &st, 1, f.take(t, what, charge(f.counter, "k", 1)))
	if !f.noise {
		f.check(t, what, &st, 2, f.take(t, what, charge(f.counter, "k", 1)))
	}
	// Along with others: two that are equal and go as one, and two of other keys.
	for tries := 0; ; tries++ {
		f.rounds++
		put()
		st = algo.State{}
		others := []string{fmt.Sprint("a ", f.rounds), fmt.Sprint("b ", f.rounds)}
		outcomes := make([]outcome, 4)
		together := f.gate.together(t, f.store, func(i int) {
			c := charge(f.counter, "k", 1)
			if i%2 == 1 {
				c = charge(f.beside, others[i/2], 1)
			}
			outcomes[i] = f.take(t, what+", along with others", c)
		}, len(outcomes))
		for _, i := range []int{1, 3} {
			if r := outcomes[i].result; !r.Allowed || r.Remaining != r.Limit-1 {
				t.Errorf("%s: a decision that went along gives %+v", what, r)
			}
			if n := used(t, f.store, f.beside, others[i/2]); n != 1 {
				t.Errorf("%s: a key of a decision that went along is charged %d", what, n)
			}
		}
		if !f.noise {
			first, second := outcomes[0], outcomes[2]
			if first.result.Remaining < second.result.Remaining {
				first, second = second, first
			}
			f.check(t, what+", along with others", &st, 1, first)
			f.check(t, what+", along with others", &st, 2, second)
		}
		if together || t.Failed() {
			return
		}
		if tries == 100 {
			t.Fatal("decisions made at the same time did not leave as one call")
		}
	}
}

// outcome is what came of a decision on one charge.
type outcome struct {
	result algo.Result
	now    int64
}

func (f *foreign) take(t *testing.T, what string, c store.Charge) outcome {
	var results [1]algo.Result
	now, err := f.store.Take(t.Context(), []store.Charge{c}, results[:])
	if err != nil {
		t.Errorf("%v, where there is %s", err, what)
	}
	return outcome{results[0], now}
}

func (f *foreign) check(t *testing.T, what string, st *algo.State, n int, got outcome) {
	t.Helper()
	if f.noise {
		if r := got.result; r.Remaining < 0 || r.Remaining > r.Limit {
			t.Errorf("%s: %+v", what, r)
		}
		return
	}
	if want := f.counter.Limit.Take(st, got.now, algo.Ask{Cost: 1, MaxDelay: -1, Slot: uint64(n)}); got.result != want {
		t.Errorf("%s: decision %d gives\n%+v, on a fresh state it would be\n%+v", what, n, got.result, want)
	}
}

// TestExpiry: a key goes with the first millisecond at which it is as good as fresh.
func TestExpiry(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	for i, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			prefix := fmt.Sprintf("expiry%d:", i)
			s := open(t, redis.Options{URL: server.URL(), Prefix: prefix})
			counter := counterOf(t, shape.c)
			check := func(what string, cost int64, twice bool) {
				t.Helper()
				charges := []store.Charge{charge(counter, "k", cost)}
				if twice { // by compare-and-swap
					charges = append(charges, charges[0])
				}
				results, now := take(t, s, charges...)
				keys, _ := server.Do("KEYS", prefix+"*").([]any)
				last := results[len(results)-1]
				if last.ResetAfter == 0 {
					if len(keys) > 0 {
						t.Errorf("%s: a fresh key is kept", what)
					}
					return
				}
				want := (now + last.ResetAfter + 999) / 1000
				if got := server.Do("PEXPIRETIME", onlyKey(t, server, prefix)); got != want {
					t.Errorf("%s: the key goes at %v, which is %v ms from when it is fresh", what, got,
						got.(int64)-want)
				}
			}
			check("the first charge", 1, false)
			check("the second", 2, false)
			check("a peek", 0, false)
			if shape.c.Algorithm != algo.Concurrency {
				check("a refund", -1, false)
			}
			check("another charge", 3, false)
			check("one that is denied", 9, false)
			check("two charges in one", 1, true)
			if shape.c.Algorithm != algo.Concurrency {
				check("two refunds in one", -1, true)
				check("the rest given back", -9, false)
			}
		})
	}
	// States of windows of one rule lie together, and go with the last.
	t.Run("windows of a rule", func(t *testing.T) {
		s := open(t, redis.Options{URL: server.URL(), Prefix: "rule:"})
		var charges []store.Charge
		for _, limit := range grouped(
			spec(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: 50 * days}),
			spec(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: 20 * days}),
			spec(t, algo.Config{Algorithm: algo.SlidingWindow, N: 10, Window: 100 * days}),
		) {
			counter, err := limit.counter()
			if err != nil {
				t.Fatal(err)
			}
			charges = append(charges, charge(counter, "k", 1))
		}
		stop := int64(0)
		for _, some := range [][]store.Charge{charges[:1], charges[1:2], charges[:2], charges, charges[:1], charges[1:],
			charges} {
			results, now := take(t, s, some...)
			for _, r := range results {
				stop = max(stop, (now+r.ResetAfter+999)/1000)
			}
			if got := server.Do("PEXPIRETIME", onlyKey(t, server, "rule:")); got != stop {
				t.Errorf("after %d charges the key goes at %v, which is %v ms from when it is fresh", len(some), got,
					got.(int64)-stop)
			}
		}
	})
}
