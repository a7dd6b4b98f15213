package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/reserve"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

func (p *primary) reserver() store.Reserver { return p.Store.(store.Reserver) }

func (p *primary) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) (err error) {
	lost := p.do(ctx, func() { err = p.reserver().Hold(ctx, id, note, timeout) })
	return errors.Join(lost, err)
}

func (p *primary) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	lost := p.do(ctx, func() { note, ok, err = p.reserver().Claim(ctx, id) })
	return note, ok, errors.Join(lost, err)
}

func (p *primary) Expired(ctx context.Context, n int) (notes [][]byte, err error) {
	lost := p.do(ctx, func() { notes, err = p.reserver().Expired(ctx, n) })
	return notes, errors.Join(lost, err)
}

func (p *primary) Settle(ctx context.Context, settlements []store.Settlement) (err error) {
	lost := p.do(ctx, func() { err = p.reserver().Settle(ctx, settlements) })
	return errors.Join(lost, err)
}

// TestReservations: a note is handed out once, by the store that holds it.
func TestReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		ctx := t.Context()
		hold := func(id string, timeout time.Duration) {
			t.Helper()
			if err := s.Hold(ctx, id, []byte("note of "+id), timeout); err != nil {
				t.Errorf("Hold(%s): %v", id, err)
			}
		}
		claim := func(id string, want bool) {
			t.Helper()
			note, ok, err := s.Claim(ctx, id)
			if ok != want || err != nil || ok && string(note) != "note of "+id {
				t.Errorf("Claim(%s): %q, %v, %v; want %v", id, note, ok, err, want)
			}
		}
		expired := func(want ...string) {
			t.Helper()
			notes, err := s.Expired(ctx, 10)
			var got []string
			for _, note := range notes {
				got = append(got, string(note))
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("Expired: %q, %v; want %q", got, err, want)
			}
		}
		hold("a", time.Hour)
		hold("b", time.Hour)
		hold("c", time.Minute)
		claim("a", true)
		claim("a", false)

		cut(t, s, p, hangs)
		hold("d", time.Hour)
		hold("e", time.Minute)
		hold("f", 2*time.Minute)
		claim("d", true)
		if _, ok, err := s.Claim(ctx, "b"); ok || !errors.Is(err, ErrUnavailable) {
			t.Errorf("a note of a primary that is away: %v, %v", ok, err)
		}
		time.Sleep(time.Minute)
		expired("note of e")

		mend(t, s, p)
		expired("note of c")
		claim("b", true)
		time.Sleep(time.Minute)
		hold("g", time.Second)
		time.Sleep(time.Second)
		expired("note of f", "note of g")
		expired()

		// What was held though no answer came is not held a second time.
		p.set(loses)
		hold("h", time.Hour)
		p.set(none)
		claim("h", true)
		claim("h", false)
	})
}

// TestNoReservations: over a primary that holds none there are none.
func TestNoReservations(t *testing.T) {
	s := newOver(t, struct{ store.Store }{newMemory(t, nil)}, Options{})
	_, _, claim := s.Claim(t.Context(), "x")
	_, expired := s.Expired(t.Context(), 1)
	for _, err := range []error{claim, expired, s.Hold(t.Context(), "x", nil, time.Hour), s.Settle(t.Context(), nil)} {
		if !errors.Is(err, store.ErrNoReservations) {
			t.Error(err)
		}
	}
}

