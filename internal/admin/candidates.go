package admin

import (
	"context"
	"net/http"

	"github.com/weir-rl/weir/internal/observe/insight"
)

const candidatesPath = "/api/v1/candidates"

// CandidateList is the answer of GET /api/v1/candidates.
type CandidateList struct {
	Nodes      insight.Nodes       `json:"nodes"`
	Candidates []insight.Candidate `json:"candidates"`
}

// candidates lists the candidates in force: ?domain=DOMAIN.
func (a *Handler) candidates(w http.ResponseWriter, r *http.Request) {
	domain := r.URL.Query().Get("domain")
	if !a.known(w, domain, "") {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	list, nodes, err := a.o.Insight.Candidates(ctx, domain)
	if err != nil {
		insightProblem(w, err)
		return
	}
	m := a.maskFor(sender(r).Role)
	for i := range list {
		m.candidate(&list[i])
	}
	writeJSON(w, CandidateList{nodes, list})
}
