package metrics

import (
	"math"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// RateLimit counts as envoyproxy/ratelimit does, for dashboards that are made for its metrics. It
// counts hits, not decisions, by the first two levels of descriptors. Make one with NewRateLimit.
// Safe for concurrent use.
type RateLimit struct {
	m        *Metrics
	registry *prometheus.Registry
	loads    func() (good, failed uint64)
	times    prometheus.Histogram
	failed   atomic.Uint64 // calls
	store    atomic.Uint64 // failures of the store

	mu     sync.Mutex // guards the making of tables
	tables atomic.Pointer[hitTables]
}

// hitLabels are the labels of a limit.
type hitLabels struct{ domain, key1, key2 string }

// hits are the counts of one label set.
type hits struct{ total, within, near, over, shadow atomic.Uint64 }

// hitTable holds the counts of a rule set. Immutable except for the counts.
type hitTable struct {
	set    *rule.Set
	limits []*hits // by rule.Counter.Index; nil for one that is not counted
	all    map[hitLabels]*hits
}

// hitTables are the table of the set in force, and the one before for decisions under way.
type hitTables struct{ now, before *hitTable }

// maxHitSeries bounds the label sets.
const maxHitSeries = 10_000

// nearRatio is the share of a limit from which hits are near it.
const nearRatio = float32(0.8)

// NewRateLimit returns the metrics beside m. loads reads how often rules were taken over, and how
// often they could not be.
func NewRateLimit(m *Metrics, loads func() (good, failed uint64)) *RateLimit {
	l := &RateLimit{m: m, registry: prometheus.NewRegistry(), loads: loads,
		times: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ratelimit_service_response_time_seconds",
			Help:        "Time from reading a question to writing its answer.",
			ConstLabels: prometheus.Labels{"grpc_method": "ShouldRateLimit"}, Buckets: prometheus.DefBuckets})}
	l.tables.Store(&hitTables{now: &hitTable{}, before: &hitTable{}})
	l.registry.MustRegister(l.times, source[*RateLimit]{func() *RateLimit { return l }, rateLimitRows})
	return l
}

// Handler serves these metrics and m. It is always the text format of Prometheus: in
// OpenMetrics the names of counters would have another ending.
func (l *RateLimit) Handler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{l.m.registry, l.registry}, promhttp.HandlerOpts{})
}

// Hooks returns the hooks for the limiter.
func (l *RateLimit) Hooks() weir.Hooks {
	return weir.Hooks{RulesChanged: func(s *rule.Set, _ uint64) { l.rulesChanged(s) }, Decided: l.decided,
		StoreError: func(error) { l.store.Add(1) }}
}

// rulesChanged makes the table of s. Label sets that were there before go on.
func (l *RateLimit) rulesChanged(s *rule.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.tables.Load().now
	next := &hitTable{set: s, limits: make([]*hits, len(s.Counters())), all: map[hitLabels]*hits{}}
	for _, r := range s.Rules() {
		if r.Lyft == nil {
			continue
		}
		labels := hitLabelsOf(r.Lyft.StatsKey)
		of := next.all[labels]
		if of == nil {
			if len(next.all) == maxHitSeries {
				continue
			}
			if of = old.all[labels]; of == nil {
				of = new(hits)
			}
			next.all[labels] = of
		}
		for _, w := range r.Windows {
			if w.Counter != nil {
				next.limits[w.Counter.Index] = of
			}
		}
	}
	l.tables.Store(&hitTables{now: next, before: old})
}

var addressInKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\d{1,3}(\.\d{1,3}){3}`)
})

// hitLabelsOf takes the labels out of the name of a statistic: its parts between dots, with none in
// addresses. Deeper levels count for the first two.
func hitLabelsOf(key string) hitLabels {
	key = strings.NewReplacer(":", "_", "|", "_").Replace(key)
	key = addressInKey().ReplaceAllStringFunc(key, func(a string) string { return strings.ReplaceAll(a, ".", "_") })
	parts := append(strings.Split(key, "."), "", "")
	return hitLabels{parts[0], parts[1], parts[2]}
}

// decided counts a decision. Refunds, peeks and refusals by bans are no hits.
func (l *RateLimit) decided(r *weir.Request, d *weir.Decision) {
	t := l.tables.Load()
	table := t.now
	if table.set != d.Rules {
		if table = t.before; table.set != d.Rules {
			return
		}
	}
	if d.Banned.Rule != nil || len(r.Descriptors) == 0 {
		return
	}
	for i := range d.Limits {
		limit := &d.Limits[i]
		if limit.Descriptor < 0 || limit.Window.Counter == nil || limit.Window.Counter.Index >= len(table.limits) {
			continue
		}
		of := table.limits[limit.Window.Counter.Index]
		n := r.Cost()
		if own := &r.Descriptors[limit.Descriptor]; own.HasHits {
			n = own.Hits
		}
		if of != nil && n > 0 {
			of.add(limit, n)
		}
	}
}

// add counts n hits by the answer of the limit. Hits that are refused are over the limit all
// together, also where some of them would have had room.
func (h *hits) add(l *weir.LimitResult, n int64) {
	h.total.Add(uint64(n))
	if !l.Allowed {
		h.over.Add(uint64(n))
		if l.Mode == rule.Shadow {
			h.shadow.Add(uint64(n))
		}
		return
	}
	h.within.Add(uint64(n))
	near := int64(math.Floor(float64(float32(l.Limit) * nearRatio)))
	if used := l.Limit - l.Remaining; used > near {
		h.near.Add(uint64(min(n, used-near)))
	}
}

// Begin implements weir.Stopwatch: all calls are timed, and the sample of Metrics among them.
func (l *RateLimit) Begin() int64 {
	sampled := int64(0)
	if l.m.Begin() != 0 {
		sampled = 1
	}
	return clock()<<1 | sampled
}

// End implements weir.Stopwatch.
func (l *RateLimit) End(start int64, r *weir.Request, d *weir.Decision) {
	if d == nil {
		l.failed.Add(1)
	}
	l.times.Observe(float64(clock()-start>>1) / 1e9)
	if start&1 != 0 {
		l.m.End(start>>1, r, d)
	}
}

// requests is how many calls there were.
func (l *RateLimit) requests() uint64 {
	var m dto.Metric
	if err := l.times.Write(&m); err != nil {
		return 0
	}
	return m.GetHistogram().GetSampleCount()
}

// hitCounters returns the row of one count of all label sets.
func hitCounters(name, help string, read func(h *hits) *atomic.Uint64) row[*RateLimit] {
	return counters("ratelimit_service_rate_limit_"+name, "domain key1 key2", help, func(l *RateLimit, n count) {
		for labels, h := range l.tables.Load().now.all {
			n(read(h).Load(), labels.domain, labels.key1, labels.key2)
		}
	})
}

var rateLimitRows = []row[*RateLimit]{
	hitCounters("total_hits", "Hits.", func(h *hits) *atomic.Uint64 { return &h.total }),
	hitCounters("within_limit", "Hits that were admitted.", func(h *hits) *atomic.Uint64 { return &h.within }),
	hitCounters("near_limit", "Hits that were admitted with four fifths of the limit used.",
		func(h *hits) *atomic.Uint64 { return &h.near }),
	hitCounters("over_limit", "Hits beyond the limit.", func(h *hits) *atomic.Uint64 { return &h.over }),
	hitCounters("shadow_mode", "Hits beyond the limit that passed in shadow mode.",
		func(h *hits) *atomic.Uint64 { return &h.shadow }),
	counter("ratelimit_service_config_load_success", "Rules that were taken over.",
		func(l *RateLimit) uint64 { good, _ := l.loads(); return good }),
	counter("ratelimit_service_config_load_error", "Rules that could not be.",
		func(l *RateLimit) uint64 { _, failed := l.loads(); return failed }),
	counters("ratelimit_service_should_rate_limit_error", "err_type",
		"Calls that failed, because of the store or for another reason.", func(l *RateLimit, n count) {
			store, failed := l.store.Load(), l.failed.Load()
			n(store, "redis_error")
			n(max(failed, store)-store, "service_error")
		}),
	counters("ratelimit_service_total_requests", "grpc_method", "Calls.",
		func(l *RateLimit, n count) { n(l.requests(), "ShouldRateLimit") }),
}
