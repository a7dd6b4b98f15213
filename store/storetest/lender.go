package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// Lender is the contract of store.Lender as tests. newStore is as for Run.
//
//	func TestLender(t *testing.T) {
//		storetest.Lender(t, func(t *testing.T, clock func() int64) store.Store { … })
//	}
func Lender(t *testing.T, newStore func(t *testing.T, clock func() int64) store.Store) {
	t.Run("Golden", func(t *testing.T) { testLendGolden(t, newStore) })
	t.Run("Fence", func(t *testing.T) { testLendFence(t, newStore) })
	t.Run("Room", func(t *testing.T) { testLendRoom(t, newStore) })
	t.Run("AllOrNothing", func(t *testing.T) { testLendAllOrNothing(t, newStore) })
	t.Run("DeniedTells", func(t *testing.T) { testLendDeniedTells(t, newStore) })
	t.Run("WhileOut", func(t *testing.T) { testLendWhileOut(t, newStore) })
	t.Run("OtherNumbers", func(t *testing.T) { testLendOtherNumbers(t, newStore) })
	t.Run("Reload", func(t *testing.T) { testLendReload(t, newStore) })
	t.Run("ResetReloaded", func(t *testing.T) { testLendResetReloaded(t, newStore) })
	t.Run("Ends", func(t *testing.T) { testLendEnds(t, newStore) })
	t.Run("SameStateTwice", func(t *testing.T) { testLendSameState(t, newStore) })
	t.Run("BadCalls", func(t *testing.T) { testLendBadCalls(t, newStore) })
	for _, a := range lending {
		t.Run("Random/"+a.String(), func(t *testing.T) { testLendRandom(t, newStore, a) })
	}
	for _, a := range lending {
		t.Run("Concurrent/"+a.String(), func(t *testing.T) { testLendConcurrent(t, newStore, a) })
	}
}

// lending are the algorithms that lend.
var lending = []algo.Algorithm{algo.SlidingWindow, algo.SlidingLog, algo.FixedWindow, algo.TokenBucket}

// leased is a limit of 100 an hour that lends ten for 2 to 4 s.
func leased(a algo.Algorithm) algo.Config {
	return algo.Config{Algorithm: a, N: 100, Window: time.Hour, Lease: 10, LeaseFor: 2 * time.Second}
}

// lender is a pair whose store is a store.Lender.
type lender struct{ *pair }

func newLender(t *testing.T, n newStore) lender {
	t.Helper()
	p := newPair(t, n)
	if _, ok := p.store.(store.Lender); !ok {
		t.Fatal("the store is no store.Lender")
	}
	return lender{p}
}

// ask is one call of TakeAhead, held against the model, with all that it fills in.
func (l lender) ask(t rapid.TB, charges []store.Charge, ahead []algo.Ahead) []algo.Result {
	t.Helper()
	for i := range ahead {
		ahead[i].Got, ahead[i].Until, ahead[i].Out = 7, 7, 7 // of an earlier call
	}
	wanted, want, got := make([]algo.Ahead, len(ahead)), make([]algo.Result, len(charges)),
		make([]algo.Result, len(charges))
	copy(wanted, ahead)
	before := store.Monotonic()
	now, asked, err := l.store.(store.Lender).TakeAhead(context.Background(), 0, 0, charges, ahead, got)
	if err != nil {
		t.Fatalf("TakeAhead: %v", err)
	}
	if now != l.clock.read() {
		t.Fatalf("decided at %d, the clock says %d", now, l.clock.read())
	}
	if after := store.Monotonic(); asked < before || asked > after {
		t.Fatalf("asked at %d, between %d and %d", asked, before, after)
	}
	l.model.takeAhead(charges, wanted, want, now)
	for i := range charges {
		if got[i] != want[i] || ahead[i] != wanted[i] {
			t.Fatalf("charge %d of %d (%v, %+v, key %q, mode %d):\n got %+v, %+v\nwant %+v, %+v",
				i, len(charges), charges[i].Limit, charges[i].Ask, charges[i].Key, charges[i].Mode, got[i], ahead[i],
				want[i], wanted[i])
		}
	}
	return got
}

