package redis_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// asksRedis reports whether f makes a store ask Redis for a decision.
func asksRedis(s *redis.Store, f func()) bool {
	before := s.Stats()
	f()
	after := s.Stats()
	return after.Calls > before.Calls || after.Remembered == before.Remembered
}

// takeNow decides what s can decide at once.
func takeNow(s *redis.Store, charges ...store.Charge) (results []algo.Result, now int64, ok bool) {
	results = make([]algo.Result, len(charges))
	now, ok = s.TakeNow(charges, results)
	return results, now, ok
}

// refused makes a key refuse, and the store remember it.
func refused(t *testing.T, s *redis.Store, c store.Charge) {
	t.Helper()
	eventually(t, "the key is refused", func() bool {
		r, _ := take(t, s, c)
		return !r[0].Allowed
	})
	// That begins when the node hears what others give back.
	eventually(t, "the refusal is remembered", func() bool { return !asksRedis(s, func() { take(t, s, c) }) })
}

// TestRememberedRefusal: what Redis has refused the node refuses itself, as Redis would, and only
// where nothing else would change.
func TestRememberedRefusal(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour})
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			c := charge(counterOf(t, shape.c), "k", 1)
			if shape.c.Algorithm == algo.Concurrency {
				// A slot can be given back at any moment, on any node.
				for range shape.c.N + 1 {
					take(t, s, c)
				}
				if !asksRedis(s, func() { take(t, s, c) }) {
					t.Error("a refusal of slots is remembered")
				}
				return
			}
			refused(t, s, c)
			// Here and below: a node that loses its connection forgets all that it remembers.
			eventually(t, "the refusal is repeated at once", func() bool {
				r, now, ok := takeNow(s, c)
				if ok && (now == 0 || r[0].Allowed || r[0].Limit == 0) {
					t.Fatalf("at once the node says %+v, %d", r, now)
				}
				if !ok {
					refused(t, s, c)
				}
				return ok && !asksRedis(s, func() { takeNow(s, c) })
			})
			direct := open(t, redis.Options{URL: server.URL()})
			for range 10 {
				first, before := take(t, direct, c)
				own, now := take(t, s, c)
				if own[0].Allowed || own[0].Remaining != first[0].Remaining || own[0].Limit != first[0].Limit {
					t.Errorf("the node says %+v, Redis %+v", own[0], first[0])
				}
				if now+own[0].RetryAfter != before+first[0].RetryAfter ||
					now+own[0].ResetAfter != before+first[0].ResetAfter {
					t.Errorf("the node says %+v at %d; before, Redis said %+v at %d", own[0], now, first[0], before)
				}
				// Its clock must not be ahead of Redis', so that who obeys is not refused again.
				if _, after := take(t, direct, c); now > after {
					t.Errorf("the node says that it is %d, Redis later that it is %d", now, after)
				}
			}
			// Each of these asks; and as a node remembers one refusal of a key, the first one
			// again.
			for name, other := range map[string]store.Charge{
				"a peek":           charge(c.Counter, "k", 0),
				"another cost":     charge(c.Counter, "k", 2),
				"another key":      charge(c.Counter, "l", 1),
				"another counter":  charge(counterOf(t, shape.c), "k", 1),
				"a shadow of it":   {Counter: c.Counter, Limit: c.Limit, Key: c.Key, Ask: c.Ask, Mode: rule.Shadow},
				"one of two quota": {Counter: c.Counter, Limit: c.Limit, Key: c.Key, Ask: c.Ask, Mode: rule.Quota},
			} {
				if r, _, ok := takeNow(s, other); ok {
					t.Errorf("%s is answered at once: %+v", name, r)
				}
				if !asksRedis(s, func() { take(t, s, other) }) {
					t.Errorf("%s is answered from memory", name)
				}
			}
			refused(t, s, c)
			wide := algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: 100 * days}
			beside := charge(counterOf(t, wide), "k", 1)
			within := func(want bool, charges ...store.Charge) {
				t.Helper()
				_, remembered, err := s.TakeWithin(t.Context(), time.Hour, time.Hour, charges,
					make([]algo.Result, len(charges)))
				if err != nil || remembered != want {
					t.Errorf("an answer from memory: %v, want %v (%v)", remembered, want, err)
				}
			}
			eventually(t, "a call that another limit would admit is answered from memory", func() bool {
				_, remembered, err := s.TakeWithin(t.Context(), time.Hour, time.Hour, []store.Charge{c, beside},
					make([]algo.Result, 2))
				if err != nil {
					t.Fatal(err)
				}
				return remembered && !asksRedis(s, func() { take(t, s, c, beside) })
			})
			within(false, charge(c.Counter, "k", 0))
			wide.CountDenied = true
			counts := charge(counterOf(t, wide), "k", 1)
			if !asksRedis(s, func() { take(t, s, counts, c) }) {
				t.Error("a call that another limit counts though it is denied is answered from memory")
			}
			if n := used(t, s, counts.Counter, "k"); n != 1 {
				t.Errorf("the limit that counts denied calls counted %d", n)
			}
			if n := used(t, s, beside.Counter, "k"); n != 0 {
				t.Errorf("a limit beside was charged %d", n)
			}
		})
	}
}

