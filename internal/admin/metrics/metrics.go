// Package metrics counts what a limiter does, for Prometheus, behind weir.Hooks, and serves the
// statistics of other packages beside it.
//
// Counting runs on the deciding path: it takes no lock, allocates nothing, and makes no label of a
// client's value. The counters of the limits lie in a table that is made for each rule set, and are
// found by index.
//
// Begin with New (metrics.go). Each metric is a row of a table, with the function that reads it
// (rows.go); collect.go has the counts of decisions, which are none. The other New functions, such
// as NewLoad, NewQueues and NewDoors, return collectors for parts that not every program has.
package metrics

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/host/nftables"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/regions"
)

// outcome is the outcome of one limit or one decision.
type outcome uint8

// The outcomes exclude each other: soft takes precedence over near_limit.
const (
	allowed outcome = iota
	denied
	soft         // admitted above the limit, in the soft margin
	nearLimit    // admitted, with most of the limit used
	shadowDenied // would have been denied
	banned       // for a limit: its ban refused the request
	exempt
	peek   // asked without consuming
	refund // gave back
	outcomes
)

var outcomeNames = [outcomes]string{"allowed", "denied", "soft", "near_limit", "shadow_denied", "banned", "exempt",
	"peek", "refund"}

// unknownDomain is the label of requests in a domain that no rule knows.
const unknownDomain = "_unknown"

// sample is how many events there are for each that is timed.
const sample = 16

// Options tune New. The zero value is right for most. Each reading comes from the package that
// counts it; where one is nil, its metrics are left out.
type Options struct {
	// Node is the name of this node.
	Node human.NodeName
	// Tally counts, and may be shared with other watchers; nil makes one.
	Tally *observe.Tally
	// Memory reads the store in this process.
	Memory func() memory.Stats
	// Redis and Database read a shared store, one of them or none. Fallback is the store that
	// decides while the shared store is away.
	Redis    func() redis.Stats
	Database func() Database
	Fallback Fallback
	// Leases reads the leases of this node.
	Leases func() lease.Stats
	// Regions reads the exchange between this region and others.
	Regions func() regions.Stats
	// Rules reads the source of the rules.
	Rules func() rulesource.Status
	// Bans reads the limiter's bans and grants, NFTables the bans that the kernel holds. Metrics
	// must not be collected before the limiter is made.
	Bans     func() weir.BanStats
	NFTables func() nftables.Stats
	// Detailed turns on the metrics of Lyft rules with detailed_metric or value_to_metric, whose
	// labels hold clients' values.
	Detailed bool
	// UnknownDomain is called once for each of the first hundred domains that no rule knows; nil
	// means nobody.
	UnknownDomain func(domain string)
	// TooCostly is called for each request that a rule refuses because its expressions take too
	// long; nil means nobody.
	TooCostly func(r *rule.Rule)
	// Doors are the open doors, by weir.Request.Door. Their requests show as 0 before the first one
	// comes.
	Doors []string
}

// Metrics counts. Make one with New. Safe for concurrent use.
type Metrics struct {
	o        Options
	registry *prometheus.Registry

	decisions    timedDecisions
	latest       latest // of decisions
	takes        prometheus.Histogram
	storeErrors  prometheus.Counter
	celErrors    prometheus.Counter
	celRefused   prometheus.Counter
	unknownCells [observe.Doors][outcomes]atomic.Uint64
	detailed     detailed
	open         [observe.Doors]bool // by Options.Doors

	tables atomic.Pointer[tables]
	// mu guards the making of tables, and everything that is touched only for unknown domains.
	mu      sync.Mutex
	unknown map[string]struct{}
	many    atomic.Bool // unknown is full
}

// cells are the counters of one label set. They live as long as some rule set in force has the
// label set.
type cells struct {
	n [outcomes]atomic.Uint64
	// refused is one of the latest refusals, for the exemplar of denied or banned.
	refused slot
}

// limitCount are the counters of a limit. Most requests meet one limit, which alone decides their
// outcome. Such a request is counted once, in alone, for the limit and for the domain. All others
// are counted in cells, and in the cells of the domain.
type limitCount struct {
	cells
	alone *observe.Count
}

// ofAlone maps each observe.Outcome to the outcome of the limit. The outcome of the domain is
// denied or allowed.
var ofAlone = [observe.Outcomes]outcome{observe.Passed: allowed, observe.Near: nearLimit, observe.Soft: soft,
	observe.Refused: denied}

