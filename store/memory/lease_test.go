package memory

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/storetest"
)

func TestLender(t *testing.T) {
	storetest.Lender(t, func(t *testing.T, clock func() int64) store.Store { return newTest(t, Options{Clock: clock}) })
}

// withLease gives a counter of a limit that lends its second identity.
func withLease(c *rule.Counter) *rule.Counter {
	c.Lease = &rule.Counter{ID: c.ID << 32, Domain: c.Domain, Rule: c.Rule, Window: c.Window, Limit: c.Limit.Lease()}
	return c
}

// lending is a counter of 100 an hour that lends ten for 2 to 4 s.
func lending(t testing.TB, a algo.Algorithm) *rule.Counter {
	return withLease(counter(t, algo.Config{Algorithm: a, N: 100, Window: time.Hour, Lease: 10,
		LeaseFor: 2 * time.Second}))
}

var lendingKinds = []algo.Algorithm{algo.SlidingWindow, algo.SlidingLog, algo.FixedWindow, algo.TokenBucket}

// borrow is a call of TakeAhead for one key.
func borrow(t testing.TB, s *Store, c *rule.Counter, key string, cost int64, h algo.Ahead) (algo.Result, algo.Ahead) {
	t.Helper()
	results, ahead := make([]algo.Result, 1), []algo.Ahead{h}
	charges := []store.Charge{{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}}
	if _, _, err := s.TakeAhead(context.Background(), 0, 0, charges, ahead, results); err != nil {
		t.Fatal(err)
	}
	return results[0], ahead[0]
}

// TestLeaseAtTheBound: no pressure drops a record of which units are out, nor the state beside it.
// Once they have ended the key goes like any other, and nothing is left of it.
func TestLeaseAtTheBound(t *testing.T) {
	for _, a := range lendingKinds {
		t.Run(a.String(), func(t *testing.T) {
			clock := newClock()
			const maxKeys, holders = 1000, 200
			s := newTest(t, Options{Clock: clock.read, MaxKeys: maxKeys})
			c, other := lending(t, a),
				counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: 24 * time.Hour})
			pressure := func(name string, cost int64) {
				for i := range 20 * maxKeys {
					take(t, s, other, fmt.Sprint(name, i), cost)
				}
				audit(t, s)
			}
			pressure("before ", 1)
			lent := 0
			for i := range holders {
				if _, h := borrow(t, s, c, fmt.Sprint("holder ", i), 20, algo.Ahead{Want: 10, First: true}); h.Got == 10 {
					lent++
				}
			}
			if lent != holders {
				t.Fatalf("%d of %d keys are lent to, though others may be forgotten for them", lent, holders)
			}
			clock.advance(time.Second)
			pressure("while ", 500)
			for i := range holders {
				if r, h := borrow(t, s, c, fmt.Sprint("holder ", i), 0, algo.Ahead{}); r.Remaining != 70 ||
					h.Out != 10 {
					t.Fatalf("key %d: %+v, %+v", i, r, h)
				}
			}
			// The last generation has ended, and nobody has asked since.
			clock.advance(4 * time.Second)
			pressure("after ", 500) // they are nearer to their limit
			left := 0
			for i := range s.shards {
				sh := &s.shards[i].shard
				sh.mu.Lock()
				limits := s.limits.load()
				for i := range holders {
					key := fmt.Append(nil, "holder ", i)
					h := s.hash(key)
					if &s.shards[h>>s.shift].shard != sh {
						continue
					}
					state, record := sh.find(limits, tagOf(h, c.ID), c.ID, key),
						sh.find(limits, tagOf(h, c.Lease.ID), c.Lease.ID, key)
					if state < 0 != (record < 0) {
						t.Errorf("key %d: one of two states is left, at %d and %d", i, state, record)
					}
					if record >= 0 {
						left++
					}
				}
				sh.mu.Unlock()
			}
			if left > holders/10 {
				t.Errorf("%d of %d keys are kept after their units have ended", left, holders)
			}
		})
	}
}

