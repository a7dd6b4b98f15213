package memory

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// TestSimpleAsAll asks two stores the same: one decides simple charges as it likes, the other all
// of them by takeAll. They must answer alike and keep the same, also where they are full.
func TestSimpleAsAll(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) { simpleAsAll(t, r) })
}

// TestSimpleAsAllFixed does the same with fixed examples, in which takeSimple decides calls of few
// charges, and calls of many.
func TestSimpleAsAllFixed(t *testing.T) {
	bySimple, many := 0, 0
	effort.Fixed(t, func() {
		rapid.Check(t, func(r *rapid.T) {
			f, m := simpleAsAll(t, r)
			bySimple, many = bySimple+f, many+m
		})
	})
	t.Logf("takeSimple decided %d calls, %d of them of more than %d charges", bySimple, many, few)
	if bySimple == 0 || many == 0 {
		t.Error("takeSimple decided no calls of few charges, or none of many")
	}
}

// simpleAsAll is one example of TestSimpleAsAll. It returns how many calls takeSimple decided, and
// how many of them had more than few charges.
func simpleAsAll(t *testing.T, r *rapid.T) (bySimple, many int) {
	clock := newClock()
	configs := []algo.Config{
		{N: 4, Window: time.Minute},
		{N: 30, Window: time.Hour, Buckets: 4},
		{N: 5, Window: time.Minute, CountDenied: true},
		{Algorithm: algo.TokenBucket, N: 3, Window: time.Minute},
		{Algorithm: algo.LeakyBucket, N: 3, Window: time.Minute},
		{Algorithm: algo.FixedWindow, N: 6, Window: time.Minute},
		{Algorithm: algo.SlidingLog, N: 4, Window: time.Minute},
		// these are not for takeSimple
		{Algorithm: algo.Concurrency, N: 3},
		{Algorithm: algo.TokenBucket, N: 3, Window: time.Minute, Soft: 50, SoftFor: time.Second},
	}
	const simple = 7 // of them
	o := Options{Clock: clock.read, MaxKeys: rapid.SampledFrom([]int{0, 12}).Draw(r, "max keys")}
	pauses := []time.Duration{0, time.Millisecond, time.Second, 20 * time.Second, 3 * time.Minute}
	if o.MaxKeys == 0 {
		// A full store drops what is as good as new in random order, and on a clock that is set
		// back it may not be so any more: then both would differ by luck.
		pauses = append(pauses, -time.Second)
	}
	quick, all := newTest(t, o), newTest(t, o)
	all.seed = quick.seed // so that they forget the same keys
	var counters []*rule.Counter
	last := rapid.SampledFrom([]int{len(configs) - 1, simple - 1}).Draw(r, "last")
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, last), 3, 20).Draw(r, "counters") {
		c := counter(t, configs[i])
		if configs[i].SoftFor > 0 {
			withMargin(c)
		}
		counters = append(counters, c)
	}
	for range rapid.IntRange(20, 120).Draw(r, "steps") {
		clock.advance(rapid.SampledFrom(pauses).Draw(r, "time"))
		if rapid.IntRange(0, 30).Draw(r, "reload") == 0 {
			i := rapid.IntRange(0, len(counters)-1).Draw(r, "reloaded")
			old := counters[i]
			config := old.Limit.Config()
			if config.Algorithm != algo.Concurrency && old.Margin == nil {
				config.N++
				if rapid.Bool().Draw(r, "another window") {
					config.Window *= 2
					counters[i] = counter(t, config)
					counters[i].Previous = []*rule.Counter{old}
				} else {
					counters[i] = counter(t, config)
					counters[i].ID = old.ID
				}
			}
		}
		n := rapid.IntRange(2, len(counters)+1).Draw(r, "charges")
		each := rapid.Bool().Draw(r, "each counter once")
		charges := make([]store.Charge, n)
		for i := range charges {
			c := counters[i%len(counters)]
			if !each {
				c = counters[rapid.IntRange(0, len(counters)-1).Draw(r, "counter")]
			}
			key := fmt.Appendf(nil, "a key of many bytes, number %d", rapid.IntRange(0, 9).Draw(r, "key"))
			if rapid.Bool().Draw(r, "short") {
				key = key[len(key)-1:]
			}
			if i > 0 && rapid.Bool().Draw(r, "same key") {
				key = charges[0].Key
			}
			charges[i] = store.Charge{
				Counter: c, Limit: c.Limit, Key: key,
				Ask:  algo.Ask{Cost: rapid.SampledFrom([]int64{1, 1, 1, 2, 0, -1}).Draw(r, "cost"), MaxDelay: -1},
				Mode: rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}).Draw(r, "mode"),
			}
		}
		got, want := make([]algo.Result, n), make([]algo.Result, n)
		gotNow, ok := quick.takeSimple(charges, got)
		if ok {
			bySimple++
			if n > few {
				many++
			}
		} else if now, err := quick.takeAll(charges, nil, got); err != nil {
			t.Fatal(err)
		} else {
			gotNow = now
		}
		wantNow, err := all.takeAll(charges, nil, want)
		if err != nil || !slices.Equal(got, want) || gotNow != wantNow {
			r.Fatalf("%+v (by takeSimple: %v):\n%+v at %d; takeAll says\n%+v at %d, %v", charges, ok, got, gotNow, want,
				wantNow, err)
		}
		if got, want := quick.Stats(), all.Stats(); got != want {
			r.Fatalf("%+v; takeAll leaves %+v", got, want)
		}
	}
	audit(t, quick)
	if got, want := states(quick), states(all); !maps.Equal(got, want) {
		r.Fatalf("it keeps\n%v\nand takeAll\n%v", got, want)
	}
	return bySimple, many
}

// states are the states that a store keeps, by their keys.
func states(s *Store) map[string]string {
	all := map[string]string{}
	for i := range s.shards {
		s.shards[i].visit(visitBatch, func(sh *shard, p int) {
			var st algo.State
			e := s.limits.load()[sh.load(p, &st)]
			if e.limit.Algorithm() == algo.Concurrency {
				clear(st.Ext) // the ids of slots are drawn
			}
			all[fmt.Sprintf("%d %s", e.id, sh.keyOf(p))] = fmt.Sprintf("%d %d %d %x", st.A, st.B, st.C, st.Ext)
		})
	}
	return all
}
