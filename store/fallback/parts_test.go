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
	"pgregory.net/rapid"
)

// halves is a primary of two parts, which are away one by one. Keys that begin with b are in the
// second.
type halves struct {
	store.Store
	away    [2]atomic.Bool
	answers [2]atomic.Uint64
}

// ofHalf is an error of one of them.
type ofHalf struct {
	error
	part int
}

func (e ofHalf) Failed(part int) bool { return part == e.part }
func (e ofHalf) Silent() bool         { return true }
func (e ofHalf) Unwrap() error        { return e.error }

func (h *halves) Parts() int                             { return 2 }
func (h *halves) PartOf(_ *rule.Counter, key []byte) int { return h.PartOfID(string(key)) }
func (h *halves) Answers(part int) uint64                { return h.answers[part].Load() }
func (h *halves) Close() error                           { return nil }

func (h *halves) PartOfID(id string) int {
	if id != "" && id[0] == 'b' {
		return 1
	}
	return 0
}

func (h *halves) PingPart(_ context.Context, part int) error {
	if h.away[part].Load() {
		return errDown
	}
	return nil
}

func (h *halves) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	for i := range charges {
		if part := h.PartOf(nil, charges[i].Key); h.away[part].Load() {
			return 0, ofHalf{fmt.Errorf("%w: %w", errDown, store.ErrNotCharged), part}
		}
		h.answers[h.PartOf(nil, charges[i].Key)].Add(1)
	}
	return h.Store.Take(ctx, charges, results)
}

// Hold, Claim, Expired and Settle call the store behind.
func (h *halves) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	return h.Store.(store.Reserver).Hold(ctx, id, note, timeout)
}

func (h *halves) Claim(ctx context.Context, id string) ([]byte, bool, error) {
	return h.Store.(store.Reserver).Claim(ctx, id)
}

func (h *halves) Expired(ctx context.Context, n int) ([][]byte, error) {
	return h.Store.(store.Reserver).Expired(ctx, n)
}

func (h *halves) Settle(ctx context.Context, settlements []store.Settlement) error {
	return h.Store.(store.Reserver).Settle(ctx, settlements)
}

// TestPartsSettleAlone: what a reservation cost less goes back to a part that is there, whatever
// was decided here for another one at the time.
func TestPartsSettleAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &halves{Store: newMemory(t, nil)}
		s := newOver(t, h, Options{})
		c := perHour(t, 100)
		h.away[1].Store(true)
		take(t, s, charge(c, "b", 1))
		var r [1]algo.Result
		at, err := s.Take(t.Context(), []store.Charge{charge(c, "a", 50)}, r[:])
		if err != nil {
			t.Fatal(err)
		}
		take(t, s, charge(c, "b", 1))
		e := store.Settlement{
			Counter: c, Limit: c.Limit, Key: []byte("a"), At: at, Reserved: 50, Actual: 5,
		}
		if err := s.Settle(t.Context(), []store.Settlement{e}); err != nil {
			t.Fatal(err)
		}
		if n := used(t, h.Store, c, "a"); n != 5 {
			t.Errorf("%d are charged of a reservation of 50 that cost 5", n)
		}
	})
}

// TestPartsAndTheirClock: what is given back to one part since the share refused for another is,
// whatever the clock of the primary says.
func TestPartsAndTheirClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := func() int64 { return time.Now().Add(-5 * time.Second).UnixMicro() }
		h := &halves{Store: newMemory(t, behind)}
		s := newOver(t, h, Options{})
		far := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 9, Window: 4 * time.Second})
		near := perHour(t, 1)
		h.away[1].Store(true)
		for range tripAfter + 1 {
			take(t, s, charge(near, "b", 1))
		}
		if r := take(t, s, charge(far, "a", 3), charge(near, "b", 1)); r[1].Allowed {
			t.Fatalf("%+v", r)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := used(t, h.Store, far, "a"); n != 0 {
			t.Errorf("%d stay charged of a call that was refused", n)
		}
	})
}

// TestPartsNameTheirRefusal: where a rule wants refusal, the cause comes from its own part.
func TestPartsNameTheirRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &halves{Store: newMemory(t, nil)}
		s := newOver(t, h, Options{})
		c := perHour(t, 10)
		causes := [2]error{errors.New("the first is down"), errors.New("the second is down")}
		for i := range s.parts {
			h.away[i].Store(true)
			s.trip(&s.parts[i], causes[i])
		}
		deny, local := charge(c, "a", 1), charge(c, "b", 1)
		deny.OnStoreError = rule.DenyAll
		_, err := s.Take(t.Context(), []store.Charge{deny, local}, make([]algo.Result, 2))
		if !errors.Is(err, causes[0]) {
			t.Errorf("the cause is said to be: %v", err)
		}
	})
}

