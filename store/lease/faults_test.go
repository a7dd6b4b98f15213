package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
)

// hundred is a limit of 100 an hour that lends half of it for 2 to 4 s.
var hundred = algo.Config{Algorithm: algo.SlidingLog, N: 100, Window: time.Hour, Lease: 50, LeaseFor: 2 * time.Second}

// rig is a node in virtual time that holds units of a key.
type rig struct {
	t *testing.T
	w *world
	*lender
	s *Store
	c *rule.Counter
}

// newRig has admitted 10 requests, of which some were decided here.
func newRig(t *testing.T) *rig {
	t.Helper()
	w := newWorld()
	r := &rig{t: t, w: w, lender: newLender(t, w), c: counterOf(t, hundred)}
	r.s = newNode(t, w, r.lender, Options{})
	for range 10 {
		if !r.take(1) {
			t.Fatal("refused")
		}
	}
	if st := r.s.Stats(); st.Left < 2 || st.Untold < 1 || st.Limits[0].Local == 0 {
		t.Fatalf("%+v", st)
	}
	return r
}

func (r *rig) take(cost int64) bool {
	r.t.Helper()
	return take(r.t, r.s, charge(r.c, "key", cost))[0].Allowed
}

// stands fails unless so many units are charged at the primary, and out.
func (r *rig) stands(charged, out int64) {
	r.t.Helper()
	h := []algo.Ahead{{}}
	results := make([]algo.Result, 1)
	if _, _, err := r.lender.Store.TakeAhead(context.Background(), 0, 0, []store.Charge{charge(r.c, "key", 0)}, h, results); err != nil {
		r.t.Fatal(err)
	}
	if got := results[0].Limit - results[0].Remaining - h[0].Out; got != charged || h[0].Out != out {
		r.t.Errorf("%d charged and %d out, want %d and %d", got, h[0].Out, charged, out)
	}
}

// held returns what the node holds.
func (r *rig) held() (left, untold int64) {
	st := r.s.Stats()
	return st.Left, st.Untold
}

// TestReturned: a key that nobody asks for gives back what it holds, before its time.
func TestReturned(t *testing.T) {
	r := newRig(t)
	r.w.advance(1200 * time.Millisecond)
	r.s.step(t.Context())
	r.stands(10, 0)
	if left, untold := r.held(); left+untold != 0 {
		t.Errorf("%d left, %d untold", left, untold)
	}
	if n := r.s.Stats().Limits[0]; n.Granted != n.Used+n.Returned || n.Lapsed != 0 || n.Returned == 0 {
		t.Errorf("%+v", n)
	}
	r.w.advance(10 * time.Second)
	r.s.step(t.Context())
	if n := r.s.Stats().Keys; n != 0 {
		t.Errorf("%d keys", n)
	}
}

// TestFailures: what a call told that certainly was not made is told again; what one told that may
// have been is not, and counts as used when its time is over.
func TestFailures(t *testing.T) {
	for _, made := range []bool{false, true} {
		r := newRig(t)
		left, untold := r.held()
		r.fail = func() (error, bool) { return errors.New("no answer"), made }
		if !made {
			r.fail = func() (error, bool) { return fmt.Errorf("it is away: %w", store.ErrNotCharged), false }
		}
		peek := []store.Charge{charge(r.c, "key", 0)}
		if _, err := r.s.Take(t.Context(), peek, make([]algo.Result, 1)); err == nil {
			t.Fatal("no error")
		}
		r.fail = nil
		switch l, u := r.held(); {
		case !made && (l != left || u != untold):
			t.Errorf("%d and %d are held, %d and %d were", l, u, left, untold)
		case made && (l != left || u != 0):
			t.Errorf("%d and %d are held, of %d and %d", l, u, left, untold)
		}
		if err := r.s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.stands(10, 0)
	}
}

