package admin

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
)

const deferredPrefix = "/api/v1/deferred/"

// deferredJobs lists the jobs of the queue of deferred requests:
// ?state=queued|active|done|failed&n=N.
func (a *Handler) deferredJobs(w http.ResponseWriter, r *http.Request) {
	state, n := deferred.State(r.URL.Query().Get("state")), 100
	switch state {
	case "":
		state = deferred.Failed
	case deferred.Queued, deferred.Active, deferred.Done, deferred.Failed:
	default:
		answer.Problem(w, http.StatusBadRequest,
			"state must be queued, active, done or failed, not "+answer.Printable(string(state)), "state")
		return
	}
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > 1000 {
			answer.Problem(w, http.StatusBadRequest,
				"n must be a number from 1 to 1000, not "+answer.Printable(text), "n")
			return
		}
	}
	list, err := a.o.Deferred.List(r.Context(), state, n)
	if err == nil {
		var s deferred.Stats
		if s, err = a.o.Deferred.Stats(r.Context()); err == nil {
			if list == nil {
				list = []deferred.Ticket{}
			}
			writeJSON(w, map[string]any{"waiting": s.Jobs, "dead": s.Dead, "bytes": s.Bytes, "jobs": list})
			return
		}
	}
	answer.Problem(w, http.StatusServiceUnavailable, "the queue cannot be reached: "+err.Error(), "")
}

// deferredJob shows one job, drops it (DELETE), or puts a dead letter back (POST to /retry).
func (a *Handler) deferredJob(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, deferredPrefix)
	id, retry := strings.CutSuffix(id, "/retry")
	if !deferred.ValidID(id) || retry != (r.Method == http.MethodPost) {
		answer.Problem(w, http.StatusNotFound,
			"there is no such job; GET and DELETE "+deferredPrefix+"ID, and POST "+deferredPrefix+"ID/retry", "")
		return
	}
	t, err := a.o.Deferred.Ticket(r.Context(), id)
	if err == nil && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		writeJSON(w, t)
		return
	}
	if err == nil {
		change, what := a.o.Deferred.Drop, "deferred request dropped"
		if retry {
			change, what = a.o.Deferred.Retry, "deferred request retried"
		}
		e, ok := a.record(w, r, audit.Entry{What: what, Key: id, Before: t.State})
		if !ok {
			return
		}
		err = change(r.Context(), id)
		a.made(e, err)
	}
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, deferred.ErrGone):
		answer.Problem(w, http.StatusNotFound, err.Error(), "")
	case errors.Is(err, deferred.ErrFull), errors.Is(err, deferred.ErrActive):
		answer.Problem(w, http.StatusConflict, err.Error(), "")
	default:
		answer.Problem(w, http.StatusServiceUnavailable, "the queue cannot be reached: "+err.Error(), "")
	}
}
