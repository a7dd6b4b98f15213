package simulation

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// mode is what stands over the server on each node.
type mode int

const (
	exact  mode = iota // store/fallback over the link
	leased             // store/fallback over store/lease over the link
	swaps              // store/fallback over store/cas over the wire
	modes
)

func (m mode) String() string { return [...]string{"exact", "leased", "swaps"}[m] }

// memoryOf is what a server knows when it comes back.
type memoryOf int

const (
	keeps   memoryOf = iota
	reads            // what its snapshot holds, which it wrote when it ended
	forgets          // nothing
)

// plan is what a seed draws before the run begins.
type plan struct {
	mode      mode
	nodes     int
	quiet     bool // no faults
	snapshots bool
	serverPPM int64
	limits    []limitPlan
	versions  [][]int64 // by version of the rules: N of each limit; below 0: the limit is not there
	steps     []step    // in order
	lasts     time.Duration
}

// limitPlan is a limit without N.
type limitPlan struct {
	name   string
	config algo.Config // N is the first version's
	per    string
	policy rule.StoreErrorPolicy
	bans   bool
	books  bool // its window holds all that is asked for, and does not end before the run
}

// step is something that happens at an instant.
type step struct {
	at    time.Duration
	what  what
	node  int
	limit int // of orders
	limits,
	key int
	hits    int64
	count   int
	lasts   time.Duration
	version int
	by      time.Duration
	how     memoryOf
	air     weather
	timeout time.Duration
	serial  int
}

type what int

const (
	ask       what = iota // one request
	peek                  // one that costs nothing
	refund                // units come back
	lone                  // requests on a key of their own until one is refused, and that one again when it was told
	reserve               // a reservation, and what comes of it
	weathers              // the network of a node is as air says, for a time
	halts                 // the server is away for a time
	steps                 // the server's clock is set
	nodeSteps             // a node's clock is set
	crashes               // a node dies, and a new one begins
	restarts              // a node ends in order, and a new one begins
	reloads               // rules change
	bans                  // an operator bans a key, for a time
	grants                // an operator gives a key other numbers, for a time
	resets                // an operator resets a key
)

func (s *step) String() string {
	return fmt.Sprintf(
		"%d node %d limit %d limits %b key %d hits %d count %d lasts %v version %d by %v how %d air %+v timeout %v",
		s.what, s.node, s.limit, s.limits, s.key, s.hits, s.count, s.lasts, s.version, s.by, s.how, s.air, s.timeout)
}

const keysOfAll = 5 // that many requests go to

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func some(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)+1))
}

