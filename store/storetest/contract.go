package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

func newPair(t *testing.T, n newStore) *pair {
	clock := newVirtual()
	return &pair{store: clock.make(t, n), model: newModel(), clock: clock}
}

// restart lets days pass until the time of the day is the same as at the start, after which all
// windows of configs begin as they do there. To new counters the store is then as good as an empty
// one, which in some stores takes much longer to make.
func (p *pair) restart() {
	now := p.clock.read()
	p.clock.now.Store(start + (now-start+day.Microseconds())/day.Microseconds()*day.Microseconds())
}

func window(n int64) algo.Config {
	return algo.Config{Algorithm: algo.FixedWindow, N: n, Window: time.Minute}
}

// remaining returns the remaining units of a key.
func (p *pair) remaining(t *testing.T, c *rule.Counter, key string) int64 {
	t.Helper()
	return p.take(t, charge(c, key, 0))[0].Remaining
}

func testAllOrNothing(t *testing.T, n newStore) {
	p := newPair(t, n)
	wide, tight := counterOf(t, window(100)), counterOf(t, window(2))
	counts := window(100)
	counts.CountDenied = true
	counting := counterOf(t, counts)
	for i := range 5 {
		r := p.take(t, charge(wide, "k", 1), charge(tight, "k", 1), charge(counting, "k", 1))
		if want := i < 2; r[1].Allowed != want || !r[0].Allowed || !r[2].Allowed {
			t.Fatalf("call %d: %+v", i, r)
		}
	}
	if left := p.remaining(t, wide, "k"); left != 98 {
		t.Errorf("the limit that admits has %d left, want 98: denied calls were charged", left)
	}
	if left := p.remaining(t, counting, "k"); left != 95 {
		t.Errorf("the limit that counts denied requests has %d left, want 95", left)
	}
	if left := p.remaining(t, tight, "k"); left != 0 {
		t.Errorf("the limit that denies has %d left", left)
	}
	// The order of the charges has no effect.
	p.take(t, charge(tight, "k", 1), charge(wide, "k", 1))
	if left := p.remaining(t, wide, "k"); left != 98 {
		t.Errorf("%d left after a call denied by its first limit, want 98", left)
	}
	// A peek in the call consumes nothing, and a refund is not made by a call that is denied.
	p.take(t, charge(wide, "k", 0), charge(tight, "other", 1))
	p.take(t, charge(wide, "k", -1), charge(tight, "k", 1))
	if left := p.remaining(t, wide, "k"); left != 98 {
		t.Errorf("%d left, want 98", left)
	}
	p.take(t, charge(wide, "k", -1), charge(tight, "other", 1))
	if left := p.remaining(t, wide, "k"); left != 99 {
		t.Errorf("%d left after a refund, want 99", left)
	}
}

func testModes(t *testing.T, n newStore) {
	for _, test := range []struct {
		name    string
		modes   []rule.Mode
		full    []bool // which limits have nothing left
		charged []bool // which of them are charged by the call
	}{
		{"all admit", []rule.Mode{rule.Enforce, rule.Shadow, rule.Quota}, []bool{false, false, false}, []bool{true, true, true}},
		{"enforce denies", []rule.Mode{rule.Enforce, rule.Shadow, rule.Quota}, []bool{true, false, false}, []bool{false, true, false}},
		{"shadow denies", []rule.Mode{rule.Enforce, rule.Shadow, rule.Quota}, []bool{false, true, false}, []bool{true, false, true}},
		{"the only quota denies", []rule.Mode{rule.Enforce, rule.Shadow, rule.Quota}, []bool{false, false, true}, []bool{false, true, false}},
		{"one of two quotas denies", []rule.Mode{rule.Quota, rule.Quota, rule.Enforce}, []bool{true, false, false}, []bool{false, true, true}},
		{"both quotas deny", []rule.Mode{rule.Quota, rule.Quota, rule.Enforce}, []bool{true, true, false}, []bool{false, false, false}},
		{"shadow alone", []rule.Mode{rule.Shadow}, []bool{true}, []bool{false}},
		{"shadow alone admits", []rule.Mode{rule.Shadow}, []bool{false}, []bool{true}},
		{"quota alone", []rule.Mode{rule.Quota}, []bool{true}, []bool{false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPair(t, n)
			var call []store.Charge
			for i, mode := range test.modes {
				c := charge(counterOf(t, window(10)), "k", 1)
				if test.full[i] {
					fill := c
					fill.Ask.Cost = 10
					p.take(t, fill)
				}
				c.Mode = mode
				call = append(call, c)
			}
			before := make([]int64, len(call))
			for i := range call {
				before[i] = p.remaining(t, call[i].Counter, "k")
			}
			results := p.take(t, call...)
			for i := range call {
				if results[i].Allowed == test.full[i] {
					t.Errorf("charge %d: allowed is %v", i, results[i].Allowed)
				}
				if charged := p.remaining(t, call[i].Counter, "k") == before[i]-1; charged != test.charged[i] {
					t.Errorf("charge %d: charged is %v, want %v", i, charged, test.charged[i])
				}
			}
		})
	}
}