// TestSettlesReservations: what a request really cost comes to count where it was charged, before
// an outage, in it, and after it.
func TestSettlesReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{FixedNodes: 2})
		settle := func(c *rule.Counter, at, reserved, actual int64) {
			t.Helper()
			e := store.Settlement{Counter: c, Limit: c.Limit, Key: []byte("k"), At: at, Reserved: reserved,
				Actual: actual}
			if err := s.Settle(t.Context(), []store.Settlement{e}); err != nil {
				t.Error(err)
			}
		}
		charged := func(c *rule.Counter, cost int64) (at int64) {
			t.Helper()
			var r [1]algo.Result
			at, err := s.Take(t.Context(), []store.Charge{charge(c, "k", cost)}, r[:])
			if err != nil || !r[0].Allowed {
				t.Fatalf("%+v, %v", r[0], err)
			}
			return at
		}
		counts := func(what string, c *rule.Counter, ofPrimary, ofLocal int64) {
			t.Helper()
			if a, b := used(t, p.Store, c, "k"), used(t, s.o.Local, c, "k"); a != ofPrimary || b != ofLocal {
				t.Errorf("%s: the primary counts %d and Local %d, want %d and %d", what, a, b, ofPrimary, ofLocal)
			}
		}
		there, late, more, less, both, told := perHour(t, 100), perHour(t, 100), perHour(t, 100), perHour(t, 100),
			perHour(t, 100), perHour(t, 100)
		settle(there, charged(there, 10), 10, 3)
		counts("decided there, settled there", there, 3, 0)
		at := charged(late, 10)
		atBoth := charged(both, 20)

		time.Sleep(2 * time.Second)
		cut(t, s, p, refuses)
		time.Sleep(2 * time.Second)
		settle(late, at, 10, 4)
		counts("decided there, the primary is away", late, 10, 0)
		settle(more, charged(more, 10), 10, 15)
		counts("cost more, the primary is away", more, 0, 15)
		settle(less, charged(less, 10), 10, 1)
		counts("cost less, the primary is away", less, 0, 1)
		charged(both, 7)
		settle(both, atBoth, 20, 5)
		atTold := charged(told, 10)
		time.Sleep(2 * time.Second)

		mend(t, s, p)
		counts("after it", late, 4, 0)
		counts("after it", more, 15, 15)
		counts("after it", less, 1, 1)
		counts("after it", both, 12, 7)
		// The primary was charged for that as far as there was room. It is unknown whose units
		// found room: they stay.
		settle(told, atTold, 10, 2)
		counts("decided here, settled when the primary knew", told, 10, 10)
		settle(told, atTold, 10, 12)
		counts("cost more", told, 12, 10)
		if n := len(s.parts[0].missed.late); n != 0 {
			t.Errorf("%d settlements are left", n)
		}
	})
}

// TestReservedHere: what was decided without the primary is held here, although the primary is
// back: another node would give back to the primary what it was not charged. What the primary has
// decided is anybody's.
func TestReservedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		other := newOver(t, p, Options{})
		c := perHour(t, 100)
		reserved := func(cost int64) {
			t.Helper()
			var r [1]algo.Result
			at, err := s.Take(t.Context(), []store.Charge{charge(c, "k", cost)}, r[:])
			if err != nil || !r[0].Allowed {
				t.Fatalf("%+v, %v", r[0], err)
			}
			note := reserve.AppendNote(nil, at, &reserve.Charge{Counter: c.ID, Reserved: cost, Key: []byte("k")}, nil)
			p.set(none)
			if err := s.Hold(t.Context(), fmt.Sprint("of ", cost), note, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		claimed := func(by *Store, cost int64, want bool) {
			t.Helper()
			if _, ok, err := by.Claim(t.Context(), fmt.Sprint("of ", cost)); err != nil || ok != want {
				t.Errorf("the one of %d is claimed %v, %v, want %v", cost, ok, err, want)
			}
		}
		p.set(loses)
		reserved(7)
		if state, _, _ := s.State(); state != Closed {
			t.Fatalf("the breaker is %v", state)
		}
		time.Sleep(time.Millisecond)
		reserved(8)
		claimed(other, 7, false)
		claimed(other, 8, true)
		claimed(s, 7, true)
	})
}

// TestSettlesUncounted: what was admitted without being counted anywhere gives nothing back.
func TestSettlesUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := perHour(t, 100)
		take(t, s, charge(c, "k", 50))
		cut(t, s, p, refuses)
		time.Sleep(2 * time.Second)
		free := charge(c, "k", 10)
		free.OnStoreError = rule.AllowAll
		var r [1]algo.Result
		at, err := s.Take(t.Context(), []store.Charge{free}, r[:])
		if err != nil || !r[0].Allowed {
			t.Fatalf("%+v, %v", r[0], err)
		}
		mend(t, s, p)
		e := store.Settlement{Counter: c, Limit: c.Limit, Key: []byte("k"), At: at, Reserved: 10, Actual: 1}
		if err := s.Settle(t.Context(), []store.Settlement{e}); err != nil {
			t.Error(err)
		}
		if n := used(t, p.Store, c, "k"); n != 50 {
			t.Errorf("%d are charged, want 50", n)
		}
	})
}