// draw draws the plan of a seed. force, if not nil, changes it before steps are drawn.
func draw(r *rand.Rand, force func(*plan)) *plan {
	p := &plan{
		mode: pick(r, exact, exact, leased, swaps), nodes: 2 + r.IntN(3), quiet: r.IntN(5) == 0,
		snapshots: r.IntN(4) == 0, serverPPM: int64(r.IntN(401) - 200), lasts: some(r, 20*time.Second, 50*time.Second),
	}
	if force != nil {
		force(p)
	}
	for i := range 2 + r.IntN(3) {
		p.limits = append(p.limits, drawLimit(r, i, p.mode))
	}
	p.limits = append(p.limits, limitPlan{
		name: "books", per: "user", books: true, policy: rule.Local,
		config: algo.Config{Algorithm: pick(r, algo.FixedWindow, algo.SlidingWindow), N: 100_000, Window: 8000 * time.Hour},
	})
	var first []int64
	for i := range p.limits {
		first = append(first, p.limits[i].config.N)
	}
	p.versions = append(p.versions, first)
	p.drawRequests(r)
	p.drawOrders(r)
	if !p.quiet {
		p.drawFaults(r)
	}
	slices.SortStableFunc(p.steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	version := 0
	for i := range p.steps {
		p.steps[i].serial = i
		if s := &p.steps[i]; s.what == reloads {
			version++
			s.version = version
		}
	}
	return p
}

func drawLimit(r *rand.Rand, i int, m mode) limitPlan {
	algorithms := []algo.Algorithm{algo.FixedWindow, algo.SlidingLog, algo.SlidingWindow, algo.TokenBucket}
	if m != leased {
		algorithms = append(algorithms, algo.LeakyBucket, algo.Concurrency)
	}
	l := limitPlan{name: fmt.Sprintf("limit-%d", i), per: pick(r, "user", "user", "tenant"),
		policy: pick(r, rule.Local, rule.Local, rule.Local, rule.AllowAll, rule.DenyAll)}
	c := algo.Config{Algorithm: pick(r, algorithms...), N: 2 + r.Int64N(20),
		Window: pick(r, time.Second, 3*time.Second, 10*time.Second, time.Minute)}
	switch c.Algorithm {
	case algo.TokenBucket:
		c.Burst = 1 + r.Int64N(20)
	case algo.LeakyBucket:
		c.Burst = 1 + r.Int64N(10)
	case algo.Concurrency:
		c.Window, c.Timeout = 0, 5*time.Second
		c.N = 1 + r.Int64N(5)
	case algo.SlidingWindow:
		c.Buckets = pick(r, 1, 10)
	}
	if r.IntN(5) == 0 && c.Algorithm != algo.Concurrency {
		c.Soft = 50
	}
	if r.IntN(6) == 0 && (c.Algorithm == algo.FixedWindow ||
		m != leased && (c.Algorithm == algo.SlidingLog || c.Algorithm == algo.SlidingWindow)) {
		c.CountDenied = true
	}
	if m == leased && r.IntN(4) > 0 {
		c.N, c.Lease, c.LeaseFor = 20+r.Int64N(200), 20+r.IntN(50), pick(r, 500*time.Millisecond, time.Second)
		if c.Algorithm == algo.TokenBucket {
			c.Burst = c.N
		}
		l.policy = rule.Local
	}
	l.bans = r.IntN(6) == 0 && m == exact && c.Algorithm != algo.Concurrency && c.Algorithm != algo.LeakyBucket
	l.config = c
	return l
}

func (p *plan) add(s step) { p.steps = append(p.steps, s) }

// at is an instant of the run; no two are alike but by chance, as they have nanoseconds.
func (p *plan) at(r *rand.Rand) time.Duration { return some(r, 500*time.Millisecond, p.lasts) }

func (p *plan) drawRequests(r *rand.Rand) {
	request := func(at time.Duration, key int) step {
		s := step{at: at, what: ask, node: r.IntN(p.nodes), limits: 1 + r.IntN(1<<len(p.limits)-1), key: key,
			hits: pick[int64](r, 1, 1, 1, 1, 2, 5)}
		if r.IntN(12) == 0 {
			s.timeout = some(r, 2*time.Millisecond, 40*time.Millisecond)
		}
		return s
	}
	for at := 500 * time.Millisecond; at < p.lasts; at += time.Duration(
		r.ExpFloat64() * float64(150*time.Millisecond)) {
		s := request(at, r.IntN(keysOfAll))
		switch r.IntN(30) {
		case 0:
			s.what = peek
		case 1:
			s.what, s.hits = refund, -1
		case 2, 3:
			if p.mode != swaps {
				s.what, s.lasts, s.count = reserve, some(r, 10*time.Millisecond, 4*time.Second), r.IntN(4)
			}
		}
		p.add(s)
	}
	for range 1 + r.IntN(4) { // many at once
		key, at := r.IntN(keysOfAll), p.at(r)
		each := some(r, 100*time.Microsecond, 10*time.Millisecond)
		for range 40 + r.IntN(80) {
			at += time.Duration(r.ExpFloat64() * float64(each))
			p.add(request(at, key))
		}
	}
	for i := range 6 {
		s := request(p.at(r), keysOfAll+i)
		s.what, s.timeout = lone, 0
		p.add(s)
	}
}

func (p *plan) drawOrders(r *rand.Rand) {
	for range r.IntN(4) {
		numbers := slices.Clone(p.versions[len(p.versions)-1])
		for i := range numbers {
			switch c := &p.limits[i].config; {
			case p.limits[i].books:
			case numbers[i] < 0:
				numbers[i] = c.N
			case r.IntN(8) == 0:
				numbers[i] = -1
			case r.IntN(2) == 0:
				numbers[i] = max(1, c.N*int64(50+r.IntN(150))/100)
			}
		}
		p.versions = append(p.versions, numbers)
		p.add(step{at: p.at(r), what: reloads})
	}
	if p.mode == swaps { // it has no board of its own
		return
	}
	for range r.IntN(4) {
		p.add(step{at: p.at(r), what: pick(r, bans, bans, grants), node: r.IntN(p.nodes),
			limit: r.IntN(len(p.limits) - 1), key: r.IntN(keysOfAll), lasts: some(r, 3*time.Second, 15*time.Second)})
	}
	if p.mode == exact {
		for range r.IntN(3) {
			p.add(step{at: p.at(r), what: resets, node: r.IntN(p.nodes), limit: r.IntN(len(p.limits) - 1),
				key: r.IntN(keysOfAll)})
		}
	}
}

func (p *plan) drawFaults(r *rand.Rand) {
	for range 2 + r.IntN(7) {
		s := step{at: p.at(r), node: r.IntN(p.nodes), lasts: some(r, 100*time.Millisecond, 6*time.Second)}
		switch r.IntN(12) {
		case 0, 1:
			s.what, s.air.refused = weathers, true
		case 2:
			s.what, s.air.hole = weathers, true
		case 3:
			s.what, s.air.slow = weathers, some(r, 5*time.Millisecond, 400*time.Millisecond)
		case 4, 5:
			s.what, s.air.lossy, s.air.late = weathers, 1+r.IntN(30), r.IntN(40)
		case 6, 7:
			s.what, s.how = halts, pick(r, keeps, reads, forgets)
		case 8:
			s.what, s.by = steps, some(r, -20*time.Second, 20*time.Second)
		case 9:
			s.what, s.by = nodeSteps, some(r, -20*time.Second, 20*time.Second)
		case 10:
			s.what = crashes
		case 11:
			s.what = restarts
		}
		p.add(s)
	}
}

// rules is the rule file of a version.
func (p *plan) rules(version int) string {
	var text strings.Builder
	text.WriteString("domain: sim\nlimits:\n")
	for i := range p.limits {
		l, n := &p.limits[i], p.versions[version][i]
		if n < 0 {
			continue
		}
		c := &l.config
		fmt.Fprintf(&text, "  - name: %s\n    when: { %s: \"yes\" }\n    per: [%s]\n", l.name, l.name, l.per)
		window := fmt.Sprintf("%dms", c.Window.Milliseconds())
		switch {
		case c.Algorithm == algo.Concurrency:
			fmt.Fprintf(&text, "    allow: %d concurrent\n    timeout: %v\n", n, c.Timeout)
		case c.Burst > 0:
			fmt.Fprintf(&text, "    allow: { rate: %d/%s, burst: %d }\n    algorithm: %v\n", n, window, c.Burst,
				c.Algorithm)
		default:
			fmt.Fprintf(&text, "    allow: %d/%s\n    algorithm: %v\n", n, window, c.Algorithm)
		}
		if c.Buckets > 1 {
			fmt.Fprintf(&text, "    buckets: %d\n", c.Buckets)
		}
		if c.Soft > 0 {
			fmt.Fprintf(&text, "    throttle: { soft: %d%% }\n", c.Soft)
		}
		if c.CountDenied {
			text.WriteString("    count_denied: true\n")
		}
		if c.Lease > 0 {
			fmt.Fprintf(&text, "    consistency: { lease: %d%%, for: %v }\n", c.Lease, c.LeaseFor)
		}
		if l.bans {
			text.WriteString("    ban: { after: 12, within: 10s, for: 4s }\n")
		}
		fmt.Fprintf(&text, "    on_store_error: %s\n",
			[...]string{rule.Local: "local", rule.AllowAll: "allow", rule.DenyAll: "deny"}[l.policy])
	}
	return text.String()
}

func (p *plan) source(version int) []file.Source {
	return []file.Source{{Name: "rules.yaml", Data: []byte(p.rules(version))}}
}

// config returns a limit as a version has it; ok is false if that has none.
func (p *plan) config(version, limit int) (c algo.Config, ok bool) {
	c = p.limits[limit].config
	c.N = p.versions[version][limit]
	return c, c.N >= 0
}

// indexOf returns the limit of a name; -1 if there is none.
func (p *plan) indexOf(name string) int {
	return slices.IndexFunc(p.limits, func(l limitPlan) bool { return l.name == name })
}
