// Package top is weir top, which shows the state of a running server in a terminal.
//
// Begin with State (state.go): it is everything that is known and selected. View (view.go) draws
// it, and State.Press handles a key. All three are pure, so that tests need no terminal. Run
// (run.go) is the thin shell around them, which asks the server and owns the terminal; Batch prints
// instead.
//
// No text from a client reaches the terminal unchanged: all text goes through human.Visible.
package top

import (
	"context"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
)

// Server answers the questions of a screen. Its methods are called from one goroutine at a time.
type Server interface {
	Overview(ctx context.Context, over time.Duration) (*insight.Overview, error)
	Outages(ctx context.Context) ([]insight.Outage, error) // the newest first
	Rules(ctx context.Context, over time.Duration) ([]insight.RuleReport, error)
	Rule(ctx context.Context, domain, rule string, over time.Duration) (*insight.RuleReport, error)
	Keys(ctx context.Context, by string, n int) ([]insight.KeyCount, error)
	Key(ctx context.Context, domain, key string) (*insight.KeyReport, error)
	Decisions(ctx context.Context, n int) ([]recent.Entry, error)
	// MayChange reports whether the user may ban and grant.
	MayChange(ctx context.Context) (bool, error)
	// Change bans a key, or grants it other numbers, and describes the result.
	Change(ctx context.Context, c Change) (done string, err error)
	// Explain says in words why a request was decided this way.
	Explain(e *recent.Entry) string
}

// Change is a ban or a grant to be set.
type Change struct {
	Grant  bool // else a ban
	Domain string
	Rule   string
	Key    []string // its parts
	Allow  string   // of a grant
	For    string   // how long, such as 15m
}

// Data is one round of answers. Data that no screen shows is not asked for, and stays as it was.
type Data struct {
	Overview  *insight.Overview
	Outages   []insight.Outage
	Rules     []insight.RuleReport
	Keys      []insight.KeyCount
	Decisions []recent.Entry
}

// Wants says which answers a screen needs.
type Wants struct {
	Rules, Keys, Decisions bool
	By                     string // the order of Keys
	Open                   *Item  // the open item; nil is none
}

// shownKeys and shownDecisions bound the rows that are asked for: no terminal shows more at once,
// and few people scroll further.
const (
	shownKeys      = 100
	shownDecisions = 200
)

// ask asks for one round.
func ask(ctx context.Context, s Server, over time.Duration, w Wants) (d Data, err error) {
	if d.Overview, err = s.Overview(ctx, over); err != nil {
		return d, err
	}
	if d.Outages, err = s.Outages(ctx); err != nil {
		return d, err
	}
	if w.Rules {
		if d.Rules, err = s.Rules(ctx, over); err != nil {
			return d, err
		}
	}
	if w.Keys {
		if d.Keys, err = s.Keys(ctx, w.By, shownKeys); err != nil {
			return d, err
		}
	}
	if w.Decisions {
		if d.Decisions, err = s.Decisions(ctx, shownDecisions); err != nil {
			return d, err
		}
	}
	return d, nil
}
