package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// What else happens to a key while units of it are out.

// testLendWhileOut: refunds, settlements and resets leave units that are out as they are.
func testLendWhileOut(t *testing.T, n newStore) {
	first := leased(algo.FixedWindow)
	first.FirstRequest = true
	configs := []algo.Config{first}
	for _, a := range lending {
		configs = append(configs, leased(a))
	}
	for _, cfg := range configs {
		t.Run(mustLimit(t, cfg).String(), func(t *testing.T) {
			l := newLender(t, n)
			c := counterOf(t, cfg)
			h := algo.Ahead{Want: 10}
			l.one(t, c, "k", 20, &h)
			l.stands(t, c, "k", 70, 10)
			l.take(t, charge(c, "k", -5))
			l.stands(t, c, "k", 75, 10)
			if _, ok := l.store.(store.Reserver); ok {
				ch := charge(c, "k", 15)
				for _, actual := range []int64{10, 25} {
					r := l.take(t, ch)
					l.settleOne(t, &ch, r[0], actual)
				}
				l.stands(t, c, "k", 40, 10)
				// More than there is: there is no room beside the units out.
				r := l.take(t, ch)
				l.settleOne(t, &ch, r[0], 60)
				l.stands(t, c, "k", 0, 10)
			}
			left := int64(90)
			if cfg.FirstRequest {
				left = 89 // its window stays where it is
			}
			if l.reset(t, c, "k") {
				l.stands(t, c, "k", left, 10)
				l.reset(t, c, "k")
				l.stands(t, c, "k", left, 10)
			}
			told := tells(h, 3, 7)
			l.one(t, c, "k", 0, &told)
			if h.Got != 10 || told.Out != 0 {
				t.Errorf("%+v, %+v", h, told)
			}
			// Units that have ended are used, and a reset forgets them.
			h = algo.Ahead{Want: 10}
			if l.one(t, c, "k", 1, &h); h.Got == 10 {
				l.clock.now.Store(h.Until)
				if l.reset(t, c, "k") {
					l.stands(t, c, "k", 100, 0)
				}
			}
			// An excess that goes back to a key that has only a record.
			h = algo.Ahead{Want: 10}
			l.one(t, c, "k2", 1, &h)
			if _, ok := l.store.(store.Reserver); ok && !cfg.FirstRequest {
				ch := charge(c, "k2", 1)
				l.settleOne(t, &ch, algo.Result{Allowed: true}, 0)
				l.stands(t, c, "k2", 90, 10)
				l.clock.now.Store(h.Until)
				l.settleOne(t, &ch, algo.Result{Allowed: true}, 2)
				l.stands(t, c, "k2", 89, 0)
			}
		})
	}
}

// testLendOtherNumbers: under other numbers, and other lengths of generations, units that are out
// stay out, and are reported and end as before.
func testLendOtherNumbers(t *testing.T, n newStore) {
	for _, a := range lending {
		t.Run(a.String(), func(t *testing.T) {
			l := newLender(t, n)
			cfg := leased(a)
			c := counterOf(t, cfg)
			under := func(change func(c *algo.Config)) *rule.Counter {
				other, same := cfg, *c
				change(&other)
				same.Limit = mustLimit(t, other)
				return &same
			}
			h := algo.Ahead{Want: 10}
			l.one(t, c, "k", 40, &h)
			fewer := under(func(c *algo.Config) { c.N = 45 })
			l.stands(t, fewer, "k", 0, 10)
			none := algo.Ahead{Want: 10}
			if r := l.one(t, fewer, "k", 1, &none); r.Allowed || none.Got != 0 {
				t.Errorf("%+v, %+v", r, none)
			}
			more := under(func(c *algo.Config) { c.N = 1000 })
			l.stands(t, more, "k", 950, 10)
			if l.one(t, more, "k", 0, &h); h.Got != 10 || h.Out != 20 {
				t.Errorf("%+v", h)
			}
			told := tells(h, 4, 4)
			l.one(t, more, "k", 0, &told)
			l.stands(t, more, "k", 944, 12)
			// All that is out ends when the last of it would have.
			l.clock.advance(time.Second)
			shorter := under(func(c *algo.Config) { c.LeaseFor = 100 * time.Millisecond })
			l.stands(t, shorter, "k", 44, 12)
			l.clock.now.Store(h.Until - 1)
			l.stands(t, shorter, "k", 44, 12)
			l.clock.advance(time.Microsecond)
			l.stands(t, shorter, "k", 44, 0)
			h = algo.Ahead{Want: 5}
			if l.one(t, shorter, "k", 1, &h); h.Got != 5 || h.Until != l.clock.read()+200_000 {
				t.Errorf("%+v", h)
			}
		})
	}
}

