package admin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/internal/recent"
	"github.com/weir-rl/weir/rule"
)

const (
	bansPath   = "/api/v1/bans"
	grantsPath = "/api/v1/grants"
)

// routeBans adds the endpoints of bans and grants.
func (a *handler) routeBans() {
	a.route(bansPath, "GET, HEAD, POST, DELETE", true, "bans in force: ?domain=DOMAIN&limit=NAME&n=N; POST sets one, DELETE lifts one", a.bans)
	a.route(grantsPath, "GET, HEAD, POST, DELETE", true, "grants in force: ?domain=DOMAIN&limit=NAME&n=N; POST makes one, DELETE ends one", a.grants)
}

// keyParts is a key in a question: a list of parts, or text in which "," separates them.
type keyParts []string

// UnmarshalJSON implements json.Unmarshaler.
func (k *keyParts) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		if *k = nil; text != "" {
			*k = keyParts{text} // rule.Window.AppendKey knows into how many parts to cut it
		}
		return nil
	}
	var parts []string
	if err := json.Unmarshal(data, &parts); err != nil {
		return errors.New(`key: must be a list of texts, or one text such as "ada,192.0.2.1"`)
	}
	*k = parts
	return nil
}

// change is what POST and DELETE of bans and grants bring.
type change struct {
	Domain string   `json:"domain"`
	Limit  string   `json:"limit"`
	Key    keyParts `json:"key"`
	For    string   `json:"for"`
	Until  string   `json:"until"`
	Allow  string   `json:"allow"`
	Reason string   `json:"reason"`
}

// maxChange bounds the body of a change in bytes.
const maxChange = 64 << 10

// readChange reads what r asks for: from its body, or for DELETE without one from the query.
func readChange(w http.ResponseWriter, r *http.Request) (c change, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxChange))
	if err != nil {
		return c, fmt.Errorf("the body cannot be read, or has more than %d bytes", maxChange)
	}
	if r.Method == http.MethodDelete && len(bytes.TrimSpace(body)) == 0 {
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return c, errors.New("the query is not well formed")
		}
		for name := range q {
			if name != "domain" && name != "limit" && name != "key" && name != "reason" {
				return c, &answer.FieldError{Field: name, Message: "is no parameter here; there are domain, limit, key and reason"}
			}
		}
		c = change{Domain: q.Get("domain"), Limit: q.Get("limit"), Reason: q.Get("reason"), Key: q["key"]}
	} else {
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			return c, fmt.Errorf("the body is not what is expected here: %s", strings.TrimPrefix(err.Error(), "json: "))
		}
		if d.More() {
			return c, errors.New("the body holds more than one JSON value")
		}
	}
	if c.Limit == "" {
		return c, &answer.FieldError{Field: "limit", Message: "is missing; name a limit of /api/v1/rules"}
	}
	return c, nil
}

