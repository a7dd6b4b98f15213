package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/httplimit"
)

// FieldOptions say what NewFields reads.
type FieldOptions struct {
	Fields     func() httplimit.FieldStats
	Unverified func() uint64 // bearer tokens that did not hold
}

// NewFields returns a collector of requests that were refused or changed because of their fields,
// for Metrics.Registry.
func NewFields(o FieldOptions) prometheus.Collector { return fieldCollector{o} }

type fieldCollector struct{ o FieldOptions }

var (
	descFields     = prometheus.NewDesc("weir_fields_total", "Requests that were refused for fields that servers read in different ways: what has one value came twice (repeated), a name is like that of a field that is read (lookalike), credentials or cookies cannot be read (unreadable), a cookie or an API key has too many values (cookies); and requests that lost such a field (dropped), or were charged under each value of a cookie or an API key (several).", []string{"reason"}, nil)
	descUnverified = prometheus.NewDesc("weir_tokens_unverified_total", "Bearer tokens that did not hold, so that their requests had no user by a jwt source: expired, of an unknown key, or no JSON Web Token.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c fieldCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descFields
	ch <- descUnverified
}

// Collect implements prometheus.Collector.
func (c fieldCollector) Collect(ch chan<- prometheus.Metric) {
	counter := counterTo(ch)
	s := c.o.Fields()
	counter(descFields, s.Repeated, "repeated")
	counter(descFields, s.Lookalike, "lookalike")
	counter(descFields, s.Unreadable, "unreadable")
	counter(descFields, s.Cookies, "cookies")
	counter(descFields, s.Dropped, "dropped")
	counter(descFields, s.Several, "several")
	counter(descUnverified, c.o.Unverified())
}
