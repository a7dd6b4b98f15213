package regions

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasecheck"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/rule"
)

// Recorded runs: three regions with two nodes each, over real Redis servers, while links between
// them are cut, delay and lose, and nodes are killed. All that was admitted is held against the bound.
// scripts/soak-regions makes many of them.

// number reads a number from the environment.
func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

func TestRuns(t *testing.T) {
	t.Parallel()
	runs := number("WEIR_REGIONS_RUNS", 4)
	list, links := servers(t, 3)
	seed := number("WEIR_REGIONS_SEED", rand.Uint64N(1<<32))
	for i := range runs {
		t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) { testBound(t, seed+i, list, links) })
	}
}

// plan is what a run does.
type plan struct {
	config algo.Config
	of     rule.Regions
	leases bool
	keys   int
	most   int64 // cost of a request
	rate   int   // of each node, a second
	length time.Duration
}

func drawPlan(rnd *rand.Rand) (p plan) {
	p.config = algo.Config{
		Algorithm: []algo.Algorithm{algo.TokenBucket, algo.FixedWindow, algo.SlidingWindow, algo.SlidingLog}[rnd.IntN(4)],
		N:         int64(30 + rnd.IntN(600)), Window: time.Duration(2+rnd.IntN(5)) * time.Second,
	}
	switch p.config.Algorithm {
	case algo.TokenBucket:
		p.config.Burst = max(3, p.config.N/int64(1+rnd.IntN(4)))
	case algo.SlidingWindow:
		p.config.Buckets = []int{1, 4}[rnd.IntN(2)]
	}
	if p.leases = rnd.IntN(3) == 0; p.leases {
		p.config.Lease = 10
	}
	switch over := []int{0, 20, 50, 200, -1}[rnd.IntN(5)]; {
	case over < 0:
		p.of.Sync = true
	default:
		p.of.Over = over
	}
	p.of.Tell = []int{1, 2, 10}[rnd.IntN(3)]
	p.keys, p.most = 1+rnd.IntN(2), int64(1+rnd.IntN(2))
	p.rate = max(20, int(float64(p.config.N)/p.config.Window.Seconds()*(0.3+2*rnd.Float64())))
	p.length = 3*time.Second + time.Duration(rnd.IntN(3000))*time.Millisecond
	return p
}

// bound is the limit that all regions together obey: the sum of their ceilings.
func (w *world) bound(c algo.Config, g *rule.Regions) algo.Config {
	x := w.nodes[0][0].s
	var n, burst int64
	for i := range w.names {
		parts, err := newCeilings(x.ceilings.table, w.names[i])
		if err != nil {
			w.t.Fatal(err)
		}
		part := parts.of(w.counter.Limit, g.Over).own.Config()
		if g.Sync {
			part = c
		}
		n, burst = n+part.N, burst+max(part.Burst, 0)
	}
	c.Lease, c.LeaseFor = 0, 0
	c.N = n
	if c.Burst != 0 {
		c.Burst = burst
	}
	return c
}

func testBound(t *testing.T, seed uint64, list []*redistest.Server, links [][]*redistest.FaultProxy) {
	rnd := rand.New(rand.NewPCG(seed, 15))
	p := drawPlan(rnd)
	w := &world{
		t: t, prefix: fmt.Sprintf("r%d:", seed), names: []string{"ap", "eu", "us"}, redis: list, links: links, nodes: make([][]*node, 3),
		log: slog.New(slog.DiscardHandler),
	}
	for range 3 {
		w.weights = append(w.weights, 1+rnd.IntN(3))
	}
	w.counter = borrowable(t, p.config, p.of)
	for region := range 3 {
		for range 2 {
			w.open(region, p.leases)
		}
	}
	var gone []*node
	defer func() {
		for _, row := range links {
			for _, l := range row {
				if l != nil {
					l.Pass()
				}
			}
		}
		for _, nodes := range w.nodes {
			for _, n := range nodes {
				n.close()
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), p.length)
	defer cancel()
	var running sync.WaitGroup
	// The demand is in one region, in two, or in all.
	busy := rnd.IntN(3)
	for region, nodes := range w.nodes {
		for i, n := range nodes {
			rate := p.rate
			if region > busy {
				rate = max(2, rate/20)
			}
			n.load(ctx, &running, rate, p.keys, p.most, seed+uint64(10*region+i))
		}
	}
	var diary []string
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-time.After(time.Duration(50+rnd.IntN(400)) * time.Millisecond):
		}
		i, j := rnd.IntN(3), rnd.IntN(2)
		j = (i + 1 + j) % 3
		l, what := links[i][j], ""
		switch rnd.IntN(7) {
		case 0:
			l.Refuse()
			l.Cut()
			what = "cut"
		case 1:
			l.BlackHole()
			what = "black hole"
		case 2:
			l.LoseReplies()
			what = "loses replies"
		case 3:
			d := time.Duration(rnd.IntN(2000)) * time.Millisecond
			l.Delay(d)
			what = fmt.Sprint("delay ", d)
		case 4, 5:
			l.Pass()
			what = "passes"
		case 6:
			// A node dies, and another one takes its place. Its clients go on with it.
			n := w.nodes[i][0]
			n.s.x.cancel()
			n.s.x.done.Wait()
			gone = append(gone, n)
			what = "exchange of a node dies"
		}
		diary = append(diary, fmt.Sprintf("%d %s-%s %s", time.Now().UnixMicro(), w.names[i], w.names[j], what))
	}
	running.Wait()
	_ = gone
	w.check(p, diary)
}

// check holds what was admitted against the bound.
func (w *world) check(p plan, diary []string) {
	w.t.Helper()
	c := w.bound(p.config, &p.of)
	extra := int64(0)
	if p.config.Algorithm == algo.SlidingWindow {
		extra = int64(len(w.names)) - 1 // each region rounds by itself
	}
	total, refused := int64(0), 0
	for key := range p.keys {
		var list []leasecheck.Admission
		for _, nodes := range w.nodes {
			for _, n := range nodes {
				for _, a := range n.admitted {
					if a.key == key {
						list = append(list, leasecheck.Admission{Lo: a.lo, Hi: a.hi, Cost: a.cost})
						total += a.cost
					}
				}
			}
		}
		v, err := leasecheck.Check(c, extra, list)
		if err != nil {
			w.t.Fatal(err)
		}
		if v != nil {
			w.t.Errorf("key %d of %+v, %+v, weights %v: %v\n%s", key, p.config, p.of, w.weights, v, strings.Join(diary, "\n"))
		}
	}
	var borrowed, lost, over uint64
	for _, nodes := range w.nodes {
		for _, n := range nodes {
			refused += n.refused
			st := n.s.Stats()
			for _, peer := range st.Peers {
				borrowed, lost = borrowed+peer.Borrowed, lost+peer.Lost
			}
			for _, l := range st.Limits {
				over += l.Over
			}
		}
	}
	w.t.Logf("%v N %d in %v over %d sync %v leases %v: %d units admitted, %d refused, %d borrowed, %d lost, %d over", p.config.Algorithm, p.config.N, p.config.Window,
		p.of.Over, p.of.Sync, p.leases, total, refused, borrowed, lost, over)
}
