package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// pass lets the background do what it has to.
func pass() {
	time.Sleep(10 * time.Second) // of virtual time
	synctest.Wait()
}

// TestLateAnswerToAFailedCall: what the primary has charged for a call that failed is given back.
func TestLateAnswerToAFailedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &tardy{Store: newMemory(t, nil)}
		s := newOver(t, p, Options{})
		c := perHour(t, 10)
		ch := charge(c, "k", 2)
		ch.OnStoreError = rule.DenyAll
		p.set(asLate)
		_, err := s.Take(t.Context(), []store.Charge{ch}, make([]algo.Result, 1))
		if !errors.Is(err, ErrUnavailable) {
			t.Fatalf("the call has failed with %v", err)
		}
		p.set(timely)
		p.arrive(0)
		pass()
		if n := used(t, p.Store, c, "k"); n != 0 {
			t.Errorf("%d stay charged", n)
		}
	})
}

// TestLateSlots: a slot that the primary has given too late is nobody's, and goes back.
func TestLateSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &tardy{Store: newMemory(t, nil)}
		s := newOver(t, p, Options{})
		slots := algo.Config{Algorithm: algo.Concurrency, N: 2, Timeout: time.Hour}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for what, ask := range map[string]func(c *rule.Counter) error{
			"on_store_error: allow": func(c *rule.Counter) error {
				ch := charge(c, "k", 1)
				ch.OnStoreError = rule.AllowAll
				_, err := s.Take(t.Context(), []store.Charge{ch}, make([]algo.Result, 1))
				return err
			},
			"on_store_error: local": func(c *rule.Counter) error {
				ch := []store.Charge{charge(c, "k", 1)}
				if _, err := s.Take(t.Context(), ch, make([]algo.Result, 1)); err != nil {
					return err
				}
				_, err := s.Release(t.Context(), c, []byte("k"), ch[0].Ask.Slot)
				return err
			},
			"a caller that has given up": func(c *rule.Counter) error {
				_, err := s.Take(gone, []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1))
				if err == nil {
					return errors.New("the call has not failed")
				}
				return nil
			},
		} {
			c := counter(t, slots)
			p.set(asLate)
			for range 2 {
				if err := ask(c); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			p.set(timely)
			for p.pending() > 0 {
				p.arrive(0)
			}
			pass()
			if n := used(t, p.Store, c, "k"); n != 0 {
				t.Errorf("%s: %d slots are held by nobody", what, n)
			}
		}
	})
}

// TestCountDeniedExcess: what is charged beyond a limit that counts denied requests is excess.
func TestCountDeniedExcess(t *testing.T) {
	for name, how := range map[string]manner{"a late answer": asLate, "a debt": refused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &tardy{Store: newMemory(t, nil)}
				s := newOver(t, p, Options{})
				c := counter(t, algo.Config{
					Algorithm: algo.FixedWindow, N: 2, Window: time.Hour, CountDenied: true,
				})
				take(t, p.Store, charge(c, "k", 2)) // by another node
				p.set(how)
				if !take(t, s, charge(c, "k", 1))[0].Allowed {
					t.Fatal("the share refuses what was never heard of")
				}
				p.set(timely)
				if how == asLate {
					p.arrive(0)
				}
				pass()
				if st := s.Stats(); st.Excess != 1 || st.Settled != 0 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// TestRefundOfAnUndoneCall: what is refunded here goes back, if the primary turns out not to have
// done it.
func TestRefundOfAnUndoneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for how, want := range map[manner]int64{asLate: 3, undone: 3, unheard: 3} {
			p := &tardy{Store: newMemory(t, nil)}
			s := newOver(t, p, Options{})
			c := perHour(t, 10)
			take(t, s, charge(c, "k", 5))
			p.set(how)
			take(t, s, charge(c, "k", -2))
			p.set(timely)
			p.arrive(0)
			pass()
			if n := used(t, p.Store, c, "k"); n != want {
				t.Errorf("manner %d: %d are charged, want %d", how, n, want)
			}
		}
	})
}