// read returns the outcomes of the limit.
func (c *limitCount) read() (n [outcomes]uint64) {
	for o := range n {
		n[o] = c.n[o].Load()
	}
	for _, byOutcome := range c.alone.Read() {
		for w, v := range byOutcome {
			n[ofAlone[w]] += v
		}
	}
	return n
}

// addTo adds the requests counted in alone to the outcomes of the domain.
func (c *limitCount) addTo(n *[observe.Doors][outcomes]uint64) {
	for door, byOutcome := range c.alone.Read() {
		for w, v := range byOutcome {
			o := allowed
			if w == int(observe.Refused) {
				o = denied
			}
			n[door][o] += v
		}
	}
}

// add counts one outcome.
func (c *cells) add(o outcome) { c.n[o].Add(1) }

// refusedSample is how many refusals share one exemplar. In a flood that still makes many exemplars
// a second. A rare refusal is found by its decision, which is kept in any case.
const refusedSample = 256

// refuse counts a refusal, and keeps 1 in refusedSample of them as an exemplar.
func (c *cells) refuse(o outcome, r *weir.Request, d *weir.Decision) {
	if c.n[o].Add(1)%refusedSample == 1 {
		c.refused.keep(o, 1, r, d)
	}
}

// table holds the cells of one rule set. Immutable except for the counts.
type table struct {
	set        *rule.Set
	generation uint64
	limits     []limitCells // by rule.Counter.Index
	names      map[limitName]*limitCount
	// gone are the counters of limits that only the set before had. Decisions that are under way
	// still count there, for the domain, until the next set comes.
	gone map[limitName]*limitCount
	// The names that come from rules, and not from requests (an override of RLS).
	rules   map[limitName]bool
	domains map[string]*domainCells
}

// domainCells are the counters of the requests of one domain, by door, except requests that are
// counted with a limit.
type domainCells [observe.Doors]cells

// keep adds the counts of a limit that is gone.
func (d *domainCells) keep(c *limitCount) {
	var n [observe.Doors][outcomes]uint64
	c.addTo(&n)
	for door := range n {
		for o, v := range n[door] {
			d[door].n[o].Add(v)
		}
	}
}

// limitCells are the counters of one limit, and of its domain.
type limitCells struct {
	*limitCount
	domain *domainCells
}

// limitName has the labels of a limit. Counters with one name (a rule with one window by two
// algorithms) share their cells.
type limitName struct{ domain, rule, window string }

// tables are the table of the set in force, and the one before for decisions that were under way.
// The first is a value: nearly every decision goes through it, and is spared a pointer.
type tables struct {
	now    table
	before *table
}

