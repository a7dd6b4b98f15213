package cas_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// Histories of several nodes are linearizable: there is an order of all operations, each at some
// moment between its call and its return, in which the pure algorithms give the same answers, field
// by field, at the instants that the store names.

// op is an operation, and what came of it.
type op struct {
	key     string
	cost    int64
	release uint64 // of these slots, in place of a charge
	slot    uint64
	now     int64
	result  algo.Result
	ok      bool // of a release
	unknown bool // whether it was made; when is then not known either
	// of a call on two limits: the cost of the second, and what came of it
	second       bool
	secondResult algo.Result
}

// history is what clients did.
type history struct {
	limits []*algo.Limit // one or two
	mu     sync.Mutex
	ops    []porcupine.Operation
}

var begun = time.Now()

// do has a client do an operation, and notes it. f returns false for one that was certainly not
// made.
func (h *history) do(client int, o *op, f func() bool) {
	call := time.Since(begun).Nanoseconds()
	made := f()
	back := time.Since(begun).Nanoseconds()
	if !made {
		return
	}
	if o.unknown {
		back = math.MaxInt64 // it may be made at any time
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: o, Call: call, Return: back})
}

// world is the states of one key. It is never changed, but replaced.
type world [2]algo.State

func (w *world) clone() *world {
	v := *w
	for i := range v {
		v[i].Ext = bytes.Clone(v[i].Ext)
	}
	return &v
}

func (w *world) equal(v *world) bool {
	for i := range w {
		a, b := &w[i], &v[i]
		if (a.B != 0 || b.B != 0) && (a.A != b.A || a.B != b.B || a.C != b.C || !bytes.Equal(a.Ext, b.Ext)) {
			return false
		}
	}
	return true
}

// step makes an operation, and returns the worlds that it can leave; none if it cannot have come
// out as it did.
func (h *history) step(w *world, o *op) []*world {
	v := w.clone()
	if o.release != 0 {
		if ok := h.limits[0].Release(&v[0], o.now, o.release); ok != o.ok && !o.unknown {
			return nil
		}
	} else if !h.take(v, o) {
		return nil
	}
	if o.unknown && !v.equal(w) {
		return []*world{w, v}
	}
	return []*world{v}
}

func (h *history) take(v *world, o *op) bool {
	ask := algo.Ask{Cost: o.cost, MaxDelay: -1, Slot: max(o.slot, 1)}
	if !o.second {
		r := h.limits[0].Take(&v[0], o.now, ask)
		return o.unknown || r == o.result
	}
	admitted := true
	for i, l := range h.limits {
		admitted = admitted && l.Check(&v[i], o.now, ask).Allowed
	}
	for i, got := range []algo.Result{o.result, o.secondResult} {
		own := h.limits[i].Check(&v[i], o.now, ask)
		if admitted {
			own = h.limits[i].Take(&v[i], o.now, ask)
		}
		if !o.unknown && (own.Allowed != got.Allowed || own.Remaining != got.Remaining) {
			return false
		}
	}
	return true
}

// check finds the order of the operations on each key.
func (h *history) check(t *testing.T) {
	t.Helper()
	for key, verdict := range h.verdicts(t) {
		if verdict != porcupine.Ok {
			t.Errorf("%s: %s", key, verdict)
		}
	}
}

func (h *history) verdicts(t *testing.T) map[string]porcupine.CheckResult {
	of := map[string][]porcupine.Operation{}
	for _, o := range h.ops {
		key := o.Input.(*op).key
		of[key] = append(of[key], o)
	}
	model := porcupine.Model{
		Init: func() any { return []*world{{}} },
		Step: func(state, input, _ any) (bool, any) {
			var next []*world
			for _, w := range state.([]*world) {
				for _, v := range h.step(w, input.(*op)) {
					if !slices.ContainsFunc(next, v.equal) {
						next = append(next, v)
					}
				}
			}
			return len(next) > 0, next
		},
		Equal: func(a, b any) bool {
			v, w := a.([]*world), b.([]*world)
			for _, x := range v {
				if !slices.ContainsFunc(w, x.equal) {
					return false
				}
			}
			return len(v) == len(w)
		},
	}
	verdicts := map[string]porcupine.CheckResult{}
	for key, ops := range of {
		verdicts[key] = porcupine.CheckOperationsTimeout(model, ops, patience.Left(t))
	}
	return verdicts
}

const linearKeys, linearNodes, linearClients = 4, 3, 4

// run lets the clients of several nodes charge a few keys.
func (h *history) run(t *testing.T, m *castest.Memory, each int, costs []int64) (stats []cas.Stats) {
	t.Helper()
	var counters []*rule.Counter
	for i, l := range h.limits {
		counters = append(counters, &rule.Counter{ID: uint64(i + 1), Group: 5, Limit: l})
	}
	var all sync.WaitGroup
	var stores []*cas.Store
	for n := range linearNodes {
		s := open(t, m, cas.Options{Connections: 2})
		stores = append(stores, s)
		for g := range linearClients {
			all.Go(func() { h.client(s, n*linearClients+g, counters, each, costs) })
		}
	}
	all.Wait()
	for _, s := range stores {
		stats = append(stats, s.Stats())
	}
	return stats
}

