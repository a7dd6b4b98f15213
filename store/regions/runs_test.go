package regions

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Recorded runs: three regions with two nodes each. Links between them are cut, delay and lose,
// nodes are killed, servers restart with their data, and their clocks differ (faults_test.go). All
// that was admitted is held against the bound, and counted at the end (summary_test.go). Most runs
// are in virtual time. scripts/soak makes many over real Redis servers, one of which may fail over
// (runs_soak_test.go).

// number reads a number from the environment.
func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// TestRuns makes runs in virtual time, of each kind of limit as many.
func TestRuns(t *testing.T) {
	t.Parallel()
	runs := uint64(len(cells) * effort.Of(1, 5))
	sum := &summary{of: runs, cells: map[cell]*row{}}
	for seed := range runs {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				r := run(t, drawPlan(seed, true), nil)
				if sum.add(r); r.found != "" {
					t.Errorf("%v\n%s", r, r.found)
				}
			})
		})
	}
	t.Logf("\n%v", sum)
}

// TestRunOnRedis makes one run over real Redis servers.
func TestRunOnRedis(t *testing.T) {
	effort.Long(t, "takes some seconds of real time; TestRuns runs the same in virtual time")
	t.Parallel()
	p := drawPlan(1, false)
	p.length, p.restarts, p.failover = 3*time.Second, true, false
	r := run(t, p, nil)
	if t.Log(r); r.found != "" {
		t.Error(r.found)
	}
}

