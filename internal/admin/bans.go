package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/rule"
)

const bansPath = "/api/v1/bans"

// keyParts is a key in a request: a list of parts, or a text in which "," separates them.
type keyParts []string

// UnmarshalJSON implements json.Unmarshaler.
func (k *keyParts) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		if *k = nil; text != "" {
			*k = keyParts{text} // rule.Window.AppendKey knows how many parts there are
		}
		return nil
	}
	var parts []string
	if err := json.Unmarshal(data, &parts); err != nil {
		return &answer.FieldError{Field: "key", Message: `must be a list of texts, or one text such as "ada,192.0.2.1"`}
	}
	*k = parts
	return nil
}

// change is the body of a POST or DELETE of bans and grants.
type change struct {
	Domain string   `json:"domain"`
	Limit  string   `json:"limit"`
	Key    keyParts `json:"key"`
	For    string   `json:"for"`
	Until  string   `json:"until"`
	Allow  string   `json:"allow"`
	Scope  string   `json:"scope"`
	Reason string   `json:"reason"`
	Plan   bool     `json:"plan"` // of a grant: only say what it would do
}

// banScopes are the values of scope, as rule files have them; "" for where the rule's own bans
// hold.
var banScopes = map[string]weir.BanScope{"": weir.BanAsRule, "rule": weir.BanInRule, "domain": weir.BanInDomain}

// onlyBans returns an error if c has what is for bans alone.
func (c *change) onlyBans() error {
	if c.Scope != "" {
		return &answer.FieldError{Field: "scope", Message: "is for bans that are set"}
	}
	return nil
}

// sets reports whether c holds what only a change that sets something takes.
func (c *change) sets() bool { return c.For+c.Until+c.Allow+c.Scope != "" || c.Plan }

// maxChange bounds the body of a change in bytes.
const maxChange = 64 << 10

// changeExample is a body of a change.
const changeExample = `{"domain": "shop", "limit": "login", "key": ["ada"], "for": "15m"}`

// readChange reads the change that r asks for: from its body or, for a DELETE without one, from the
// query. An empty object counts as no body, because some clients always send an object.
func readChange(w http.ResponseWriter, r *http.Request) (c change, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxChange))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return c, &answer.FieldError{Field: "body", Message: fmt.Sprintf("is larger than %d bytes", maxChange),
				TooMany: true}
		}
		return c, &answer.FieldError{Field: "body", Message: "could not be read to its end"}
	}
	if r.Method == http.MethodDelete && saysNothing(body) {
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return c, errors.New("the query is not well formed")
		}
		if err := onlyParams(r, []string{"domain", "limit", "key", "reason"}); err != nil {
			return c, err
		}
		c = change{Domain: q.Get("domain"), Limit: q.Get("limit"), Reason: q.Get("reason"), Key: q["key"]}
	} else {
		if err := onlyParams(r, nil); err != nil {
			return c, err
		}
		if err := decodeBody(bytes.NewReader(body), &c, changeExample); err != nil {
			return c, err
		}
	}
	if c.Limit == "" {
		return c, &answer.FieldError{Field: "limit", Message: "is missing; name a limit of /api/v1/rules"}
	}
	return c, nil
}

// saysNothing reports whether a body is empty, or an object without members.
func saysNothing(body []byte) bool {
	switch string(bytes.Join(bytes.Fields(body), nil)) {
	case "", "{}", "null":
		return true
	}
	return false
}

// end returns the instant at which c ends.
func (c *change) end(now time.Time) (time.Time, error) {
	switch {
	case (c.For == "") == (c.Until == ""):
		return now, &answer.FieldError{Field: "for",
			Message: `give one of for and until, as in "for": "15m" or "until": "2026-01-31T12:00:00Z"`}
	case c.Until != "":
		t, err := time.Parse(time.RFC3339, c.Until)
		if err != nil {
			return t, &answer.FieldError{Field: "until", Message: "must be an instant such as 2026-01-31T12:00:00Z"}
		}
		if t.Sub(now) > algo.MaxWindow {
			return t, &answer.FieldError{Field: "until", Message: "is more than 366 days away"}
		}
		return t, nil
	}
	d, err := rule.ParseDuration(c.For)
	if err != nil {
		return now, &answer.FieldError{Field: "for", Message: err.Error()}
	}
	if d <= 0 || d > algo.MaxWindow {
		return now, &answer.FieldError{Field: "for", Message: "must be above 0, and at most 366 days"}
	}
	return now.Add(d), nil
}

