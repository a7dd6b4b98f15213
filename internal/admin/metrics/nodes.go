package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/record"
)

// NodesOptions say what NewNodes reads. A nil field means that there is no such metric.
type NodesOptions struct {
	// Nodes counts questions between nodes, and Unreadable the answers of other nodes that this
	// node does not understand. Both are set or neither is.
	Nodes      func() nodes.Stats
	Unreadable func() uint64
	// Record reads the record of requests.
	Record func() record.Stats
}

// NewNodes returns a collector of the questions between nodes and of the decisions that this node
// has recorded, for Metrics.Registry.
func NewNodes(o NodesOptions) prometheus.Collector {
	questions := source[nodes.Stats]{rows: nodeRows}
	if o.Nodes != nil {
		questions.read = func() nodes.Stats {
			s := o.Nodes()
			s.Missing[nodes.Unreadable] += o.Unreadable()
			return s
		}
	}
	return group{questions, source[record.Stats]{o.Record, recordRows}}
}

var nodeRows = []row[nodes.Stats]{
	counters("weir_nodes_questions_total", "kind result",
		"Questions of this node to all nodes, by what they are about and by who answered: all (complete), not all (incomplete), or nobody was asked, though there are others or that is not known (alone).",
		func(s nodes.Stats, n count) {
			kinds := map[string]nodes.KindStats{} // whatever version of it
			for _, k := range s.Kinds {
				name, _, _ := strings.Cut(k.Kind, "/")
				sum := kinds[name]
				kinds[name] = nodes.KindStats{Complete: sum.Complete + k.Complete,
					Incomplete: sum.Incomplete + k.Incomplete, Alone: sum.Alone + k.Alone}
			}
			for name, k := range kinds {
				n(k.Complete, name, "complete")
				n(k.Incomplete, name, "incomplete")
				n(k.Alone, name, "alone")
			}
		}),
	counter("weir_nodes_answers_total", "Answers of other nodes that came in time.",
		func(s nodes.Stats) uint64 { return s.Answers }),
	counters("weir_nodes_missing_answers_total", "cause",
		"Answers of other nodes that did not come in time (silent), or not at all, since Redis is away or forbids it (redis), too much is asked (busy), the question does not fit (too_long), or whoever asked did not wait (cancelled); and those that could not be read (unreadable).",
		func(s nodes.Stats, n count) {
			for cause, missing := range s.Missing {
				n(missing, nodes.Cause(cause).String())
			}
		}),
	histogram("weir_nodes_question_seconds",
		"How long it took until all nodes that were asked had answered, or were not waited for any more.",
		func(s nodes.Stats) (n uint64, sum float64, counts map[float64]uint64) {
			counts = make(map[float64]uint64, len(nodes.Bounds))
			for i, bound := range nodes.Bounds {
				n += s.Times.Counts[i]
				counts[bound.Seconds()] = n
			}
			return n + s.Times.Counts[len(nodes.Bounds)], s.Times.Sum.Seconds(), counts
		}),
	counters("weir_nodes_heard_total", "outcome",
		"Questions of other nodes: answered, heard too late to answer (late), of a kind that this node does not know (unknown), that it could not answer (failed), and what is no question (unreadable).",
		func(s nodes.Stats, n count) {
			n(s.Answered, "answered")
			n(s.Late, "late")
			n(s.Unknown, "unknown")
			n(s.Failed, "failed")
			n(s.Unreadable, "unreadable")
		}),
}

var recordRows = []row[record.Stats]{
	gauge("weir_insight_record_bytes", "Memory of the record of requests.",
		func(s record.Stats) int64 { return s.Bytes }),
	gauge("weir_insight_record_limit_bytes", "Bound on the memory of the record of requests.",
		func(s record.Stats) int64 { return s.Limit }),
	gauge("weir_insight_record_requests", "Requests that the record holds.",
		func(s record.Stats) uint64 { return s.Requests }),
	counter("weir_insight_record_taken_total", "Requests that were recorded.",
		func(s record.Stats) uint64 { return s.Taken }),
	counter("weir_insight_record_lost_total",
		"Requests of recorded clients that were left out, since there was no room for them at once.",
		func(s record.Stats) uint64 { return s.Lost }),
	counter("weir_insight_record_gap_seconds_total",
		"Time in which requests of recorded clients were left out, since there were too many.",
		func(s record.Stats) float64 { return s.Gaps.Seconds() }),
	gauge("weir_insight_record_sampled_ratio", "Share of the clients whose requests are recorded: 1 is all.",
		func(s record.Stats) float64 { return 1 / float64(s.Sampled) }),
	gauge("weir_insight_record_reach_seconds",
		"How far back all requests of these clients are there, except in gaps; 0 while there are none.",
		func(s record.Stats) float64 {
			if s.Since.IsZero() {
				return 0
			}
			return max(time.Since(s.Since).Seconds(), 0)
		}),
}
