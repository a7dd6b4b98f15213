package redis_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

func mustLimit(t testing.TB, c algo.Config) *algo.Limit {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// sequence makes a limit of which each of some others holds for a while, one after the other, from
// an instant on; then the first holds.
func sequence(t testing.TB, begin int64, each time.Duration, limits ...*algo.Limit) *algo.Limit {
	t.Helper()
	const day = 24 * time.Hour
	at := time.Duration(begin%day.Microseconds()) * time.Microsecond
	var phases []algo.Phase
	for _, l := range limits {
		phases = append(phases, algo.Phase{From: at % day, Until: (at + each) % day, Limit: l})
		at += each
	}
	l, err := algo.Scheduled(limits[0], phases, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// sameAsAlgo checks that decisions of one ask on one key, in whatever order they came, equal the
// pure algorithm's at the instants that the store names. It returns how many were admitted. A
// charge that may need a margin is decided a moment before it is written, even if it turns out to
// need none: a denial of that moment, because a phase ended or the margin closed in it, may not
// have seen the charge. It can only be the last one before the denial, since a write fails if
// another came between.
func sameAsAlgo(t *testing.T, l *algo.Limit, all []outcome) (admitted, soft, off int) {
	t.Helper()
	slices.SortStableFunc(all, func(a, b outcome) int { return cmp.Compare(a.now, b.now) })
	var st, margin, unseen, unseenMargin algo.State
	at, ask := int64(0), algo.Ask{Cost: 1, MaxDelay: -1}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].now == all[0].now {
			n++
		}
		got := map[algo.Result]int{}
		for i := range n {
			got[all[i].result]++
		}
		for range n {
			before, beforeMargin := st, margin
			before.Ext = slices.Clone(st.Ext)
			want := l.TakeWith(&st, &margin, all[0].now, ask)
			charged := want.Allowed && !want.Off || l.CountDenied()
			if charged && at != all[0].now {
				at, unseen, unseenMargin = all[0].now, before, beforeMargin
			}
			if got[want] == 0 && !want.Allowed {
				want = l.CheckWith(&unseen, &unseenMargin, all[0].now, ask)
			}
			if got[want]--; got[want] < 0 {
				in, until := l.At(all[0].now)
				t.Fatalf(
					"at %d, of %d decisions, the algorithm (%v for another %d µs) gives %+v\nthe store gave also or instead %v", all[0].now, n, in, until-all[0].now, want, got)
			}
			switch {
			case want.Off:
				off++
			case want.Allowed:
				admitted++
				if want.Soft {
					soft++
				}
			}
		}
		all = all[n:]
	}
	return admitted, soft, off
}

// TestChangingLimits: the numbers of a limit change several times while three nodes ask under it, a
// soft margin opens and closes, and for a while there is no limit. Each answer comes from the limit
// in force by Redis' clock.
func TestChangingLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for i, c := range []algo.Config{
		{Algorithm: algo.FixedWindow, Window: 24 * time.Hour},
		{Algorithm: algo.FixedWindow, Window: 24 * time.Hour, CountDenied: true},
		{Algorithm: algo.SlidingWindow, Window: 80 * time.Millisecond},
		{Algorithm: algo.SlidingWindow, Window: 80 * time.Millisecond, Buckets: 4},
		{Algorithm: algo.SlidingLog, Window: 50 * time.Millisecond},
		{Algorithm: algo.TokenBucket, Window: 50 * time.Millisecond},
		{Algorithm: algo.TokenBucket, Window: 20 * time.Millisecond, RefillInterval: true},
		{Algorithm: algo.LeakyBucket, Window: 50 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(c.Algorithm, c.Buckets, c.CountDenied, c.RefillInterval), func(t *testing.T) {
			if i%3 > 0 {
				effort.Long(t, "real phases of a schedule")
			}
			t.Parallel()
			limit := func(n int64, soft int, open time.Duration) *algo.Limit {
				c := c
				c.N, c.Soft, c.SoftFor = n, soft, open
				return mustLimit(t, c)
			}
			stores := make([]*redis.Store, 3)
			for i := range stores {
				stores[i] = open(t, redis.Options{URL: server.URL()})
			}
			// On a machine that stands still for a while the time without a limit may pass unseen.
			for off := 0; off == 0 && !t.Failed(); {
				off = testChangingLimits(t, stores, limit)
			}
		})
	}
}