// outcomeOf answers for an error of the limiter; ok is false if nothing was changed. A change that
// is in force here, but did not reach the other nodes, is accepted.
func outcomeOf(w http.ResponseWriter, err error) (warning string, ok bool) {
	switch {
	case err == nil:
		return "", true
	case errors.Is(err, weir.ErrNoSuchLimit):
		answer.Problem(w, http.StatusNotFound, strings.TrimPrefix(err.Error(), "weir: "), "limit")
		return "", false
	case errors.Is(err, weir.ErrNotFound):
		answer.Problem(w, http.StatusNotFound, "key: there is none in force on this server for this key", "key")
		return "", false
	case errors.Is(err, weir.ErrNotShared):
		return strings.TrimPrefix(err.Error(), "weir: "), true
	}
	answer.BadRequest(w, errors.New(strings.TrimPrefix(err.Error(), "weir: ")))
	return "", false
}

// answerChange answers with the state after a change.
func answerChange(w http.ResponseWriter, warning string, members map[string]any) {
	body := map[string]any{"shared": warning == ""}
	for name, v := range members {
		body[name] = v
	}
	if warning != "" {
		body["warning"] = warning
	}
	writeChange(w, warning, body)
}

// writeChange writes an answer to a change, which is accepted only if there is a warning.
func writeChange(w http.ResponseWriter, warning string, body any) {
	status := http.StatusOK
	if warning != "" {
		status = http.StatusAccepted
	}
	w.Header()["Content-Type"] = answer.JSONType
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	_ = e.Encode(body) // the client hung up
}

// ListedBan is a ban with its remaining time.
type ListedBan struct {
	weir.Ban
	Left recent.Seconds `json:"left"`
	// Refused is how many requests the ban has refused, on all nodes; nil where nobody asked them.
	// RefusedAtLeast says that these are not all: a node did not answer, counts only since later
	// than Since, or has left since then and took its count along.
	Refused        *uint64 `json:"refused,omitempty"`
	RefusedAtLeast bool    `json:"refused_at_least,omitempty"`
}

func newListedBan(b weir.Ban, now time.Time) *ListedBan {
	return &ListedBan{Ban: b, Left: recent.Seconds(max(b.Until.Sub(now).Microseconds(), 0))}
}

// shown bounds a list by ?n=.
const shown = 1000

// listed filters by ?domain= and ?limit=, sorts the entry that ends last first, and cuts at ?n=. If
// ok is false, it has answered already.
func listed[T any](w http.ResponseWriter, r *http.Request, set *rule.Set, all []T,
	of func(*T) (domain, limit, key string, until time.Time)) (list []T, total int, ok bool) {
	q, n := r.URL.Query(), shown
	if text := q.Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > weir.DefaultMaxBans {
			answer.Problem(w, http.StatusBadRequest,
				fmt.Sprintf("n: must be a number from 1 to %d", weir.DefaultMaxBans), "n")
			return nil, 0, false
		}
	}
	meant := rulesMeant(set, q.Get("domain"), q.Get("limit"))
	all = slices.DeleteFunc(all, func(x T) bool {
		domain, limit, _, _ := of(&x)
		return !meant(domain, limit)
	})
	slices.SortFunc(all, func(x, y T) int {
		dx, lx, kx, ux := of(&x)
		dy, ly, ky, uy := of(&y)
		return cmp.Or(uy.Compare(ux), cmp.Compare(dx, dy), cmp.Compare(lx, ly), cmp.Compare(kx, ky))
	})
	total = len(all)
	return append([]T{}, all[:min(n, total)]...), total, true
}

// rulesMeant returns a function that reports whether a rule matches domain and limit, either of
// which may be empty. As everywhere, a limit is named by its rule, a window of it (rule:60s), or
// either behind its domain (shop/login). An entry may belong to a rule that is no longer in force.
// Only the name of that rule matches it.
func rulesMeant(set *rule.Set, domain, limit string) func(ofDomain, ofRule string) bool {
	type name struct{ domain, rule string }
	byWindow := map[name]bool{}
	if set != nil && limit != "" {
		for _, r := range set.Rules() {
			is := func(w *rule.Window) bool {
				return w.Name == limit || domain == "" && r.Domain+"/"+w.Name == limit
			}
			byWindow[name{r.Domain, r.Name}] = slices.ContainsFunc(r.Windows, is) ||
				slices.ContainsFunc(r.Overrides,
					func(o rule.Override) bool { return slices.ContainsFunc(o.Windows, is) })
		}
	}
	return func(ofDomain, ofRule string) bool {
		if domain != "" && domain != ofDomain {
			return false
		}
		return limit == "" || limit == ofRule || domain == "" && limit == ofDomain+"/"+ofRule ||
			byWindow[name{ofDomain, ofRule}]
	}
}

// listProblem answers if a request for a list of bans or grants names a domain or a limit that is
// not in force, and no entry of the list belongs to it. ok is false then.
func (a *Handler) listProblem(w http.ResponseWriter, r *http.Request, found int) (ok bool) {
	q := r.URL.Query()
	return found > 0 || a.known(w, q.Get("domain"), q.Get("limit"))
}

func (a *Handler) bans(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		a.setBan(w, r)
	case http.MethodDelete:
		a.liftBan(w, r)
	default:
		a.listBans(w, r)
	}
}