// TestMixed: a call of two limits, of which one has to be asked for. If that one refuses, the units
// of the other are put back; if nobody knows whether it did, fallback is told that they were not
// used.
func TestMixed(t *testing.T) {
	r := newRig(t)
	plain := counterOf(t, algo.Config{Algorithm: algo.SlidingLog, N: 1, Window: time.Hour})
	both := func() ([]algo.Result, error) {
		results := make([]algo.Result, 2)
		_, err := r.s.Take(t.Context(), []store.Charge{charge(plain, "key", 1), charge(r.c, "key", 1)}, results)
		return results, err
	}
	left, untold := r.held()
	if res, err := both(); err != nil || !res[0].Allowed || !res[1].Allowed {
		t.Fatalf("%+v, %v", res, err)
	}
	if l, u := r.held(); l != left-1 || u != untold+1 {
		t.Fatalf("%d, %d after %d, %d", l, u, left, untold)
	}
	res, err := both()
	if err != nil || res[0].Allowed || !res[1].Allowed || res[1].Remaining != 89 {
		t.Fatalf("%+v, %v", res, err)
	}
	if l, u := r.held(); l != left-1 || u != untold+1 {
		t.Fatalf("%d, %d after a refusal", l, u)
	}
	r.fail = func() (error, bool) { return errors.New("no answer"), true }
	_, err = both()
	pending, ok := errors.AsType[store.Pending](err)
	if !ok {
		t.Fatalf("%v is not pending", err)
	}
	pending.Outcome(func(o []store.Outcome) {
		if len(o) != 2 || o[0].Known || !o[1].Known || o[1].Made {
			t.Errorf("%+v", o)
		}
	})
	if l, u := r.held(); l != left-1 || u != untold+1 {
		t.Errorf("%d, %d after a failure", l, u)
	}
	if n := r.s.Stats().Limits[0]; n.Mixed != 2 {
		t.Errorf("%+v", n)
	}
}

// TestClocks: when this node's clock is seen to have stood still, nothing is used any more, and
// what is left is returned; when the primary's clock leaps, nothing is told either.
func TestClocks(t *testing.T) {
	r := newRig(t)
	other := int64(0)
	r.s.guard.clocks = func() []int64 { return []int64{r.w.at() + other, r.w.at()} }
	r.s.tick(r.w.at())
	other += int64(40 * time.Millisecond)
	r.s.tick(r.w.at())
	left, _ := r.held()
	if r.take(1); r.s.Stats().DroppedByClock != 0 {
		t.Error("dropped for 40 ms")
	}
	if l, _ := r.held(); l != left-1 {
		t.Errorf("%d left of %d", l, left)
	}
	other -= int64(60 * time.Millisecond)
	r.s.tick(r.w.at())
	if st := r.s.Stats(); st.DroppedByClock != 1 {
		t.Errorf("%+v", st)
	}
	charges := []store.Charge{charge(r.c, "key", 1)}
	if _, ok := r.s.TakeNow(charges, make([]algo.Result, 1)); ok {
		t.Error("used after a gap")
	}
	r.s.step(t.Context())
	left, _ = r.held() // lent anew
	r.stands(11, left)

	r = newRig(t)
	r.s.guard.clocks = func() []int64 { return []int64{r.w.at()} }
	r.s.tick(r.w.at())
	r.w.advance(5 * time.Second) // this process is stopped
	r.s.tick(r.w.at())
	if st := r.s.Stats(); st.DroppedByPause != 1 || st.DroppedByClock != 0 {
		t.Errorf("%+v", st)
	}

	r = newRig(t)
	left, untold := r.held()
	r.s.clock = func() int64 { return r.w.at() - int64(time.Second) } // as if the primary's had leaped
	r.at = r.s.clock
	take(t, r.s, charge(r.c, "key", 0))
	if st := r.s.Stats(); st.DroppedByStore != 1 || st.Left+st.Untold != 0 {
		t.Errorf("%+v", st)
	}
	if r.stands(10, left); untold == 0 {
		t.Error("nothing was untold")
	}
}

// TestNumbers: what was lent under other numbers is returned with the next call; a reload that
// compiles the same numbers anew changes nothing.
func TestNumbers(t *testing.T) {
	r := newRig(t)
	left, _ := r.held()
	again := *r.c
	again.Limit = mustLimit(t, hundred)
	charges := []store.Charge{charge(&again, "key", 1)}
	if _, ok := r.s.TakeNow(charges, make([]algo.Result, 1)); !ok {
		t.Error("not decided here after a reload")
	}
	more := hundred
	more.N = 1000
	other := again
	other.Limit = mustLimit(t, more)
	charges[0] = charge(&other, "key", 1)
	if _, ok := r.s.TakeNow(charges, make([]algo.Result, 1)); ok {
		t.Error("decided here under other numbers")
	}
	r.c = &other
	if r.take(1); r.s.Stats().DroppedByRules != 1 {
		t.Errorf("%+v", r.s.Stats())
	}
	l, u := r.held()
	if r.stands(12, l+u); l <= left-1 {
		t.Errorf("%d are left under the new numbers, %d were", l, left)
	}
}

