package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
)

const rolloutPath = "/api/v1/rules/rollout"

// Rollout is the answer of GET /api/v1/rules/rollout: how the files in force have to be changed so
// that a rule is enforced on a share of its keys.
type Rollout struct {
	Version string `json:"version,omitempty"` // of the rules in force; a folder has none
	File    string `json:"file"`
	Line    int    `json:"line"`   // the first one that changes
	Before  string `json:"before"` // that line
	After   string `json:"after"`
	Diff    string `json:"diff"` // unified
	insight.RuleChanges
	Files map[string]string `json:"-"` // rules as they are then, by name
}

// rolloutBody is the body of POST /api/v1/rules/rollout.
type rolloutBody struct {
	Domain  string `json:"domain"`
	Limit   string `json:"limit"`
	Percent int    `json:"percent"`
	Note    string `json:"note"`
}

// rollout answers GET and POST of /api/v1/rules/rollout.
func (a *Handler) rollout(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		q := r.URL.Query()
		percent, err := strconv.Atoi(q.Get("percent"))
		if err != nil {
			percent = 0
		}
		if change, ok := a.rolloutOf(w, rolloutBody{Domain: q.Get("domain"), Limit: q.Get("limit"), Percent: percent}); ok {
			writeJSON(w, change)
		}
		return
	}
	var c rolloutBody
	if !readObject(w, r, &c, `{"domain": "shop", "limit": "api", "percent": 10, "note": "…"}`) || !keepable(w, c.Note) {
		return
	}
	change, ok := a.rolloutOf(w, c)
	if !ok {
		return
	}
	base, err := strconv.ParseInt(change.Version, 10, 64)
	if a.o.Versions == nil || err != nil {
		answer.Problem(w, http.StatusConflict,
			fmt.Sprintf("these rules lie in a folder, which is not changed from here: write %q into %s:%d", change.After, change.File, change.Line), "")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), versionPatience)
	defer cancel()
	a.changeVersion(w, r, audit.Entry{What: "rules pushed", Domain: c.Domain, Limit: c.Limit,
		Before: map[string]int64{"version": base}, After: map[string]string{"enforce": share(c.Percent)}, Note: c.Note},
		func() (Pushed, error) {
			return a.o.Versions.Push(ctx, VersionChange{Base: base, Files: change.Files, Note: c.Note, Author: a.author(r)})
		})
}

// share is a percentage as rule files say it.
func share(percent int) string {
	if percent == 100 {
		return "all"
	}
	return fmt.Sprint(percent, "%")
}

// rolloutOf returns the change that is asked for, or answers why there is none.
func (a *Handler) rolloutOf(w http.ResponseWriter, c rolloutBody) (*Rollout, bool) {
	set, _ := a.limiter.Rules()
	if c.Domain != "" && (set == nil || !set.HasDomain(c.Domain)) {
		answer.Problem(w, http.StatusNotFound, "no domain "+answer.Printable(c.Domain)+" is in force", "domain")
		return nil, false
	}
	if c.Limit != "" && (set == nil || !slices.ContainsFunc(set.Rules(),
		func(r *rule.Rule) bool { return r.Name == c.Limit && (c.Domain == "" || r.Domain == c.Domain) })) {
		answer.Problem(w, http.StatusNotFound, "no rule "+answer.Printable(c.Limit)+" is in force", "limit")
		return nil, false
	}
	for _, f := range []struct{ name, value string }{{"domain", c.Domain}, {"limit", c.Limit}} {
		if f.value == "" {
			answer.Problem(w, http.StatusBadRequest, f.name+": is missing", f.name)
			return nil, false
		}
	}
	if c.Percent < 1 || c.Percent > 100 {
		answer.Problem(w, http.StatusBadRequest, "percent: must be a number from 1 to 100", "percent")
		return nil, false
	}
	change, err := a.o.Rollout(c.Domain, c.Limit, c.Percent)
	switch e, is := errors.AsType[*CheckError](err); {
	case errors.Is(err, insight.ErrUnknown):
		answer.Problem(w, http.StatusNotFound, fmt.Sprintf("no rule %s is in force", answer.Printable(c.Domain+"/"+c.Limit)), "limit")
	case is:
		answer.Problem(w, http.StatusUnprocessableEntity, e.Message, "")
	case err != nil:
		answer.Problem(w, http.StatusInternalServerError, err.Error(), "")
	default:
		return change, true
	}
	return nil, false
}
