package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/rulesource/xds"
)

// NewXDS returns a collector of rules that come from a control plane, for Metrics.Registry.
func NewXDS(read func() xds.Stats) prometheus.Collector { return source[xds.Stats]{read, xdsRows} }

var xdsRows = []row[xds.Stats]{
	gauge("weir_xds_connected", "1 while the control plane of the rules can be reached.", func(s xds.Stats) int {
		if s.Connected {
			return 1
		}
		return 0
	}),
	counters("weir_xds_answers_total", "outcome",
		"Answers of the control plane: put in force (changed), as before (same), or refused.",
		func(s xds.Stats, n count) {
			n(s.Changed, "changed")
			n(s.Same, "same")
			n(s.Refused, "refused")
		}),
	gauge("weir_xds_last_answer_timestamp_seconds", "When the control plane sent something last; 0 for never.",
		func(s xds.Stats) float64 {
			if s.Last.IsZero() {
				return 0
			}
			return float64(s.Last.UnixNano()) / 1e9
		}),
	gauge("weir_xds_unknown_fields", "Fields of the rules in force that this version of weir does not understand.",
		func(s xds.Stats) int { return s.Unknown }),
}