// New returns Metrics on a registry of their own.
func New(o Options) *Metrics {
	if o.Tally == nil {
		o.Tally = observe.NewTally()
	}
	if o.Detailed {
		o.Tally.TellDescriptors()
	}
	m := &Metrics{
		o:        o,
		registry: prometheus.NewRegistry(),
		// Powers of 2 from a quarter of a microsecond to a quarter of a second.
		decisions: timedDecisions{Histogram: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_decision_seconds",
			Help:    "Time from reading a question to writing its answer, of a sample of 1 decision in 16.",
			Buckets: prometheus.ExponentialBuckets(250e-9, 2, buckets),
		})},
		takes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_store_seconds",
			Help:    "Time that the store took to decide, of a sample of 1 call in 16.",
			Buckets: prometheus.ExponentialBuckets(250e-9, 2, 21),
		}),
		storeErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_store_errors_total", Help: "Decisions that the store failed to make."}),
		celErrors:   prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_cel_errors_total", Help: "Expressions of rules (if, cost) that failed on a request."}),
		celRefused:  prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_cel_refused_total", Help: "Requests refused since expressions of rules take too long on them."}),
		unknown:     map[string]struct{}{},
	}
	for _, name := range o.Doors {
		m.open[observe.DoorOf(name)] = true
	}
	m.detailed.cells = map[string]*[outcomes]atomic.Uint64{}
	m.tables.Store(new(tables))
	m.registry.MustRegister(
		&m.decisions, m.takes, m.storeErrors, m.celErrors, m.celRefused,
		m.collector(),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Handler serves the metrics: in OpenMetrics with exemplars if the client asks for that, and
// otherwise in the text format of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Registry returns the registry, to which others may add collectors.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Hooks returns the hooks for the limiter, if there is no other watcher.
func (m *Metrics) Hooks() weir.Hooks { return m.o.Tally.Join(m) }

// Others implements observe.Watcher.
func (m *Metrics) Others() weir.Hooks {
	return weir.Hooks{
		RulesChanged: m.rulesChanged, Reported: m.reported,
		StoreError: func(error) { m.storeErrors.Inc() },
	}
}

// rulesChanged makes the table of s. Counters of label sets that were there before go on.
func (m *Metrics) rulesChanged(s *rule.Set, generation uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.tables.Load().now // a copy, so that the one before the last goes
	if generation <= old.generation {
		return // a decision was quicker than the hook
	}
	next := table{
		set: s, generation: generation,
		limits:  make([]limitCells, len(s.Counters())),
		names:   map[limitName]*limitCount{},
		gone:    map[limitName]*limitCount{},
		rules:   map[limitName]bool{},
		domains: map[string]*domainCells{},
	}
	for _, domain := range s.Domains() {
		kept := old.domains[domain]
		if kept == nil {
			kept = new(domainCells)
		}
		next.domains[domain] = kept
	}
	for _, r := range s.Rules() {
		for _, w := range r.Windows {
			next.rules[limitName{r.Domain, r.Name, w.Name}] = w.Counter != nil
		}
	}
	alone := m.o.Tally.Of(s, generation)
	for _, c := range s.Counters() {
		name := limitName{c.Domain, c.Rule, c.Window}
		kept := next.names[name]
		if kept == nil {
			kept = old.names[name]
		}
		if kept == nil || kept.alone != alone[c.Index] {
			kept = &limitCount{alone: alone[c.Index]}
		}
		next.names[name] = kept
		next.limits[c.Index] = limitCells{kept, next.domains[c.Domain]}
	}
	for name, c := range old.names {
		if next.names[name] == nil && next.domains[name.domain] != nil {
			next.gone[name] = c
		}
	}
	for name, c := range old.gone {
		if domain := next.domains[name.domain]; domain != nil {
			domain.keep(c)
		}
	}
	m.tables.Store(&tables{now: next, before: &old})
}

// tableFor returns the table of the rule set of d. If that set is older than the last two, it
// returns the table in force, whose indexes differ (indexed is false).
func (m *Metrics) tableFor(d *weir.Decision) (t *table, indexed bool) {
	ts := m.tables.Load()
	if ts.now.set == d.Rules {
		return &ts.now, true
	}
	if ts.now.generation < d.Generation {
		// The set has just come into force, and its hook has not run yet.
		m.rulesChanged(d.Rules, d.Generation)
		if ts = m.tables.Load(); ts.now.set == d.Rules {
			return &ts.now, true
		}
	}
	if ts.before != nil && ts.before.set == d.Rules {
		return ts.before, true
	}
	return &ts.now, false
}

// Seldom implements observe.Seldom.
func (m *Metrics) Seldom() {}

// Decided implements observe.Watcher. It leaves out decisions that the Tally counts.
func (m *Metrics) Decided(r *weir.Request, d *weir.Decision, f observe.Facts) {
	if f.Outcome == observe.Unclear {
		m.decided(r, d)
		return
	}
	if ts := m.tables.Load(); f.First && f.Outcome == observe.Refused && ts.now.set == d.Rules {
		l := &ts.now.limits[d.Limits[0].Window.Counter.Index]
		l.refused.keep(denied, 1, r, d)
		l.domain[observe.DoorOf(r.Door)].refused.keep(denied, 1, r, d)
	}
}

// decided counts a decision of any kind.
func (m *Metrics) decided(r *weir.Request, d *weir.Decision) {
	if d.Matches.CELErrors > 0 {
		m.celErrors.Add(float64(d.Matches.CELErrors))
	}
	if r := d.Matches.TooCostly; r != nil && d.Banned.Rule == nil {
		m.celRefused.Inc()
		if m.o.TooCostly != nil {
			m.o.TooCostly(r)
		}
	}
	overall, door := outcomeOf(r, d), observe.DoorOf(r.Door)
	if !d.Known {
		m.unknownCells[door][overall].Add(1)
		m.reportUnknown(d)
		return
	}
	t, indexed := m.tableFor(d)
	if domain := t.domain(d, indexed); domain != nil {
		c := &domain[door]
		if overall == denied {
			c.refuse(denied, r, d)
			if d.Banned.Rule != nil {
				c.add(banned)
			}
		} else {
			c.add(overall)
		}
	}
	if overall == peek || overall == refund {
		return
	}
	for i := range d.Limits {
		l := &d.Limits[i]
		k, c := l.Window.Counter, (*cells)(nil)
		if indexed {
			c = &t.limits[k.Index].cells
		} else if named := t.names[limitName{k.Domain, k.Rule, k.Window}]; named != nil {
			c = &named.cells
		} else {
			continue
		}
		if o := outcomeOfLimit(d, l); o == denied || o == banned {
			c.refuse(o, r, d)
		} else {
			c.add(o)
		}
	}
	if m.o.Detailed {
		m.detailed.decided(d)
	}
}

// domain returns the counters of the domain of d; nil if there are none. The first limit leads to
// them, which costs less than a look-up by name.
func (t *table) domain(d *weir.Decision, indexed bool) *domainCells {
	if indexed && len(d.Limits) > 0 {
		return t.limits[d.Limits[0].Window.Counter.Index].domain
	}
	return t.domains[d.Domain]
}

func outcomeOf(r *weir.Request, d *weir.Decision) outcome {
	switch {
	case !d.Allowed:
		return denied
	case d.Exempt:
		return exempt
	case len(r.Descriptors) > 0:
		return allowed // hits are each descriptor's own
	case r.Cost() == 0:
		return peek
	case r.Cost() < 0:
		return refund
	}
	return allowed
}

func outcomeOfLimit(d *weir.Decision, l *weir.LimitResult) outcome {
	switch {
	case d.Banned.Rule != nil: // d.Limits are limits of bans
		return banned
	case !l.Allowed && l.Mode == rule.Shadow:
		return shadowDenied
	case !l.Allowed:
		return denied
	case l.Soft:
		return soft
	case l.Near:
		return nearLimit
	}
	return allowed
}

// reportUnknown reports the domain of a decision once, if there are rules and none is of it.
func (m *Metrics) reportUnknown(d *weir.Decision) {
	const most = 100
	domain := d.Domain
	if m.o.UnknownDomain == nil || d.Rules == nil || m.many.Load() || len(domain) > 256 {
		return
	}
	m.mu.Lock()
	_, known := m.unknown[domain]
	report := !known && len(m.unknown) < most
	if report {
		m.unknown[strings.Clone(domain)] = struct{}{}
	}
	m.many.Store(len(m.unknown) >= most)
	m.mu.Unlock()
	if report {
		m.o.UnknownDomain(domain)
	}
}

// Begin starts a sampling stopwatch: it returns 0 for 15 of 16 decisions.
func (m *Metrics) Begin() int64 {
	if rand.Uint32()%sample != 0 {
		return 0
	}
	return clock()
}

// End notes the duration of a decision for which Begin returned a value other than 0. r and d are
// the request and its decision, for an exemplar; nil if they are not known.
func (m *Metrics) End(start int64, r *weir.Request, d *weir.Decision) {
	m.decisions.observe(float64(clock()-start)/1e9, r, d)
}

var epoch = time.Now()

// clock returns ns since the program began, never 0.
func clock() int64 { return int64(time.Since(epoch)) + 1 }

// Store returns s, timed.
func (m *Metrics) Store(s store.Store) store.Store {
	t := &timedStore{Store: s, m: m}
	t.prompt, _ = s.(store.Prompt)
	return t
}

type timedStore struct {
	store.Store
	prompt store.Prompt // the store, if it is one
	m      *Metrics
}

// Take implements store.Store.
func (s *timedStore) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if rand.Uint32()%sample != 0 {
		return s.Store.Take(ctx, charges, results)
	}
	start := clock()
	now, err := s.Store.Take(ctx, charges, results)
	s.m.takes.Observe(float64(clock()-start) / 1e9)
	return now, err
}

// TakeNow implements store.Prompt. A call that has to wait is timed at Take, and not here.
func (s *timedStore) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if s.prompt == nil {
		return 0, false
	}
	if rand.Uint32()%sample != 0 {
		return s.prompt.TakeNow(charges, results)
	}
	start := clock()
	if now, ok = s.prompt.TakeNow(charges, results); ok {
		s.m.takes.Observe(float64(clock()-start) / 1e9)
	}
	return now, ok
}

// Unwrap returns the timed store, so that its other interfaces can be found.
func (s *timedStore) Unwrap() store.Store { return s.Store }