// TestLeaseWithoutRoom: a key whose charges go to an overflow cell is lent nothing, and what was
// lent of it before counts on the cell.
func TestLeaseWithoutRoom(t *testing.T) {
	clock := newClock()
	const maxKeys = 100
	s := newTest(t, Options{Clock: clock.read, MaxKeys: maxKeys})
	c := lending(t, algo.SlidingLog)
	if r, h := borrow(t, s, c, "early", 0, algo.Ahead{Want: 10}); !r.Allowed || h.Got != 10 {
		t.Fatalf("%+v, %+v", r, h)
	}
	full := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: 24 * time.Hour})
	for i := range maxKeys - 1 {
		take(t, s, full, fmt.Sprint("refused ", i), 1)
	}
	var late []string // keys that share no cell with the first
	for i := 0; len(late) < 10; i++ {
		key := fmt.Sprint("late ", i)
		if s.overflowKey(c.ID, s.hash([]byte(key))) != s.overflowKey(c.ID, s.hash([]byte("early"))) {
			late = append(late, key)
		}
	}
	for _, cost := range []int64{0, 1} {
		for _, key := range late {
			if r, h := borrow(t, s, c, key, cost, algo.Ahead{Want: 10}); !r.Allowed || h.Got != 0 || h.Out != 0 ||
				h.Until == 0 {
				t.Fatalf("a cost of %d: %+v, %+v", cost, r, h)
			}
		}
	}
	_, h := borrow(t, s, c, "early", 0, algo.Ahead{})
	told := algo.Ahead{Told: [2]algo.Told{{End: h.Until, Used: 4, Returned: 1}}, Want: 10}
	if r, h := borrow(t, s, c, "early", 1, told); r.Remaining != 90 || h.Out != 5 || h.Got != 0 {
		t.Errorf("told: %+v, %+v", r, h)
	}
	clock.advance(4 * time.Second)
	if r, h := borrow(t, s, c, "early", 0, algo.Ahead{}); r.Remaining != 90 || h.Out != 0 {
		t.Errorf("lapsed: %+v, %+v", r, h)
	}
	audit(t, s)
	if st := s.Stats(); st.Keys > maxKeys || st.Evictions != 0 || st.Overflows == 0 {
		t.Errorf("%+v", st)
	}
	// Two keys of one call that share a cell are charged one after the other. Nothing is out any
	// more, so that there is room for another key, once the search for it has come round.
	for i := range maxKeys {
		take(t, s, full, fmt.Sprint("refused too ", i), 1)
	}
	cells := map[overflowKey]string{}
	for i := 0; ; i++ {
		key := fmt.Sprint("shares ", i)
		cell := s.overflowKey(c.ID, s.hash([]byte(key)))
		first, ok := cells[cell]
		if cells[cell] = key; !ok || s.cellOf(c, key) {
			continue
		}
		results := make([]algo.Result, 2)
		charges := []store.Charge{
			{Counter: c, Limit: c.Limit, Key: []byte(first), Ask: algo.Ask{Cost: 60}}, {Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: 60}},
		}
		ahead := []algo.Ahead{{Want: 10}, {Want: 10}}
		if _, _, err := s.TakeAhead(context.Background(), 0, 0, charges, ahead, results); err != nil ||
			results[1].Allowed || ahead[0].Got+ahead[1].Got != 0 {
			t.Errorf("%+v, %+v, %v", results, ahead, err)
		}
		break
	}
}

// cellOf reports whether a key has an overflow cell.
func (s *Store) cellOf(c *rule.Counter, key string) bool {
	h := s.hash([]byte(key))
	return s.shards[h>>s.shift].overflow[s.overflowKey(c.ID, h)] != nil
}

// TestLeaseForgotten: when all of it counts no more, a record is forgotten for free.
func TestLeaseForgotten(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := lending(t, algo.FixedWindow)
	for i := range 1000 {
		borrow(t, s, c, fmt.Sprint(i), 1, algo.Ahead{Want: 10, First: true})
	}
	if st := s.Stats(); st.Keys != 2000 {
		t.Fatalf("%+v", st)
	}
	clock.advance(3 * time.Hour)
	other := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	for i := range 4000 {
		take(t, s, other, fmt.Sprint(i), 1)
	}
	if st := s.Stats(); st.Keys > 4100 || st.Evictions != 0 {
		t.Errorf("%+v", st)
	}
	audit(t, s)
}

// BenchmarkTakeAhead asks for units with each decision, on ten thousand keys in turn, and reports
// on the units of the call before.
func BenchmarkTakeAhead(b *testing.B) {
	const keys = 10_000
	for _, a := range lendingKinds {
		b.Run(a.String(), func(b *testing.B) {
			s := newTest(b, Options{})
			c := withLease(counter(b, algo.Config{Algorithm: a, N: 50_000, Window: time.Second, Lease: 10}))
			calls, told := make([][]store.Charge, keys), make([]algo.Told, keys)
			for k := range calls {
				calls[k] = []store.Charge{{Counter: c, Limit: c.Limit, Key: fmt.Appendf(nil, "user-%08d", k),
					Ask: algo.Ask{Cost: 1}}}
			}
			ahead, results := make([]algo.Ahead, 1), make([]algo.Result, 1)
			b.ReportAllocs()
			for i := range b.N {
				k := i % keys
				ahead[0] = algo.Ahead{Told: [2]algo.Told{told[k]}, Want: 8}
				if _, _, err := s.TakeAhead(context.Background(), 0, 0, calls[k], ahead, results); err != nil {
					b.Fatal(err)
				}
				told[k] = algo.Told{End: ahead[0].Until, Used: ahead[0].Got}
			}
		})
	}
}