// one is ask for one charge of a counter's own limit.
func (l lender) one(t rapid.TB, c *rule.Counter, key string, cost int64, h *algo.Ahead) algo.Result {
	t.Helper()
	ahead := []algo.Ahead{*h}
	r := l.ask(t, []store.Charge{charge(c, key, cost)}, ahead)
	*h = ahead[0]
	return r[0]
}

// stands fails unless so many remain and are out of a key.
func (l lender) stands(t rapid.TB, c *rule.Counter, key string, remaining, out int64) {
	t.Helper()
	h := algo.Ahead{}
	if r := l.one(t, c, key, 0, &h); r.Remaining != remaining || h.Out != out {
		t.Fatalf("%+v, %+v, want %d remaining and %d out", r, h, remaining, out)
	}
	l.shown(t, c, c.Limit, key)
}

// shown compares an Inspector's view of a key with the model, if the store is one.
func (l lender) shown(t rapid.TB, c *rule.Counter, limit *algo.Limit, key string) {
	t.Helper()
	inspector, ok := l.store.(store.Inspector)
	if !ok {
		return
	}
	v := &store.View{Counter: c, MaxDelay: -1, Limit: func([]byte) *algo.Limit { return limit }}
	var got []store.KeyState
	if err := inspector.Inspect(context.Background(), v, [][]byte{[]byte(key)}, func(k store.KeyState) {
		k.Key = nil
		got = append(got, k)
	}); err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	now := l.clock.read()
	st, beside := l.model.seen(c, limit, []byte(key), now)
	limit.Roll(&st, &beside, now)
	want := v.State(nil, limit, &st, &beside, now)
	if limit.Fresh(&st, now) && want.Lent.Out() == 0 {
		if len(got) != 0 {
			t.Fatalf("a fresh key is shown: %+v", got)
		}
		return
	}
	if len(got) != 1 || got[0].Result != want.Result || got[0].Next != want.Next || got[0].Used != want.Used ||
		got[0].Lent != want.Lent {
		t.Fatalf("Inspect shows %+v\nwant %+v", got, want)
	}
}

// reset resets a key.
func (l lender) reset(t rapid.TB, c *rule.Counter, key string) (ok bool) {
	t.Helper()
	inspector, is := l.store.(store.Inspector)
	if !is {
		return false
	}
	if _, err := inspector.Reset(context.Background(), c, []byte(key)); err != nil {
		t.Fatalf("Reset: %v", err)
	}
	l.model.reset(c, []byte(key), l.clock.read())
	return true
}

// tells is a holder's report on the units that it got in h.
func tells(h algo.Ahead, used, returned int64) algo.Ahead {
	return algo.Ahead{Told: [2]algo.Told{{End: h.Until, Used: used, Returned: returned}}}
}

// testLendGolden is the example of docs/how-it-works/algorithms.md.
func testLendGolden(t *testing.T, n newStore) {
	l := newLender(t, n)
	cfg := leased(algo.SlidingLog)
	cfg.Window = time.Minute
	c := counterOf(t, cfg)
	a, b := algo.Ahead{Want: 8}, algo.Ahead{Want: 8}
	if r := l.one(t, c, "k", 1, &a); r.Remaining != 99 || a.Got != 8 || a.Until != start+4_000_000 || a.Out != 8 {
		t.Fatalf("A: %+v, %+v", r, a)
	}
	l.clock.advance(time.Second)
	if r := l.one(t, c, "k", 1, &b); r.Remaining != 90 || b.Got != 2 || b.Until != start+4_000_000 || b.Out != 10 {
		t.Fatalf("B: %+v, %+v", r, b)
	}
	h := algo.Ahead{Want: 1}
	if r := l.one(t, c, "k", 1, &h); r.Remaining != 87 || h.Got != 0 {
		t.Fatalf("C: %+v, %+v", r, h)
	}
	h = algo.Ahead{Want: 8}
	if r := l.one(t, c, "k", 88, &h); r.Allowed || r.RetryAfter != 59_000_000 || h.Got != 0 || h.Until != 0 ||
		h.Out != 10 {
		t.Fatalf("a cost of 88: %+v, %+v", r, h)
	}
	if r := l.one(t, c, "k", 87, &h); !r.Allowed || h.Got != 0 || h.Until == 0 {
		t.Fatalf("D: %+v, %+v", r, h)
	}
	l.clock.advance(time.Second)
	told := tells(a, 5, 1)
	if r := l.one(t, c, "k", 1, &told); !r.Allowed || r.Remaining != 0 || told.Out != 4 {
		t.Fatalf("A tells: %+v, %+v", r, told)
	}
	l.clock.advance(2 * time.Second)
	l.stands(t, c, "k", 0, 0)
	l.clock.advance(56 * time.Second)
	l.stands(t, c, "k", 1, 0)
}