// TestPartsFailAlone: what one part of the primary does is nothing to the others.
func TestPartsFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l log
		h := &halves{Store: newMemory(t, nil)}
		s := newOver(t, h, Options{FixedNodes: 3, Transition: l.add})
		c := perHour(t, 15)
		h.away[1].Store(true)
		for user := range 20 {
			for _, half := range []string{"a", "b"} {
				key, n := fmt.Sprint(half, user), 0
				for range 30 {
					if take(t, s, charge(c, key, 1))[0].Allowed {
						n++
					}
				}
				if want := map[string]int{"a": 15, "b": 5}[half]; n != want {
					t.Errorf("%s: %d were admitted, want %d", key, n, want)
				}
			}
		}
		state, _, cause := s.State()
		if away, parts := s.Away(); state != Open || cause == nil || away != 1 || parts != 2 || s.Stats().Trips != 1 {
			t.Errorf("%v, %v; %d of %d parts are away, %+v", state, cause, away, parts, s.Stats())
		}
		h.away[1].Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if away, _ := s.Away(); away != 0 || s.Stats().Open != 0 {
			t.Errorf("%d parts are away, %+v", away, s.Stats())
		}
		for user := range 20 {
			if n := used(t, h.Store, c, fmt.Sprint("b", user)); n != 5 {
				t.Errorf("%d are charged of a user who was admitted 5", n)
			}
		}
		if len(l.all) != 3 {
			t.Errorf("told of %v", l.all)
		}
	})
}

// TestPartsBlameOnlyTheirs: a part that is there does not count failures of calls that were also
// about another one.
func TestPartsBlameOnlyTheirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &halves{Store: newMemory(t, nil)}
		s := newOver(t, h, Options{})
		h.away[1].Store(true)
		for range 3 * tripAfter {
			take(t, s, charge(perHour(t, 10), "a", 1), charge(perHour(t, 10), "b", 1))
		}
		if away, _ := s.Away(); away != 1 || s.parts[0].breaker.Load().state != Closed {
			t.Errorf("%d parts are away", away)
		}
	})
}

// TestSplit: a call of which one part is away is made as a whole or not at all, by the rules of
// store.Store.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &halves{Store: newMemory(t, nil)}
			s := newOver(t, h, Options{})
			h.away[1].Store(true)
			for range tripAfter {
				take(t, s, charge(perHour(t, 1), "b", 0))
			}
			reference := newMemory(t, nil)
			var counters []*rule.Counter
			for range 6 {
				counters = append(counters, perHour(t, 4))
			}
			keys := []string{"a", "a", "a", "b", "b", "b"}
			for range rapid.IntRange(1, 20).Draw(rt, "calls") {
				var charges, alike []store.Charge
				for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4, 5}).Draw(rt,
					"which")[:rapid.IntRange(2, 6).Draw(rt, "n")] {
					c := charge(counters[i], keys[i], rapid.SampledFrom([]int64{1, 1, 2, 5}).Draw(rt, "cost"))
					c.Mode = rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Quota, rule.Shadow}).Draw(rt, "mode")
					charges, alike = append(charges, c), append(alike, c)
				}
				got, want := take(t, s, charges...), take(t, reference, alike...)
				if store.VerdictOf(charges, got).Denied() != store.VerdictOf(alike, want).Denied() {
					t.Fatalf("%+v:\n got %+v\nwant %+v", charges, got, want)
				}
				for i := range got {
					if got[i].Allowed != want[i].Allowed {
						t.Fatalf("charge %d of %+v:\n got %+v\nwant %+v", i, charges, got, want)
					}
				}
				time.Sleep(time.Second) // what is given back is
			}
			synctest.Wait()
			for i, c := range counters {
				here := used(t, h.Store, c, keys[i])
				if keys[i] == "b" {
					here = used(t, s.o.Local, c, keys[i])
				}
				if want := used(t, reference, c, keys[i]); here != want {
					t.Errorf("counter %d: %d are charged, want %d", i, here, want)
				}
			}
		})
	})
}