// TestOthers: peeks, refunds, settlements and resets come after what was used here.
func TestOthers(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	if res := take(t, r.s, charge(r.c, "key", 0))[0]; res.Remaining != 90 {
		t.Errorf("a peek: %+v", res)
	}
	r.w.advance(time.Microsecond) // calls of one instant could be of one batch, and heard in any order
	if res := take(t, r.s, charge(r.c, "key", -3))[0]; res.Remaining != 93 {
		t.Errorf("a refund: %+v", res)
	}
	results := make([]algo.Result, 1)
	r.w.advance(time.Microsecond)
	now, err := r.s.Take(ctx, []store.Charge{charge(r.c, "key", 2)}, results)
	if err != nil || results[0].Remaining != 91 {
		t.Errorf("%+v, %v", results, err)
	}
	e := store.Settlement{Counter: r.c, Limit: r.c.Limit, Key: []byte("key"), At: now, Reserved: 2, Actual: 5}
	if err := r.s.Settle(ctx, []store.Settlement{e}); err != nil {
		t.Error(err)
	}
	r.w.advance(time.Microsecond)
	if res := take(t, r.s, charge(r.c, "key", 0))[0]; res.Remaining != 88 {
		t.Errorf("after a settlement: %+v", res)
	}
	e.Reserved, e.Actual = 5, 1
	_, untold := r.held()
	if err := r.s.Settle(ctx, []store.Settlement{e}); err != nil {
		t.Error(err)
	}
	if _, u := r.held(); u != 0 {
		t.Errorf("%d units are untold after a settlement, %d were before", u, untold)
	}
	r.take(1)
	left, _ := r.held()
	if _, err := r.s.Reset(ctx, r.c, []byte("key")); err != nil {
		t.Error(err)
	}
	r.stands(0, left)
	if l, u := r.held(); l != left || u != 0 {
		t.Errorf("%d left of %d, %d untold", l, left, u)
	}
}

// TestRefusals: one that the primary made is repeated here for a while, until something may have
// changed it.
func TestRefusals(t *testing.T) {
	r := newRig(t)
	for r.take(1) {
		r.s.pump(t.Context())
	}
	charges, results := []store.Charge{charge(r.c, "key", 1)}, make([]algo.Result, 1)
	refused := func() bool {
		calls := r.calls.Load()
		res := take(t, r.s, charges[0])[0]
		return !res.Allowed && r.calls.Load() == calls
	}
	if !refused() {
		t.Error("the primary is asked again")
	}
	if _, ok := r.s.TakeNow(charges, results); !ok || results[0].Allowed || results[0].Limit != 100 ||
		results[0].Remaining != 0 {
		t.Errorf("%+v", results)
	}
	charges[0].Mode = rule.Quota
	if _, ok := r.s.TakeNow(charges, results); ok {
		t.Error("a quota is refused here")
	}
	charges[0].Mode = rule.Enforce
	r.s.Forget(r.c, charges[0].Key)
	if refused() {
		t.Error("refused after Forget")
	}
	if !refused() {
		t.Error("the primary is asked again")
	}
	take(t, r.s, charge(r.c, "key", -1))
	if !r.take(1) {
		t.Error("refused after a refund")
	}
	r.take(1)
	if !refused() {
		t.Error("the primary is asked again")
	}
	r.w.advance(time.Second)
	if refused() {
		t.Error("refused after half of E")
	}
}

// TestBound: keys beyond the bound are decided by the primary, and a limit that cannot lend two
// units is.
func TestBound(t *testing.T) {
	w := newWorld()
	primary := newLender(t, w)
	s := newNode(t, w, primary, Options{MaxKeys: 3})
	c := counterOf(t, hundred)
	for range 20 {
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			take(t, s, charge(c, key, 1))
		}
	}
	if st := s.Stats(); st.Keys != 3 {
		t.Errorf("%d keys", st.Keys)
	}
	few := hundred
	few.N = 3
	small := counterOf(t, few)
	for range 20 {
		take(t, s, charge(small, "key", 1))
	}
	if st := s.Stats(); st.Keys != 3 || len(st.Limits) != 1 {
		t.Errorf("%+v", st)
	}
	// Keys come and go.
	for i := range 500 {
		key := fmt.Sprint(i)
		for range 4 {
			take(t, s, charge(c, key, 1))
		}
		if i%2 == 0 {
			w.advance(9 * time.Second)
			s.step(t.Context())
		}
	}
	if st := s.Stats(); st.Keys > 3 || st.Limits[0].Local < 500 {
		t.Errorf("%+v", st)
	}
	if _, err := New(nil, Options{}); err == nil {
		t.Error("no primary")
	}
	if _, err := New(primary, Options{MaxKeys: -1}); err == nil {
		t.Error("a negative bound")
	}
}