// testLendReload: a new identity carries on the record with the state, under another W.
func testLendReload(t *testing.T, n newStore) {
	for _, a := range lending {
		for _, w := range []time.Duration{30 * time.Minute, 10 * time.Hour} {
			t.Run(a.String()+" "+w.String(), func(t *testing.T) {
				l := newLender(t, n)
				old := counterOf(t, leased(a))
				h := algo.Ahead{Want: 10}
				l.one(t, old, "k", 1, &h)
				l.one(t, old, "lapsed", 1, &algo.Ahead{Want: 10})
				p := algo.Ahead{Want: 10}
				l.one(t, old, "only lent", 0, &p)
				l.clock.advance(time.Second)
				cfg := leased(a)
				cfg.Window, cfg.LeaseFor = w, 500*time.Millisecond
				next := counterOf(t, cfg)
				succeed(next, old)
				l.stands(t, next, "k", 89, 10)
				told := tells(h, 4, 2)
				l.one(t, next, "k", 1, &told)
				l.stands(t, next, "k", 90, 4)
				l.stands(t, next, "only lent", 90, 10)
				l.clock.now.Store(h.Until - 1)
				l.stands(t, next, "k", 90, 4)
				l.clock.advance(time.Microsecond)
				l.stands(t, next, "k", 90, 0)
				l.stands(t, next, "only lent", 90, 0)
				l.stands(t, next, "lapsed", 89, 0)
				if l.reset(t, next, "k") {
					l.stands(t, next, "k", 100, 0)
				}
			})
		}
	}
}

// testLendResetReloaded: a reset under a new identity carries on the record as a charge does. Units
// that are out are charged by the new numbers, also if nobody asks before they have ended.
func testLendResetReloaded(t *testing.T, n newStore) {
	for _, a := range lending {
		for _, w := range []time.Duration{500 * time.Millisecond, 20 * time.Second} {
			t.Run(a.String()+" "+w.String(), func(t *testing.T) {
				l := newLender(t, n)
				cfg := algo.Config{Algorithm: a, N: 5, Window: time.Second, Lease: 90}
				old := counterOf(t, cfg)
				h := algo.Ahead{Want: 2}
				l.one(t, old, "k", 0, &h)
				l.clock.now.Store(h.Until)
				l.one(t, old, "k", 0, &h)
				cfg.Window = w
				next := counterOf(t, cfg)
				succeed(next, old)
				if !l.reset(t, next, "k") {
					t.Skip("the store resets nothing")
				}
				l.shown(t, next, next.Limit, "k")
				l.clock.now.Store(h.Until)
				l.shown(t, next, next.Limit, "k")
				l.one(t, next, "k", 1, &h)
			})
		}
	}
}

