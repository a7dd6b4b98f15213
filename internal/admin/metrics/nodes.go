package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/lab/preview"
)

// NodesOptions say what NewNodes reads. A nil field means that there is no such metric.
type NodesOptions struct {
	// Nodes counts questions between nodes, and Unreadable the answers of other nodes that this
	// node does not understand. Both are set or neither is.
	Nodes      func() nodes.Stats
	Unreadable func() uint64
	// Record reads the record of requests.
	Record func() preview.Stats
}

// NewNodes returns a collector of the questions between nodes and of the decisions that this node
// has recorded, for Metrics.Registry.
func NewNodes(o NodesOptions) prometheus.Collector { return nodesCollector{o} }

type nodesCollector struct{ o NodesOptions }

var (
	descQuestions     = prometheus.NewDesc("weir_nodes_questions_total", "Questions of this node to all nodes, by what they are about and by who answered: all (complete), not all (incomplete), or nobody was asked, though there are others or that is not known (alone).", []string{"kind", "result"}, nil)
	descAnswers       = prometheus.NewDesc("weir_nodes_answers_total", "Answers of other nodes that came in time.", nil, nil)
	descMissing       = prometheus.NewDesc("weir_nodes_missing_answers_total", "Answers of other nodes that did not come in time (silent), or not at all, since Redis is away or forbids it (redis), too much is asked (busy), the question does not fit (too_long), or whoever asked did not wait (cancelled); and those that could not be read (unreadable).", []string{"cause"}, nil)
	descQuestionTimes = prometheus.NewDesc("weir_nodes_question_seconds", "How long it took until all nodes that were asked had answered, or were not waited for any more.", nil, nil)
	descHeard         = prometheus.NewDesc("weir_nodes_heard_total", "Questions of other nodes: answered, heard too late to answer (late), of a kind that this node does not know (unknown), that it could not answer (failed), and what is no question (unreadable).", []string{"outcome"}, nil)

	descRecordBytes    = prometheus.NewDesc("weir_insight_record_bytes", "Memory of the record of requests.", nil, nil)
	descRecordLimit    = prometheus.NewDesc("weir_insight_record_limit_bytes", "Bound on the memory of the record of requests.", nil, nil)
	descRecordRequests = prometheus.NewDesc("weir_insight_record_requests", "Requests that the record holds.", nil, nil)
	descRecordTaken    = prometheus.NewDesc("weir_insight_record_taken_total", "Requests that were recorded.", nil, nil)
	descRecordLost     = prometheus.NewDesc("weir_insight_record_lost_total", "Requests of recorded clients that were left out, since there was no room for them at once.", nil, nil)
	descRecordGaps     = prometheus.NewDesc("weir_insight_record_gap_seconds_total", "Time in which requests of recorded clients were left out, since there were too many.", nil, nil)
	descRecordSampled  = prometheus.NewDesc("weir_insight_record_sampled_ratio", "Share of the clients whose requests are recorded: 1 is all.", nil, nil)
	descRecordReach    = prometheus.NewDesc("weir_insight_record_reach_seconds", "How far back the requests of these clients are all there, but for gaps; 0 while there are none.", nil, nil)
)

var descsNodes = []*prometheus.Desc{
	descQuestions, descAnswers, descMissing, descQuestionTimes, descHeard,
	descRecordBytes, descRecordLimit, descRecordRequests, descRecordTaken, descRecordLost, descRecordGaps, descRecordSampled, descRecordReach,
}

// Describe implements prometheus.Collector.
func (c nodesCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsNodes {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c nodesCollector) Collect(ch chan<- prometheus.Metric) {
	if c.o.Nodes != nil {
		s := c.o.Nodes()
		s.Missing[nodes.Unreadable] += c.o.Unreadable()
		collectNodes(ch, &s)
	}
	if c.o.Record != nil {
		s := c.o.Record()
		collectRecord(ch, &s)
	}
}

func collectNodes(ch chan<- prometheus.Metric, s *nodes.Stats) {
	counter := counterTo(ch)
	kinds := map[string]nodes.KindStats{} // whatever version of it
	for _, k := range s.Kinds {
		name, _, _ := strings.Cut(k.Kind, "/")
		sum := kinds[name]
		kinds[name] = nodes.KindStats{Complete: sum.Complete + k.Complete, Incomplete: sum.Incomplete + k.Incomplete, Alone: sum.Alone + k.Alone}
	}
	for name, k := range kinds {
		counter(descQuestions, k.Complete, name, "complete")
		counter(descQuestions, k.Incomplete, name, "incomplete")
		counter(descQuestions, k.Alone, name, "alone")
	}
	counter(descAnswers, s.Answers)
	for cause, n := range s.Missing {
		counter(descMissing, n, nodes.Cause(cause).String())
	}
	buckets, n := make(map[float64]uint64, len(nodes.Bounds)), uint64(0)
	for i, bound := range nodes.Bounds {
		n += s.Times.Counts[i]
		buckets[bound.Seconds()] = n
	}
	n += s.Times.Counts[len(nodes.Bounds)]
	ch <- prometheus.MustNewConstHistogram(descQuestionTimes, n, s.Times.Sum.Seconds(), buckets)
	counter(descHeard, s.Answered, "answered")
	counter(descHeard, s.Late, "late")
	counter(descHeard, s.Unknown, "unknown")
	counter(descHeard, s.Failed, "failed")
	counter(descHeard, s.Unreadable, "unreadable")
}

func collectRecord(ch chan<- prometheus.Metric, s *preview.Stats) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	gauge(descRecordBytes, float64(s.Bytes))
	gauge(descRecordLimit, float64(s.Limit))
	gauge(descRecordRequests, float64(s.Requests))
	counter(descRecordTaken, s.Taken)
	counter(descRecordLost, s.Lost)
	ch <- prometheus.MustNewConstMetric(descRecordGaps, prometheus.CounterValue, s.Gaps.Seconds())
	gauge(descRecordSampled, 1/float64(s.Sampled))
	reach := 0.0
	if !s.Since.IsZero() {
		reach = max(time.Since(s.Since).Seconds(), 0)
	}
	gauge(descRecordReach, reach)
}