// started returns a Store for a bubble of synctest, in which other clocks make no sense.
func started(t *testing.T, primary store.Lender) *Store {
	t.Helper()
	s, err := build(primary, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.guard.clocks = func() []int64 { return []int64{store.Monotonic()} }
	s.start()
	return s
}

// TestAbsence: keys with a lease get over a short absence of the primary, behind package fallback.
func TestAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		local, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		primary := &lender{Store: m, at: store.Monotonic}
		leases := started(t, primary)
		f, err := fallback.New(leases, fallback.Options{Local: local, Nodes: func() int { return 100 }})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c := counterOf(t, hundred)
		admitted := 0
		for range 20 {
			time.Sleep(10 * time.Millisecond)
			if take(t, f, charge(c, "key", 1))[0].Allowed {
				admitted++
			}
		}
		left := leases.Stats().Left
		if admitted != 20 || left < 2 {
			t.Fatalf("%d admitted, %d left", admitted, left)
		}
		down := func() (error, bool) { return fmt.Errorf("down: %w", store.ErrNotCharged), false }
		primary.fail = down
		// The breaker opens.
		for range 20 {
			take(t, f, charge(c, "other", 1))
		}
		if state, _, _ := f.State(); state != fallback.Open {
			t.Fatalf("the breaker is %v", state)
		}
		there := 0
		for range left {
			if take(t, f, charge(c, "key", 1))[0].Allowed {
				there++
			}
		}
		if there != int(left) {
			t.Errorf("%d of %d admitted while the primary was away", there, left)
		}
		share := 0
		for range 10 {
			if take(t, f, charge(c, "key", 1))[0].Allowed {
				share++
			}
		}
		if share > 1 {
			t.Errorf("%d admitted on a share of one in a hundred", share)
		}
	})
}

// TestBackground: by itself a Store asks before a request has to wait, tells what ends, and returns
// what nobody uses.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		primary := &lender{Store: m, at: store.Monotonic}
		s := started(t, primary)
		defer s.Close()
		cfg := hundred
		cfg.N = 100_000
		c := counterOf(t, cfg)
		waited := 0
		for n := range 20_000 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			charges, results := []store.Charge{charge(c, "key", 1)}, make([]algo.Result, 1)
			if _, ok := s.TakeNow(charges, results); !ok {
				if take(t, s, charges...); n > 1000 {
					waited++
				}
			} else if !results[0].Allowed {
				t.Fatal("refused")
			}
		}
		if waited > 10 { // once in a generation: while what ends is exchanged for new units
			t.Errorf("%d requests had to wait for the primary", waited)
		}
		if n := s.Stats().Limits[0]; n.Lapsed != 0 {
			t.Errorf("%+v", n)
		}
		if calls := primary.calls.Load(); calls > 100 {
			t.Errorf("%d calls", calls)
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if st := s.Stats(); st.Left+st.Untold != 0 {
			t.Errorf("%+v", st)
		}
		if r := take(t, m, charge(c, "key", 0))[0]; r.Limit-r.Remaining != 20_000 {
			t.Errorf("%+v", r)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := s.Stats().Keys; n != 0 {
			t.Errorf("%d keys", n)
		}
	})
}

// TestInstant: no decision is earlier than the loan of the units it uses, also if its clock was
// read before that.
func TestInstant(t *testing.T) {
	for n := 1; n <= 2; n++ {
		r := newRig(t)
		read := 0
		r.s.clock = func() int64 {
			if read++; read == 1 {
				return r.w.at() - 1
			}
			return r.w.at()
		}
		r.s.decided = func(_ *store.Charge, _ *algo.Result, at int64) {
			if at < r.w.at() {
				t.Errorf("%d charges were decided before the units were lent", n)
			}
		}
		charges := []store.Charge{charge(r.c, "key", 1), charge(r.c, "key", 1)}[:n]
		if _, ok := r.s.TakeNow(charges, make([]algo.Result, n)); ok != (n == 1) {
			t.Errorf("%d charges: decided %v", n, ok)
		}
	}
}
