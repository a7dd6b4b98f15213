package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/rule"
)

const grantsPath = "/api/v1/grants"

// ListedGrant is a grant with its remaining time.
type ListedGrant struct {
	weir.Grant
	Left recent.Seconds `json:"left"`
}

func newListedGrant(g weir.Grant, now time.Time) *ListedGrant {
	return &ListedGrant{g, recent.Seconds(max(g.Until.Sub(now).Microseconds(), 0))}
}

func grantHolds(g *weir.Grant) any {
	if g == nil {
		return nil
	}
	return holds{Until: g.Until.UTC(), Allow: g.Allow, Set: true, Note: g.Reason}
}

func (a *Handler) grants(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		a.setGrant(w, r)
	case http.MethodDelete:
		a.revokeGrant(w, r)
	default:
		a.listGrants(w, r)
	}
}

func (a *Handler) listGrants(w http.ResponseWriter, r *http.Request) {
	if err := onlyParams(r, listParams); err != nil {
		answer.BadRequest(w, err)
		return
	}
	m := a.maskFor(sender(r).Role)
	var all []ListedGrant
	for _, g := range a.limiter.Grants().List() {
		g.Key = m.parts(g.Key)
		all = append(all, *newListedGrant(g, time.Now()))
	}
	set, _ := a.limiter.Rules()
	list, total, ok := listed(w, r, set, all, func(g *ListedGrant) (string, string, string, time.Time) {
		return g.Domain, g.Rule, strings.Join(g.Key, ","), g.Until
	})
	if ok && a.listProblem(w, r, total) {
		writeJSON(w, map[string]any{"grants": list, "total": total})
	}
}

// GrantChange is the answer to a grant that is made, ended, or planned.
type GrantChange struct {
	// Grant is the grant; nil for a plan without numbers.
	Grant *ListedGrant `json:"grant,omitempty"`
	// Replaced is the grant in whose place it comes; nil if the key had none.
	Replaced *ListedGrant `json:"replaced,omitempty"`
	// Before are the numbers that held before it, and Without those that hold without any grant, in
	// the notation of rule files.
	Before  string `json:"before,omitempty"`
	Without string `json:"without,omitempty"`
	// Shadow is true for a key that the rule refuses nothing, so that a grant changes nothing.
	Shadow bool `json:"shadow,omitempty"`
	// Ban is the ban that refuses the key whatever its grant says; nil for none.
	Ban *ListedBan `json:"ban,omitempty"`
	// Shared is true if all nodes know of the change, and Warning says why they do not. A plan has
	// neither.
	Shared  *bool  `json:"shared,omitempty"`
	Warning string `json:"warning,omitempty"`
}

// answer answers with a grant that is made or ended.
func (c *GrantChange) answer(w http.ResponseWriter, g weir.Grant, warning string) {
	c.Grant, c.Shared, c.Warning = newListedGrant(g, time.Now()), new(warning == ""), warning
	writeChange(w, warning, c)
}

// readGrant checks what a grant holds, puts its numbers into the notation of rule files, and
// returns its end. A plan may leave out both.
func (c *change) readGrant(now time.Time) (until time.Time, err error) {
	if c.Plan && c.For == "" && c.Until == "" {
		c.For = "1h"
	}
	if until, err = c.end(now); err != nil {
		return until, err
	}
	if c.Allow == "" {
		if c.Plan {
			return until, nil
		}
		return until, &answer.FieldError{Field: "allow", Message: "is missing; write it as in 1000/min, or 1000 per minute"}
	}
	if c.Allow, err = rule.AllowNotation(c.Allow); err != nil {
		err = &answer.FieldError{Field: "allow", Message: err.Error()}
	}
	return until, err
}

func (a *Handler) setGrant(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	c, err := readChange(w, r)
	if err == nil {
		err = c.onlyBans()
	}
	var until time.Time
	if err == nil {
		until, err = c.readGrant(time.Now())
	}
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	numbers, err := a.limiter.Grants().Numbers(c.Domain, c.Limit, c.Key)
	if _, ok := outcomeOf(w, err); !ok {
		return
	}
	allow := c.Allow
	if allow == "" {
		allow = numbers.Without // what the rule has fits it
	}
	planned, before, err := a.limiter.Grants().Plan(c.Domain, c.Limit, c.Key, allow, until, c.Reason)
	if _, ok := outcomeOf(w, err); !ok {
		return
	}
	now := time.Now()
	done := GrantChange{Before: numbers.Allow, Without: numbers.Without, Shadow: numbers.Mode == rule.Shadow}
	if before != nil {
		done.Replaced = newListedGrant(*before, now)
	}
	if numbers.Ban != nil {
		done.Ban = newListedBan(*numbers.Ban, now)
	}
	if c.Plan {
		if c.Allow != "" {
			done.Grant = newListedGrant(planned, now)
		}
		writeJSON(w, done)
		return
	}
	e, ok := a.record(w, r, c.entry("grant made", planned.Domain, planned.Rule, planned.Key, grantHolds(before),
		holds{Until: planned.Until.UTC(), Allow: planned.Allow, Set: true}))
	if !ok {
		return
	}
	g, err := a.limiter.Grants().Set(ctx, c.Domain, c.Limit, c.Key, c.Allow, until, c.Reason)
	a.made(e, err)
	if warning, ok := outcomeOf(w, err); ok {
		done.answer(w, g, warning)
	}
}

func (a *Handler) revokeGrant(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	c, err := readChange(w, r)
	if err == nil && c.sets() {
		err = errors.New("to end a grant takes domain, limit, key and reason, and nothing else")
	}
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	have, err := a.limiter.Grants().Of(c.Domain, c.Limit, c.Key)
	if _, ok := outcomeOf(w, err); !ok {
		return
	}
	numbers, _ := a.limiter.Grants().Numbers(c.Domain, c.Limit, c.Key) // none if the rules left it behind
	done := GrantChange{Before: numbers.Allow, Without: numbers.Without}
	e, ok := a.record(w, r, c.entry("grant revoked", have.Domain, have.Rule, have.Key, grantHolds(&have), nil))
	if !ok {
		return
	}
	g, err := a.limiter.Grants().Revoke(ctx, c.Domain, c.Limit, c.Key)
	a.made(e, err)
	if warning, ok := outcomeOf(w, err); ok {
		done.answer(w, g, warning)
	}
}
