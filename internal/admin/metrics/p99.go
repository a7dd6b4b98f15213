package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// p99Over is the time that P99 covers. A reading for it is kept every p99Every.
const (
	p99Over  = 5 * time.Minute
	p99Every = 10 * time.Second
)

// latest finds a quantile of the recent values of a histogram. The zero value is ready.
type latest struct {
	mu       sync.Mutex
	readings []reading // oldest first; the first is the last one that is p99Over old
}

// reading has the cumulative counts of the buckets of the histogram, and their total.
type reading struct {
	at     time.Time
	upTo   []uint64
	bounds []float64
	all    uint64
}

// P99 returns the 99th percentile of the duration of decisions in the last 5 minutes, in s; 0 if
// there were none. It comes from the histogram weir_decision_seconds, interpolated within a bucket
// like Prometheus' histogram_quantile. It must be called at least every few minutes, because it
// takes a reading at each call. Safe for concurrent use.
func (m *Metrics) P99() float64 { return m.latest.quantile(m.decisions.Histogram, 0.99, time.Now()) }

func (l *latest) quantile(h prometheus.Histogram, q float64, now time.Time) float64 {
	var d dto.Metric
	if h.Write(&d) != nil {
		return 0
	}
	r := reading{at: now, all: d.GetHistogram().GetSampleCount()}
	for _, b := range d.GetHistogram().GetBucket() {
		r.upTo, r.bounds = append(r.upTo, b.GetCumulativeCount()), append(r.bounds, b.GetUpperBound())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.readings) > 1 && now.Sub(l.readings[1].at) >= p99Over {
		l.readings = l.readings[1:]
	}
	before := reading{upTo: make([]uint64, len(r.upTo))} // the program began
	if len(l.readings) > 0 && now.Sub(l.readings[0].at) >= p99Over {
		before = l.readings[0]
	}
	if n := len(l.readings); n == 0 || now.Sub(l.readings[n-1].at) >= p99Every {
		l.readings = append(l.readings, r)
	}
	all := r.all - before.all
	if all == 0 {
		return 0
	}
	rank, below, low := q*float64(all), 0.0, 0.0
	for i, bound := range r.bounds {
		n := float64(r.upTo[i] - before.upTo[i])
		if n >= rank {
			return low + (bound-low)*(rank-below)/(n-below)
		}
		below, low = n, bound
	}
	return low // beyond the last bound
}
