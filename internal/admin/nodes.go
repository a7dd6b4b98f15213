package admin

import (
	"context"
	"net/http"
	"strconv"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// nodes answers GET /api/v1/nodes.
func (a *Handler) nodes(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	list, n := a.o.Nodes.List(ctx)
	writeJSON(w, struct {
		Nodes insight.Nodes       `json:"nodes"`
		List  []insight.NodeState `json:"list"`
	}{n, append([]insight.NodeState{}, list...)})
}

// OutageList is the answer of GET /api/v1/outages.
type OutageList struct {
	Nodes   insight.Nodes    `json:"nodes"`
	Outages []insight.Outage `json:"outages"` // the newest first
}

// outages answers GET /api/v1/outages.
func (a *Handler) outages(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	list, n := a.o.Nodes.Outages(ctx)
	writeJSON(w, OutageList{n, append([]insight.Outage{}, list...)})
}

// auditRecords answers GET /api/v1/audit.
func (a *Handler) auditRecords(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	n, ok := number(w, q, "n", audit.Remembered)
	if !ok {
		return
	}
	if n == 0 {
		n = 100
	}
	var bounds [2]uint64
	for i, name := range []string{"after", "before"} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		var err error
		if bounds[i], err = strconv.ParseUint(text, 10, 63); err != nil {
			answer.Problem(w, http.StatusBadRequest, name+": must be the number of a record, its seq", name)
			return
		}
	}
	writeJSON(w, struct {
		Records []audit.Entry `json:"records"` // newest first
		Lost    uint64        `json:"lost"`    // records that could not be written so far
	}{append([]audit.Entry{}, a.o.Audit.Recent(bounds[0], bounds[1], n)...), a.o.Audit.Lost()})
}