// TestExcessIsToldAtClose: what was not told yet is not lost.
func TestExcessIsToldAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := uint64(0)
		p := &tardy{Store: newMemory(t, nil)}
		s := newOver(t, p, Options{Exceeded: func(_ time.Time, rules []Excess) {
			for _, e := range rules {
				told += e.Units
			}
		}})
		c := perHour(t, 2)
		take(t, p.Store, charge(c, "k", 2)) // by another node
		p.set(asLate)
		take(t, s, charge(c, "k", 1))
		p.arrive(0)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if told != 1 {
			t.Errorf("%d units were told of", told)
		}
	})
}

// TestExcessInShadow: what a rule in shadow would have refused is accounted for, and no excess of
// a rule.
func TestExcessInShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &tardy{Store: newMemory(t, nil)}
		s := newOver(t, p, Options{Exceeded: func(_ time.Time, rules []Excess) {
			t.Errorf("told: %+v", rules)
		}})
		c := perHour(t, 2)
		take(t, p.Store, charge(c, "k", 2), charge(c, "l", 2)) // by another node
		for key, how := range map[string]manner{"k": asLate, "l": refused} {
			ch := charge(c, key, 1)
			ch.Mode = rule.Shadow
			p.set(how)
			take(t, s, ch)
		}
		p.set(timely)
		p.arrive(0)
		pass()
		if st := s.Stats(); st.Excess != 2 {
			t.Errorf("%+v", st)
		}
		if rules := s.Excess(); len(rules) != 0 {
			t.Errorf("excess of rules: %+v", rules)
		}
		time.Sleep(2 * nextReport)
	})
}

// TestTooLongAWaitIsNoFullQueue: a request that would have had to wait for too long tells nothing
// against one that may wait.
func TestTooLongAWaitIsNoFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := counter(t, algo.Config{
			Algorithm: algo.LeakyBucket, N: 10, Window: time.Hour, Burst: 9,
		})
		for range 3 {
			take(t, s, charge(c, "k", 1))
		}
		hurried := charge(c, "k", 1)
		hurried.Ask.MaxDelay = 1
		if take(t, s, hurried)[0].Allowed {
			t.Fatal("it was admitted")
		}
		cut(t, s, p, hangs)
		if !take(t, s, charge(c, "k", 1))[0].Allowed {
			t.Error("refused, with room in the queue")
		}
	})
}

// fainting is a store that is away when it is asked for the first time, and that takes its time to
// say where a key lies. It has a second part, without keys.
type fainting struct {
	store.Store
	asked atomic.Int64
	away  error // what it says then
}

func (s *fainting) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if s.asked.Add(1) == 1 {
		return 0, s.away
	}
	return s.Store.Take(ctx, charges, results)
}

func (*fainting) Parts() int { return 2 }

// PartOf lets every other goroutine go first, as far as that can go.
func (*fainting) PartOf(*rule.Counter, []byte) int {
	time.Sleep(settleEvery) // of virtual time
	return 0
}

func (*fainting) PartOfID(string) int                 { return 0 }
func (*fainting) PingPart(context.Context, int) error { return nil }
func (s *fainting) Answers(int) uint64                { return uint64(s.asked.Load()) }

// undecided is an error of a call that is known to have decided nothing of its charges once
// somebody asks.
type undecided struct {
	error
	charges int
}

func (u undecided) Outcome(tell func([]store.Outcome)) {
	list := make([]store.Outcome, u.charges)
	for i := range list {
		list[i].Known = true
	}
	tell(list)
}

// TestOwedTogether: what one decision without the primary owes it is charged in one call, whatever
// the background does between the notes of two charges, whether that is known at once or later.
func TestOwedTogether(t *testing.T) {
	const n = 40
	for name, away := range map[string]error{
		"not charged": fmt.Errorf("%w: %w", errDown, store.ErrNotCharged),
		"undecided":   undecided{context.DeadlineExceeded, n},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &fainting{Store: newMemory(t, nil), away: away}
				s := newOver(t, p, Options{})
				var charges []store.Charge
				for range n {
					charges = append(charges, charge(perHour(t, 10), "k", 1))
				}
				take(t, s, charges...)
				pass()
				if asked := p.asked.Load(); asked != 2 || s.Stats().Settled != n {
					t.Errorf("asked %d times: %+v", asked, s.Stats())
				}
			})
		})
	}
}
