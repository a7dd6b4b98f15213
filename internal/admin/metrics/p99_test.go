package metrics

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// P99 is of the last minutes: what was slow before does not count for ever.
func TestP99(t *testing.T) {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x",
		Buckets: prometheus.ExponentialBuckets(250e-9, 2, buckets)})
	var l latest
	now := time.Unix(1_000_000, 0)
	if got := l.quantile(h, 0.99, now); got != 0 {
		t.Errorf("of none: %v", got)
	}
	for range 1000 {
		h.Observe(0.1)
	}
	slow := l.quantile(h, 0.99, now.Add(time.Second))
	if slow < 0.05 || slow > 0.2 {
		t.Errorf("of 100 ms: %v", slow)
	}
	for range 40 { // nearly 7 minutes, each with some
		now = now.Add(10 * time.Second)
		for range 100 {
			h.Observe(3e-6)
		}
		l.quantile(h, 0.99, now)
	}
	if got := l.quantile(h, 0.99, now); got < 2e-6 || got > 4e-6 {
		t.Errorf("of 3 µs: %v", got)
	}
	if n := len(l.readings); n > 32 {
		t.Errorf("%d readings are kept", n)
	}
	for range 40 {
		now = now.Add(10 * time.Second)
		l.quantile(h, 0.99, now)
	}
	if got := l.quantile(h, 0.99, now); got != 0 {
		t.Errorf("of none for 5 minutes: %v", got)
	}
	for range 100 {
		h.Observe(60) // above the last bound
	}
	if got := l.quantile(h, 0.99, now); got < 0.2 || math.IsInf(got, 0) {
		t.Errorf("of a minute: %v", got)
	}
	m := New(Options{})
	m.decisions.Observe(0.001)
	if got := m.P99(); got < 0.0005 || got > 0.0011 {
		t.Errorf("metrics say %v", got)
	}
}
