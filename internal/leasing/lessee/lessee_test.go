package lessee

import (
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-rl/weir/algo"
)

const (
	ms = int64(time.Millisecond)
	t0 = int64(1767225600_000000) // by the store's clock, in µs
)

// terms are the terms of a log of 1000 an hour that lends a hundred for 2 to 4 s.
func terms(t *testing.T) *Terms {
	t.Helper()
	l, err := algo.New(algo.Config{Algorithm: algo.SlidingLog, N: 1000, Window: time.Hour, Lease: 10,
		LeaseFor: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return TermsOf(l)
}

// lent returns an entry that was lent units until an instant; it asked at 10 ms, the store decided
// at t0, and the answer came at 30 ms.
func lent(t *Terms, got, until int64) Entry {
	e := Begin(t, 0)
	e.Note(t, 0, 10)
	var h algo.Ahead
	e.Ask(t, 10*ms, t0, false, true, &h)
	h.Got, h.Until, h.Out = got, until, got
	e.Hear(t, Answer{Asked: 10 * ms, At: 30 * ms, Now: t0}, 1, &algo.Result{Allowed: true, Limit: 1000, Remaining: 999},
		&h)
	return e
}

func TestDeadline(t *testing.T) {
	terms := terms(t)
	// 3 s after it asked, less a thousandth and a millisecond.
	deadline := 10*ms + 3000*ms - 3*ms - ms
	for _, use := range []func(e *Entry, at int64) bool{
		func(e *Entry, at int64) bool { return e.Use(at, 1) },
		func(e *Entry, at int64) bool { return e.Use(at, 5) },
		func(e *Entry, at int64) bool { _, ok := e.Take(at, 1); return ok },
	} {
		e := lent(terms, 5, t0+3_000_000)
		if e.Left(deadline-1) != 5 || e.Left(deadline) != 0 {
			t.Errorf("left %d before the deadline, %d at it", e.Left(deadline-1), e.Left(deadline))
		}
		if use(&e, deadline) {
			t.Error("used at the deadline")
		}
		if !use(&e, deadline-1) {
			t.Error("not used before the deadline")
		}
	}
	// Units of a generation that ends later do not help those that end now.
	e := lent(terms, 5, t0+3_000_000)
	h := algo.Ahead{Got: 3, Until: t0 + 5_000_000}
	e.Hear(terms, Answer{Asked: 20 * ms, At: 30 * ms, Now: t0}, 0, &algo.Result{Allowed: true}, &h)
	for n := range 4 {
		if e.Use(deadline, 1) != (n < 3) {
			t.Errorf("use %d at the first deadline", n)
		}
	}
	if left, _ := e.Holds(); left != 5 || e.Left(deadline-1) != 5 {
		t.Errorf("%d left", left)
	}
	// A second answer of the same generation that says less is believed, one that says more is not.
	e = lent(terms, 5, t0+3_000_000)
	for _, d := range []int64{-2, 1} {
		h := algo.Ahead{Got: 2, Until: t0 + 3_000_000}
		e.Hear(terms, Answer{Asked: 20*ms + d*ms, At: 40 * ms, Now: t0 + 10_000}, 0, &algo.Result{Allowed: true}, &h)
		if deadline = min(deadline, 20*ms+d*ms+2990*ms-2990*ms/1000-ms); e.Left(deadline-1) == 0 ||
			e.Left(deadline) != 0 {
			t.Errorf("%d: left %d, %d", d, e.Left(deadline-1), e.Left(deadline))
		}
	}
}

// TestBooks: no unit is told twice, used after it was returned, or lost on the way.
func TestBooks(t *testing.T) {
	terms := terms(t)
	until := t0 + 3_000_000
	e := lent(terms, 10, until)
	for range 3 {
		if !e.Use(40*ms, 1) {
			t.Fatal("not used")
		}
	}
	pending, ok := e.Take(40*ms, 2) // a call with other limits
	if left, used := e.Holds(); !ok || left != 5 || used != 3 {
		t.Fatalf("left %d, used %d", left, used)
	}
	var h algo.Ahead
	e.Ask(terms, 50*ms, t0, false, true, &h)
	if want := (algo.Told{End: until, Used: 3}); h.Told[0] != want && h.Told[1] != want {
		t.Fatalf("tells %+v", h.Told)
	}
	first := h
	e.Ask(terms, 50*ms, t0, false, true, &h)
	if h.Told != [2]algo.Told{} {
		t.Fatalf("tells twice: %+v", h.Told)
	}
	if e.Unask(terms, 60*ms, &first); e.held[0].used+e.held[1].used != 3 {
		t.Fatal("what was not told is not to be told again")
	}
	e.Lost(terms, 60*ms, &h)
	if e.Back(pending); e.Left(60*ms) != 7 {
		t.Fatalf("%d left", e.Left(60*ms))
	}
	pending, _ = e.Take(60*ms, 2)
	if e.Commit(pending); e.Left(60*ms) != 5 {
		t.Fatalf("%d left", e.Left(60*ms))
	}
	// A request that is too large returns what is left, so that the store can decide on it.
	e.Ask(terms, 70*ms, t0, true, true, &h)
	if want := (algo.Told{End: until, Used: 5, Returned: 5}); h.Told[0] != want && h.Told[1] != want {
		t.Fatalf("tells %+v", h.Told)
	}
	if left, used := e.Holds(); left+used != 0 || e.Use(70*ms, 1) {
		t.Fatalf("left %d, used %d", left, used)
	}
	// Units of a generation that is over are lost: they count as used.
	e = lent(terms, 4, until)
	pending, _ = e.Take(40*ms, 4)
	for _, end := range []int64{until + 2_000_000, until + 4_000_000} {
		h = algo.Ahead{Got: 1, Until: end}
		e.Hear(terms, Answer{Asked: 3100 * ms, At: 3100 * ms, Now: until + 1}, 0, &algo.Result{Allowed: true}, &h)
	}
	if lapsed := e.Back(pending); lapsed != 4 || e.Left(3100*ms) != 2 {
		t.Fatalf("%d lapsed, %d left", lapsed, e.Left(3100*ms))
	}
}

// TestVisit: what ends before the next visit is told, and what nobody asks for.
func TestVisit(t *testing.T) {
	terms := terms(t)
	until := t0 + 3_000_000
	e := lent(terms, 10, until)
	e.Use(40*ms, 4)
	if tell, over, _ := e.Visit(terms, 500*ms, t0+490_000, 200*ms); tell || over {
		t.Errorf("told at 0.5 s: %v, over %v", tell, over)
	}
	if tell, _, _ := e.Visit(terms, 1100*ms, t0+1_090_000, 200*ms); !tell {
		t.Error("idle for E/2, and not told")
	}
	e.Note(terms, 2700*ms, 1)
	if tell, _, _ := e.Visit(terms, 2700*ms, t0+2_690_000, 200*ms); tell {
		t.Error("told long before the deadline")
	}
	if tell, _, _ := e.Visit(terms, 2900*ms, t0+2_890_000, 200*ms); !tell {
		t.Error("not told before the deadline")
	}
	var h algo.Ahead
	e.Tell(terms, 2900*ms, t0, 200*ms, false, &h)
	if want := (algo.Told{End: until, Used: 4, Returned: 6}); h.Told[0] != want && h.Told[1] != want {
		t.Errorf("tells %+v", h.Told)
	}
	if e.Use(2901*ms, 1) {
		t.Error("used what was returned")
	}
	if _, over, _ := e.Visit(terms, 7000*ms, t0+7_000_000, 200*ms); !over {
		t.Error("not over after 2E")
	}
	e = lent(terms, 10, until)
	e.Use(40*ms, 4)
	if _, _, lapsed := e.Visit(terms, 3100*ms, until, 200*ms); lapsed != 10 {
		t.Errorf("%d lapsed", lapsed)
	}
}

// TestScarcity: a key that was refused, or lent little, does not ask for a while, and refuses.
func TestScarcity(t *testing.T) {
	terms := terms(t)
	if want := min(terms.E/2, int64(3*time.Minute)); terms.Pause != want {
		t.Fatalf("a pause of %v", time.Duration(terms.Pause))
	}
	e := lent(terms, 0, t0+3_000_000) // wanted 15
	for _, c := range []struct {
		at    int64
		short bool
	}{{40, false}, {1029, false}, {1030, true}} {
		e.Note(terms, c.at*ms, 1)
		if e.Short(terms, c.at*ms) != c.short {
			t.Errorf("at %d ms it is short: %v", c.at, !c.short)
		}
	}
	var h algo.Ahead
	if e.Ask(terms, 40*ms, t0, false, true, &h); h.Want == 0 {
		t.Error("a call that is made anyway wants nothing")
	}
	r := algo.Result{Limit: 1000, RetryAfter: 5000}
	h.Out = 1
	e.Hear(terms, Answer{Asked: 100 * ms, At: 110 * ms, Now: t0 + 90_000}, 2, &r, &h)
	if r.RetryAfter != 990_000 { // it refuses until 1.1 s
		t.Errorf("retry after %d µs", r.RetryAfter)
	}
	for _, c := range []struct {
		at, cost int64
		refuses  bool
	}{{110, 2, true}, {110, 1, false}, {110, 3, false}, {1099, 2, true}, {1100, 2, false}} {
		if refuses, _ := e.Refuses(c.at*ms, c.cost); refuses != c.refuses {
			t.Errorf("%+v", c)
		}
	}
	if e.Refused(terms, 600*ms, t0+580_000, &r); r.Allowed || r.RetryAfter != 500_000 || r.Limit != 1000 {
		t.Errorf("%+v", r)
	}
	e.Forget()
	if refuses, _ := e.Refuses(110*ms, 2); refuses {
		t.Error("it refuses what it has forgotten")
	}
	if e.instant = math.MaxInt64; e.retry(0, t0) != algo.Never {
		t.Error("never is never")
	}
}

// TestWant: the first want of a generation is marked, and no other; while a call is under way,
// there is none.
func TestWant(t *testing.T) {
	terms := terms(t)
	e := Begin(terms, 0)
	e.Note(terms, 0, 19)
	var h algo.Ahead
	if e.Ask(terms, 0, t0, false, true, &h); h.Want != 30 || !h.First {
		t.Fatalf("%+v", h)
	}
	var other algo.Ahead
	if e.Ask(terms, 0, t0, false, true, &other); other.Want != 0 {
		t.Fatalf("%+v", other)
	}
	hear := func(at, until int64) {
		h.Got, h.Until = h.Want, until
		e.Hear(terms, Answer{Asked: at, At: at, Now: t0 + at/1000}, 0, &algo.Result{Allowed: true}, &h)
		e.Use(at, h.Got)
	}
	hear(0, t0+3_500_000)
	if e.Ask(terms, 100*ms, t0, false, true, &h); h.Want == 0 || h.First {
		t.Fatalf("%+v", h)
	}
	hear(100*ms, t0+3_500_000)
	e.Note(terms, 1600*ms, 20)
	if e.Ask(terms, 1600*ms, t0, false, true, &h); h.Want == 0 || !h.First {
		t.Fatalf("in the next generation: %+v", h)
	}
	// What cannot be lent for longer, since a window ends, is of the same generation to its end.
	hear(1600*ms, t0+3_000_000)
	e.Note(terms, 2900*ms, 20)
	if e.Ask(terms, 2900*ms, t0, false, true, &h); h.Want == 0 || h.First {
		t.Fatalf("before the end of a window: %+v", h)
	}
	if h.Want > 100 {
		t.Errorf("wants %d, of 100 that may be out", h.Want)
	}
}

func TestEntrySize(t *testing.T) {
	if size := unsafe.Sizeof(Entry{}); size > 88 {
		t.Errorf("an entry has %d bytes", size)
	}
}
