package admin

import (
	"context"
	"net/http"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// Session says who sent a request.
type Session struct {
	Name string `json:"name"` // of the token; "" where there are no tokens
	Role string `json:"role"` // viewer, support, operator, editor or admin
	// Tokens says whether there are tokens here. Without them everybody is admin.
	Tokens bool `json:"tokens"`
}

func (a *Handler) sessionOf(id auth.Identity) Session {
	return Session{Name: id.Name, Role: id.Role.String(), Tokens: a.o.Tokens != nil}
}

// session answers GET /api/v1/session.
func (a *Handler) session(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, a.sessionOf(sender(r)))
}

// login turns a token into a cookie, for use by browsers: POST {"token": "…"}. DELETE ends the
// login in this browser.
func (a *Handler) login(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		a.o.Page.ServeHTTP(w, r)
		return
	case http.MethodDelete:
		http.SetCookie(w, auth.Logout(r))
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var body struct {
		Token string `json:"token"`
	}
	// The error leaves out the body, which may hold a token.
	err := decodeBody(http.MaxBytesReader(w, r.Body, 4<<10), &body, "")
	if err != nil || body.Token == "" {
		answer.Problem(w, http.StatusBadRequest, `the body is {"token": "…"}: a token of auth.tokens_file`, "token")
		return
	}
	id, cookie, verdict := a.o.Tokens.Login(r, body.Token)
	if verdict != auth.Right {
		auth.Refuse(w, verdict, "weir admin")
		return
	}
	a.o.Audit.Tell(audit.Entry{Who: id.Name, Role: id.Role.String(), Address: a.address(r), What: "login"})
	http.SetCookie(w, cookie)
	w.WriteHeader(http.StatusNoContent)
}

// First says who asks for the operator's page. snapshot returns the data for its first answer: the
// answers to GET /api/v1/insight and /api/v1/insight/rules?n=12 for the domain and the time in r's
// query, or nil if they are not available. ok is false if the sender of r must log in first.
func (a *Handler) First(r *http.Request) (s Session, snapshot func() (*insight.Overview, *RuleReports), ok bool) {
	id := auth.Identity{Role: auth.Admin}
	if a.o.Tokens != nil {
		var verdict auth.Verdict
		if id, verdict = a.o.Tokens.Identify(r); verdict != auth.Right {
			return Session{}, nil, false
		}
	}
	return a.sessionOf(id), func() (*insight.Overview, *RuleReports) { return a.snapshot(r, id.Role) }, true
}

// firstRules is how many rules the overview of the page shows.
const firstRules = 12

func (a *Handler) snapshot(r *http.Request, role auth.Role) (*insight.Overview, *RuleReports) {
	domain := r.URL.Query().Get("domain")
	over, err := parseOver(r.URL.Query().Get("over"), defaultOver)
	if a.o.Insight == nil || err != nil || !a.hasDomain(domain) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	overview, err := a.o.Insight.Overview(ctx, domain, over)
	if err != nil {
		return nil, nil // the page asks again, and shows the error
	}
	rules, err := a.listReports(ctx, domain, over, firstRules, role)
	if err != nil {
		rules = nil
	}
	return a.maskFor(role).overview(overview), rules
}
