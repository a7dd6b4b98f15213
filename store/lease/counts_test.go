package lease

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

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

// TestForgottenUnderWay: units that are taken while their entry is forgotten count as lapsed,
// whether they were used or not.
func TestForgottenUnderWay(t *testing.T) {
	for _, used := range []bool{false, true} {
		r := newRig(t)
		c := charge(r.c, "key", 1)
		taken, again := r.s.take(&c, r.w.at())
		if again || !taken.ok {
			t.Fatal("nothing was taken")
		}
		for range 2 { // what is left is returned, and what is known forgotten
			r.w.advance(10 * time.Second)
			r.s.step(t.Context())
		}
		if n := r.s.Stats().Keys; n != 0 {
			t.Fatalf("%d keys", n)
		}
		if used {
			results := make([]algo.Result, 1)
			r.s.admitOne(&c, &results[0], &taken, r.w.at())
		} else {
			r.s.backOne(&c, &taken)
		}
		if n := r.s.Stats().Limits[0]; n.Lapsed == 0 || n.Granted != n.Used+n.Returned+n.Lapsed {
			t.Errorf("used %t: %+v", used, n)
		}
	}
}
