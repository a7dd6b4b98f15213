package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
)

// DecisionLog holds the decisions that an operator may ask for. A *recent.Buffer is one.
type DecisionLog interface {
	// Find returns one decision; ok is false if it is not, or no longer, kept.
	Find(id weir.DecisionID) (e recent.Entry, ok bool)
	// List returns the decisions that match q, newest first.
	List(q recent.Query) []recent.Entry
	// WhyMissing says why Find may not find a decision.
	WhyMissing(now time.Time) string
	// Since returns the newest of the decisions behind a place that match q, oldest first, how many
	// there were, and the place behind them.
	Since(after recent.Cursor, q recent.Query, most int) (found []recent.Entry, fit int, next recent.Cursor)
	// Cursor returns the place behind the last one.
	Cursor() recent.Cursor
}

const decisionsPath = "/api/v1/decisions"

// shownDecisions is the default of ?n=, mostDecisions its bound.
const (
	shownDecisions = 50
	mostDecisions  = 1000
)

// DecisionList is the answer of GET /api/v1/decisions.
type DecisionList struct {
	Decisions []recent.Entry `json:"decisions"` // newest first
	Nodes     *insight.Nodes `json:"nodes,omitempty"`
}

// decisionQuery is a query for decisions.
type decisionQuery struct {
	recent.Query
	elsewhere bool   // also, or only, decisions of other nodes
	node      string // only this other node; "" means all
}

// readDecisionQuery reads a query for decisions, except n, after and before. status is 0 if the
// query is valid.
func (a *Handler) readDecisionQuery(v url.Values, role auth.Role) (q decisionQuery, status int, err error) {
	q.Query = recent.Query{Domain: v.Get("domain"), Limit: v.Get("limit"), Outcome: v.Get("outcome"),
		Door: v.Get("door"), Key: v.Get("key")}
	bad := func(status int, field, message string) (decisionQuery, int, error) {
		return q, status, &answer.FieldError{Field: field, Message: message}
	}
	if q.Outcome != "" && !slices.Contains(recent.Outcomes, q.Outcome) {
		return bad(http.StatusBadRequest, "outcome", "must be one of "+strings.Join(recent.Outcomes, ", "))
	}
	switch v.Get("nodes") {
	case "", "this":
	case "all":
		q.elsewhere = a.o.Nodes != nil
	default:
		return bad(http.StatusBadRequest, "nodes", "must be all, or this")
	}
	switch node := v.Get("node"); {
	case node == "":
	case a.o.Nodes == nil:
		return bad(http.StatusNotFound, "node", "the nodes of this server have no names")
	case node == a.o.Nodes.Self():
		q.elsewhere = false
	case v.Get("nodes") == "this":
		return bad(http.StatusBadRequest, "node",
			"nodes=this asks for this node alone, which is called "+answer.Printable(a.o.Nodes.Self())+"; leave one of them out")
	default:
		q.elsewhere, q.node = true, node
	}
	// Roles that do not see keys must not learn whether a key exists, not even from a cut list.
	if v.Has("key") && role < auth.Support {
		return bad(http.StatusForbidden, "key", "a single key needs the role support; you are "+role.String())
	}
	if v.Has("key") && !strings.Contains(q.Key, "=") {
		return bad(http.StatusBadRequest, "key",
			"must be a part of a key with its name, such as user=ada or ip=192.0.2.1")
	}
	return q, 0, nil
}

// decisionMask returns the mask for decisions that a role has asked for by q. Support sees a
// decision unmasked if it has named its key.
func (a *Handler) decisionMask(role auth.Role, q *recent.Query) *mask {
	m := a.maskFor(role)
	if m != nil && role == auth.Support && q.Key != "" {
		m.named = newNaming(q.Key, a.keyNames())
	}
	return m
}

// queryProblem answers for a wrong query.
func queryProblem(w http.ResponseWriter, status int, err error) {
	field := ""
	if f, ok := err.(*answer.FieldError); ok {
		field = f.Field
	}
	answer.Problem(w, status, err.Error(), field)
}

