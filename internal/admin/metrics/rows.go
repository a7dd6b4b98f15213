package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// row is a metric: its name, help and labels, and how a reading of type T gives its values.
type row[T any] struct {
	desc *prometheus.Desc
	send func(s T, d *prometheus.Desc, ch chan<- prometheus.Metric)
}

// number is what a metric may be read from.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// count and value send the value of a series, whose labels have these values.
type (
	count func(n uint64, labels ...string)
	value func(v float64, labels ...string)
)

// counter returns the row of a counter without labels.
func counter[T any, N number](name, help string, read func(s T) N) row[T] {
	return single(prometheus.CounterValue, name, help, read)
}

// gauge returns the row of a gauge without labels.
func gauge[T any, N number](name, help string, read func(s T) N) row[T] {
	return single(prometheus.GaugeValue, name, help, read)
}

func single[T any, N number](kind prometheus.ValueType, name, help string, read func(s T) N) row[T] {
	return row[T]{describe(name, "", help), func(s T, d *prometheus.Desc, ch chan<- prometheus.Metric) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(read(s)))
	}}
}

// counters returns the row of counters with labels, which blanks separate.
func counters[T any](name, labels, help string, each func(s T, n count)) row[T] {
	return row[T]{describe(name, labels, help), func(s T, d *prometheus.Desc, ch chan<- prometheus.Metric) {
		each(s, func(n uint64, labels ...string) {
			ch <- counterOf(d, n, labels...)
		})
	}}
}

// gauges returns the row of gauges with labels, which blanks separate.
func gauges[T any](name, labels, help string, each func(s T, v value)) row[T] {
	return row[T]{describe(name, labels, help), func(s T, d *prometheus.Desc, ch chan<- prometheus.Metric) {
		each(s, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		})
	}}
}

// histogram returns the row of a histogram; counts has the cumulative count of each upper bound.
func histogram[T any](name, help string, read func(s T) (n uint64, sum float64, counts map[float64]uint64)) row[T] {
	return row[T]{describe(name, "", help), func(s T, d *prometheus.Desc, ch chan<- prometheus.Metric) {
		n, sum, counts := read(s)
		ch <- prometheus.MustNewConstHistogram(d, n, sum, counts)
	}}
}

// counterOf returns a counter that is not in a row.
func counterOf(d *prometheus.Desc, n uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func describe(name, labels, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, strings.Fields(labels), nil)
}

// source collects the rows of one reading.
type source[T any] struct {
	read func() T // nil if there is none
	rows []row[T]
}

// Describe implements prometheus.Collector.
func (c source[T]) Describe(ch chan<- *prometheus.Desc) {
	for _, r := range c.rows {
		ch <- r.desc
	}
}

// Collect implements prometheus.Collector.
func (c source[T]) Collect(ch chan<- prometheus.Metric) {
	if c.read == nil {
		return
	}
	s := c.read()
	for _, r := range c.rows {
		r.send(s, r.desc, ch)
	}
}

// group collects what several collectors do.
type group []prometheus.Collector

// Describe implements prometheus.Collector.
func (g group) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range g {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (g group) Collect(ch chan<- prometheus.Metric) {
	for _, c := range g {
		c.Collect(ch)
	}
}

// oneIf returns 1 if holds is true, and 0 otherwise.
func oneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// label makes s fit for a label, which must be UTF-8.
func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// counted returns a collector of a counter; it sends none if read is nil.
func counted(name, help string, read func() uint64) prometheus.Collector {
	return source[uint64]{read, []row[uint64]{counter(name, help, func(n uint64) uint64 { return n })}}
}

// of returns n with the first labels of a limit given.
func (n count) of(domain, rule, limit string) count {
	domain, rule, limit = label(domain), label(rule), label(limit)
	return func(v uint64, labels ...string) { n(v, append([]string{domain, rule, limit}, labels...)...) }
}
