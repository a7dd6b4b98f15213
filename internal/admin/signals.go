package admin

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
)

// SignalState is a signal of elastic limits, in the admin API.
type SignalState struct {
	Name   string   `json:"name"`
	Kind   string   `json:"kind"`   // measured, pushed or query
	Used   bool     `json:"used"`   // a rule in force uses it
	Stale  bool     `json:"stale"`  // there is no value: limits that follow it stand at 100 percent
	Raw    *float64 `json:"raw"`    // percent, as it last came; null if it never did
	Value  *int     `json:"value"`  // percent, filtered; null while it is stale
	Age    *float64 `json:"age"`    // of raw, in seconds
	Error  string   `json:"error"`  // of the last try; "" if it went well
	Errors uint64   `json:"errors"` // of all tries
	// Limits are the limits that follow the signal, with the share of each that is in force.
	Limits []ElasticState `json:"limits"`
}

// ElasticState is an elastic limit, in the admin API.
type ElasticState struct {
	Domain string  `json:"domain"`
	Name   string  `json:"name"`
	Share  float64 `json:"share"` // 1 is all of it
}

// Signals are the signals of elastic limits. Safe for concurrent use.
type Signals interface {
	// List returns all signals, by name; Limits need not be filled in.
	List() []SignalState
	// Push sets one for ttl, 0 for the default. An error says what is wrong with the arguments.
	Push(name string, percent float64, ttl time.Duration) error
}

const signalsPrefix = "/api/v1/signals/"

// signals answers GET /api/v1/signals.
func (a *Handler) signals(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Signals []SignalState `json:"signals"`
	}{Signals: a.listSignals()}
	writeJSON(w, answer)
}

// listSignals adds to each signal the limits that follow it.
func (a *Handler) listSignals() []SignalState {
	list := a.o.Signals.List()
	if list == nil {
		list = []SignalState{}
	}
	at := map[string]*SignalState{}
	for i := range list {
		list[i].Limits = []ElasticState{}
		at[list[i].Name] = &list[i]
	}
	set, _ := a.limiter.Rules()
	if set == nil {
		return list
	}
	type name struct{ domain, rule string }
	told := map[name]bool{}
	for _, r := range set.Rules() {
		if r.Elastic == nil || at[r.Elastic.Signal] == nil || told[name{r.Domain, r.Name}] {
			continue
		}
		told[name{r.Domain, r.Name}] = true
		s, e := at[r.Elastic.Signal], ElasticState{Domain: r.Domain, Name: r.Name, Share: 1}
		if s.Value != nil {
			num, den := r.Elastic.Share(*s.Value)
			e.Share = float64(num) / float64(den)
		}
		s.Limits = append(s.Limits, e)
	}
	return list
}

// signal answers GET and PUT /api/v1/signals/{name}.
func (a *Handler) signal(w http.ResponseWriter, r *http.Request) {
	name, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), signalsPrefix))
	if err != nil || name == "" || strings.Contains(name, "/") {
		answer.Problem(w, http.StatusNotFound, "the path is /api/v1/signals/{name}", "")
		return
	}
	if r.Method != http.MethodPut {
		for _, s := range a.listSignals() {
			if s.Name == name {
				writeJSON(w, s)
				return
			}
		}
		answer.Problem(w, http.StatusNotFound, "there is no signal of this name; PUT makes one", "")
		return
	}
	var body struct {
		Value *float64 `json:"value"`
		TTL   float64  `json:"ttl"`
	}
	err = decodeBody(http.MaxBytesReader(w, r.Body, 4<<10), &body,
		`{"value": 80, "ttl": 30}, percent, and for how many seconds it holds`)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		answer.Problem(w, http.StatusRequestEntityTooLarge, "the body is larger than 4 KiB", "")
		return
	}
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	switch {
	case body.Value == nil:
		answer.Problem(w, http.StatusBadRequest, "value: is missing; it is a number from 0 to 100, in percent", "value")
		return
	case !(body.TTL >= 0 && body.TTL <= 24*60*60):
		answer.Problem(w, http.StatusBadRequest, "ttl: must be from 0 (the default) to 86400 seconds", "ttl")
		return
	}
	before := any(nil)
	for _, s := range a.o.Signals.List() {
		if s.Name == name && s.Raw != nil {
			before = *s.Raw
		}
	}
	if err := a.o.Signals.Push(name, *body.Value, time.Duration(body.TTL*float64(time.Second))); err != nil {
		answer.Problem(w, http.StatusBadRequest, err.Error(), "value")
		return
	}
	// Programs push signals every few seconds. A limit that follows a signal needs the signal more
	// than the log needs the record. So pushes are counted, and none is refused.
	a.o.Audit.Count(a.by(r, audit.Entry{What: "signal pushed", Key: name, Before: before, After: *body.Value}))
	w.WriteHeader(http.StatusNoContent)
}
