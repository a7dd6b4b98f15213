package metrics

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/host/nftables"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/regions"
)

// collector returns what gives Prometheus a reading of m.
func (m *Metrics) collector() prometheus.Collector {
	o := &m.o
	all := group{
		decisionCollector{m},
		source[*Metrics]{func() *Metrics { return m }, setRows},
		source[memory.Stats]{o.Memory, memoryRows},
		source[Database]{o.Database, databaseRows},
		source[lease.Stats]{o.Leases, leaseRows},
		source[regions.Stats]{o.Regions, regionRows},
		source[weir.BanStats]{o.Bans, banRows},
		source[nftables.Stats]{o.NFTables, kernelRows},
		source[rulesource.Status]{o.Rules, sourceRows},
	}
	redisSource, fallbackSource := source[*redis.Stats]{rows: redisRows}, source[*fallbackReading]{rows: fallbackRows}
	if o.Redis != nil {
		redisSource.read = func() *redis.Stats { s := o.Redis(); return &s }
	}
	if o.Fallback != nil {
		fallbackSource.read = func() *fallbackReading { return readFallback(o.Fallback) }
	}
	return append(all, redisSource, fallbackSource)
}

var memoryRows = []row[memory.Stats]{
	gauge("weir_store_keys", "Keys that the store in this process holds.",
		func(s memory.Stats) int64 { return s.Keys }),
	gauge("weir_store_bytes", "Bytes that the store in this process holds.",
		func(s memory.Stats) int64 { return s.Bytes }),
	counter("weir_store_evictions_total",
		"Keys that were forgotten, though they had used something of their limit, since the store in this process was full.",
		func(s memory.Stats) uint64 { return s.Evictions }),
	counter("weir_store_overflows_total",
		"Decisions that were made on a shared cell, since the store in this process was full.",
		func(s memory.Stats) uint64 { return s.Overflows }),
}

// setRows are metrics of the rule set in force.
var setRows = []row[*Metrics]{
	gauge("weir_rules_generation", "How many rule sets have been in force, the present one included.",
		func(m *Metrics) uint64 { return m.tables.Load().now.generation }),
	gauges("weir_node_info", "node address",
		"1, with the name of this node, and the address that tells it from another one of that name.",
		func(m *Metrics, v value) { v(1, m.o.Node.Name, m.o.Node.Address) }),
	gauges("weir_rules", "", "Rules in force.",
		func(m *Metrics, v value) {
			if set := m.tables.Load().now.set; set != nil {
				v(float64(len(set.Rules())))
			}
		}),
	counters("weir_descriptor_decisions_total", "key outcome",
		"Verdicts on descriptors of rules with detailed_metric or value_to_metric, by their name with the values of the request.",
		func(m *Metrics, n count) {
			m.detailed.mu.RLock()
			defer m.detailed.mu.RUnlock()
			for k, v := range m.detailed.cells {
				for o := range v {
					if verdicts := v[o].Load(); verdicts > 0 {
						n(verdicts, label(k), outcomeNames[o])
					}
				}
			}
		}),
	counters("weir_descriptor_decisions_unnamed_total", "",
		"Verdicts that weir_descriptor_decisions_total left out, since it holds as many series as it may.",
		func(m *Metrics, n count) {
			if m.o.Detailed {
				n(m.detailed.lost.Load())
			}
		}),
}

// sourceRows are metrics of the source of the rules.
var sourceRows = []row[rulesource.Status]{
	gauge("weir_rules_loaded_timestamp_seconds", "When the rules in force were loaded.",
		func(s rulesource.Status) float64 { return float64(s.Loaded.UnixMilli()) / 1e3 }),
	counter("weir_rules_loads_total", "Successful loads of rules.",
		func(s rulesource.Status) uint64 { return s.Loads }),
	counter("weir_rules_load_errors_total", "Loads of rules that failed; the last good rules stayed in force.",
		func(s rulesource.Status) uint64 { return s.Failures }),
	gauge("weir_rules_broken",
		"1 while the rules that lie in the source are not in force, since they have errors; 0 else.",
		func(s rulesource.Status) float64 { return oneIf(s.Err != nil) }),
	gauge("weir_rules_behind",
		"1 while the source holds a change of the rules that was neither taken over nor found to be broken, as of files that change without rest, or while that is not known, as of a database that has been away for a minute; 0 else.",
		func(s rulesource.Status) float64 { return oneIf(s.Behind) }),
	gauges("weir_rules_info", "digest version",
		"1, with the digest of the rule files in force, which is the same on servers with the same files, and the version that their source gives them.",
		func(s rulesource.Status, v value) { v(1, s.Digest, s.Version) }),
}

// decisionCollector counts requests and verdicts.
type decisionCollector struct{ m *Metrics }

