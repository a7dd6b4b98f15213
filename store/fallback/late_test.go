package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// tardy is a real store whose answers may come late, or never.
type tardy struct {
	store.Store
	mu      sync.Mutex
	mode    manner
	waiting []*tardyCall
	timely  int64 // units that were admitted in time
	missed  int64 // units that were charged, of which nobody will hear
}

// manner is how a tardy store answers.
type manner int

const (
	timely  manner = iota
	asLate         // it has decided, and its answer comes late
	decides        // it decides late
	undone         // it says late that it has decided nothing
	unheard        // it decides, and its answer never comes
	refused        // it fails, having done nothing
	manners
)

// tardyCall is one whose answer has not come.
type tardyCall struct {
	error
	of      *tardy
	how     manner
	charges []store.Charge
	list    []store.Outcome
	arrived bool
	tell    func([]store.Outcome) // nil: nobody has asked yet
}

func (c *tardyCall) Unwrap() error { return c.error }

func (c *tardyCall) Outcome(f func([]store.Outcome)) {
	c.of.mu.Lock()
	c.tell = f
	arrived := c.arrived
	c.of.mu.Unlock()
	if arrived {
		f(c.list)
	}
}

// set says how it answers from now on.
func (s *tardy) set(m manner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
}

// pending is how many answers have not come.
func (s *tardy) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

func (s *tardy) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(charges) == 0 || s.mode == timely {
		now, err := s.Store.Take(ctx, charges, results)
		if len(charges) > 0 && charges[0].Mode == rule.Enforce && results[0].Allowed {
			s.timely += charges[0].Ask.Cost
		}
		return now, err
	}
	if s.mode == refused {
		return 0, fmt.Errorf("%w: %w", errDown, store.ErrNotCharged)
	}
	c := &tardyCall{error: context.DeadlineExceeded, of: s, how: s.mode}
	for _, ch := range charges {
		ch.Key = append([]byte(nil), ch.Key...)
		c.charges = append(c.charges, ch)
	}
	if s.mode != decides {
		c.decide()
	}
	s.waiting = append(s.waiting, c)
	return 0, c
}

// decide makes the call.
func (c *tardyCall) decide() {
	if c.how == undone {
		c.list = make([]store.Outcome, len(c.charges))
		for i := range c.list {
			c.list[i].Known = true
		}
		return
	}
	results := make([]algo.Result, len(c.charges))
	now, err := c.of.Store.Take(context.Background(), c.charges, results)
	if err != nil {
		panic(err)
	}
	c.list = make([]store.Outcome, len(c.charges))
	for i := range results {
		ch := &c.charges[i]
		made := ch.Ask.Cost != 0 && (results[i].Allowed || ch.Limit.CountDenied())
		c.list[i] = store.Outcome{
			Known: true, Made: made, Slot: ch.Ask.Slot, Now: now, Result: results[i],
		}
		if made && c.how == unheard && ch.Ask.Cost > 0 {
			c.of.missed += ch.Ask.Cost // what is given back is in no book, so it is missed by none
		}
	}
	if c.how == unheard {
		clear(c.list)
	}
}

// arrive lets the answer number i come.
func (s *tardy) arrive(i int) {
	s.mu.Lock()
	c := s.waiting[i]
	s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
	if c.list == nil {
		c.decide()
	}
	c.arrived = true
	tell := c.tell
	s.mu.Unlock()
	if tell != nil {
		tell(c.list)
	}
}