// testLendFence: a report counts once, as of its instant; a report on units that have ended is
// ignored, since they count as used by then.
func testLendFence(t *testing.T, n newStore) {
	for _, a := range lending {
		t.Run(a.String(), func(t *testing.T) {
			l := newLender(t, n)
			c := counterOf(t, leased(a))
			h := algo.Ahead{Want: 10}
			l.one(t, c, "k", 1, &h)
			l.stands(t, c, "k", 89, 10)
			told := tells(h, 4, 0)
			l.one(t, c, "k", 0, &told)
			l.stands(t, c, "k", 89, 6) // the units out count now
			told = tells(h, 0, 2)
			l.one(t, c, "k", 0, &told)
			l.stands(t, c, "k", 91, 4)
			l.clock.now.Store(h.Until - 1)
			l.stands(t, c, "k", 91, 4)
			l.clock.advance(time.Microsecond)
			for range 2 {
				told = tells(h, 3, 1)
				l.one(t, c, "k", 0, &told)
				l.stands(t, c, "k", 91, 0)
			}
			// The report on the next generation says more than is out.
			h = algo.Ahead{Want: 5, First: true}
			l.one(t, c, "k", 1, &h)
			l.stands(t, c, "k", 85, 5)
			told = tells(h, 100, 100)
			l.one(t, c, "k", 0, &told)
			l.stands(t, c, "k", 85, 0)
		})
	}
}

// testLendRoom: a grant is within the units wanted, that may be out, and that are left within N.
func testLendRoom(t *testing.T, n newStore) {
	for _, a := range lending {
		t.Run(a.String(), func(t *testing.T) {
			l := newLender(t, n)
			cfg := leased(a)
			cfg.Soft = 50
			c := counterOf(t, cfg)
			for _, step := range []struct {
				key                  string
				cost, want, got, out int64
			}{
				{"cap", 1, 1000, 10, 10},
				{"cap", 1, 1000, 0, 10},
				{"want", 1, 3, 3, 3},
				{"want", 1, 1, 1, 4},
				{"want", 1, 0, 0, 4},
				{"room", 95, 1000, 5, 5},
				{"room", 0, 1000, 0, 5},
				{"single", 99, 1000, 0, 0},
				{"single", 0, 1, 1, 1},
				{"margin", 101, 1000, 0, 0},
				{"peek", 0, 4, 4, 4},
				{"refund", -1, 4, 4, 4},
			} {
				h := algo.Ahead{Want: step.want}
				if r := l.one(t, c, step.key, step.cost, &h); !r.Allowed || h.Got != step.got || h.Out != step.out ||
					h.Until == 0 {
					t.Errorf("%+v: %+v, %+v", step, r, h)
				}
			}
			// A limit that lends nothing ignores reports.
			cfg.Lease, cfg.LeaseFor = 0, 0
			h := tells(algo.Ahead{Until: start + 1}, 5, 5)
			h.Want = 5
			if r := l.one(t, counterOf(t, cfg), "k", 1, &h); r.Remaining != 99 || h.Got != 0 || h.Until != 0 ||
				h.Out != 0 {
				t.Errorf("%+v, %+v", r, h)
			}
		})
	}
}