func testSameStateTwice(t *testing.T, n newStore) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			p := newPair(t, n)
			cfg := algo.Config{Algorithm: a, N: 5, Window: time.Minute}
			if a == algo.Concurrency {
				cfg.Window = 0
			}
			if a == algo.LeakyBucket {
				cfg.Burst = 4
			}
			c := counterOf(t, cfg)
			r := p.take(t, charge(c, "k", 3), charge(c, "k", 3))
			if !r[0].Allowed || r[1].Allowed {
				t.Errorf("3 and 3 of 5: %+v", r)
			}
			if left := p.remaining(t, c, "k"); left != 5 {
				t.Errorf("the denied call charged %d", 5-left)
			}
			r = p.take(t, charge(c, "k", 3), charge(c, "other", 1), charge(c, "k", 2))
			if !r[0].Allowed || !r[2].Allowed || r[2].Remaining != 0 {
				t.Errorf("3 and 2 of 5: %+v", r)
			}
			if left := p.remaining(t, c, "other"); left != 4 {
				t.Errorf("the other key has %d left, want 4", left)
			}
			shadow := charge(c, "s", 4)
			shadow.Mode = rule.Shadow
			r = p.take(t, shadow, shadow, charge(c, "s", 2))
			if !r[0].Allowed || r[1].Allowed || r[2].Allowed {
				t.Errorf("shadow 4, shadow 4 and 2 of 5: %+v", r)
			}
			if left := p.remaining(t, c, "s"); left != 1 {
				t.Errorf("%d left, want 1: only the first shadow charge is made", left)
			}
		})
	}
}

func testKeysApart(t *testing.T, n newStore) {
	p := newPair(t, n)
	one, two := counterOf(t, window(3)), counterOf(t, window(4))
	keys := []string{"", "\x00", "\x00\x00", "a", "aa", "a\x00", string(make([]byte, 5000))}
	for i, k := range keys {
		if left := p.take(t, charge(one, k, 1))[0].Remaining; left != 2 {
			t.Errorf("key %d is not its own: %d left", i, left)
		}
		if left := p.take(t, charge(two, k, 1))[0].Remaining; left != 3 {
			t.Errorf("key %d of the other counter is not its own: %d left", i, left)
		}
	}
	// A key is the store's own once the call is over.
	k := []byte("borrowed")
	c := charge(one, "", 1)
	c.Key = k
	p.take(t, c)
	copy(k, "overwrit")
	if left := p.remaining(t, one, "borrowed"); left != 2 {
		t.Errorf("%d left under a key whose bytes the caller used again, want 2", left)
	}
}

func testManyCharges(t *testing.T, n newStore) {
	p := newPair(t, n)
	rnd := rand.New(rand.NewPCG(1, 2))
	counters := []*rule.Counter{counterOf(t, window(2)),
		counterOf(t, algo.Config{Algorithm: algo.TokenBucket, N: 3, Window: time.Hour})}
	call := make([]store.Charge, 10_000)
	for i := range call {
		call[i] = charge(counters[rnd.IntN(2)], fmt.Sprint(rnd.IntN(4000)), 1)
		call[i].Mode = rule.Shadow
	}
	p.take(t, call...)
	p.take(t, call...)
	// All of them enforced: even a charge with units left is not made, since others have none.
	for i := range call {
		call[i].Mode = rule.Enforce
	}
	p.take(t, call...)
	// Distinct keys, all admitted but the last: nothing is charged; then without it: all are.
	c := counterOf(t, window(1))
	full := counterOf(t, window(0))
	for i := range call {
		call[i] = charge(c, fmt.Sprint("distinct ", i), 1)
	}
	call[len(call)-1] = charge(full, "", 1)
	p.take(t, call...)
	if left := p.remaining(t, c, "distinct 0"); left != 1 {
		t.Errorf("%d left, want 1", left)
	}
	p.take(t, call[:len(call)-1]...)
	if left := p.remaining(t, c, "distinct 0"); left != 0 {
		t.Errorf("%d left, want 0", left)
	}
}

func testReload(t *testing.T, n newStore) {
	t.Run("alone", func(t *testing.T) { testReloadIn(t, n, 0) })
	t.Run("in a group", func(t *testing.T) { testReloadIn(t, n, 0xFEDCBA9876543210) })
}

