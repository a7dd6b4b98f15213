package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/internal/recent"
)

// DecisionLog holds the decisions that an operator may ask for. A *recent.Buffer is one.
type DecisionLog interface {
	// Find returns one decision; ok is false if it is not, or no longer, kept.
	Find(id weir.DecisionID) (e recent.Entry, ok bool)
	// List returns the decisions that q asks for, newest first.
	List(q recent.Query) []recent.Entry
	// WhyMissing says why a decision may be missing that Find does not find.
	WhyMissing(now time.Time) string
}

const decisionsPrefix = "/api/v1/decisions/"

// shownDecisions is the default of ?n=, mostDecisions its bound.
const (
	shownDecisions = 50
	mostDecisions  = 1000
)

// decisions lists recent decisions: ?domain=DOMAIN&limit=NAME&outcome=OUTCOME&n=N.
func (a *handler) decisions(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q := recent.Query{Domain: values.Get("domain"), Limit: values.Get("limit"), Outcome: values.Get("outcome"), N: shownDecisions}
	if q.Outcome != "" && !slices.Contains(recent.Outcomes, q.Outcome) {
		answer.Problem(w, http.StatusBadRequest, "outcome: must be one of "+strings.Join(recent.Outcomes, ", "), "outcome")
		return
	}
	if s := values.Get("n"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > mostDecisions {
			answer.Problem(w, http.StatusBadRequest, fmt.Sprintf("n: must be a number from 1 to %d", mostDecisions), "n")
			return
		}
		q.N = n
	}
	answer := struct {
		Decisions []recent.Entry `json:"decisions"`
	}{Decisions: []recent.Entry{}}
	answer.Decisions = append(answer.Decisions, a.o.Decisions.List(q)...)
	writeJSON(w, answer)
}

// decision serves one recent decision.
func (a *handler) decision(w http.ResponseWriter, r *http.Request) {
	id, err := weir.ParseDecisionID(strings.TrimPrefix(r.URL.Path, decisionsPrefix))
	if err != nil {
		answer.Problem(w, http.StatusBadRequest, answer.Printable(err.Error()), "id")
		return
	}
	e, ok := a.o.Decisions.Find(id)
	if !ok {
		answer.Problem(w, http.StatusNotFound, "id: no such decision is kept here: "+a.o.Decisions.WhyMissing(time.Now()), "id")
		return
	}
	writeJSON(w, e)
}