// testLendEnds: units end with the window, and with the phase of a schedule.
func testLendEnds(t *testing.T, n newStore) {
	l := newLender(t, n)
	c := counterOf(t, leased(algo.FixedWindow))
	end := start + time.Hour.Microseconds()
	l.clock.now.Store(end - 3_000_000)
	h := algo.Ahead{Want: 10}
	if l.one(t, c, "k", 1, &h); h.Got != 10 || h.Until != end-1_000_000 {
		t.Fatalf("%+v", h)
	}
	l.clock.now.Store(end - 1_000_000)
	if l.one(t, c, "k", 0, &h); h.Got != 10 || h.Until != end {
		t.Fatalf("%+v", h)
	}
	l.clock.now.Store(end - 500_000)
	if l.one(t, c, "late", 1, &h); h.Got != 10 || h.Until != end {
		t.Fatalf("%+v", h)
	}
	l.clock.now.Store(end)
	l.stands(t, c, "k", 100, 0)
	l.stands(t, c, "late", 100, 0)
	scheduled := counterFor(schedule(t, leased(algo.TokenBucket)))
	phase := end + (20 * time.Minute).Microseconds()
	l.clock.now.Store(phase - 500_000)
	if l.one(t, scheduled, "k", 1, &h); h.Got != 10 || h.Until != phase {
		t.Fatalf("%+v", h)
	}
	l.clock.now.Store(end + (55 * time.Minute).Microseconds())
	if r := l.one(t, scheduled, "k", 1, &h); !r.Off || h.Got != 0 || h.Until != 0 || h.Out != 0 {
		t.Fatalf("while there is no limit: %+v, %+v", r, h)
	}
}

// testLendSameState: charges of one call that name the same state see each other's reports and
// units taken, and share the units that may be out.
func testLendSameState(t *testing.T, n newStore) {
	for _, a := range lending {
		t.Run(a.String(), func(t *testing.T) {
			l := newLender(t, n)
			c := counterOf(t, leased(a))
			h := algo.Ahead{Want: 6}
			l.one(t, c, "k", 1, &h)
			ahead := []algo.Ahead{tells(h, 1, 0), tells(h, 2, 1), {}}
			ahead[0].Want, ahead[2].Want = 5, 50
			r := l.ask(t, []store.Charge{charge(c, "k", 1), charge(c, "k", 2), charge(c, "k", 1)}, ahead)
			if ahead[0].Got != 5 || ahead[1].Got != 0 || ahead[2].Got != 3 || ahead[2].Out != 10 ||
				r[2].Remaining != 90 {
				t.Errorf("%+v, %+v", r, ahead)
			}
			l.stands(t, c, "k", 82, 10)
			ahead = []algo.Ahead{{Want: 5}, {Want: 5}}
			r = l.ask(t, []store.Charge{charge(c, "k", 80), charge(c, "k", 10)}, ahead)
			if r[1].Allowed || ahead[0].Got != 0 || ahead[1].Got != 0 {
				t.Errorf("%+v, %+v", r, ahead)
			}
			l.stands(t, c, "k", 82, 10)
		})
	}
}

// testLendBadCalls: what cannot be understood is refused, and neither charged nor taken down.
func testLendBadCalls(t *testing.T, n newStore) {
	l := newLender(t, n)
	c := counterOf(t, leased(algo.SlidingLog))
	h := algo.Ahead{Want: 10}
	l.one(t, c, "k", 1, &h)
	told := tells(h, 5, 5)
	told.Got, told.Until, told.Out = 1, 1, 1
	lender, good := l.store.(store.Lender), charge(c, "k", 1)
	for _, call := range []struct {
		charges []store.Charge
		ahead   []algo.Ahead
		results int
	}{
		{[]store.Charge{good}, []algo.Ahead{told, told}, 1},
		{[]store.Charge{good}, nil, 1},
		{[]store.Charge{good}, []algo.Ahead{told}, 2},
		{[]store.Charge{{Limit: c.Limit, Key: good.Key}}, []algo.Ahead{told}, 1},
		{[]store.Charge{good, {Counter: c, Key: good.Key}}, []algo.Ahead{told, {}}, 2},
	} {
		if _, _, err := lender.TakeAhead(context.Background(), 0, 0, call.charges, call.ahead, make([]algo.Result, call.results)); err == nil {
			t.Errorf("%+v: no error", call)
		}
		for _, h := range call.ahead {
			if h.Got != 0 || h.Until != 0 || h.Out != 0 {
				t.Errorf("filled in beside an error: %+v", h)
			}
		}
	}
	l.stands(t, c, "k", 89, 10)
	if _, _, err := lender.TakeAhead(context.Background(), 0, 0, nil, nil, nil); err != nil {
		t.Errorf("no charges: %v", err)
	}
}
