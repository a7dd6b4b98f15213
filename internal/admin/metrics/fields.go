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
func NewFields(o FieldOptions) prometheus.Collector {
	return group{
		source[httplimit.FieldStats]{o.Fields, fieldRows},
		counted("weir_tokens_unverified_total",
			"Bearer tokens that did not hold, so that their requests had no user by a jwt source: expired, of an unknown key, or no JSON Web Token.", o.Unverified),
	}
}

var fieldRows = []row[httplimit.FieldStats]{
	counters("weir_fields_total", "reason",
		"Requests that were refused for fields that servers read in different ways: what has one value came twice (repeated), a name is like the name of a field that is read (lookalike), credentials or cookies cannot be read (unreadable), a cookie or an API key has too many values (cookies); and requests that lost such a field (dropped), or were charged under each value of a cookie or an API key (several).",
		func(s httplimit.FieldStats, n count) {
			n(s.Repeated, "repeated")
			n(s.Lookalike, "lookalike")
			n(s.Unreadable, "unreadable")
			n(s.Cookies, "cookies")
			n(s.Dropped, "dropped")
			n(s.Several, "several")
		}),
}