// TestEachUnitIsAccountedFor: however calls and their answers end, the units that were admitted on
// the share have one fate each, and the primary has charged as many as the books say.
func TestEachUnitIsAccountedFor(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		wrong := "" // told outside of the bubble, so that rapid finds a smaller case
		synctest.Test(t, func(t *testing.T) {
			p := &tardy{Store: newMemory(t, nil)}
			s := newOver(t, p, Options{FixedNodes: rapid.IntRange(1, 3).Draw(rt, "nodes")})
			limit := rapid.Int64Range(1, 12).Draw(rt, "limit")
			c, admitted := perHour(t, limit), int64(0)
			sum := func() Stats {
				t.Helper()
				st := s.Stats()
				if st.Admitted != st.Settled+st.Excess+st.Lost+st.Lapsed+st.Returned+st.Open {
					t.Fatalf("the fates do not add up: %+v", st)
				}
				return st
			}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				switch step := rapid.IntRange(0, 9).Draw(rt, "step"); {
				case step < 7:
					p.set(manner(rapid.IntRange(0, int(manners)-1).Draw(rt, "manner")))
					cost := rapid.SampledFrom([]int64{1, 1, 1, 2, 5}).Draw(rt, "cost")
					key := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
					before := s.Stats().LocalAllowed
					ch, r := charge(c, key, cost), make([]algo.Result, 1)
					if rapid.IntRange(0, 3).Draw(rt, "policy") == 0 {
						ch.OnStoreError = rule.DenyAll
					}
					_, err := s.Take(t.Context(), []store.Charge{ch}, r)
					if err != nil && (ch.OnStoreError == rule.Local || !errors.Is(err, ErrUnavailable)) {
						t.Fatal(err)
					}
					if after := s.Stats().LocalAllowed; after > before {
						admitted += cost
						if !r[0].Allowed {
							t.Fatal("it says that it was denied")
						}
					}
				case step == 7 && p.pending() > 0:
					p.arrive(rapid.IntRange(0, p.pending()-1).Draw(rt, "answer"))
				default:
					p.set(timely)
					time.Sleep(time.Duration(rapid.IntRange(1, 1000).Draw(rt, "ms")) * time.Millisecond)
				}
				if st := sum(); st.Admitted != uint64(admitted) {
					t.Fatalf("%d units were admitted, the books say %d", admitted, st.Admitted)
				}
			}
			p.set(timely)
			for range 3 { // settling asks too
				time.Sleep(10 * time.Second)
				synctest.Wait()
				for p.pending() > 0 {
					p.arrive(0)
				}
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			st := sum()
			if st.Open != 0 || st.Lapsed != 0 {
				t.Errorf("in the end: %+v", st)
			}
			charged := used(t, p.Store, c, "a") + used(t, p.Store, c, "b")
			if want := p.timely + int64(st.Settled) + p.missed; charged != want {
				wrong = fmt.Sprintf("%d units are charged, want %d: %d in time, %d settled, %d of which nobody heard",
					charged, want, p.timely, st.Settled, p.missed)
			}
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// TestLateAnswers: what a late answer says counts.
func TestLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []Excess
		p := &tardy{Store: newMemory(t, nil)}
		s := newOver(t, p, Options{Exceeded: func(_ time.Time, rules []Excess) { reports = append(reports, rules...) }})
		admits, refuses := perHour(t, 10), perHour(t, 2)
		take(t, p.Store, charge(refuses, "k", 2)) // by another node
		p.set(asLate)
		if !take(t, s, charge(admits, "k", 1))[0].Allowed || !take(t, s, charge(refuses, "k", 1))[0].Allowed {
			t.Fatal("the share refuses what was never heard of")
		}
		if st := s.Stats(); st.Open != 2 {
			t.Errorf("before the answers come: %+v", st)
		}
		p.set(timely)
		p.arrive(0)
		p.arrive(0)
		if st := s.Stats(); st.Settled != 1 || st.Excess != 1 || st.Open != 0 || st.Trips != 0 {
			t.Errorf("%+v", st)
		}
		if n := used(t, p.Store, admits, "k"); n != 1 {
			t.Errorf("%d are charged", n)
		}
		time.Sleep(2 * nextReport)
		synctest.Wait()
		if len(reports) != 1 || reports[0].Rule != refuses.Rule || reports[0].Units != 1 {
			t.Errorf("told: %+v", reports)
		}
		// What was refused is known from then on.
		p.set(asLate)
		if take(t, s, charge(refuses, "k", 1))[0].Allowed {
			t.Error("it was admitted once more")
		}
		p.arrive(0)
		// What the share refuses and the primary has charged is given back.
		full := perHour(t, 5)
		take(t, s.o.Local, charge(full, "k", 5))
		if take(t, s, charge(full, "k", 2))[0].Allowed {
			t.Fatal("more than the share")
		}
		p.set(timely)
		p.arrive(0)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := used(t, p.Store, full, "k"); n != 0 {
			t.Errorf("%d stay charged of a call that was refused", n)
		}
	})
}

// TestGivenBack: what is given back is taken from the latest units of a log. So those that were
// charged in vain stay in it, and leave earlier than what was admitted after them: as many more are
// admitted in a window as were given back in it, and no more.
func TestGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, vain = 10, 4
		p := &tardy{Store: newMemory(t, nil)}
		s := newOver(t, p, Options{})
		c := counter(t, algo.Config{Algorithm: algo.SlidingLog, N: limit, Window: time.Hour})
		take(t, s.o.Local, charge(c, "k", limit))
		p.set(asLate)
		if take(t, s, charge(c, "k", vain))[0].Allowed {
			t.Fatal("more than the share")
		}
		p.set(timely)
		time.Sleep(30 * time.Minute)
		admitted := int64(0) // by another node
		for take(t, p.Store, charge(c, "k", 1))[0].Allowed {
			admitted++
		}
		p.arrive(0)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := used(t, p.Store, c, "k"); n != limit-vain {
			t.Fatalf("%d units count after %d were given back", n, vain)
		}
		time.Sleep(31 * time.Minute) // what was charged in vain counts no more
		for take(t, p.Store, charge(c, "k", 1))[0].Allowed {
			admitted++
		}
		if admitted != limit+vain {
			t.Errorf("%d were admitted within an hour, want %d and %d more", admitted, limit, vain)
		}
	})
}

// TestExcessIsToldOnceInAWhile: at most once a minute, and then all that is new.
func TestExcessIsToldOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []uint64
		b := newBooks(newKnown(), func(_ time.Time, rules []Excess) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, rules[0].Units)
		})
		c := perHour(t, 1)
		for range 180 {
			b.admit(1)
			b.move(c, []byte("k"), excess, 1)
			time.Sleep(time.Second)
		}
		time.Sleep(2 * nextReport)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		sum := uint64(0)
		for _, n := range told {
			sum += n
		}
		if sum != 180 || len(told) < 3 || len(told) > 5 {
			t.Errorf("told %v", told)
		}
		b.close()
	})
}