// end is the instant until which c is to hold.
func (c *change) end(now time.Time) (time.Time, error) {
	switch {
	case (c.For == "") == (c.Until == ""):
		return now, &answer.FieldError{Field: "for", Message: `give one of for and until, as in "for": "15m" or "until": "2026-01-31T12:00:00Z"`}
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

// outcomeOf tells the asker of an error of the limiter; ok is false if nothing was changed. A
// change that holds here, and was not brought to its end, is accepted.
func outcomeOf(w http.ResponseWriter, err error) (warning string, ok bool) {
	switch {
	case err == nil:
		return "", true
	case errors.Is(err, weir.ErrNotFound):
		answer.Problem(w, http.StatusNotFound, "key: there is none in force on this server for this key", "key")
		return "", false
	case errors.Is(err, weir.ErrNotShared):
		return strings.TrimPrefix(err.Error(), "weir: "), true
	}
	answer.BadRequest(w, errors.New(strings.TrimPrefix(err.Error(), "weir: ")))
	return "", false
}

// answerChange answers with what holds now.
func answerChange(w http.ResponseWriter, warning string, members map[string]any) {
	status := http.StatusOK
	body := map[string]any{"shared": warning == ""}
	for name, v := range members {
		body[name] = v
	}
	if warning != "" {
		status, body["warning"] = http.StatusAccepted, warning
	}
	w.Header()["Content-Type"] = answer.JSONType
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	_ = e.Encode(body) // the client hung up
}

// audit writes a line on a change that r made: what, by whom, and the rest.
func (a *handler) audit(r *http.Request, what string, rest ...any) {
	if a.o.Audit == nil {
		return
	}
	args := append([]any{"peer", r.RemoteAddr}, rest...)
	if a.o.Tokens.Authenticated(r) {
		// Which one of them, without telling it.
		_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
		args = append(args, "token", "sha256:"+hex.EncodeToString(sum[:4]))
	}
	a.o.Audit.InfoContext(context.WithoutCancel(r.Context()), "audit: "+what, args...)
}

// ListedBan is a ban with the time that is left of it.
type ListedBan struct {
	weir.Ban
	Left recent.Seconds `json:"left"`
}

// ListedGrant is a grant with the time that is left of it.
type ListedGrant struct {
	weir.Grant
	Left recent.Seconds `json:"left"`
}

func newListedBan(b weir.Ban, now time.Time) *ListedBan {
	return &ListedBan{b, recent.Seconds(max(b.Until.Sub(now).Microseconds(), 0))}
}

func newListedGrant(g weir.Grant, now time.Time) *ListedGrant {
	return &ListedGrant{g, recent.Seconds(max(g.Until.Sub(now).Microseconds(), 0))}
}

// shown bounds a list by ?n=.
const shown = 1000

// listed filters by ?domain= and ?limit=, puts what ends last first, and cuts at ?n=. ok is false
// if it has answered already.
func listed[T any](w http.ResponseWriter, r *http.Request, set *rule.Set, all []T, of func(*T) (domain, limit, key string, until time.Time)) (list []T, total int, ok bool) {
	q, n := r.URL.Query(), shown
	if text := q.Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > weir.DefaultMaxBans {
			answer.Problem(w, http.StatusBadRequest, fmt.Sprintf("n: must be a number from 1 to %d", weir.DefaultMaxBans), "n")
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

// rulesMeant tells which rules a domain and a limit of a question mean, each of which may be empty:
// a limit is named as everywhere else, by its rule, a window of it (rule:60s), or either behind its
// domain (shop/login). What is listed may be of a rule that is not in force, which only its own
// name means.
func rulesMeant(set *rule.Set, domain, limit string) func(ofDomain, ofRule string) bool {
	type name struct{ domain, rule string }
	byWindow := map[name]bool{}
	if set != nil && limit != "" {
		for _, r := range set.Rules() {
			is := func(w *rule.Window) bool {
				return w.Name == limit || domain == "" && r.Domain+"/"+w.Name == limit
			}
			byWindow[name{r.Domain, r.Name}] = slices.ContainsFunc(r.Windows, is) ||
				slices.ContainsFunc(r.Overrides, func(o rule.Override) bool { return slices.ContainsFunc(o.Windows, is) })
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

func (a *handler) bans(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		var all []ListedBan
		for _, b := range a.limiter.Bans().List() {
			all = append(all, *newListedBan(b, time.Now()))
		}
		set, _ := a.limiter.Rules()
		list, total, ok := listed(w, r, set, all, func(b *ListedBan) (string, string, string, time.Time) {
			return b.Domain, b.Rule, strings.Join(b.Key, ","), b.Until
		})
		if ok {
			writeJSON(w, map[string]any{"bans": list, "total": total})
		}
		return
	}
	c, err := readChange(w, r)
	if err == nil && c.Allow != "" {
		err = &answer.FieldError{Field: "allow", Message: "is for grants"}
	}
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	if r.Method == http.MethodDelete {
		b, err := a.limiter.Bans().Lift(ctx, c.Domain, c.Limit, c.Key)
		warning, ok := outcomeOf(w, err)
		if ok {
			a.audit(r, "ban lifted", "domain", b.Domain, "limit", b.Rule, "key", strings.Join(b.Key, ","), "reason", c.Reason)
			answerChange(w, warning, map[string]any{"ban": b})
		}
		return
	}
	until, err := c.end(time.Now())
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	b, err := a.limiter.Bans().Set(ctx, c.Domain, c.Limit, c.Key, until, c.Reason)
	if warning, ok := outcomeOf(w, err); ok {
		a.audit(r, "ban set", "domain", b.Domain, "limit", b.Rule, "key", strings.Join(b.Key, ","), "until", b.Until.UTC().Format(time.RFC3339), "reason", b.Reason)
		answerChange(w, warning, map[string]any{"ban": b})
	}
}

func (a *handler) grants(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		var all []ListedGrant
		for _, g := range a.limiter.Grants().List() {
			all = append(all, *newListedGrant(g, time.Now()))
		}
		set, _ := a.limiter.Rules()
		list, total, ok := listed(w, r, set, all, func(g *ListedGrant) (string, string, string, time.Time) {
			return g.Domain, g.Rule, strings.Join(g.Key, ","), g.Until
		})
		if ok {
			writeJSON(w, map[string]any{"grants": list, "total": total})
		}
		return
	}
	c, err := readChange(w, r)
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	if r.Method == http.MethodDelete {
		g, err := a.limiter.Grants().Revoke(ctx, c.Domain, c.Limit, c.Key)
		warning, ok := outcomeOf(w, err)
		if ok {
			a.audit(r, "grant revoked", "domain", g.Domain, "limit", g.Rule, "key", strings.Join(g.Key, ","), "reason", c.Reason)
			answerChange(w, warning, map[string]any{"grant": g})
		}
		return
	}
	until, err := c.end(time.Now())
	if err == nil && c.Allow == "" {
		err = &answer.FieldError{Field: "allow", Message: "is missing; write it as a rule file does, as in 1000/min"}
	}
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	g, err := a.limiter.Grants().Set(ctx, c.Domain, c.Limit, c.Key, c.Allow, until, c.Reason)
	if warning, ok := outcomeOf(w, err); ok {
		a.audit(r, "grant made", "domain", g.Domain, "limit", g.Rule, "key", strings.Join(g.Key, ","), "allow", g.Allow, "until", g.Until.UTC().Format(time.RFC3339), "reason", g.Reason)
		answerChange(w, warning, map[string]any{"grant": g})
	}
}
