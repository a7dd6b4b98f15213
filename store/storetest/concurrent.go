package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/store"
)

// Concurrent tests make their decisions from this many goroutines, by the store's own clock.
const callers = 64

// decisions is how many decisions a concurrent test makes.
func decisions() int { return effort.Of(6_000, 30_000) }

// decided is one decision as it came out.
type decided struct {
	now     int64
	results [2]algo.Result
}

// storm makes the decisions; call returns the charges of one, and must be safe for concurrent use.
func storm(t *testing.T, s store.Store, call func() []store.Charge) []decided {
	t.Helper()
	var wg sync.WaitGroup
	parts := make([][]decided, callers)
	errs := make([]error, callers)
	each := decisions()/callers + 1
	for g := range callers {
		wg.Go(func() {
			part := make([]decided, 0, each)
			for len(part) < cap(part) {
				var d decided
				charges := call()
				if d.now, errs[g] = s.Take(t.Context(), charges, d.results[:len(charges)]); errs[g] != nil {
					return
				}
				part = append(part, d)
			}
			parts[g] = part
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	all := slices.Concat(parts...)
	slices.SortStableFunc(all, func(a, b decided) int { return cmp.Compare(a.now, b.now) })
	return all
}

// replay decides the same at the recorded times by the pure algorithms, and compares: at each
// instant the same results must have come out, in whatever order.
func replay(t *testing.T, all []decided, call func() []store.Charge) (admitted int64) {
	t.Helper()
	m := newModel()
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].now == all[0].now {
			n++
		}
		got, want := map[[2]algo.Result]int{}, map[[2]algo.Result]int{}
		for i := range n {
			got[all[i].results]++
			var r [2]algo.Result
			charges := call()
			m.take(charges, r[:len(charges)], all[0].now)
			want[r]++
			allowed := true
			for j := range charges {
				allowed = allowed && r[j].Allowed
			}
			if allowed {
				admitted++
			}
		}
		for r, k := range want {
			if got[r] != k {
				t.Fatalf("at %d, of %d decisions, the algorithm gives %d times %+v\nthe store gave %v", all[0].now, n,
					k, r, got)
			}
		}
		all = all[n:]
	}
	return admitted
}

func testConcurrent(t *testing.T, n newStore, a algo.Algorithm) {
	for _, cfg := range map[algo.Algorithm][]algo.Config{
		algo.SlidingWindow: {{N: 5000, Window: 24 * time.Hour}, {N: 500, Window: 20 * time.Millisecond, Buckets: 4}},
		algo.SlidingLog:    {{N: 5000, Window: 24 * time.Hour}, {N: 500, Window: 20 * time.Millisecond, Soft: 10, SoftFor: 7 * time.Millisecond}},
		algo.FixedWindow:   {{N: 5000, Window: 24 * time.Hour}, {N: 500, Window: 20 * time.Millisecond, CountDenied: true}},
		algo.TokenBucket:   {{N: 20_000, Window: time.Second, Burst: 1000}},
		algo.LeakyBucket:   {{N: 20_000, Window: time.Second, Burst: 1000}},
		algo.Concurrency:   {{N: 500, Timeout: time.Hour}},
	}[a] {
		cfg.Algorithm = a
		s := n(t, nil)
		counter := counterOf(t, cfg)
		call := func() []store.Charge { return []store.Charge{charge(counter, "hot", 1)} }
		all := storm(t, s, call)
		admitted := replay(t, all, call)
		first, last := all[0].now, all[len(all)-1].now
		w := cfg.Window.Microseconds()
		switch a {
		case algo.Concurrency:
			if admitted != cfg.N {
				t.Errorf("%d slots of %d", admitted, cfg.N)
			}
		case algo.TokenBucket:
			if bound := cfg.Burst + (last-first)*cfg.N/w; admitted > bound {
				t.Errorf("%d admitted in %d µs, the bucket holds %d", admitted, last-first, bound)
			}
		case algo.LeakyBucket:
			if bound := cfg.Burst + 1 + (last-first)*cfg.N/w; admitted > bound {
				t.Errorf("%d admitted in %d µs, the queue has room for %d", admitted, last-first, bound)
			}
		default:
			if cfg.Soft == 0 && first/w == last/w && admitted != min(cfg.N, int64(len(all))) {
				t.Errorf("%d admitted in one window of %d", admitted, cfg.N)
			}
		}
	}
}

// testConcurrentTwoLimits decides by two limits together, one of which soon refuses: the other is
// then uncharged.
func testConcurrentTwoLimits(t *testing.T, n newStore) {
	for _, a := range []algo.Algorithm{algo.SlidingWindow, algo.SlidingLog, algo.FixedWindow, algo.TokenBucket,
		algo.LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			s := n(t, nil)
			tight := counterOf(t, algo.Config{Algorithm: a, N: 400, Window: 24 * time.Hour})
			wide := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 366 * 24 * time.Hour})
			call := func() []store.Charge {
				return []store.Charge{charge(wide, "all", 1), charge(tight, "one", 1)}
			}
			all := storm(t, s, call)
			admitted := replay(t, all, call)
			r, now := take(t, s, charge(wide, "all", 0))
			if w := (366 * 24 * time.Hour).Microseconds(); all[0].now/w == now/w &&
				r[0].Remaining != 1_000_000-admitted {
				t.Errorf("%d admitted, but the other limit was charged %d", admitted, 1_000_000-r[0].Remaining)
			}
		})
	}
}

// testConcurrentCrossed charges the same keys in different orders: no deadlock, and nothing is
// lost.
func testConcurrentCrossed(t *testing.T, n newStore) {
	s := n(t, nil)
	counter := counterOf(t, algo.Config{Algorithm: algo.TokenBucket, N: 1, Window: 366 * 24 * time.Hour,
		Burst: 1_000_000})
	const span = 20
	calls := 300
	if !effort.All() {
		calls = 30
	}
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			results := make([]algo.Result, span)
			for i := range calls {
				charges := make([]store.Charge, span)
				for j := range charges {
					k := j
					if (g+i)%2 == 0 {
						k = span - 1 - j
					}
					charges[j] = charge(counter, fmt.Sprint(k), 1)
				}
				if _, err := s.Take(t.Context(), charges, results); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for k := range span {
		if r, _ := take(t, s, charge(counter, fmt.Sprint(k), 0)); r[0].Remaining != int64(1_000_000-callers*calls) {
			t.Errorf("key %d has %d left, want %d", k, r[0].Remaining, 1_000_000-callers*calls)
		}
	}
}