func (h *history) client(s *cas.Store, client int, counters []*rule.Counter, each int, costs []int64) {
	var held []op
	for range each {
		if len(held) > 0 && rand.IntN(2) == 0 {
			last := held[len(held)-1]
			held = held[:len(held)-1]
			o := &op{key: last.key, release: last.slot, now: last.now}
			h.do(client, o, func() bool {
				ok, err := s.Release(context.Background(), counters[0], []byte(o.key), o.release)
				o.ok, o.unknown = ok, err != nil
				return !errors.Is(err, store.ErrNotCharged)
			})
			continue
		}
		o := &op{key: fmt.Sprint("key ", rand.IntN(linearKeys)), cost: costs[rand.IntN(len(costs))],
			second: len(counters) > 1}
		h.do(client, o, func() bool {
			charges, results := make([]store.Charge, len(counters)), make([]algo.Result, len(counters))
			for i, c := range counters {
				charges[i] = charge(c, o.key, o.cost)
			}
			var err error
			o.now, err = s.Take(context.Background(), charges, results)
			o.result, o.secondResult, o.slot = results[0], results[len(results)-1], charges[0].Ask.Slot
			if err == nil {
				return true
			}
			o.unknown, o.now = true, begun.UnixMicro()
			return !errors.Is(err, store.ErrNotCharged)
		})
		if o.slot != 0 && !o.unknown {
			held = append(held, *o)
		}
	}
}

// TestLinearizable: nodes that conflict with each other, and others that nobody knows of.
func TestLinearizable(t *testing.T) {
	const window = 10 * time.Millisecond
	for _, c := range []algo.Config{
		{Algorithm: algo.FixedWindow, N: 40, Window: window},
		{Algorithm: algo.FixedWindow, N: 40, Window: window, FirstRequest: true},
		{Algorithm: algo.SlidingWindow, N: 40, Window: window},
		{Algorithm: algo.SlidingWindow, N: 40, Window: window, Buckets: 10, CountDenied: true},
		{Algorithm: algo.SlidingLog, N: 40, Window: window},
		{Algorithm: algo.TokenBucket, N: 40, Window: window},
		{Algorithm: algo.TokenBucket, N: 20, Window: window, RefillInterval: true},
		{Algorithm: algo.LeakyBucket, N: 40, Window: window},
		{Algorithm: algo.Concurrency, N: 6, Timeout: time.Hour},
	} {
		l, err := algo.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(l.String(), func(t *testing.T) {
			m := castest.New()
			m.Conflict = func(*cas.Group) bool { return rand.IntN(6) == 0 }
			h := &history{limits: []*algo.Limit{l}}
			costs := []int64{1, 1, 1, 2, 0}
			if c.Algorithm != algo.Concurrency {
				costs = append(costs, -1)
			}
			stats := h.run(t, m, 300, costs)
			h.check(t)
			if stats[0].Conflicts == 0 || stats[0].Locks == 0 {
				t.Errorf("nothing was contended: %+v", stats[0])
			}
		})
	}
}

// TestLinearizableWithoutAnswers: answers are lost, and questions; with limits whose states do not
// depend on the instant of a charge that nobody heard of.
func TestLinearizableWithoutAnswers(t *testing.T) {
	for name, limits := range map[string][]algo.Config{
		"a fixed window":   {{Algorithm: algo.FixedWindow, N: 100, Window: 366 * 24 * time.Hour}},
		"a sliding window": {{Algorithm: algo.SlidingWindow, N: 100, Window: 366 * 24 * time.Hour}},
		"two windows": {
			{Algorithm: algo.FixedWindow, N: 100, Window: 366 * 24 * time.Hour},
			{Algorithm: algo.FixedWindow, N: 90, Window: 365 * 24 * time.Hour},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := castest.New()
			var lost atomic.Int64
			m.Before = func(_ context.Context, c castest.Call) error {
				if c != castest.Read && rand.IntN(30) == 0 {
					lost.Add(1)
					return castest.ErrLost
				}
				return nil
			}
			m.After = func(_ context.Context, c castest.Call) error {
				if rand.IntN(20) == 0 && c != castest.Lock {
					lost.Add(1)
					return castest.ErrLost
				}
				return nil
			}
			h := &history{}
			for _, c := range limits {
				l, err := algo.New(c)
				if err != nil {
					t.Fatal(err)
				}
				h.limits = append(h.limits, l)
			}
			// Some ten are learned of in one run, and by chance once in thousands of runs none is.
			learned := uint64(0)
			for runs := 0; learned == 0; runs++ {
				if runs == 5 {
					t.Fatalf("%d answers lost, and none learned", lost.Load())
				}
				for _, stats := range h.run(t, m, 100, []int64{1, 1, 2, 0}) {
					learned += stats.Learned
				}
			}
			h.check(t)
		})
	}
}

// TestLinearizableNotices: what is not linearizable is found out.
func TestLinearizableNotices(t *testing.T) {
	l, err := algo.New(algo.Config{Algorithm: algo.SlidingLog, N: 2000, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, lie := range []bool{false, true} {
		h := &history{limits: []*algo.Limit{l}}
		h.run(t, castest.New(), 20, []int64{1})
		if lie { // one is said to have been admitted on what was left before
			h.ops[len(h.ops)/2].Input.(*op).result.Remaining++
		}
		illegal := 0
		for _, verdict := range h.verdicts(t) {
			if verdict == porcupine.Illegal {
				illegal++
			}
		}
		if (illegal == 1) != lie {
			t.Errorf("a lie: %v; %d keys have no order", lie, illegal)
		}
	}
}