func testChangingLimits(t *testing.T, stores []*redis.Store,
	limit func(n int64, soft int, open time.Duration) *algo.Limit) (off int) {
	begin, err := stores[0].Time(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const each = 60 * time.Millisecond
	l := sequence(t, begin+each.Microseconds(), each, limit(40, 0, 0), limit(60, 50, 30*time.Millisecond), nil,
		limit(0, 0, 0), limit(70, 30, 10*time.Millisecond), limit(20, 100, time.Millisecond))
	counter := &rule.Counter{ID: rand.Uint64(), Domain: "test", Limit: l}
	withMargin(counter)
	var mu sync.Mutex
	var all []outcome
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			var own []outcome
			for {
				var results [1]algo.Result
				now, err := stores[i%3].Take(t.Context(), []store.Charge{charge(counter, "k", 1)}, results[:])
				if err != nil {
					t.Error(err)
					return
				}
				if own = append(own, outcome{results[0], now}); now > begin+8*each.Microseconds() {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	wg.Wait()
	n := len(all)
	admitted, soft, off := sameAsAlgo(t, l, all)
	t.Logf("%d decisions: %d admitted, %d of them in a margin, %d without a limit", n, admitted, soft, off)
	return off
}

// TestMarginExpiry: neither the state of a margin nor the state of a limit that changes goes before
// it makes no difference any more.
func TestMarginExpiry(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	for i, shape := range shapes {
		if shape.c.Algorithm == algo.Concurrency {
			continue
		}
		t.Run(shape.name, func(t *testing.T) {
			prefix := fmt.Sprintf("margin%d:", i)
			store := open(t, redis.Options{URL: server.URL(), Prefix: prefix})
			soft := shape.c
			soft.Soft, soft.SoftFor = 50, time.Hour
			slow := soft
			slow.N, slow.Burst = 3, 10
			if soft.Algorithm != algo.TokenBucket && soft.Algorithm != algo.LeakyBucket {
				slow.Burst = 0
			}
			begin, err := store.Time(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for what, l := range map[string]*algo.Limit{
				"margin":   mustLimit(t, soft),
				"schedule": sequence(t, begin-int64(time.Minute/time.Microsecond), 5*time.Hour, mustLimit(t, soft), mustLimit(t, slow), nil),
			} {
				for _, group := range []uint64{0, rand.Uint64()} {
					counter := &rule.Counter{ID: rand.Uint64(), Group: group, Domain: "test", Limit: l}
					withMargin(counter)
					var st, margin algo.State
					for step, cost := range []int64{1, 9, 2, 0, -1, 2, 3, 9, -1, 1} {
						r, now := take(t, store, charge(counter, "k", cost))
						if want := l.TakeWith(&st, &margin, now, algo.Ask{Cost: cost, MaxDelay: -1}); r[0] != want {
							t.Fatalf("%s, step %d: got %+v, want %+v", what, step, r[0], want)
						}
						keys, _ := server.Do("KEYS", prefix+"*").([]any)
						last := int64(0)
						for _, key := range keys {
							last = max(last, server.Do("PEXPIRETIME", key.(string)).(int64)*1000)
						}
						reset := r[0].ResetAfter
						if m := l.Margin(); margin.B != 0 {
							reset = max(reset, m.Check(&margin, now, algo.Ask{}).ResetAfter)
						}
						if last < now+reset {
							t.Errorf("%s, step %d: all is gone %d µs before it is fresh", what, step, now+reset-last)
						}
						if most := now + 12*reset + 4*shape.c.Window.Microseconds() + int64(4*time.Hour/time.Microsecond); last > most {
							t.Errorf("%s, step %d: kept for %v, fresh after %v", what, step,
								time.Duration(last-now)*time.Microsecond, time.Duration(reset)*time.Microsecond)
						}
					}
					if margin.B == 0 {
						t.Errorf("%s: the margin was not used", what)
					}
					if info, ok, err := storetest.Peek(t.Context(), store, counter, []byte("k")); err != nil || !ok ||
						info.Result.Remaining > 1 {
						t.Errorf("%s: Peek gives %+v, %v, %v", what, info, ok, err)
					}
					if ok, err := store.Reset(t.Context(), counter, []byte("k")); !ok || err != nil {
						t.Errorf("%s: Reset: %v, %v", what, ok, err)
					}
					if left, _ := server.Do("KEYS", prefix+"*").([]any); len(left) > 0 {
						t.Errorf("%s: %d keys are left after a reset", what, len(left))
					}
				}
			}
		})
	}
}

// TestMarginsTogether: where many ask at once beyond a limit whose margin closes, what the margin
// admits is settled together, and nothing but that, while Redis itself grants what is within the
// limit.
func TestMarginsTogether(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	counter := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: 100 * days, Soft: 10,
		SoftFor: time.Hour})
	beside := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 100 * days})
	shadow := charge(beside, "k", 1)
	shadow.Mode = rule.Shadow
	before := s.Stats()
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted, soft := 0, 0
	for range 64 {
		wg.Go(func() {
			for range 40 {
				results := make([]algo.Result, 2)
				if _, err := s.Take(t.Context(), []store.Charge{charge(counter, "k", 1), shadow}, results); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if results[0].Allowed {
					admitted++
				}
				if results[0].Soft {
					soft++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	after := s.Stats()
	if admitted != 1100 || soft != 100 {
		t.Errorf("%d admitted, %d of them in the margin; want 1100 and 100", admitted, soft)
	}
	if n := used(t, s, beside, "k"); n != 64*40 {
		t.Errorf("the limit in shadow was charged %d, want all %d", n, 64*40)
	}
	// Each swap of a crowd of 64 settles some dozens.
	if swaps := after.Swaps - before.Swaps; swaps == 0 || swaps > 100+64 {
		t.Errorf("%d swaps", swaps)
	}
	t.Logf("%d swaps, %d calls", after.Swaps-before.Swaps, after.Calls-before.Calls)
}

// TestSpacing: 1,000 requests into a queue of 500 at 200 a second, on three nodes. 501 are
// admitted, one of which leaves at once; the others leave one by one, a two-hundredth of a second
// apart.
func TestSpacing(t *testing.T) {
	const gap = int64(5000) // µs
	for _, virtual := range []bool{true, false} {
		t.Run(fmt.Sprint("virtual=", virtual), func(t *testing.T) {
			server := redistest.Start(t)
			o := redis.Options{URL: server.URL()}
			if virtual {
				o.Clock = func() int64 { return 1767225600_000000 }
			}
			counter := counterOf(t, algo.Config{Algorithm: algo.LeakyBucket, N: 200, Window: time.Second, Burst: 500})
			var stores []*redis.Store
			for range 3 {
				stores = append(stores, open(t, o))
			}
			var mu sync.Mutex
			var wg sync.WaitGroup
			var all []outcome
			for i := range 1000 {
				wg.Go(func() {
					var results [1]algo.Result
					now, err := stores[i%3].Take(t.Context(), []store.Charge{charge(counter, "k", 1)}, results[:])
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					all = append(all, outcome{results[0], now})
				})
			}
			wg.Wait()
			var departures []int64
			first, last := all[0].now, all[0].now
			for _, o := range all {
				first, last = min(first, o.now), max(last, o.now)
				if o.result.Allowed {
					departures = append(departures, o.now+o.result.Delay)
				}
			}
			slices.Sort(departures)
			for i := 1; i < len(departures); i++ {
				if d := departures[i] - departures[i-1]; d < gap {
					t.Fatalf("two leave %d µs apart", d)
				}
			}
			if n := int64(len(departures)); n < 501 || n > 501+(last-first)/gap {
				t.Errorf("%d were admitted within %d µs", n, last-first)
			}
			sameAsAlgo(t, counter.Limit, all)
		})
	}
}

// TestDeadHolder: slots of a node that died are free after their time-out, by Redis' clock, though
// nobody gives them back; other nodes' slots stay.
func TestDeadHolder(t *testing.T) {
	t.Parallel() // it waits
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	// On a busy machine the first slots may be free before the last are asked for.
	for timeout := 500 * time.Millisecond; !testDeadHolder(t, server, s, timeout); timeout *= 2 {
		t.Logf("%v were too short", timeout)
	}
	// Both slots of a charge go back under its one id; of a limit whose slots outlast the test.
	long, err := spec(t, algo.Config{Algorithm: algo.Concurrency, N: 10, Timeout: time.Hour}).counter()
	if err != nil {
		t.Fatal(err)
	}
	one := []store.Charge{charge(long, "k", 2)}
	var r [1]algo.Result
	if _, err := s.Take(t.Context(), one, r[:]); err != nil || !r[0].Allowed {
		t.Fatalf("%+v, %v", r[0], err)
	}
	before := used(t, s, long, "k")
	if ok, err := s.Release(t.Context(), long, []byte("k"), one[0].Ask.Slot); !ok || err != nil {
		t.Fatalf("Release: %v, %v", ok, err)
	}
	if n := used(t, s, long, "k"); n > before-2 {
		t.Errorf("%d slots are held after a release of 2, %d before", n, before)
	}
}

// testDeadHolder has nodes die with slots of a time-out. It returns false if the first of them may
// have been free before it was looked at all of them.
func testDeadHolder(t *testing.T, server *redistest.Server, s *redis.Store, timeout time.Duration) bool {
	fleet := startFleet(t, 2)
	fleet.open(redis.Options{URL: server.URL()})
	held := spec(t, algo.Config{Algorithm: algo.Concurrency, N: 10, Timeout: timeout})
	counter, err := held.counter()
	if err != nil {
		t.Fatal(err)
	}
	begun, err := s.Time(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// 8 slots
	fleet.run(workload{Limits: []limitSpec{held}, Calls: [][]chargeSpec{{{Key: "k", Cost: 2}}}, Clients: 1, Each: 2})
	for _, n := range fleet.nodes {
		n.kill()
	}
	own := charge(counter, "k", 2)
	var r [1]algo.Result
	now, err := s.Take(t.Context(), []store.Charge{own}, r[:])
	if err != nil {
		t.Fatal(err)
	}
	r2, later := take(t, s, own)
	if later >= begun+timeout.Microseconds() {
		return false
	}
	if !r[0].Allowed || r[0].Remaining != 0 {
		t.Fatalf("%+v", r[0])
	}
	if r2[0].Allowed || r2[0].RetryAfter <= 0 || later+r2[0].RetryAfter > now+timeout.Microseconds() {
		t.Fatalf("while the dead node's slots are held: %+v", r2[0])
	}
	opens := later + r2[0].RetryAfter
	eventually(t, "the slots are free", func() bool {
		r, now := take(t, s, own)
		if r[0].Allowed != (now >= opens) {
			t.Fatalf("at %d, %d µs from when the first is over: %+v", now, now-opens, r[0])
		}
		return r[0].Allowed
	})
	return true
}

// TestSlotsOfALimiter: a request of several hits holds so many slots under one id, and any node may
// give them back.
func TestSlotsOfALimiter(t *testing.T) {
	server := redistest.Start(t)
	var nodes []*weir.Limiter
	for range 2 {
		l, err := weir.New(open(t, redis.Options{URL: server.URL()}), weir.Limit("jobs", "5 concurrent", "user"))
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, l)
	}
	ask := func(node int, hits int64, want bool) (slot string) {
		t.Helper()
		var d weir.Decision
		r := weir.Request{Attributes: weir.Map{"user": "ada"}, Hits: hits, Peek: hits == 0}
		if err := nodes[node].Decide(t.Context(), &r, &d); err != nil || d.Allowed != want ||
			want != (d.Limits[0].Slot != "") {
			t.Fatalf("%d slots: %+v, %v", hits, d.Limits, err)
		}
		return d.Limits[0].Slot
	}
	slot := ask(0, 3, true)
	ask(1, 3, false)
	ask(1, 2, true)
	for i, want := range []bool{true, false} {
		if ok, err := nodes[1].Release(t.Context(), slot); ok != want || err != nil {
			t.Errorf("release %d: %v, %v", i, ok, err)
		}
	}
	ask(0, 4, false)
	ask(0, 3, true)
}
