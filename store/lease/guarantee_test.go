package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// slow is a lender whose calls take time, and fail, before or after they were made.
type slow struct {
	*lender
	w    *world
	rng  *rand.Rand
	most time.Duration // that a way takes
	bad  float64       // part of calls that fail
}

var errLost = errors.New("the answer was lost")

func (l *slow) way() { l.w.advance(time.Duration(l.rng.Int64N(int64(l.most) + 1))) }

func (l *slow) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	asked = l.w.at()
	l.way()
	x := l.rng.Float64()
	if x < l.bad/2 {
		clear(results)
		return 0, 0, fmt.Errorf("%w: %w", errLost, store.ErrNotCharged)
	}
	now, _, err = l.lender.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	l.way()
	if x < l.bad {
		clear(results)
		for i := range ahead {
			ahead[i].Got, ahead[i].Until, ahead[i].Out = 0, 0, 0
		}
		return 0, 0, errLost
	}
	return now, asked, err
}

func (l *slow) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (now int64, err error) {
	l.way()
	defer l.way()
	return l.lender.Take(ctx, charges, results)
}

// nodes are several nodes in one world.
type nodes struct {
	t        testing.TB
	w        *world
	rng      *rand.Rand
	primary  store.Lender
	all      []*Store
	admitted map[string][]leasecheck.Admission // by window and key
	charges  []store.Charge
	local    []bool
	results  []algo.Result
}

func newNodes(t testing.TB, w *world, rng *rand.Rand, primary store.Lender, n int) *nodes {
	ns := &nodes{t: t, w: w, rng: rng, primary: primary, admitted: map[string][]leasecheck.Admission{}}
	for range n {
		ns.all = append(ns.all, nil)
		ns.restart(len(ns.all) - 1)
	}
	return ns
}

// restart makes a node anew: what the old one held is lost.
func (ns *nodes) restart(i int) {
	s := newNode(ns.t, ns.w, ns.primary, Options{})
	s.decided = func(c *store.Charge, r *algo.Result, at int64) {
		if !r.Off {
			ns.admit(c, start+(at-int64(time.Second))/1000)
		}
		for j := range ns.charges {
			if &ns.charges[j] == c {
				ns.local[j] = true
			}
		}
	}
	ns.all[i] = s
}

func (ns *nodes) admit(c *store.Charge, at int64) {
	id := c.Counter.Window + " " + string(c.Key)
	ns.admitted[id] = append(ns.admitted[id], leasecheck.Admission{Lo: at, Hi: at, Cost: c.Ask.Cost})
}

// take lets a node decide a request, and notes what it admits. It reports whether it does.
func (ns *nodes) take(i int, charges ...store.Charge) (allowed bool) {
	ns.charges, ns.local, ns.results = charges, make([]bool, len(charges)), make([]algo.Result, len(charges))
	now, err := ns.all[i].Take(context.Background(), charges, ns.results)
	if err != nil {
		if !errors.Is(err, errLost) {
			ns.t.Fatal(err)
		}
		return false
	}
	denied := store.VerdictOf(charges, ns.results).Denied()
	for j := range charges {
		c := &charges[j]
		if r := &ns.results[j]; c.Ask.Cost > 0 && r.Allowed && !r.Off && !ns.local[j] &&
			(!denied || c.Mode == rule.Shadow) {
			ns.admit(c, now)
		}
	}
	return !denied
}

// check holds everything that was admitted of counters against their guarantees.
func (ns *nodes) check(counters ...*rule.Counter) {
	ns.t.Helper()
	for _, c := range counters {
		for id, all := range ns.admitted {
			if len(id) > len(c.Window) && id[:len(c.Window)] == c.Window && id[len(c.Window)] == ' ' {
				if v, err := leasecheck.Check(c.Limit.Config(), 0, all); v != nil || err != nil {
					ns.t.Fatalf("%v, key %s: %v, %v", c.Limit, id, v, err)
				}
			}
		}
	}
}

var leased = []algo.Config{
	{Algorithm: algo.FixedWindow, N: 60, Window: time.Second, Lease: 50, LeaseFor: 100 * time.Millisecond},
	{Algorithm: algo.SlidingLog, N: 60, Window: time.Second, Lease: 50, LeaseFor: 100 * time.Millisecond},
	{Algorithm: algo.SlidingWindow, N: 60, Window: time.Second, Lease: 50, LeaseFor: 100 * time.Millisecond},
	{Algorithm: algo.TokenBucket, N: 60, Window: time.Second, Lease: 50, LeaseFor: 100 * time.Millisecond},
	{Algorithm: algo.TokenBucket, N: 300, Window: time.Second, Burst: 40, Lease: 90, LeaseFor: 30 * time.Millisecond},
	{Algorithm: algo.SlidingLog, N: 20, Window: 200 * time.Millisecond, Lease: 90, LeaseFor: 80 * time.Millisecond},
}

