package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
)

// Decisions of other nodes have no place in an order that this node knows. So a stream asks once a
// second for their decisions of the last seconds, and leaves out what it has seen. Streams share
// the question, because it depends on nothing that one stream has seen.
const (
	// lateness is how late a decision may become known after it was made: a node may have been too
	// busy to answer. A client that does not read for longer misses decisions, and they are not
	// counted.
	lateness = 10 * time.Second
	// mostElsewhere bounds the decisions of an answer.
	mostElsewhere = mostDecisions / 4
)

// elsewhere has the decisions of other nodes that a stream has seen. The first answer has those
// from before the stream.
type elsewhere struct {
	last *answered // nil before the first answer
	// seen has the decisions of the last lateness, and counted how many there were in each second.
	seen    map[weir.DecisionID]time.Time
	counted map[int64]int

	heard, explained time.Time // when the one node was heard, and when it was explained why not
	problem          string    // that explanation; "" if the node is heard
}

// answered is the answer of the nodes.
type answered struct {
	recent.Found
	nodes insight.Nodes
	at    time.Time // of the question
	after time.Time // which decisions were asked for, by the clock of the store, which dates them
}

// askElsewhere returns the answer of a moment ago by the nodes in q, or asks them.
func (a *Handler) askElsewhere(q decisionQuery) *answered {
	x, _ := a.streams.once(fmt.Sprintf("decisions %#v", q), streamEvery, streamEvery, func() (any, error) {
		ctx, cancel := context.WithTimeout(a.end, insightPatience)
		defer cancel()
		got := &answered{at: time.Now(), after: a.o.StoreNow().Add(-lateness)}
		q.N, q.After = mostElsewhere, got.after
		got.Found, got.nodes = a.o.Nodes.CountDecisions(ctx, q.node, q.Query)
		return got, nil
	})
	return x.(*answered)
}

// take returns the new decisions in an answer, oldest first, and how many new ones there are,
// including those that the answer leaves out.
func (e *elsewhere) take(got *answered) (list []recent.Entry, fit int) {
	if got == e.last {
		return nil, 0
	}
	first := e.last == nil
	if e.last = got; first {
		e.seen, e.counted = map[weir.DecisionID]time.Time{}, map[int64]int{}
	}
	for _, d := range slices.Backward(got.Decisions) {
		if _, ok := e.seen[d.ID]; !ok {
			e.seen[d.ID] = d.Time
			list = append(list, d)
		}
	}
	for second, n := range got.Seconds {
		// If there are fewer than before, a node did not answer, or the second is the one in which
		// the answer begins.
		if before := e.counted[second]; n > before {
			fit += n - before
			e.counted[second] = n
		}
	}
	// Decisions from before the question are not repeated.
	after := got.after.Add(-streamEvery)
	maps.DeleteFunc(e.seen, func(_ weir.DecisionID, at time.Time) bool { return at.Before(after) })
	maps.DeleteFunc(e.counted, func(second int64, _ int) bool { return second < after.Unix() })
	if first {
		return nil, 0
	}
	return list, max(fit, len(list))
}

// elsewhere returns the new decisions of other nodes, as Since does.
func (s *streamed) elsewhere(most int) (list []recent.Entry, fit int, nodes *insight.Nodes) {
	got := s.a.askElsewhere(s.q)
	if got.nodes.Answered > 0 {
		s.others.heard = got.at
	}
	list, fit = s.others.take(got)
	return list[max(0, len(list)-most):], fit, &got.nodes
}

// silent says why the one node that is asked is not heard, if this lasts so long that its decisions
// are missed. If there is no such node, it ends the stream, and ok is false. The client connects
// again, and gets the error.
func (s *streamed) silent(now time.Time) (ok bool) {
	o := &s.others
	switch {
	case now.Sub(o.heard) <= lateness:
		if o.problem == "" {
			return true
		}
		o.problem = ""
		return s.write(topicDecisions,
			StreamedDecisions{Decisions: []recent.Entry{}, Shown: "all", Nodes: &o.last.nodes})
	case now.Sub(o.explained) <= lateness:
		return true
	}
	o.explained = now
	status, why := s.a.unheard(s.a.end, s.q.node, o.last.nodes.Remark)
	if status == http.StatusNotFound {
		return false
	}
	if why.Message == o.problem {
		return true
	}
	o.problem = why.Message
	return s.write("problem", streamProblem{topicDecisions, o.problem})
}

// unheard says why a node did not answer: there is no node of that name, or nobody knows because
// not all nodes were heard. status is 0 if the node exists.
func (a *Handler) unheard(ctx context.Context, name, remark string) (status int, why *answer.FieldError) {
	ctx, cancel := context.WithTimeout(ctx, insightPatience)
	defer cancel()
	list, n := a.o.Nodes.List(ctx)
	there := false
	var names []string
	for i := range list {
		there = there || list[i].Node == name || strings.HasPrefix(list[i].Node, name+" ")
		names = append(names, answer.Printable(list[i].Node))
	}
	text, known := answer.Printable(name), strings.Join(names, ", ")
	switch {
	case there:
		text += " does not tell of its decisions: it is busy, or runs another version"
	case n.Answered < n.Asked || n.Remark != "":
		status, remark = http.StatusServiceUnavailable, n.Remark
		text = fmt.Sprintf("%s is not among the %d of %d nodes that answer: %s", text, n.Answered, n.Asked, known)
	case len(names) == 1:
		status, remark = http.StatusNotFound, ""
		text = "no node is called " + text + "; there is " + known + " alone"
	default:
		status, remark = http.StatusNotFound, ""
		text = "no node is called " + text + "; there are " + known
	}
	if remark != "" {
		text += "; " + remark
	}
	return status, &answer.FieldError{Field: "node", Message: text}
}