// TestSettlementsOnce: one whose answer is lost is not made again, and one that was certainly not
// made is.
func TestSettlementsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := perHour(t, 100)
		take(t, s, charge(c, "k", 50))
		e := store.Settlement{Counter: c, Limit: c.Limit, Key: []byte("k"), At: time.Now().UnixMicro(), Reserved: 10,
			Actual: 4}
		p.set(loses)
		if err := s.Settle(t.Context(), []store.Settlement{e}); err != nil {
			t.Error(err)
		}
		mend(t, s, p)
		if n := used(t, p.Store, c, "k"); n != 44 {
			t.Errorf("%d are charged, want 44", n)
		}
		sure := &unsure{primary: p}
		sure.fails.Store(true)
		s2 := newOver(t, sure, Options{})
		if err := s2.Settle(t.Context(), []store.Settlement{e}); err != nil {
			t.Error(err)
		}
		sure.fails.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := used(t, p.Store, c, "k"); n != 38 {
			t.Errorf("%d are charged, want 38", n)
		}
		if !s2.parts[0].missed.empty() {
			t.Error("something is left")
		}
	})
}

// unsure is a store of which some settlements are certainly not made.
type unsure struct {
	*primary
	fails atomic.Bool
}

func (u *unsure) Settle(ctx context.Context, settlements []store.Settlement) error {
	if u.fails.Load() {
		return fmt.Errorf("not now: %w", store.ErrNotCharged)
	}
	return u.primary.Settle(ctx, settlements)
}

func TestOutages(t *testing.T) {
	var o outages
	if o.has(5) {
		t.Error("there was none")
	}
	sec := spanGap
	for i := range int64(maxSpans) {
		o.note(10*i*sec + 7)
		o.note(10*i*sec + 7 + sec/2)
	}
	for _, test := range []struct {
		at   int64
		want bool
	}{{6, false}, {7, true}, {7 + sec/2, true}, {8 + sec/2, false}, {500*sec + 7, true}, {505 * sec, false}} {
		if o.has(test.at) != test.want {
			t.Errorf("at %d: %v", test.at, !test.want)
		}
	}
	o.note(1 << 50)
	if len(o.spans) != maxSpans || !o.has(6) || !o.has(1<<50) || o.has(505*sec) {
		t.Errorf("%d spans; what is not known any more must count", len(o.spans))
	}
}

// TestSharesOfSchedules: a node's share of a limit follows the same clock, with its part of each of
// the limits; and a soft margin closes in it, too.
func TestSharesOfSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock begins at midnight
		limit := func(n int64, soft int) *algo.Limit {
			c := algo.Config{Algorithm: algo.FixedWindow, N: n, Window: 24 * time.Hour, Soft: soft}
			if soft > 0 {
				c.SoftFor = time.Minute
			}
			l, err := algo.New(c)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		l, err := algo.Scheduled(limit(10, 50), []algo.Phase{
			{From: time.Hour, Until: 2 * time.Hour, Limit: limit(25, 0)}, {From: 2 * time.Hour, Until: 3 * time.Hour},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &rule.Counter{ID: lastID.Add(1), Domain: "test", Limit: l}
		c.Margin = &rule.Counter{ID: lastID.Add(1), Domain: "test", Limit: l.Margin()}
		s, p := newTest(t, Options{FixedNodes: 3})
		cut(t, s, p, refuses)
		ask := func(what string, want algo.Result) {
			t.Helper()
			r := take(t, s, charge(c, "k", 1))[0]
			r.RetryAfter, r.ResetAfter = 0, 0
			if r != want {
				t.Errorf("%s: got %+v, want %+v", what, r, want)
			}
		}
		for i := range int64(4) {
			ask("a third of 10", algo.Result{Limit: 4, SoftLimit: 6, Remaining: 3 - i, Allowed: true})
		}
		ask("in the margin", algo.Result{Limit: 4, SoftLimit: 6, Allowed: true, Soft: true})
		time.Sleep(time.Minute)
		ask("the margin is closed", algo.Result{Limit: 4, SoftLimit: 4})
		time.Sleep(time.Hour)
		for i := range int64(4) {
			ask("a third of 25", algo.Result{Limit: 9, SoftLimit: 9, Remaining: 3 - i, Allowed: true})
		}
		ask("all of it", algo.Result{Limit: 9, SoftLimit: 9})
		time.Sleep(time.Hour)
		ask("no limit", algo.Result{Allowed: true, Off: true})
		time.Sleep(time.Hour)
		mend(t, s, p)
		// As many of the admitted units as still count within the share that is in force.
		if r := take(t, p.Store, charge(c, "k", 0))[0]; r.Limit != 10 || r.Remaining != 6 {
			t.Errorf("the primary was told of %d", r.Limit-r.Remaining)
		}
	})
}
