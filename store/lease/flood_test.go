package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// TestFlood: a key that begins to be asked for often while others come twice each, more of them
// than there is room for, leases units, and goes on to.
func TestFlood(t *testing.T) {
	w := newWorld()
	s := newNode(t, w, newLender(t, w), Options{})
	c := counterOf(t, wide)
	asked, here := 0, 0
	s.decided = func(c *store.Charge, _ *algo.Result, _ int64) {
		if string(c.Key) == "hot" {
			here++
		}
	}
	for i := range 2 * DefaultMaxKeys {
		key := fmt.Sprint("flood ", i)
		take(t, s, charge(c, key, 1))
		take(t, s, charge(c, key, 1))
		w.advance(10 * time.Microsecond)
		if i > DefaultMaxKeys && i%50 == 0 {
			take(t, s, charge(c, "hot", 1))
			asked++
		}
		if i%10_000 == 0 {
			s.step(t.Context())
		}
	}
	if here < asked*9/10 {
		t.Errorf("%d of %d requests for the hot key were decided here", here, asked)
	}
	if n := s.Stats().Keys; n != DefaultMaxKeys {
		t.Errorf("%d keys, of %d at most", n, DefaultMaxKeys)
	}
	// What holds units does not make room.
	few := newNode(t, w, newLender(t, w), Options{MaxKeys: 1})
	for range 10 {
		take(t, few, charge(c, "first", 1))
	}
	left := few.Stats().Left
	for i := range 1000 {
		take(t, few, charge(c, fmt.Sprint(i), 1))
		take(t, few, charge(c, fmt.Sprint(i), 1))
	}
	if st := few.Stats(); left == 0 || st.Left != left || st.Keys != 1 {
		t.Errorf("%+v, %d units were left", st, left)
	}
}

// TestCountsEnd: what was counted of rules that reloads have taken away is forgotten in the end,
// and of those that stay it is not.
func TestCountsEnd(t *testing.T) {
	w := newWorld()
	s := newNode(t, w, newLender(t, w), Options{})
	stays, rare := counterOf(t, hundred), counterOf(t, hundred)
	total := uint64(0)
	for i := range 5 * mostCounts {
		c := counterOf(t, hundred)
		for range 3 {
			take(t, s, charge(c, "key", 1))
		}
		if i%10 == 0 {
			take(t, s, charge(stays, "key", 0))
			total++
		}
		if i == 0 {
			take(t, s, charge(rare, "key", 1))
		}
		if i%100 == 0 {
			w.advance(10 * time.Second)
			s.step(t.Context())
		}
	}
	st := s.Stats()
	if len(st.Limits) > 3*mostCounts {
		t.Errorf("counts of %d limits, of which one is asked for", len(st.Limits))
	}
	for _, l := range st.Limits {
		if l.Counter == stays && l.Store != total {
			t.Errorf("%+v, asked for %d times", l, total)
		}
		if l.Counter == rare {
			t.Errorf("a rule that was asked for once is still there: %+v", l)
		}
	}
	if n := s.terms.counters.Load(); n != int64(len(st.Limits)) {
		t.Errorf("%d counts, %d are said to be there", len(st.Limits), n)
	}
	take(t, s, charge(rare, "key", 1))
	if n := s.terms.counters.Load(); n != int64(len(st.Limits))+1 {
		t.Errorf("%d counts after a rule came back, %d before", n, len(st.Limits))
	}
}

// TestReloadUnderWay: units that an answer brings are used although the limit was compiled anew
// while the call was under way.
func TestReloadUnderWay(t *testing.T) {
	r := newRig(t)
	left, _ := r.held()
	for range left {
		r.take(1)
	}
	again := *r.c
	again.Limit = mustLimit(t, hundred)
	r.lender.fail = func() (error, bool) {
		r.lender.fail = nil
		r.s.TakeNow([]store.Charge{charge(&again, "key", 1)}, make([]algo.Result, 1))
		return nil, false
	}
	r.take(1)
	if left, _ := r.held(); left == 0 || r.lender.fail != nil {
		t.Fatalf("%d units are held after a call under the old numbers", left)
	}
	if _, ok := r.s.TakeNow([]store.Charge{charge(&again, "key", 1)}, make([]algo.Result, 1)); !ok {
		t.Error("not decided here after the reload")
	}
	if st := r.s.Stats(); st.Limits[0].Lapsed != 0 {
		t.Errorf("%+v", st.Limits[0])
	}
}