// TestRefusalEnds: a refusal is remembered no longer than Redis would refuse.
func TestRefusalEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour})
	for _, c := range []algo.Config{
		{Algorithm: algo.FixedWindow, N: 2, Window: 40 * time.Millisecond},
		{Algorithm: algo.SlidingWindow, N: 2, Window: 40 * time.Millisecond},
		{Algorithm: algo.SlidingWindow, N: 2, Window: 40 * time.Millisecond, Buckets: 10},
		{Algorithm: algo.SlidingLog, N: 2, Window: 40 * time.Millisecond},
		{Algorithm: algo.TokenBucket, N: 50, Window: time.Second, Burst: 1},
		{Algorithm: algo.LeakyBucket, N: 50, Window: time.Second, Burst: 1},
		{Algorithm: algo.FixedWindow, N: 2, Window: 20 * time.Millisecond, Soft: 50, SoftFor: 10 * time.Millisecond},
		{Algorithm: algo.SlidingLog, N: 2, Window: 20 * time.Millisecond, Soft: 50, SoftFor: 5 * time.Millisecond},
		{Algorithm: algo.TokenBucket, N: 100, Window: time.Second, Burst: 2, Soft: 50, SoftFor: 10 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(c.Algorithm, " K=", c.Buckets, " soft=", c.Soft), func(t *testing.T) {
			ask := charge(counterOf(t, c), "k", 1)
			opens, refusals := int64(0), 0
			// On a busy machine a refusal may be over before the key is asked for again: then more
			// of them are needed until one is repeated.
			end := patience.End(t)
			for admitted := 0; admitted < 10 || refusals == 0; {
				if !end.IsZero() && time.Now().After(end) {
					t.Fatal("no refusal was remembered")
				}
				// Redis' clock, before the question: if it opens before that, the node must not
				// refuse.
				before, err := store.Time(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var r []algo.Result
				var now int64
				local := !asksRedis(store, func() { r, now = take(t, store, ask) })
				switch {
				case r[0].Allowed:
					admitted++
				case local:
					refusals++
					if before >= opens {
						t.Fatalf("the node refuses %d µs after Redis would admit", before-opens)
					}
					if now+r[0].RetryAfter > opens+1 {
						t.Fatalf("the node says that it opens at %d, Redis said at %d", now+r[0].RetryAfter, opens)
					}
				default:
					opens = now + r[0].RetryAfter
				}
			}
		})
	}
}

// TestRefusalForgotten: what lets a key admit earlier ends a refusal at once on the node where it
// happens, and by a message on the others. Where nothing did, it would be remembered for an hour.
func TestRefusalForgotten(t *testing.T) {
	testRefusalForgotten(t, redistest.Start(t).URL())
}