// TestNeverOver runs nodes in virtual time, with slow and failing calls, crashes and pauses, and
// counts what was admitted at the instants at which it was decided.
func TestNeverOver(t *testing.T) {
	runs := effort.Of(10, 40)
	for _, cfg := range leased {
		t.Run(mustLimit(t, cfg).String(), func(t *testing.T) {
			local, all := uint64(0), uint64(0)
			for seed := range uint64(runs) {
				l, a := neverOver(t, cfg, seed)
				local, all = local+l, all+a
			}
			t.Logf("%d of %d decisions made here", local, all)
			if local*5 < all {
				t.Errorf("only %d of %d decisions were made here", local, all)
			}
		})
	}
}

func neverOver(t *testing.T, cfg algo.Config, seed uint64) (local, all uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := newWorld()
	w.advance(time.Duration(rng.Int64N(int64(time.Second))))
	primary := &slow{lender: newLender(t, w), w: w, rng: rng}
	switch seed % 3 {
	case 1:
		primary.most, primary.bad = time.Duration(rng.Int64N(int64(cfg.LeaseFor))), 0.05
	case 2:
		primary.most, primary.bad = time.Duration(rng.Int64N(int64(3*time.Millisecond))), 0.2
	}
	ns := newNodes(t, w, rng, primary, 1+rng.IntN(4))
	c, other := counterOf(t, cfg), counterOf(t, leased[rng.IntN(len(leased))])
	plain := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 50, Window: time.Second})
	keys := []string{"a", "b"}[:1+rng.IntN(2)]
	pace := time.Duration(1 + rng.Int64N(int64(4*time.Millisecond)))
	next := make([]int64, len(ns.all))
	for range 4000 {
		w.advance(time.Duration(rng.Int64N(int64(pace))))
		for i, s := range ns.all {
			if at := w.at(); at >= next[i] {
				next[i] = at + int64(s.tick(at))
			}
			if rng.IntN(3) == 0 {
				s.pump(context.Background())
			}
		}
		i := rng.IntN(len(ns.all))
		key := keys[rng.IntN(len(keys))]
		call := []store.Charge{charge(c, key, 1)}
		switch x := rng.IntN(1000); {
		case x < 2:
			ns.restart(i)
		case x < 4:
			w.advance(time.Duration(rng.Int64N(int64(4 * cfg.LeaseFor)))) // all nodes stand still
		case x < 10:
			next[i] = w.at() + rng.Int64N(int64(4*cfg.LeaseFor)) // its background does
		case x < 20:
			// It comes back from a pause, and uses what it thinks it has before anything else.
			for range 10 {
				ns.take(i, call...)
			}
			pause := time.Duration(rng.Int64N(int64(3 * cfg.LeaseFor)))
			next[i] = w.at() + int64(pause)
			w.advance(pause)
			for range 20 {
				ns.take(i, charge(c, key, 1))
			}
		case x < 40:
			call[0].Ask.Cost = rng.Int64N(8)
		case x < 140:
			call = append(call, charge(other, key, 1))
		case x < 240:
			call = append(call, charge(plain, key, 1))
		case x < 260:
			call = append(call, charge(other, key, 1+rng.Int64N(3)), charge(plain, key, 1))
			call[rng.IntN(3)].Mode = rule.Shadow
		case x < 280:
			call = append(call, charge(other, key, 1))
			call[0].Mode, call[1].Mode = rule.Quota, rule.Quota
		}
		ns.take(i, call...)
	}
	ns.check(c, other, plain)
	for _, s := range ns.all {
		for _, n := range s.Stats().Limits {
			local, all = local+n.Local, all+n.Local+n.Store+n.Mixed
			if n.Used+n.Returned+n.Lapsed > n.Granted {
				t.Fatalf("seed %d: %+v: more than was granted is accounted for", seed, n)
			}
		}
		if n := s.Stats().Late; n > 0 {
			t.Fatalf("seed %d: %d units used late", seed, n)
		}
	}
	return local, all
}