// testLendAllOrNothing: a call that is denied is lent nothing, no matter which charge denies it.
func testLendAllOrNothing(t *testing.T, n newStore) {
	for _, test := range []struct {
		name  string
		modes []rule.Mode
		full  []bool
		got   []int64
	}{
		{"all admit", []rule.Mode{rule.Enforce, rule.Shadow, rule.Quota}, []bool{false, false, false}, []int64{5, 5, 5}},
		{"the first denies", []rule.Mode{rule.Enforce, rule.Enforce}, []bool{true, false}, []int64{0, 0}},
		{"the last denies", []rule.Mode{rule.Enforce, rule.Enforce}, []bool{false, true}, []int64{0, 0}},
		{"a shadow denies", []rule.Mode{rule.Enforce, rule.Shadow}, []bool{false, true}, []int64{5, 0}},
		{"a shadow admits, the call is denied", []rule.Mode{rule.Enforce, rule.Shadow}, []bool{true, false}, []int64{0, 0}},
		{"one of two quotas denies", []rule.Mode{rule.Quota, rule.Quota}, []bool{true, false}, []int64{0, 5}},
		{"both quotas deny", []rule.Mode{rule.Quota, rule.Quota, rule.Enforce}, []bool{true, true, false}, []int64{0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLender(t, n)
			var call []store.Charge
			for i, mode := range test.modes {
				c := charge(counterOf(t, leased(lending[i])), "k", 1)
				if test.full[i] {
					fill := c
					fill.Ask.Cost = 100
					l.take(t, fill)
				}
				c.Mode = mode
				call = append(call, c)
			}
			ahead := make([]algo.Ahead, len(call))
			for i := range ahead {
				ahead[i].Want = 5
			}
			l.ask(t, call, ahead)
			for i := range call {
				if ahead[i].Got != test.got[i] {
					t.Errorf("charge %d gets %d, want %d", i, ahead[i].Got, test.got[i])
				}
				remaining := 100 - test.got[i]
				if test.full[i] {
					remaining = 0
				}
				if h := (algo.Ahead{}); l.one(t, call[i].Counter, "k", 0, &h).Remaining > remaining ||
					h.Out != test.got[i] {
					t.Errorf("charge %d: %+v", i, h)
				}
			}
		})
	}
	// Limits without leases, and many charges.
	l := newLender(t, n)
	var call []store.Charge
	for i := range 20 {
		if i%3 == 0 {
			call = append(call, charge(counterOf(t, window(10)), "k", 1))
			continue
		}
		call = append(call, charge(counterOf(t, leased(lending[i%4])), "k", 1))
	}
	for _, deny := range []int64{0, 1} {
		call[18].Ask.Cost = 1 + 10*deny
		ahead := make([]algo.Ahead, len(call))
		for i := range ahead {
			ahead[i].Want = 2
		}
		l.ask(t, call, ahead)
		for i := range ahead {
			want := 2 * (1 - deny)
			if i%3 == 0 {
				want = 0
			}
			if ahead[i].Got != want {
				t.Errorf("charge %d gets %d, want %d", i, ahead[i].Got, want)
			}
		}
	}
}

// testLendDeniedTells: a denied call has reported all the same, and is decided after that.
func testLendDeniedTells(t *testing.T, n newStore) {
	for _, a := range lending {
		t.Run(a.String(), func(t *testing.T) {
			l := newLender(t, n)
			c := counterOf(t, leased(a))
			h := algo.Ahead{Want: 10}
			l.one(t, c, "k", 90, &h)
			told := tells(h, 4, 1)
			told.Want = 10
			if r := l.one(t, c, "k", 2, &told); r.Allowed || told.Got != 0 || told.Until != 0 || told.Out != 5 ||
				r.Remaining != 1 {
				t.Fatalf("%+v, %+v", r, told)
			}
			// Another limit denies the call, and the key has no state of its own apart from the
			// report.
			p := algo.Ahead{Want: 10}
			l.one(t, c, "fresh", 0, &p)
			full := counterOf(t, window(0))
			ahead := []algo.Ahead{tells(p, 6, 0), {}}
			if r := l.ask(t, []store.Charge{charge(c, "fresh", 1), charge(full, "k", 1)}, ahead); r[1].Allowed ||
				ahead[0].Out != 4 {
				t.Fatalf("%+v, %+v", r, ahead)
			}
			l.stands(t, c, "fresh", 90, 4)
			// And what lapses is charged to a key that has nothing else.
			l.clock.now.Store(p.Until)
			l.stands(t, c, "fresh", 90, 0)
		})
	}
}
