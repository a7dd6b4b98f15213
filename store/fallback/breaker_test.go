package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

func TestRun(t *testing.T) {
	var r run
	began := r.begin()
	for range 2 * tripAfter {
		if r.failed(began, nil) || r.n.Load() != 1 {
			t.Fatalf("calls under way together count %d failures", r.n.Load())
		}
	}
	r.succeeded(nil)
	for i := range tripAfter {
		if got, want := r.failed(r.begin(), nil), i == tripAfter-1; got != want {
			t.Errorf("failure %d: %v", i+1, got)
		}
	}
	r.succeeded(nil)
	for range 10 * tripAfter {
		if r.failed(r.begin(), nil) {
			t.Fatal("failures with answers between them")
		}
		r.succeeded(nil)
	}
}

// TestRunBesideMemory: answers that the primary remembers do not end a run, those that it gets do.
func TestRunBesideMemory(t *testing.T) {
	var r run
	n := uint64(7)
	answers := func() uint64 { return n }
	for i := range tripAfter {
		if got := r.failed(r.begin(), answers); got != (i == tripAfter-1) {
			t.Errorf("failure %d: %v", i+1, got)
		}
		r.succeeded(answers)
	}
	n++
	r.succeeded(answers)
	if r.begin() != 0 {
		t.Error("an answer does not end the run")
	}
}

func TestBreaker(t *testing.T) {
	down, now := errors.New("down"), time.Unix(0, 0)
	b := breaker{since: now}
	tick := func() time.Time { now = now.Add(time.Second); return now }

	b = b.trip(tick(), down)
	if b.state != Open || !b.since.Equal(now) || b.cause != down || !errors.Is(b.refusal, ErrUnavailable) ||
		!errors.Is(b.refusal, down) {
		t.Fatalf("%+v", b)
	}
	away := now
	var waits []time.Duration
	for range 100 {
		waits = append(waits, b.wait())
		b = b.probed(tick(), down)
	}
	if want := []time.Duration{100, 200, 400, 800, 1000, 1000}; !slices.EqualFunc(waits[:6], want,
		func(a, b time.Duration) bool { return a == b*time.Millisecond }) || b.wait() != lastWait {
		t.Errorf("waits: %v", waits[:6])
	}
	b = b.probed(tick(), nil)
	if b.state != HalfOpen || !b.since.Equal(away) || b.cause != down || b.wait() != firstWait {
		t.Errorf("after a probe that is answered: %+v", b)
	}
	b = b.probed(tick(), down)
	if b.state != Open || b.wait() != lastWait {
		t.Errorf("after one that fails: %+v", b)
	}
	for range closeAfter {
		if b.state == Closed {
			t.Error("closed too soon")
		}
		b = b.probed(tick(), nil)
	}
	if b.state != Closed || !b.since.Equal(now) || b.cause != nil || b.refusal != nil || b.passed != 0 {
		t.Errorf("after %d probes that are answered: %+v", closeAfter, b)
	}
	if soon := b.trip(now.Add(calm-1), down); soon.wait() != lastWait {
		t.Errorf("a primary that goes away again soon is probed after %v", soon.wait())
	}
	if late := b.trip(now.Add(calm), down); late.wait() != firstWait {
		t.Errorf("a primary that goes away again late is probed after %v", late.wait())
	}
}

func TestStateNames(t *testing.T) {
	for s, want := range map[State]string{Closed: "there", Open: "away", HalfOpen: "returning", 7: "state(7)"} {
		if s.String() != want {
			t.Errorf("%q, want %q", s, want)
		}
	}
}

func TestTrips(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuses, "hangs": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newTest(t, Options{})
				c := perHour(t, 100)
				p.set(f)
				for i := range tripAfter {
					if state, _, _ := s.State(); state != Closed {
						t.Fatalf("%v after %d failures", state, i)
					}
					began := time.Now()
					take(t, s, charge(c, "k", 1))
					if waited := time.Since(began); f == hangs && waited != DefaultDeadline {
						t.Errorf("decided after %v", waited)
					}
				}
				asked, began := p.takes.Load(), time.Now()
				take(t, s, charge(c, "k", 1))
				if p.takes.Load() != asked || time.Since(began) != 0 {
					t.Error("the open breaker asked the primary")
				}
				state, since, cause := s.State()
				if state != Open || since.IsZero() || cause == nil {
					t.Errorf("%v since %v, %v", state, since, cause)
				}
				want := Stats{
					Trips: 1, LocalAllowed: tripAfter + 1, Admitted: tripAfter + 1, Lost: tripAfter, Open: 1,
					Unanswered: tripAfter, UnansweredUnits: tripAfter,
				}
				if f == hangs {
					want.DeadlineMisses = tripAfter
				}
				if got := s.Stats(); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
				// Once it is back, the count begins anew.
				mend(t, s, p)
				p.set(f)
				take(t, s, charge(c, "k", 1))
				if state, _, _ := s.State(); state != Closed {
					t.Errorf("%v after one failure", state)
				}
			})
		})
	}
}

