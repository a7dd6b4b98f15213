package metrics

import (
	"encoding/hex"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
)

// buckets is the number of buckets of weir_decision_seconds, without the last one, which has no
// bound.
const buckets = 21

// slot keeps one event as the exemplar of a counter or a bucket. A caller that finds another one
// writing or reading leaves it as it is, so that no decision waits. The zero value holds none.
type slot struct {
	mu       sync.Mutex
	of       outcome
	value    float64
	at       int64 // µs since the Unix epoch; 0 is not known
	decision weir.DecisionID
	trace    weir.Trace
}

// keep notes a decision that can be found: by its id, or by its trace.
func (s *slot) keep(of outcome, value float64, r *weir.Request, d *weir.Decision) {
	if d.ID == 0 && r.Trace == nil || !s.mu.TryLock() {
		return
	}
	s.of, s.value, s.at, s.decision, s.trace = of, value, d.Time, d.ID, weir.Trace{}
	if r.Trace != nil {
		s.trace = *r.Trace
	}
	s.mu.Unlock()
}

// exemplar returns the exemplar; ok is false if there is none.
func (s *slot) exemplar() (e prometheus.Exemplar, of outcome, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = prometheus.Exemplar{Value: s.value, Labels: prometheus.Labels{}}
	if s.decision != 0 {
		e.Labels["decision"] = s.decision.String()
	}
	if s.trace.TraceID != [16]byte{} {
		e.Labels["trace_id"] = hex.EncodeToString(s.trace.TraceID[:])
	}
	if s.at > 0 {
		e.Timestamp = time.UnixMicro(s.at)
	}
	return e, s.of, len(e.Labels) > 0
}

// counter sends the counter of an outcome, with the exemplar if that has the same outcome.
func (s *slot) counter(ch chan<- prometheus.Metric, desc *prometheus.Desc, v uint64, o outcome, labels ...string) {
	metric := counterOf(desc, v, labels...)
	if e, of, ok := s.exemplar(); ok && of == o && v > 0 {
		metric = prometheus.MustNewMetricWithExemplars(metric, e)
	}
	ch <- metric
}

// timedDecisions is a histogram with an exemplar for each bucket. client_golang's own exemplars
// would allocate on the deciding path.
type timedDecisions struct {
	prometheus.Histogram
	slots [buckets + 1]slot
}

// observe notes a time in seconds. r and d may be nil.
func (t *timedDecisions) observe(seconds float64, r *weir.Request, d *weir.Decision) {
	t.Observe(seconds)
	if r == nil || d == nil || d.ID == 0 && r.Trace == nil {
		return
	}
	i, bound := 0, 250e-9
	for i < buckets && seconds > bound {
		i, bound = i+1, bound*2
	}
	t.slots[i].keep(allowed, seconds, r, d)
}

// Collect implements prometheus.Collector.
func (t *timedDecisions) Collect(ch chan<- prometheus.Metric) {
	var list []prometheus.Exemplar
	for i := range t.slots {
		if e, _, ok := t.slots[i].exemplar(); ok {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		t.Histogram.Collect(ch)
		return
	}
	ch <- prometheus.MustNewMetricWithExemplars(t.Histogram, list...)
}
