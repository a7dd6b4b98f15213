package storetest

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// testInspect holds that an Inspector returns the same figures as a decision, under any numbers
// that the key may have by then: the ones it was last charged under, or others.
func testInspect(t *testing.T, newStore newStore, a algo.Algorithm) {
	clock := newVirtual()
	s := clock.make(t, newStore)
	inspector, ok := s.(store.Inspector)
	if !ok {
		t.Skip("the store is no store.Inspector")
	}
	tb := t
	rapid.Check(t, func(t *rapid.T) {
		config := rapid.SampledFrom(configs[a]).Draw(t, "config")
		config.Algorithm = a
		numbers := []*algo.Limit{mustLimit(tb, config)}
		for _, n := range []int64{1, 3, 40} { // the numbers of a grant
			other := config
			if other.N = n; other.Burst > 0 {
				other.Burst = n
			}
			numbers = append(numbers, mustLimit(tb, fit(other)))
		}
		c := counterFor(numbers[0])
		keys := []string{"a", "b"}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			clock.advance(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			key := []byte(rapid.SampledFrom(keys).Draw(t, "key"))
			charged := rapid.SampledFrom(numbers).Draw(t, "charged by")
			takeOne(t, s, c, charged, key, rapid.Int64Range(0, 4).Draw(t, "cost"))
			shown := rapid.SampledFrom(numbers).Draw(t, "shown by")
			v := &store.View{Counter: c, MaxDelay: -1, Limit: func(k []byte) *algo.Limit {
				if bytes.Equal(k, key) {
					return shown
				}
				return nil // others are left out
			}}
			var state, scanned []store.KeyState
			if err := inspector.Inspect(t.Context(), v, [][]byte{key, []byte("c")}, func(k store.KeyState) {
				state = append(state, k)
			}); err != nil {
				t.Fatal(err)
			}
			if out, err := inspector.Scan(t.Context(), v, "", 1<<30, func(k store.KeyState) {
				k.Key = bytes.Clone(k.Key)
				scanned = append(scanned, k)
			}); err != nil || out.Next != "" {
				t.Fatalf("%+v, %v", out, err)
			}
			peek := takeOne(t, s, c, shown, key, 0)
			var want []store.KeyState
			if peek.ResetAfter != 0 {
				next := takeOne(t, s, c, shown, key, 1)
				late := !shown.CountDenied() && len(state) == 1 && state[0].Next.RetryAfter != next.RetryAfter
				if len(state) == 1 && state[0].Next.Allowed != next.Allowed || late {
					t.Fatalf("%v: next is said to be %+v, and is %+v", shown, state[0].Next, next)
				}
				want = []store.KeyState{{Key: key, Result: peek}}
			}
			// The used units end where the next cost does not fit: below the limit the peek shows
			// it, in a soft margin the store is asked.
			if len(state) == 1 && !shown.CountDenied() && shown.Algorithm() != algo.LeakyBucket {
				used, soft := state[0].Used, peek.SoftLimit
				if peek.Remaining > 0 && used != peek.Limit-peek.Remaining ||
					peek.Remaining == 0 && peek.Limit > 0 &&
						(used < peek.Limit || used > soft && state[0].Next.Allowed) {
					t.Fatalf("%v: used %d of %d (soft %d), of which %d remain", shown, used, peek.Limit, soft,
						peek.Remaining)
				}
			}
			for name, got := range map[string][]store.KeyState{"Inspect": state, "Scan": scanned} {
				if len(got) != len(want) || len(got) == 1 &&
					(got[0].Result != want[0].Result || !bytes.Equal(got[0].Key, key)) {
					t.Fatalf("%s under %v, charged by %v:\n%+v, want\n%+v", name, shown, charged, got, want)
				}
			}
		}
	})
}

// testReset holds that a key that was reset is as good as new, and no other.
func testReset(t *testing.T, newStore newStore) {
	clock := newVirtual()
	s := clock.make(t, newStore)
	inspector, ok := s.(store.Inspector)
	if !ok {
		t.Skip("the store is no store.Inspector")
	}
	for _, a := range algorithms {
		config := algo.Config{Algorithm: a, N: 2, Window: time.Minute}
		if a == algo.Concurrency {
			config.Window = 0
		}
		limit := mustLimit(t, config)
		c := counterFor(limit)
		for _, key := range []string{"k", "other"} {
			takeOne(t, s, c, limit, []byte(key), 2)
		}
		for n, want := range []bool{true, false} {
			if ok, err := inspector.Reset(context.Background(), c, []byte("k")); ok != want || err != nil {
				t.Errorf("%v: reset %d: %v, %v, want %v", a, n, ok, err, want)
			}
		}
		if r := takeOne(t, s, c, limit, []byte("k"), 0); r.ResetAfter != 0 {
			t.Errorf("%v: after the reset %+v", a, r)
		}
		if r := takeOne(t, s, c, limit, []byte("other"), 0); r.Remaining != 0 && a != algo.LeakyBucket {
			t.Errorf("%v: the other key is at %+v", a, r)
		}
	}
}

// takeOne charges one key.
func takeOne(t rapid.TB, s store.Store, c *rule.Counter, l *algo.Limit, key []byte, cost int64) algo.Result {
	t.Helper()
	results := make([]algo.Result, 1)
	charges := []store.Charge{{Counter: c, Limit: l, Key: key, Ask: algo.Ask{Cost: cost, MaxDelay: -1}}}
	if _, err := s.Take(context.Background(), charges, results); err != nil {
		t.Fatal(fmt.Errorf("%v: %w", l, err))
	}
	return results[0]
}

// Peek returns the state of a key under its counter's own limit; ok is false if it is fresh, or if
// c has no limit. It is for tests.
func Peek(ctx context.Context, s store.Inspector, c *rule.Counter, key []byte) (k store.KeyState, ok bool, err error) {
	v := store.View{Counter: c, Limit: func([]byte) *algo.Limit { return c.Limit }}
	err = s.Inspect(ctx, &v, [][]byte{key}, func(shown store.KeyState) {
		k, ok = shown, true
		k.Key = key
	})
	return k, ok, err
}
