package regions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// TestInspect: a key is shown as one limit, whether it was used here or elsewhere, and a scan finds
// those that were used here.
func TestInspect(t *testing.T) {
	ctx := context.Background()
	l := limit(t, algo.Config{N: 40, Window: time.Minute})
	both, strict, synced := counterOf(l, rule.Regions{Over: 20}), counterOf(l, rule.Regions{}),
		counterOf(l, rule.Regions{Sync: true})
	for _, test := range []struct {
		counter *rule.Counter
		want    []string // by Inspect
		scanned []string
	}{
		{both, []string{
			"here: 10 used, 14 left of 40, next true, eu &{10 24} &{10 40}", "both: 35 used, 5 left of 40, next true, eu &{5 24} &{35 40}",
			"there: 40 used, 0 left of 40, next false, eu &{0 24} &{40 40}",
		}, []string{"here: 10 used, 14 left of 40, next true, eu &{10 24} &{10 40}",
			"both: 35 used, 5 left of 40, next true, eu &{5 24} &{35 40}"}},
		{strict, []string{"here: 10 used, 10 left of 40, next true, eu &{10 20} <nil>", "both: 5 used, 15 left of 40, next true, eu &{5 20} <nil>"}, nil},
		{synced, []string{"here: 10 used, 30 left of 40, next true, eu <nil> &{10 40}", "both: 5 used, 35 left of 40, next true, eu <nil> &{5 40}"}, nil},
	} {
		s := newTest(t, three, "eu", func() int64 { return start })
		take(t, s, charge(test.counter, "here", 10))
		take(t, s, charge(test.counter, "both", 5))
		if all := test.counter.Regions.All; all != nil {
			take(t, s.inner, charge(all, "both", 30))
			take(t, s.inner, charge(all, "there", 40))
		}
		v := &store.View{Counter: test.counter, Limit: func([]byte) *algo.Limit { return l }, MaxDelay: -1}
		var got []string
		visit := func(k store.KeyState) {
			got = append(got, fmt.Sprintf("%s: %d used, %d left of %d, next %v, %s %v %v", k.Key, k.Used,
				k.Result.Remaining, k.Result.Limit, k.Next.Allowed,
				k.Regions.Region, k.Regions.Own, k.Regions.All))
		}
		keys := [][]byte{[]byte("here"), []byte("both"), []byte("there"), []byte("nowhere"), []byte("here")}
		if test.counter == synced {
			keys = keys[:4]
		}
		if err := s.Inspect(ctx, v, keys, visit); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%v: got %q, want %q", err, got, test.want)
		}
		got = nil
		for from := ""; ; {
			scanned, err := s.Scan(ctx, v, from, 100, visit)
			if err != nil {
				t.Fatal(err)
			}
			if from = scanned.Next; from == "" {
				break
			}
		}
		if test.scanned == nil {
			test.scanned = test.want
		}
		slices.Sort(got)
		slices.Sort(test.scanned)
		if !slices.Equal(got, test.scanned) {
			t.Errorf("a scan found %q, want %q", got, test.scanned)
		}
		for _, key := range []string{"here", "there"} {
			if ok, err := s.Reset(ctx, test.counter, []byte(key)); err != nil ||
				ok != (key == "here" || test.counter == both) {
				t.Errorf("%s is reset: %v, %v", key, ok, err)
			}
			if r := take(t, s, charge(test.counter, key, 0))[0]; r.Remaining != map[*rule.Counter]int64{both: 24,
				strict: 20, synced: 40}[test.counter] {
				t.Errorf("%s after a reset: %+v", key, r)
			}
		}
	}
}

// TestInspectLeaves: keys for which no limit is in force are left out.
func TestInspectLeaves(t *testing.T) {
	l := limit(t, algo.Config{N: 40, Window: time.Minute})
	c := counterOf(l, rule.Regions{Over: 20})
	s := newTest(t, three, "eu", nil)
	take(t, s, charge(c, "k", 10))
	v := &store.View{Counter: c, Limit: func([]byte) *algo.Limit { return nil }}
	if err := s.Inspect(context.Background(), v, [][]byte{[]byte("k")}, func(k store.KeyState) {
		t.Errorf("%+v", k)
	}); err != nil {
		t.Error(err)
	}
}

// plain is a store that can do nothing beside.
type plain struct{ store.Store }

// remembering is a store that remembers refusals.
type remembering struct {
	plain
	forgot []uint64
}

func (r *remembering) Forget(c *rule.Counter, _ []byte) { r.forgot = append(r.forgot, c.ID) }

// TestOptional: what the wrapped store cannot do is an error, or left to Take.
func TestOptional(t *testing.T) {
	ctx := context.Background()
	s := newTest(t, three, "eu", nil)
	wrapped, err := New(plain{s.inner}, Options{Region: "eu", Table: three})
	if err != nil {
		t.Fatal(err)
	}
	v := &store.View{}
	_, _, claim := wrapped.Claim(ctx, "id")
	_, expired := wrapped.Expired(ctx, 1)
	_, scan := wrapped.Scan(ctx, v, "", 1, nil)
	_, reset := wrapped.Reset(ctx, nil, nil)
	for _, err := range []error{wrapped.Hold(ctx, "id", nil, time.Minute), claim, expired, wrapped.Settle(ctx, nil)} {
		if !errors.Is(err, store.ErrNoReservations) {
			t.Error(err)
		}
	}
	for _, err := range []error{wrapped.Inspect(ctx, v, nil, nil), scan, reset} {
		if !errors.Is(err, store.ErrNoInspector) {
			t.Error(err)
		}
	}
	if _, ok := wrapped.TakeNow(nil, nil); ok {
		t.Error("it decides without waiting")
	}
	wrapped.Forget(counterOf(limit(t, algo.Config{N: 1, Window: time.Minute}), rule.Regions{}), nil)

	r := &remembering{plain: plain{s.inner}}
	if wrapped, err = New(r, Options{Region: "eu", Table: three}); err != nil {
		t.Fatal(err)
	}
	c := counterOf(limit(t, algo.Config{N: 1, Window: time.Minute}), rule.Regions{Over: 20})
	if wrapped.Forget(c, nil); !slices.Equal(r.forgot, []uint64{c.ID, c.Regions.All.ID}) {
		t.Errorf("forgot %d", r.forgot)
	}
}
