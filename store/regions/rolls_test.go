package regions

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/rule"
)

// spare is a region that has a weight and nothing else: what nobody may use for a while.
const spare = "spare"

// roll is a change of the table or of N.
type roll struct {
	seed     uint64
	before   [3]int // weights
	after    [3]int
	n, thenN int64
	of       rule.Regions
	config   algo.Config
	wait     time.Duration // before it
	lost     int           // the region whose Redis and nodes are gone; -1 for none
	at       bool          // planted mistake: at once, without the first step
	parted   bool          // no region hears of another
}

func drawRoll(seed uint64) *roll {
	rnd := rand.New(rand.NewPCG(seed, 16))
	r := &roll{seed: seed, lost: -1}
	r.n = int64(60 + rnd.IntN(200))
	r.thenN = r.n
	weights := func() (list [3]int) {
		for i := range list {
			list[i] = 1 + rnd.IntN(3)
		}
		return list
	}
	r.before = weights()
	r.after = weights()
	one := rnd.IntN(3)
	switch rnd.IntN(4) {
	case 0: // N
		r.after, r.thenN = r.before, int64(60+rnd.IntN(200))
	case 1: // a region is added
		r.before[one] = 0
	case 2: // and lost
		r.after[one], r.lost = 0, one
	}
	r.of = rule.Regions{Over: []int{0, 20, 50}[rnd.IntN(3)], Tell: 2}
	r.config = algo.Config{Algorithm: []algo.Algorithm{algo.TokenBucket, algo.FixedWindow, algo.SlidingWindow,
		algo.SlidingLog}[rnd.IntN(4)], Window: 2 * time.Second}
	r.wait = r.config.Window + time.Duration(rnd.Int64N(int64(r.config.Window)))
	r.parted = rnd.IntN(4) == 0
	return r
}

// with returns the limit with another N.
func (r *roll) with(n int64) algo.Config {
	c := r.config
	if c.N = n; c.Algorithm == algo.TokenBucket {
		c.Burst = n
	}
	return c
}

// step is a table and a limit.
type step struct {
	weights [4]int // the last one is spare's
	n       int64
}

// steps are the steps of docs/operating/regions.md: first the lesser of the old and the new part
// for each region.
func (r *roll) steps() (list []step) {
	a, b := r.before, r.after
	sumA, sumB := a[0]+a[1]+a[2], b[0]+b[1]+b[2]
	first, last := step{[4]int{a[0], a[1], a[2], 0}, r.n}, step{[4]int{b[0], b[1], b[2], 0}, r.thenN}
	if r.at {
		return []step{first, last}
	}
	lesser := step{n: min(r.n, r.thenN)}
	left := sumA * sumB
	for i := range 3 {
		lesser.weights[i] = min(a[i]*sumB, b[i]*sumA)
		left -= lesser.weights[i]
	}
	lesser.weights[3] = left
	return []step{first, lesser, last}
}

// run makes the change, one node after the other, while all regions ask for more than there is.
func (r *roll) run(t *testing.T, virtual bool) (found string) {
	w := &world{
		t: t, plan: plan{config: r.config, parted: r.parted}, prefix: fmt.Sprintf("c%d:%d:", r.seed, rand.Uint32()), names: []string{"ap", "eu", "us"}, nodes: make([][]*node, 3),
		log: slog.New(slog.DiscardHandler), virtual: virtual,
	}
	w.start()
	w.names = append(w.names, spare)
	defer w.end()
	var bound algo.Config
	set := func(s step) {
		c := r.with(s.n)
		w.weights, w.counter = s.weights[:], borrowable(t, c, r.of)
		of := w.bound(c, &r.of)
		of.N, of.Burst = max(of.N, bound.N), max(of.Burst, bound.Burst)
		bound = of
	}
	var running sync.WaitGroup
	var now [3][2]*node
	var stop [3][2]func()
	defer running.Wait()
	start := func(region, i int) {
		n := w.open(region)
		ctx, cancel := context.WithCancel(t.Context())
		var mine sync.WaitGroup
		n.load(ctx, &mine, 100, 1, 1, r.seed+uint64(10*region+i))
		running.Go(mine.Wait)
		now[region][i], stop[region][i] = n, func() { cancel(); mine.Wait() }
	}
	each := func(do func(region, i int)) {
		for region := range now {
			for i := range now[region] {
				do(region, i)
			}
		}
	}
	steps := r.steps()
	set(steps[0])
	each(start)
	time.Sleep(r.wait)
	for at, s := range steps[1:] {
		if at > 0 { // a window, and two generations
			time.Sleep(r.config.Window + 2*500*time.Millisecond)
		}
		set(s)
		each(func(region, i int) {
			stop[region][i]()
			now[region][i].close()
			if region == r.lost {
				if i == 1 {
					w.servers[region].Kill()
				}
				return
			}
			start(region, i)
		})
	}
	time.Sleep(r.config.Window)
	each(func(region, i int) { stop[region][i]() })
	var list []leasecheck.Admission
	for _, nodes := range w.nodes {
		for _, n := range nodes {
			for _, a := range n.admitted {
				list = append(list, leasecheck.Admission{Lo: a.lo, Hi: a.hi, Cost: a.cost})
			}
		}
	}
	// A part of a table may be rounded up and another table's down, for one region each: as many
	// units as there are regions.
	v, err := leasecheck.Check(bound, int64(len(now)), list)
	if err != nil {
		t.Fatal(err)
	}
	if v != nil {
		found = fmt.Sprintf("%+v: %v", r, v)
	}
	t.Logf("%v, N %d to %d, over %d, weights %v to %v, lost %d: %d admitted", r.config.Algorithm, r.n, r.thenN,
		r.of.Over, r.before, r.after, r.lost, len(list))
	return found
}

// TestRolls: while weights or N change in two steps, node by node, and regions are added and lost,
// all of them together keep to the larger of the old and the new bound.
func TestRolls(t *testing.T) {
	t.Parallel()
	for seed := range uint64(effort.Of(5, 50)) {
		inVirtualTime(t, func(t *testing.T) {
			if found := drawRoll(seed).run(t, true); found != "" {
				t.Error(found)
			}
		})
	}
}

// TestRollsFindMistakes: a table that is changed in one step goes over the bound, and is found out.
// Regions that hear of each other mostly keep to it all the same; so here they do not.
func TestRollsFindMistakes(t *testing.T) {
	t.Parallel()
	const most = 20
	for range most {
		r := drawRoll(1)
		r.before, r.after, r.thenN, r.lost = [3]int{3, 1, 1}, [3]int{1, 3, 1}, r.n, -1
		r.at, r.parted = true, true
		r.config.Algorithm, r.of.Over = algo.SlidingLog, 0
		r.wait = r.config.Window * 5 / 4 // when much has been used lately, by the old table
		found := ""
		inVirtualTime(t, func(t *testing.T) { found = r.run(t, true) })
		if found != "" {
			return
		}
	}
	t.Errorf("%d changes went by", most)
}
