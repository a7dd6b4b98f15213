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
	"github.com/weir-rl/weir/store"
)

// Recorded runs: three regions with two nodes each, over real Redis servers, while links between
// them are cut, delay and lose, and nodes are killed. All that was admitted is held against the
// bound. scripts/soak-regions makes many of them.

// number reads a number from the environment.
func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

func TestRuns(t *testing.T) {
	t.Parallel()
	runs, lanes := number("WEIR_REGIONS_RUNS", 4), number("WEIR_REGIONS_AT_ONCE", 1)
	list := servers(t, 3)
	seed := number("WEIR_REGIONS_SEED", rand.Uint64N(1<<32))
	for lane := range lanes {
		t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
			t.Parallel()
			between := links(t, list)
			for i := lane; i < runs; i += lanes {
				t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) {
					if found := run(t, seed+i, list, between, nil); found != "" {
						t.Error(found)
					}
				})
			}
		})
	}
}

// TestRunsFindMistakes: runs with a planted mistake go over the bound, and are found out.
func TestRunsFindMistakes(t *testing.T) {
	t.Parallel()
	list := servers(t, 3)
	between := links(t, list)
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			const most = 20
			for seed := range uint64(most) {
				if run(t, 1000+seed, list, between, mistake) != "" {
					return
				}
			}
			t.Errorf("%d runs went by", most)
		})
	}
}

// mistakes are planted into a node.
var mistakes = map[string]func(o *Options){
	"what is borrowed is given twice": func(o *Options) { o.Own = &generous{Regional: o.Own} },
	"what is lent is not set aside": func(o *Options) {
		for name, p := range o.Peers {
			o.Peers[name] = &forgetful{p}
		}
	},
}

// generous gives back twice what it should once.
type generous struct{ store.Regional }

func (g *generous) Change(
	ctx context.Context, part int, log, from, to string, changes []store.Change, done []store.Changed,
) (int64, error) {
	now, err := g.Regional.Change(ctx, part, log, from, to, changes, done)
	if log == "" && err == nil {
		return g.Regional.Change(ctx, part, log, from, to, changes, done)
	}
	return now, err
}

// forgetful lends, and knows nothing of it afterwards.
type forgetful struct{ Neighbour }

func (f *forgetful) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	want := ahead[0].Want
	ahead[0].Want = 0
	if now, asked, err = f.Neighbour.TakeAhead(ctx, minWait, maxWait, charges, ahead, results); err == nil {
		ahead[0].Got, ahead[0].Until = want, now+time.Second.Microseconds()
	}
	return now, asked, err
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

// run makes a run, and says what went over the bound; "" if nothing did. With a mistake all regions
// ask for more than there is, and nothing fails between them.
func run(t *testing.T, seed uint64, list []*redistest.Server, between [][]*redistest.FaultProxy, mistake func(o *Options)) string {
	rnd := rand.New(rand.NewPCG(seed, 15))
	p := drawPlan(rnd)
	busy := rnd.IntN(3) // regions beyond this one have little to do
	if mistake != nil {
		p.of, p.leases, busy = rule.Regions{Tell: 2}, false, 2
		p.config.Lease = 0
		p.rate = max(20, int(2*float64(p.config.N)/p.config.Window.Seconds()))
	}
	w := &world{
		t: t, prefix: fmt.Sprintf("r%d:%d:", seed, rand.Uint32()), names: []string{"ap", "eu", "us"}, redis: list, links: between, nodes: make([][]*node, 3),
		log: slog.New(slog.DiscardHandler), mistake: mistake,
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
	defer w.end()
	ctx, cancel := context.WithTimeout(t.Context(), p.length)
	defer cancel()
	var running sync.WaitGroup
	for region, nodes := range w.nodes {
		for i, n := range nodes {
			rate := p.rate
			if region > busy {
				rate = max(2, rate/20)
			}
			n.load(ctx, &running, rate, p.keys, p.most, seed+uint64(10*region+i))
		}
	}
	if mistake == nil {
		w.fail(ctx, rnd)
	}
	running.Wait()
	return w.over(p)
}

// end ends all nodes.
func (w *world) end() {
	for _, row := range w.links {
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
}

// fail makes faults until ctx ends.
func (w *world) fail(ctx context.Context, rnd *rand.Rand) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(50+rnd.IntN(400)) * time.Millisecond):
		}
		i := rnd.IntN(3)
		j := (i + 1 + rnd.IntN(2)) % 3
		l, what := w.links[i][j], ""
		switch rnd.IntN(7) {
		case 0:
			l.Refuse()
			l.Cut()
			what = "is cut"
		case 1:
			l.BlackHole()
			what = "loses all"
		case 2:
			l.LoseReplies()
			what = "loses answers"
		case 3:
			d := time.Duration(rnd.IntN(2000)) * time.Millisecond
			l.Delay(d)
			what = fmt.Sprint("delays ", d)
		case 4, 5:
			l.Pass()
			what = "passes"
		case 6: // what it borrows and reads is cut off, and nobody of its region hears until another one does
			x := w.nodes[i][0].s.x
			x.cancel()
			x.done.Wait()
			what = "has lost a node's exchange"
		}
		w.diary = append(w.diary, fmt.Sprintf("%d %s to %s %s", time.Now().UnixMicro(), w.names[i], w.names[j], what))
	}
}

// over holds what was admitted against the bound.
func (w *world) over(p plan) (found string) {
	w.t.Helper()
	c := w.bound(p.config, &p.of)
	extra := int64(0)
	if p.config.Algorithm == algo.SlidingWindow {
		extra = int64(len(w.names)) - 1 // each region rounds by itself
	}
	total, refused, lists := int64(0), 0, make([][]leasecheck.Admission, p.keys)
	var borrowed, lost, over uint64
	for _, nodes := range w.nodes {
		for _, n := range nodes {
			for _, a := range n.admitted {
				lists[a.key] = append(lists[a.key], leasecheck.Admission{Lo: a.lo, Hi: a.hi, Cost: a.cost})
				total += a.cost
			}
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
	for key, list := range lists {
		v, err := leasecheck.Check(c, extra, list)
		if err != nil {
			w.t.Fatal(err)
		}
		if v != nil {
			found += fmt.Sprintf("key %d of %+v, %+v, weights %v: %v\n%s\n", key, p.config, p.of, w.weights, v, strings.Join(w.diary, "\n"))
		}
	}
	w.t.Logf("%v, %d in %v, over %d, sync %v, leases %v: %d units admitted, %d refusals, %d units borrowed, %d lost, %d over N",
		p.config.Algorithm, p.config.N, p.config.Window, p.of.Over, p.of.Sync, p.leases, total, refused, borrowed, lost, over)
	return found
}