var (
	descRequests = describe("weir_requests_total", "domain door outcome",
		"Requests decided, by domain, door and outcome of the decision as a whole. A domain that no rule knows is _unknown.")
	descDecisions = describe("weir_decisions_total", "domain rule limit outcome",
		"Verdicts of each limit on the requests that met it, and, with an empty limit, requests that met none: exempt ones, and ones of an unknown domain.")
	descBanned = describe("weir_banned_requests_total", "domain",
		"Requests that a ban refused; they are among the denied ones of weir_requests_total, and not of weir_decisions_total, which has them as banned.")
)

// Describe implements prometheus.Collector.
func (c decisionCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descRequests
	ch <- descDecisions
	ch <- descBanned
}

// Collect implements prometheus.Collector.
func (c decisionCollector) Collect(ch chan<- prometheus.Metric) {
	m := c.m
	m.mu.Lock() // so that nothing moves from a limit to its domain meanwhile
	t := m.tables.Load().now
	requests := t.requests()
	m.mu.Unlock()
	for domain, n := range requests {
		m.collectDomain(ch, label(domain), t.domains[domain], n)
	}
	unknown := [outcomes]uint64{}
	for door := range m.unknownCells {
		for o := range m.unknownCells[door] {
			v := m.unknownCells[door][o].Load()
			if unknown[o] += v; v > 0 || m.open[door] && o == int(allowed) {
				ch <- counterOf(descRequests, v, unknownDomain, observe.DoorNames[door], outcomeNames[o])
			}
		}
	}
	for o, v := range unknown {
		if v > 0 || o == int(allowed) {
			ch <- counterOf(descDecisions, v, unknownDomain, "", "", outcomeNames[o])
		}
	}
	if t.set == nil {
		return
	}
	for name, cells := range t.names {
		for o, v := range cells.read() {
			if v > 0 || outcome(o) <= denied && t.rules[name] {
				cells.refused.counter(ch, descDecisions, v, outcome(o), label(name.domain), label(name.rule),
					label(name.window), outcomeNames[o])
			}
		}
	}
}

// requests returns how many requests each domain has had, by door and outcome.
func (t *table) requests() map[string]*[observe.Doors][outcomes]uint64 {
	all := map[string]*[observe.Doors][outcomes]uint64{}
	for domain, cells := range t.domains {
		n := new([observe.Doors][outcomes]uint64)
		for door := range cells {
			for o := range cells[door].n {
				n[door][o] = cells[door].n[o].Load()
			}
		}
		all[domain] = n
	}
	for _, names := range [...]map[limitName]*limitCount{t.names, t.gone} {
		for name, c := range names {
			c.addTo(all[name.domain])
		}
	}
	return all
}

// collectDomain sends the counters of the requests of one domain.
func (m *Metrics) collectDomain(ch chan<- prometheus.Metric, domain string, cells *domainCells,
	requests *[observe.Doors][outcomes]uint64) {
	var exempted, refused uint64
	for door, n := range requests {
		if n == [outcomes]uint64{} && !m.open[door] {
			continue
		}
		exempted, refused = exempted+n[exempt], refused+n[banned]
		for o, v := range n {
			// Outcomes that every server sees sooner or later are always there, so that a rate
			// covers even the first one.
			if outcome(o) != banned && (v > 0 || outcome(o) <= denied) { // banned ones are denied
				cells[door].refused.counter(ch, descRequests, v, outcome(o), domain, observe.DoorNames[door],
					outcomeNames[o])
			}
		}
	}
	ch <- counterOf(descBanned, refused, domain)
	if exempted > 0 {
		ch <- counterOf(descDecisions, exempted, domain, "", "", outcomeNames[exempt])
	}
}

// maxSeries bounds the series that hold clients' values. A name has up to one for each outcome of a
// limit, which are the outcomes before exempt.
const maxSeries = 10_000

// detailed counts verdicts by names that hold clients' values.
type detailed struct {
	lost atomic.Uint64

	mu    sync.RWMutex
	cells map[string]*[outcomes]atomic.Uint64
}

// maxDetailKey bounds the length of a name.
const maxDetailKey = 1024

func (t *detailed) decided(d *weir.Decision) {
	for i := range d.Matches.Descriptors {
		m := &d.Matches.Descriptors[i]
		if m.Hit < 0 || m.Rule == nil || m.Rule.Lyft == nil || m.StatsKey == "" || m.StatsKey == m.Rule.Lyft.StatsKey ||
			m.Hit >= len(d.Limits) {
			continue
		}
		t.add(m.StatsKey, outcomeOfLimit(d, &d.Limits[m.Hit]))
	}
}

func (t *detailed) add(key string, o outcome) {
	if len(key) > maxDetailKey {
		t.lost.Add(1)
		return
	}
	t.mu.RLock()
	c := t.cells[key]
	t.mu.RUnlock()
	if c == nil {
		t.mu.Lock()
		if c = t.cells[key]; c == nil && len(t.cells) < maxSeries/int(exempt) {
			c = new([outcomes]atomic.Uint64)
			t.cells[strings.Clone(key)] = c
		}
		t.mu.Unlock()
	}
	if c == nil {
		t.lost.Add(1)
		return
	}
	c[o].Add(1)
}