// listParams are the parameters of the lists of bans and grants. The other parameters of these
// endpoints belong to changes.
var listParams = []string{"domain", "limit", "n"}

func (a *Handler) listBans(w http.ResponseWriter, r *http.Request) {
	if err := onlyParams(r, listParams); err != nil {
		answer.BadRequest(w, err)
		return
	}
	m := a.maskFor(sender(r).Role)
	counted, nodes := a.banCounts(r.Context())
	var all []ListedBan
	for _, b := range a.limiter.Bans().List() {
		x := newListedBan(b, time.Now())
		counted(x, b.Refused)
		x.Key = m.parts(b.Key)
		all = append(all, *x)
	}
	set, _ := a.limiter.Rules()
	list, total, ok := listed(w, r, set, all, func(b *ListedBan) (string, string, string, time.Time) {
		return b.Domain, b.Rule, strings.Join(b.Key, ","), b.Until
	})
	if ok && a.listProblem(w, r, total) {
		writeJSON(w, map[string]any{"bans": list, "total": total, "nodes": nodes})
	}
}

// banCounts returns a function that says how many requests a ban has refused on all nodes, at least
// here, and which nodes answered.
func (a *Handler) banCounts(ctx context.Context) (set func(b *ListedBan, here uint64), n insight.Nodes) {
	n = insight.Nodes{Asked: 1, Answered: 1}
	var c insight.BanCounts
	if a.o.Nodes != nil {
		ctx, cancel := context.WithTimeout(ctx, insightPatience)
		defer cancel()
		c, n = a.o.Nodes.BanCounts(ctx)
	}
	return func(b *ListedBan, here uint64) {
		b.Refused = new(max(c.Of[insight.BanID(b.Domain, b.Rule, b.Key)], here))
		b.RefusedAtLeast = n.Answered < n.Asked || c.Began.After(b.Since)
	}, n
}

// entry returns the audit record of a change; what says whether it is a ban or a grant.
func (c *change) entry(what, domain, rule string, key []string, before, after any) audit.Entry {
	return audit.Entry{What: what, Domain: domain, Limit: rule, Key: strings.Join(key, ","), Before: before,
		After: after, Note: c.Reason}
}

// holds describes a ban or a grant in force, in an audit record.
type holds struct {
	Until time.Time `json:"until"`
	Wide  bool      `json:"wide,omitempty"` // in the whole domain
	Allow string    `json:"allow,omitempty"`
	Set   bool      `json:"set,omitempty"` // by hand
	Note  string    `json:"reason,omitempty"`
}

func banHolds(b *weir.Ban) any {
	if b == nil {
		return nil
	}
	return holds{Until: b.Until.UTC(), Wide: b.DomainWide, Set: b.Manual, Note: b.Reason}
}

func (a *Handler) setBan(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	c, err := readChange(w, r)
	switch {
	case err == nil && c.Allow != "":
		err = &answer.FieldError{Field: "allow", Message: "is for grants"}
	case err == nil && c.Plan:
		err = &answer.FieldError{Field: "plan", Message: "is for grants"}
	}
	scope, known := banScopes[c.Scope]
	if err == nil && !known {
		err = &answer.FieldError{Field: "scope",
			Message: "must be rule (where the rule applies) or domain (everywhere in its domain)"}
	}
	var until time.Time
	if err == nil {
		until, err = c.end(time.Now())
	}
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	planned, before, err := a.limiter.Bans().Plan(c.Domain, c.Limit, c.Key, until, c.Reason, scope)
	if _, ok := outcomeOf(w, err); !ok {
		return
	}
	e, ok := a.record(w, r, c.entry("ban set", planned.Domain, planned.Rule, planned.Key, banHolds(before),
		holds{Until: planned.Until.UTC(), Wide: planned.DomainWide, Set: true}))
	if !ok {
		return
	}
	b, err := a.limiter.Bans().Set(ctx, c.Domain, c.Limit, c.Key, until, c.Reason, scope)
	a.made(e, err)
	if warning, ok := outcomeOf(w, err); ok {
		answerChange(w, warning, map[string]any{"ban": newListedBan(b, time.Now())})
	}
}

func (a *Handler) liftBan(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	c, err := readChange(w, r)
	if err == nil && c.sets() {
		err = errors.New("to lift a ban takes domain, limit, key and reason, and nothing else")
	}
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	have, err := a.limiter.Bans().Of(c.Domain, c.Limit, c.Key)
	if _, ok := outcomeOf(w, err); !ok {
		return
	}
	e, ok := a.record(w, r, c.entry("ban lifted", have.Domain, have.Rule, have.Key, banHolds(&have), nil))
	if !ok {
		return
	}
	b, err := a.limiter.Bans().Lift(ctx, c.Domain, c.Limit, c.Key)
	a.made(e, err)
	if warning, ok := outcomeOf(w, err); ok {
		answerChange(w, warning, map[string]any{"ban": newListedBan(b, time.Now())})
	}
}