// TestOneSlowAnswer: what one slow answer fails are many calls, but one failure.
func TestOneSlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := perHour(t, 1_000_000)
		p.set(hangs)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { take(t, s, charge(c, "k", 1)) })
		}
		wg.Wait()
		p.set(none)
		if state, _, _ := s.State(); state != Closed {
			t.Fatalf("%v", state)
		}
		take(t, s, charge(c, "k", 1))
		if got := s.Stats(); got.Trips != 0 || got.DeadlineMisses != 1000 || got.LocalAllowed != 1000 {
			t.Errorf("%+v", got)
		}
		if n := s.parts[0].run.n.Load(); n != 0 {
			t.Errorf("%d failures in a row after an answer", n)
		}
	})
}

func TestCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		p.set(hangs)
		c := perHour(t, 100)
		results := make([]algo.Result, 1)
		for range 3 * tripAfter {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			if _, err := s.Take(ctx, []store.Charge{charge(c, "k", 1)}, results); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		if got := s.Stats(); got != (Stats{}) {
			t.Errorf("%+v", got)
		}
		if used(t, s.o.Local, c, "k") != 0 {
			t.Error("a call was decided for a caller who had gone")
		}
	})
}

// TestHurriedCaller: a caller's own deadline leaves it time to hear what is decided without the
// primary. (Envoy's is 20 ms.)
func TestHurriedCaller(t *testing.T) {
	for _, test := range []struct {
		deadline, answered time.Duration
		trips              uint64
	}{
		{time.Second, 20 * time.Millisecond, 1},
		{20 * time.Millisecond, 15 * time.Millisecond, 1},
		{8 * time.Millisecond, 6 * time.Millisecond, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, p := newTest(t, Options{})
			p.set(hangs)
			for range tripAfter {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
				if _, err := s.Take(ctx, []store.Charge{charge(perHour(t, 100), "k", 1)}, make([]algo.Result, 1)); err != nil {
					t.Error(err)
				}
				cancel()
				if d := time.Since(began); d != test.answered {
					t.Errorf("a deadline of %v: answered after %v, want %v", test.deadline, d, test.answered)
				}
			}
			if n := s.Stats().Trips; n != test.trips {
				t.Errorf("a deadline of %v: %d trips, want %d", test.deadline, n, test.trips)
			}
		})
	}
}

// transition is what Options.Transition was told.
type transition struct {
	from, to State
	cause    string
}

// log collects transitions.
type log struct {
	mu  sync.Mutex
	all []transition
}

func (l *log) add(from, to State, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, transition{from, to, fmt.Sprint(cause)})
}

func TestTransitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l log
		answers := []error{errDown, nil, nil, errDown, nil, nil, nil}
		s, p := newTest(t, Options{Transition: l.add, Probe: func(context.Context) error {
			err := answers[0]
			answers = answers[1:]
			return err
		}})
		cut(t, s, p, refuses)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want := []transition{
			{Closed, Open, "connection refused"}, {Open, HalfOpen, "connection refused"}, {HalfOpen, Open, "connection refused"},
			{Open, HalfOpen, "connection refused"}, {HalfOpen, Closed, "<nil>"},
		}
		if !slices.Equal(l.all, want) {
			t.Errorf("got %v\nwant %v", l.all, want)
		}
		if len(answers) != 0 {
			t.Errorf("%d probes too few", len(answers))
		}
	})
}

// TestReturnIsNoticed: within 2 s, however long the primary was away.
func TestReturnIsNoticed(t *testing.T) {
	for away := time.Duration(0); away < 20*time.Second; away += 730 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			s, p := newTest(t, Options{})
			cut(t, s, p, hangs)
			time.Sleep(away)
			p.set(none)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if state, _, cause := s.State(); state != Closed {
				t.Errorf("2 s after a primary that was away for %v came back the breaker is %v: %v", away, state, cause)
			}
		})
	}
}

// TestStaysOpen: a primary that answers slowly, or now and then, is not back.
func TestStaysOpen(t *testing.T) {
	for name, probe := range map[string]func(ctx context.Context, n int) error{
		"slow, heedless": func(context.Context, int) error { time.Sleep(DefaultDeadline + 1); return nil },
		"slow":           func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() },
		"flapping": func(_ context.Context, n int) error {
			if n%closeAfter == 0 {
				return errDown
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				probes := 0
				s, p := newTest(t,
					Options{Probe: func(ctx context.Context) error { probes++; return probe(ctx, probes) }})
				cut(t, s, p, refuses)
				p.set(none)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if state, _, _ := s.State(); state == Closed || probes < 500 {
					t.Errorf("%v after %d probes", state, probes)
				}
			})
		})
	}
}