func testRefusalForgotten(t *testing.T, url string) {
	here := open(t, redis.Options{URL: url, RememberRefusals: time.Hour})
	there := open(t, redis.Options{URL: url, RememberRefusals: time.Hour})
	for name, raise := range map[string]func(t *testing.T, s *redis.Store, c *rule.Counter){
		"refund": func(t *testing.T, s *redis.Store, c *rule.Counter) { take(t, s, charge(c, "k", -1)) },
		"reset": func(t *testing.T, s *redis.Store, c *rule.Counter) {
			if _, err := s.Reset(t.Context(), c, []byte("k")); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			counter := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 3, Window: 100 * days})
			ask := charge(counter, "k", 1)
			refused(t, here, ask)
			refused(t, there, ask)
			raise(t, here, counter)
			if r, _ := take(t, here, ask); !r[0].Allowed {
				t.Error("the node that raised it still refuses")
			}
			raise(t, here, counter) // that was all there was
			eventually(t, "the other node hears of it", func() bool {
				r, _ := take(t, there, ask)
				return r[0].Allowed
			})
		})
	}
}

// TestRefusalForgottenLater: a node that cannot reach Redis when it lets a key admit earlier tells
// the others as soon as it can.
func TestRefusalForgottenLater(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.Proxy(t, server.Addr())
	here := open(t, redis.Options{URL: "redis://" + proxy.Addr(), RememberRefusals: time.Hour,
		Timeout: 50 * time.Millisecond})
	there := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour})
	ask := charge(counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 3, Window: 100 * days}), "k", 1)
	refused(t, there, ask)
	proxy.Refuse()
	proxy.Cut()
	here.Forget(ask.Counter, ask.Key)
	for range 10 { // so that it has tried
		if _, err := here.Time(t.Context()); err == nil {
			t.Fatal("Redis can be reached")
		}
	}
	if asksRedis(there, func() { take(t, there, ask) }) {
		t.Fatal("the other node has heard of it though Redis cannot be reached")
	}
	proxy.Pass()
	eventually(t, "the other node hears of it", func() bool { return asksRedis(there, func() { take(t, there, ask) }) })
}

// TestRefusalsBounded: a node does not remember more refusals than it has room for, however many
// keys are refused.
func TestRefusalsBounded(t *testing.T) {
	effort.Long(t, "it makes some 300,000 decisions")
	const room = 1 << 17
	const keys = room + 20_000
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour})
	// refuses everything
	counter := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 0, Window: 100 * days})
	all := func() {
		var wg sync.WaitGroup
		const callers = 128
		for i := range callers {
			wg.Go(func() {
				var results [1]algo.Result
				for k := i; k < keys; k += callers {
					if _, err := s.Take(t.Context(), []store.Charge{charge(counter, fmt.Sprint(k), 1)}, results[:]); err != nil || results[0].Allowed {
						t.Errorf("%+v, %v", results[0], err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	all()
	was := s.Stats().Remembered
	if was != 0 {
		t.Errorf("%d refusals of keys that were never asked for are remembered", was)
	}
	all()
	n := s.Stats().Remembered
	t.Logf("%d of %d refusals were remembered", n, keys)
	if n == 0 || n > room {
		t.Errorf("%d of %d refusals were remembered, there is room for %d", n, keys, room)
	}
}

// TestRememberedRefusalOfLoans: a refusal by a limit that lends to other regions is repeated, but
// not for long: units may come back sooner than it says.
func TestRememberedRefusalOfLoans(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour})
	for name, cfg := range leases() {
		for _, lent := range []bool{true, false} {
			counter := lending(t, cfg, 0)
			counter.Lent = lent
			c := charge(counter, "k", 1)
			made(t, s, store.Change{Counter: counter, Limit: counter.Limit, Key: []byte("k"), Units: 1 << 20})
			if r, _ := take(t, s, c); r[0].Allowed {
				t.Fatalf("%s admits", name)
			}
			if !lent {
				for range 3 {
					if !asksRedis(s, func() { take(t, s, c) }) {
						t.Errorf("%s: a refusal is repeated though nodes may return units", name)
					}
				}
				continue
			}
			eventually(t, name+" is repeated", func() bool { return !asksRedis(s, func() { take(t, s, c) }) })
			eventually(t, name+" is asked for again", func() bool { return asksRedis(s, func() { take(t, s, c) }) })
		}
	}
}
