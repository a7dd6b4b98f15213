package metrics

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
)

var (
	descRequests = prometheus.NewDesc("weir_requests_total",
		"Requests decided, by domain, door and outcome of the decision as a whole. A domain that no rule knows is _unknown.", []string{"domain", "door", "outcome"}, nil)
	descDecisions = prometheus.NewDesc("weir_decisions_total",
		"Verdicts of each limit on the requests that met it, and, with an empty limit, requests that met none: exempt ones, and those of an unknown domain.", []string{"domain", "rule", "limit", "outcome"}, nil)
	descDetailed = prometheus.NewDesc("weir_descriptor_decisions_total",
		"Verdicts on descriptors of rules with detailed_metric or value_to_metric, by their name with the values of the request.", []string{"key", "outcome"}, nil)
	descDetailedLost = prometheus.NewDesc("weir_descriptor_decisions_unnamed_total",
		"Verdicts that weir_descriptor_decisions_total left out, since it holds as many series as it may.", nil, nil)
	descKeys       = prometheus.NewDesc("weir_store_keys", "Keys that the store in this process holds.", nil, nil)
	descBytes      = prometheus.NewDesc("weir_store_bytes", "Bytes that the store in this process holds.", nil, nil)
	descEvictions  = prometheus.NewDesc("weir_store_evictions_total", "Keys that were forgotten, though they had used something of their limit, since the store in this process was full.", nil, nil)
	descOverflows  = prometheus.NewDesc("weir_store_overflows_total", "Decisions that were made on a shared cell, since the store in this process was full.", nil, nil)
	descGeneration = prometheus.NewDesc("weir_rules_generation", "How many rule sets have been in force, the present one included.", nil, nil)
	descRules      = prometheus.NewDesc("weir_rules", "Rules in force.", nil, nil)
	descLoaded     = prometheus.NewDesc("weir_rules_loaded_timestamp_seconds", "When the rules in force were loaded.", nil, nil)
	descLoads      = prometheus.NewDesc("weir_rules_loads_total", "Successful loads of rules.", nil, nil)
	descBroken     = prometheus.NewDesc("weir_rules_broken", "1 while the rules that lie in the source are not in force, since they have errors; 0 else.", nil, nil)
	descInfo       = prometheus.NewDesc("weir_rules_info", "1, with the digest of the rule files in force, which is the same on servers with the same files, and the version that their source gives them.", []string{"digest", "version"}, nil)
	descBehind     = prometheus.NewDesc("weir_rules_behind", "1 while the source holds a change of the rules that was neither taken over nor found to be broken, as of files that change without rest, or while that is not known, as of a database that has been away for a minute; 0 else.", nil, nil)
	descFailures   = prometheus.NewDesc("weir_rules_load_errors_total", "Loads of rules that failed; the last good rules stayed in force.", nil, nil)
)

// collector gives Prometheus a reading.
type collector struct{ m *Metrics }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range append([]*prometheus.Desc{descRequests, descDecisions, descDetailed, descDetailedLost, descKeys, descBytes, descEvictions,
		descOverflows, descGeneration, descRules, descLoaded, descLoads, descFailures, descBroken, descBehind, descInfo}, slices.Concat(descsBans, descsShared, descsDatabase, descsLeases, descsRegions)...) {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	m := c.m
	counter, gauge := counterTo(ch), gaugeTo(ch)
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
				counter(descRequests, v, unknownDomain, observe.DoorNames[door], outcomeNames[o])
			}
		}
	}
	for o, v := range unknown {
		if v > 0 || o == int(allowed) {
			counter(descDecisions, v, unknownDomain, "", "", outcomeNames[o])
		}
	}
	if t.set != nil {
		for name, cells := range t.names {
			for o, v := range cells.read() {
				if v > 0 || outcome(o) <= denied && t.rules[name] {
					cells.refused.counter(ch, descDecisions, v, outcome(o), label(name.domain), label(name.rule), label(name.window), outcomeNames[o])
				}
			}
		}
		gauge(descRules, float64(len(t.set.Rules())))
	}
	gauge(descGeneration, float64(t.generation))
	if m.o.Detailed {
		m.detailed.mu.RLock()
		for k, v := range m.detailed.cells {
			for o := range v {
				if n := v[o].Load(); n > 0 {
					counter(descDetailed, n, label(k), outcomeNames[o])
				}
			}
		}
		m.detailed.mu.RUnlock()
		counter(descDetailedLost, m.detailed.lost.Load())
	}
	if m.o.Memory != nil {
		s := m.o.Memory()
		gauge(descKeys, float64(s.Keys))
		gauge(descBytes, float64(s.Bytes))
		counter(descEvictions, s.Evictions)
		counter(descOverflows, s.Overflows)
	}
	if m.o.Redis != nil {
		r := m.o.Redis()
		collectRedis(ch, &r)
	}
	if m.o.Database != nil {
		d := m.o.Database()
		collectDatabase(ch, &d)
	}
	if m.o.Fallback != nil {
		collectFallback(ch, m.o.Fallback)
	}
	if m.o.Regions != nil {
		g := m.o.Regions()
		collectRegions(ch, &g)
	}
	if m.o.Leases != nil {
		l := m.o.Leases()
		collectLeases(ch, &l)
	}
	m.o.collectBans(ch)
	if m.o.Rules != nil {
		s := m.o.Rules()
		gauge(descLoaded, float64(s.Loaded.UnixMilli())/1e3)
		counter(descLoads, s.Loads)
		counter(descFailures, s.Failures)
		gauge(descBroken, oneIf(s.Err != nil))
		gauge(descBehind, oneIf(s.Behind))
		gauge(descInfo, 1, s.Digest, s.Version)
	}
}

// oneIf returns 1 if holds is true, and 0 otherwise.
func oneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
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
func (m *Metrics) collectDomain(ch chan<- prometheus.Metric, domain string, cells *domainCells, requests *[observe.Doors][outcomes]uint64) {
	counter := counterTo(ch)
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
				cells[door].refused.counter(ch, descRequests, v, outcome(o), domain, observe.DoorNames[door], outcomeNames[o])
			}
		}
	}
	counter(descBanned, refused, domain)
	if exempted > 0 {
		counter(descDecisions, exempted, domain, "", "", outcomeNames[exempt])
	}
}

// label makes s fit for a label, which must be UTF-8.
func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

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
		if m.Hit < 0 || m.Rule == nil || m.Rule.Lyft == nil || m.StatsKey == "" || m.StatsKey == m.Rule.Lyft.StatsKey || m.Hit >= len(d.Limits) {
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