// testReloadIn reloads counters of a group; 0 for none.
func testReloadIn(t *testing.T, n newStore, group uint64) {
	p := newPair(t, n)
	for _, a := range algorithms {
		for _, cfg := range configs[a] {
			cfg.Algorithm = a
			p.restart()
			counterOf := func(t *testing.T, cfg algo.Config) *rule.Counter {
				c := counterOf(t, cfg)
				if group != 0 {
					join(c, group+c.ID)
				}
				return c
			}
			old := counterOf(t, cfg)
			for range 3 {
				p.take(t, charge(old, "k", 1), charge(old, "l", 1))
				p.clock.advance(300 * time.Millisecond)
			}
			// N alone: the same identity, other numbers.
			more := cfg
			more.N += 2
			c := charge(old, "k", 1)
			c.Limit = mustLimit(t, more)
			p.take(t, c)
			if a == algo.SlidingWindow && group == 0 { // K too
				more.Buckets = 5
				c.Limit = mustLimit(t, more)
				p.take(t, c)
				p.take(t, charge(old, "k", 1))
			}
			if a == algo.Concurrency || cfg.Calendar != algo.NoCalendar {
				continue
			}
			// Another W: another identity, which takes the state over once.
			wide := cfg
			wide.Window *= 2
			next := counterOf(t, wide)
			join(next, old.Group)
			succeed(next, counterOf(t, cfg), old)
			p.take(t, charge(next, "k", 1))
			p.take(t, charge(next, "k", 1), charge(next, "l", 1), charge(next, "new", 1))
			p.clock.advance(time.Second)
			p.take(t, charge(next, "k", 1), charge(next, "l", 1))
			if left := p.remaining(t, old, "k"); left != p.remaining(t, old, "never seen") {
				t.Errorf("%+v: the old state stayed: %d left", cfg, left)
			}
		}
	}
}

func testRelease(t *testing.T, n newStore) {
	p := newPair(t, n)
	c := counterOf(t, algo.Config{Algorithm: algo.Concurrency, N: 3, Timeout: time.Minute})
	call := []store.Charge{charge(c, "k", 2)}
	results := make([]algo.Result, 1)
	if _, err := p.store.Take(t.Context(), call, results); err != nil || !results[0].Allowed || call[0].Ask.Slot == 0 {
		t.Fatalf("%+v, %v, slot %d", results, err, call[0].Ask.Slot)
	}
	slot := call[0].Ask.Slot
	denied := []store.Charge{charge(c, "k", 2)}
	if _, err := p.store.Take(t.Context(), denied, results); err != nil || results[0].Allowed ||
		denied[0].Ask.Slot != 0 {
		t.Errorf("denied: %+v, %v, slot %d", results, err, denied[0].Ask.Slot)
	}
	for _, test := range []struct {
		name string
		key  string
		slot uint64
		ok   bool
	}{
		{"another slot", "k", slot + 1, false},
		{"another key", "l", slot, false},
		{"no slot", "k", 0, false},
		{"the slot", "k", slot, true},
		{"the slot again", "k", slot, false},
	} {
		if ok, err := p.store.Release(t.Context(), c, []byte(test.key), test.slot); err != nil || ok != test.ok {
			t.Errorf("release of %s: %v, %v", test.name, ok, err)
		}
	}
	// Two windows of one request: when one denies, the other holds no slot.
	tight := counterOf(t, window(1))
	p.take(t, charge(tight, "k", 1))
	p.take(t, charge(c, "k", 1), charge(tight, "k", 1))
	if left := p.remaining(t, c, "k"); left != 3 {
		t.Errorf("%d slots left after a call that another limit denied, want 3", left)
	}
	// A slot that is never given back lapses.
	p.take(t, charge(c, "k", 3))
	p.clock.advance(time.Minute)
	if left := p.remaining(t, c, "k"); left != 3 {
		t.Errorf("%d slots left after the time-out, want 3", left)
	}
	// Slots cannot be guessed from one another.
	seen := map[uint64]bool{}
	for range 100 {
		call[0] = charge(c, "k", 1)
		if _, err := p.store.Take(t.Context(), call, results); err != nil || seen[call[0].Ask.Slot] {
			t.Fatalf("slot %d twice, or %v", call[0].Ask.Slot, err)
		}
		seen[call[0].Ask.Slot] = true
		if ok, err := p.store.Release(t.Context(), c, []byte("k"), call[0].Ask.Slot); !ok || err != nil {
			t.Fatalf("Release: %v, %v", ok, err)
		}
	}
}

func testBadCalls(t *testing.T, n newStore) {
	p := newPair(t, n)
	c := counterOf(t, window(3))
	good := charge(c, "k", 1)
	for _, test := range []struct {
		name    string
		charges []store.Charge
		results int
	}{
		{"too few results", []store.Charge{good}, 0},
		{"too many results", []store.Charge{good}, 2},
		{"no limit", []store.Charge{{Counter: c, Key: []byte("k")}}, 1},
		{"no counter", []store.Charge{{Limit: c.Limit, Key: []byte("k")}}, 1},
		{"no counter beside a good charge", []store.Charge{good, {Limit: c.Limit, Key: []byte("k")}}, 2},
	} {
		if _, err := p.store.Take(t.Context(), test.charges, make([]algo.Result, test.results)); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	if _, now := take(t, p.store); now != p.clock.read() {
		t.Errorf("a call without charges is decided at %d, want %d", now, p.clock.read())
	}
	if left := p.remaining(t, c, "k"); left != 3 {
		t.Errorf("%d left: bad calls were charged", left)
	}
}
