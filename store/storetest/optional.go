package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// within asks a store with a deadline that does not come.
type within struct {
	store.Store
	deadliner store.Deadliner
}

func (s within) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, _, err := s.deadliner.TakeWithin(ctx, time.Hour, time.Hour, charges, results)
	return now, err
}

// testDeadliner: with time enough, TakeWithin decides as Take does. A call that it gives up was
// made or not, as its error says.
func testDeadliner(t *testing.T, n newStore) {
	p := newPair(t, n)
	s, ok := p.store.(store.Deadliner)
	if !ok {
		t.Skip("it keeps no deadline by itself")
	}
	p.store = within{p.store, s}
	few, many := counterOf(t, window(3)), counterOf(t, window(1000))
	for range 5 {
		p.take(t, charge(few, "k", 1), charge(many, "k", 1))
	}
	p.take(t, charge(few, "k", 0), charge(many, "other", 2))
	p.take(t)
	for _, charges := range [][]store.Charge{{}, {{Limit: few.Limit}}, {{Counter: few}}} {
		results := make([]algo.Result, 1)
		if _, _, err := s.TakeWithin(t.Context(), time.Hour, time.Hour, charges, results); err == nil {
			t.Errorf("%+v with one result: no error", charges)
		}
	}

	all := counterOf(t, window(1000))
	var made, unknown int64
	for i := range time.Duration(40) {
		wait := max(1, i*i*time.Microsecond) // the first deadlines come at once
		charges, results := []store.Charge{charge(all, "k", 1)}, make([]algo.Result, 1)
		_, _, err := s.TakeWithin(t.Context(), wait, wait, charges, results)
		switch o := outcome(t, s, charges, err); {
		case !o.Known:
			unknown++
		case o.Made:
			made++
		}
	}
	results, _ := take(t, p.store, charge(all, "k", 0))
	if used := 1000 - results[0].Remaining; used < made || used > made+unknown {
		t.Errorf("%d units are used; %d calls were made, and of %d nothing is known", used, made, unknown)
	}
}

// outcome returns what is known about the only charge of a call, which had room.
func outcome(t *testing.T, s store.Deadliner, charges []store.Charge, err error) store.Outcome {
	t.Helper()
	switch {
	case err == nil:
		return store.Outcome{Known: true, Made: true}
	case !errors.Is(err, context.DeadlineExceeded):
		t.Fatalf("TakeWithin: %v", err)
	}
	parted, hasParts := s.(store.Parted)
	if blame, ok := errors.AsType[store.PartError](err); ok && hasParts {
		own := parted.PartOf(charges[0].Counter, charges[0].Key)
		for part := range parted.Parts() {
			if part != own && blame.Failed(part) {
				t.Errorf("part %d is blamed for a call to part %d: %v", part, own, err)
			}
		}
	}
	pending, ok := errors.AsType[store.Pending](err)
	switch {
	case errors.Is(err, store.ErrNotCharged):
		return store.Outcome{Known: true}
	case !ok:
		return store.Outcome{}
	}
	outcomes := make(chan []store.Outcome, 1)
	pending.Outcome(func(list []store.Outcome) { outcomes <- slices.Clone(list) })
	if list := <-outcomes; len(list) == 1 {
		return list[0]
	}
	return store.Outcome{}
}

// Parted tests store.Parted: each key lies in one part for good, and each part answers for itself.
// Run does it for the parts of the store that it is given, if it has any; a store that has several
// parts only in some configurations runs it for these.
func Parted(t *testing.T, newStore func(t *testing.T, clock func() int64) store.Store) {
	p := newPair(t, newStore)
	s, ok := store.As[store.Parted](p.store)
	if !ok {
		t.Skip("it has no parts")
	}
	parts := s.Parts()
	answers := func() []uint64 {
		list := make([]uint64, parts)
		for part := range list {
			list[part] = s.Answers(part)
		}
		return list
	}
	c := counterOf(t, window(1000))
	for i := range 20 {
		key, id := fmt.Sprint("key ", i), fmt.Sprint("id ", i)
		part, before := s.PartOf(c, []byte(key)), answers()
		p.take(t, charge(c, key, 1))
		after := answers()
		for other := range parts {
			if grew := after[other] > before[other]; grew != (other == part) {
				t.Errorf("a decision on %q, of part %d, moved the answers of part %d from %d to %d", key, part, other,
					before[other], after[other])
			}
		}
		if again := s.PartOf(c, []byte(key)); again != part {
			t.Errorf("%q has moved from part %d to %d", key, part, again)
		}
		if of := s.PartOfID(id); of < 0 || of >= parts || s.PartOfID(id) != of {
			t.Errorf("the reservation %q is in part %d of %d, and then in %d", id, of, parts, s.PartOfID(id))
		}
	}
	for part := range parts {
		if err := s.PingPart(t.Context(), part); err != nil {
			t.Errorf("part %d: %v", part, err)
		}
	}
	if left := p.remaining(t, c, "key 0"); left != 999 || s.Parts() != parts {
		t.Errorf("%d left after a ping, and %d parts in place of %d", left, s.Parts(), parts)
	}
}