// TestRunsFindMistakes: runs with a planted mistake go over the bound, and are found out.
func TestRunsFindMistakes(t *testing.T) {
	t.Parallel()
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			const most = 40
			for seed := range uint64(most) {
				found := ""
				inVirtualTime(t, func(t *testing.T) { found = run(t, drawPlan(1000+seed, true), mistake).found })
				if found != "" {
					t.Logf("run %d: %s", seed, found)
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
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	want := ahead[0].Want
	ahead[0].Want = 0
	if now, asked, err = f.Neighbour.TakeAhead(ctx, minWait, maxWait, charges, ahead, results); err == nil {
		ahead[0].Got, ahead[0].Until = want, now+time.Second.Microseconds()
	}
	return now, asked, err
}

// cell is a kind of limit and what it allows beyond it, in percent; syncs for sync.
type cell struct {
	algorithm algo.Algorithm
	over      int
}

const syncs = -1

// cells are all that there are. Runs take them by turns.
var cells = func() (list []cell) {
	for _, a := range []algo.Algorithm{algo.TokenBucket, algo.FixedWindow, algo.SlidingWindow, algo.SlidingLog} {
		for _, over := range []int{0, 20, 50, 200, syncs} {
			list = append(list, cell{a, over})
		}
	}
	return append(list, cell{algo.LeakyBucket, 0}, cell{algo.Concurrency, 0}) // they know ceilings alone
}()

// plan is what a run does.
type plan struct {
	seed    uint64
	rnd     *rand.Rand // that has drawn it, and draws the faults
	virtual bool       // over stores in memory, in virtual time
	cell    cell
	config  algo.Config
	of      rule.Regions
	leases  bool
	keys    int
	most    int64 // cost of a request
	rate    int   // of each node, a second
	length  time.Duration

	parted   bool             // all links are cut at first, so that each region comes to its ceiling
	ahead    [3]time.Duration // by how much the clocks of the regions' servers are
	restarts bool             // of servers, with their data
	failover bool             // of the first region's
}

func drawPlan(seed uint64, virtual bool) (p plan) {
	rnd := rand.New(rand.NewPCG(seed, 15))
	p.seed, p.rnd, p.virtual, p.cell = seed, rnd, virtual, cells[seed%uint64(len(cells))]
	p.config = algo.Config{
		Algorithm: p.cell.algorithm, N: int64(30 + rnd.IntN(600)), Window: time.Duration(2+rnd.IntN(5)) * time.Second,
	}
	all := float64(100+p.cell.over) / 100
	if p.cell.over == syncs {
		all = 3
	}
	p.rate = min(max(20, int(float64(p.config.N)/p.config.Window.Seconds()*(0.3+2*rnd.Float64())*(1+all)/2)), 300)
	p.leases = rnd.IntN(3) == 0
	switch p.config.Algorithm {
	case algo.TokenBucket:
		p.config.Burst = max(3, p.config.N/int64(1+rnd.IntN(4)))
	case algo.LeakyBucket:
		p.config.Burst, p.leases = max(3, p.config.N/int64(2+rnd.IntN(20))), false
	case algo.SlidingWindow:
		p.config.Buckets = []int{1, 4}[rnd.IntN(2)]
	case algo.Concurrency:
		p.config.N, p.config.Window, p.leases = int64(3+rnd.IntN(30)), 0, false
	}
	if p.leases {
		p.config.Lease = 10
	}
	p.of = rule.Regions{Over: max(p.cell.over, 0), Sync: p.cell.over == syncs, Tell: []int{1, 2, 10}[rnd.IntN(3)]}
	p.keys, p.most = 1+rnd.IntN(2), int64(1+rnd.IntN(2))
	p.length = 3*time.Second + time.Duration(rnd.IntN(3000))*time.Millisecond
	p.parted = rnd.IntN(4) == 0
	if p.restarts = rnd.IntN(3) == 0; rnd.IntN(12) == 0 && !virtual {
		p.failover = true
		p.length += 5 * time.Second
	}
	if rnd.IntN(3) == 0 && (virtual || redistest.CanStartAhead() == nil) {
		for i := range p.ahead {
			p.ahead[i] = time.Duration(rnd.IntN(4_000_000)-2_000_000) * time.Microsecond
			if p.config.Algorithm == algo.SlidingWindow { // the estimates need the same edges everywhere
				p.ahead[i] = time.Duration(rnd.IntN(3)-1) * p.config.Window / time.Duration(p.config.Buckets)
			}
		}
		if p.failover {
			p.ahead[0] = 0
		}
	}
	return p
}

// bound is the limit that all regions together obey: the sum of their ceilings.
func (w *world) bound(c algo.Config, g *rule.Regions) algo.Config {
	var table []Region
	for i, name := range w.names {
		table = append(table, Region{Name: name, Weight: w.weights[i]})
	}
	var n, burst int64
	for i := range w.names {
		parts, err := newCeilings(table, w.names[i])
		if err != nil {
			w.t.Fatal(err)
		}
		part := parts.of(w.counter.Limit, g.Over).own.Config()
		if g.Sync {
			part = c
		}
		n, burst = n+part.N, burst+max(part.Burst, 0)
		if c.Algorithm == algo.LeakyBucket && part.N > 0 { // from without it is a token bucket that holds one more
			burst++
		}
	}
	c.Lease, c.LeaseFor = 0, 0
	c.N = n
	if c.Burst != 0 {
		c.Burst = burst
	}
	if c.Algorithm == algo.LeakyBucket {
		c.Algorithm = algo.TokenBucket
	}
	return c
}

// run makes a run, and says what went over the bound. With a mistake all regions ask for more than
// there is, and nothing fails between them.
func run(t *testing.T, p plan, mistake func(o *Options)) *result {
	rnd, seed := p.rnd, p.seed
	busy := rnd.IntN(3) // regions beyond this one have little to do
	if mistake != nil {
		p.of, p.leases, p.parted, busy = rule.Regions{Tell: 2}, false, false, 2
		p.config.Lease, p.ahead, p.restarts, p.failover = 0, [3]time.Duration{}, false, false
		p.rate = max(20, int(2*float64(p.config.N)/max(1, p.config.Window.Seconds())))
	}
	w := &world{
		t: t, plan: p, prefix: fmt.Sprintf("r%d:%d:", seed, rand.Uint32()), names: []string{"ap", "eu", "us"}, nodes: make([][]*node, 3),
		log: slog.New(slog.DiscardHandler), mistake: mistake, virtual: p.virtual,
	}
	w.start()
	for range 3 {
		w.weights = append(w.weights, 1+rnd.IntN(3))
	}
	w.counter = borrowable(t, p.config, p.of)
	for region := range 3 {
		for range 2 {
			w.open(region)
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
	return w.result()
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

// result holds what was admitted against the bound.
func (w *world) result() *result {
	w.t.Helper()
	p := &w.plan
	r := &result{plan: *p, faults: w.faults}
	c := w.bound(p.config, &p.of)
	lists, slots := make([][]leasecheck.Admission, p.keys), make([][]admitted, p.keys)
	for region, nodes := range w.nodes {
		for _, n := range nodes {
			for _, a := range n.admitted {
				shift := int64(0)
				if p.config.Algorithm == algo.FixedWindow { // whose edges are by the region's clock
					shift = p.ahead[region].Microseconds()
				}
				lists[a.key] = append(lists[a.key], leasecheck.Admission{Lo: a.lo + shift, Hi: a.hi + shift,
					Cost: a.cost})
				slots[a.key] = append(slots[a.key], a)
				r.units += a.cost
			}
			r.refused += n.refused
			st := n.s.Stats()
			for _, peer := range st.Peers {
				r.borrowed, r.lost = r.borrowed+peer.Borrowed, r.lost+peer.Lost
			}
			for _, l := range st.Limits {
				r.over += l.Over
			}
		}
	}
	for key := range p.keys {
		// What a store forgets may be admitted once more.
		forgotten := w.forgotten(key)
		found, fill, beyond := w.check(c, forgotten, lists[key], slots[key])
		if r.fill = max(r.fill, fill); found != "" {
			r.found += fmt.Sprintf("key %d of %+v, %+v, weights %v, clocks %v, %d may have been forgotten: %s\n%s\n",
				key, p.config, p.of, w.weights, p.ahead, forgotten, found, strings.Join(w.diary, "\n"))
		}
		if w.cut.to != 0 {
			r.forgotten, r.beyond = r.forgotten+forgotten, r.beyond+beyond
		}
	}
	return r
}

// check looks for a violation of one key. It also says how full its limit was at the fullest, in
// percent of the units allowed at once, and how many units were admitted beyond the limit if
// nothing was forgotten.
func (w *world) check(c algo.Config, forgotten int64, list []leasecheck.Admission, slots []admitted) (found string,
	fill int, beyond int64) {
	w.t.Helper()
	if c.Algorithm == algo.Concurrency {
		most := inFlight(slots)
		if most > c.N+forgotten {
			found = fmt.Sprintf("%d in flight, %d are allowed", most, c.N)
		}
		return found, int(most * 100 / c.N), max(0, most-c.N)
	}
	extra := int64(0)
	if c.Algorithm == algo.SlidingWindow {
		extra = int64(len(w.names)) - 1 // each region rounds by itself
	}
	check := func(extra int64) int64 {
		v, err := leasecheck.Check(c, extra, list)
		if err != nil {
			w.t.Fatal(err)
		}
		if v == nil {
			return 0
		}
		found = v.String()
		return v.Admitted - v.Allowed
	}
	most := max(c.Burst, 0)
	if most == 0 {
		most = c.N
	}
	fill, beyond = int(check(-most)*100/most), check(extra)
	if found = ""; beyond > 0 {
		check(extra + forgotten)
	}
	return found, fill, beyond
}

// inFlight returns how many slots were certainly held at a time, at most.
func inFlight(list []admitted) (most int64) {
	type step struct{ at, by int64 }
	var steps []step
	for _, a := range list {
		if a.freed == 0 || a.freed > a.hi {
			steps = append(steps, step{a.hi, a.cost})
		}
		if a.freed > a.hi {
			steps = append(steps, step{a.freed, -a.cost})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	sum := int64(0)
	for _, s := range steps {
		sum += s.by
		most = max(most, sum)
	}
	return most
}