// decisions lists recent decisions.
func (a *Handler) decisions(w http.ResponseWriter, r *http.Request) {
	values, role := r.URL.Query(), sender(r).Role
	q, status, err := a.readDecisionQuery(values, role)
	if status != 0 {
		queryProblem(w, status, err)
		return
	}
	q.N = shownDecisions
	if s := values.Get("n"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > mostDecisions {
			answer.Problem(w, http.StatusBadRequest,
				fmt.Sprintf("n: must be a number from 1 to %d", mostDecisions), "n")
			return
		}
		q.N = n
	}
	if s := values.Get("before"); s != "" {
		if q.Before, err = time.Parse(time.RFC3339Nano, s); err != nil {
			answer.Problem(w, http.StatusBadRequest, "before: must be an instant such as 2026-01-31T12:00:00.25Z",
				"before")
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	if s := values.Get("after"); s != "" {
		id, err := weir.ParseDecisionID(s)
		if err != nil {
			answer.Problem(w, http.StatusBadRequest, "after: "+answer.Printable(err.Error()), "after")
			return
		}
		e, why, _ := a.findDecision(ctx, id)
		if e == nil {
			answer.Problem(w, http.StatusNotFound, "after: "+why, "after")
			return
		}
		q.After, q.AfterID = e.Time, id
	}
	list := DecisionList{Decisions: []recent.Entry{}}
	if q.elsewhere {
		found, nodes := a.o.Nodes.Decisions(ctx, q.node, q.Query)
		if q.node != "" && nodes.Answered == 0 {
			status, err := a.unheard(ctx, q.node, nodes.Remark)
			queryProblem(w, cmp.Or(status, http.StatusServiceUnavailable), err)
			return
		}
		list.Decisions, list.Nodes = append(list.Decisions, found...), &nodes
	} else {
		list.Decisions = append(list.Decisions, a.here(a.o.Decisions.List(q.Query))...)
	}
	if len(list.Decisions) == 0 && !a.known(w, q.Domain, q.Limit) {
		return // remembered decisions may be by earlier rules
	}
	a.decisionMask(role, &q.Query).decisions(list.Decisions)
	writeJSON(w, list)
}

// here writes the name of this node into decisions.
func (a *Handler) here(list []recent.Entry) []recent.Entry {
	if a.o.Nodes != nil {
		self := a.o.Nodes.Self()
		for i := range list {
			list[i].Node = self
		}
	}
	return list
}

// findDecision looks for a decision here, then on the other nodes. If e is nil, why says why.
func (a *Handler) findDecision(ctx context.Context,
	id weir.DecisionID) (e *recent.Entry, why string, nodes insight.Nodes) {
	if found, ok := a.o.Decisions.Find(id); ok {
		return &a.here([]recent.Entry{found})[0], "", insight.Nodes{Asked: 1, Answered: 1}
	}
	if a.o.Nodes == nil {
		return nil, "no such decision is kept here: " + a.o.Decisions.WhyMissing(time.Now()),
			insight.Nodes{Asked: 1, Answered: 1}
	}
	e, why, nodes = a.o.Nodes.Decision(ctx, id)
	if e == nil {
		return nil, "no such decision is kept: " + cmp.Or(why, "it may have been pushed out by newer ones"), nodes
	}
	return e, "", nodes
}

// decision serves one recent decision, of any node.
func (a *Handler) decision(w http.ResponseWriter, r *http.Request) {
	id, err := weir.ParseDecisionID(strings.TrimPrefix(r.URL.Path, decisionsPath+"/"))
	if err != nil {
		answer.Problem(w, http.StatusBadRequest, answer.Printable(err.Error()), "id")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	e, why, _ := a.findDecision(ctx, id)
	if e == nil {
		answer.Problem(w, http.StatusNotFound, "id: "+why, "id")
		return
	}
	writeJSON(w, e)
}
