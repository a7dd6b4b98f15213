package metrics

import (
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/record"
)

// TestNodes: what nodes ask each other, whatever version of a question it was, with why answers are
// missing; and what is recorded.
func TestNodes(t *testing.T) {
	m := New(Options{})
	m.Registry().MustRegister(NewNodes(NodesOptions{
		Nodes: func() nodes.Stats {
			return nodes.Stats{
				Kinds:   []nodes.KindStats{{Kind: "insight/1", Complete: 1, Incomplete: 2, Alone: 3}, {Kind: "insight/2", Complete: 10}, {Kind: "state/1"}},
				Answers: 4, Missing: [nodes.Causes]uint64{nodes.Silent: 5, nodes.Redis: 6, nodes.Unreadable: 7},
				Times:    nodes.Times{Counts: [len(nodes.Bounds) + 1]uint64{1, 2, len(nodes.Bounds): 3}, Sum: 2500 * time.Millisecond},
				Answered: 8, Late: 9, Unknown: 10, Failed: 11, Unreadable: 12,
			}
		},
		Unreadable: func() uint64 { return 100 },
		Record: func() record.Stats {
			return record.Stats{Requests: 20, Bytes: 21, Limit: 22, Taken: 23, Sampled: 4, Lost: 24,
				Gaps: 1500 * time.Millisecond, Since: time.Now().Add(-time.Hour)}
		},
	}))
	same(t, counts(t, m, "weir_nodes_"),
		`questions_total{kind="insight",result="complete"} 11`, `questions_total{kind="insight",result="incomplete"} 2`, `questions_total{kind="insight",result="alone"} 3`,
		`answers_total 4`, `missing_answers_total{cause="silent"} 5`, `missing_answers_total{cause="redis"} 6`, `missing_answers_total{cause="unreadable"} 107`,
		`heard_total{outcome="answered"} 8`, `heard_total{outcome="late"} 9`, `heard_total{outcome="unknown"} 10`, `heard_total{outcome="failed"} 11`, `heard_total{outcome="unreadable"} 12`,
		`question_seconds_bucket{le="0.001"} 1`, `question_seconds_bucket{le="0.0025"} 3`, `question_seconds_bucket{le="0.005"} 3`, `question_seconds_bucket{le="0.01"} 3`,
		`question_seconds_bucket{le="0.025"} 3`, `question_seconds_bucket{le="0.05"} 3`, `question_seconds_bucket{le="0.1"} 3`, `question_seconds_bucket{le="0.25"} 3`,
		`question_seconds_bucket{le="0.5"} 3`, `question_seconds_bucket{le="1"} 3`, `question_seconds_bucket{le="+Inf"} 6`, `question_seconds_count 6`, `question_seconds_sum 2.5`)
	all := scrape(t, m)
	for name, want := range map[string]string{
		"bytes": "21", "limit_bytes": "22", "requests": "20", "taken_total": "23", "lost_total": "24", "gap_seconds_total": "1.5", "sampled_ratio": "0.25",
	} {
		if got := all["weir_insight_record_"+name]; got != want {
			t.Errorf("%s: %q, want %s", name, got, want)
		}
	}
	if back, err := strconv.ParseFloat(all["weir_insight_record_reach_seconds"], 64); err != nil || back < 3600 {
		t.Errorf("it reaches back %v s, %v", back, err)
	}
	linted(t, m)
	if got := all[`weir_nodes_missing_answers_total{cause="busy"}`]; got != "0" {
		t.Errorf("a cause that did not occur yet: %q", got)
	}
}
