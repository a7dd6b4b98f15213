package main

import (
	"context"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/rule"
)

// explained is an explanation as JSON.
type explained struct {
	Domain string             `json:"domain"`
	Exempt bool               `json:"exempt"`
	Bans   []*admin.ListedBan `json:"bans,omitempty"` // on the server, that refuse the request
	Meets  []explainedLimit   `json:"meets"`
	Unmet  []unmet            `json:"does_not_apply"`
	Errors int                `json:"expression_errors,omitempty"`
	Costly string             `json:"too_costly,omitempty"` // the rule that refuses for that
}

// explainedLimit is a limit that the request meets.
type explainedLimit struct {
	Rule      string         `json:"rule"`
	Limit     string         `json:"limit,omitempty"`
	Unlimited bool           `json:"unlimited,omitempty"`
	Allows    string         `json:"allows,omitempty"` // in words
	Key       []string       `json:"key,omitempty"`    // its parts
	Cost      int64          `json:"cost,omitempty"`
	Shadow    bool           `json:"shadow,omitempty"`
	Rest      []string       `json:"also,omitempty"`    // what else the rule says, in words
	Now       *admin.KeyInfo `json:"now,omitempty"`     // absent if nothing is counted there
	Elastic   string         `json:"elastic,omitempty"` // the share that holds there, in words
}

// unmet is a rule that does not apply.
type unmet struct {
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// writeJSON prints all that is printed in words otherwise.
func (e *explanation) writeJSON(ctx context.Context, reasons []rule.Reason) error {
	x := explained{Domain: e.query.Domain, Exempt: e.matches.Exempt, Meets: []explainedLimit{}, Unmet: []unmet{},
		Errors: e.matches.CELErrors}
	if r := e.matches.TooCostly; r != nil {
		x.Costly = r.Name
	}
	for _, r := range reasons {
		switch {
		case !r.Applies:
			x.Unmet = append(x.Unmet, unmet{r.Rule.Name, r.Why})
			continue
		case r.Rule.Unlimited:
			x.Meets = append(x.Meets, explainedLimit{Rule: r.Rule.Name, Unlimited: true})
			continue
		}
		for _, h := range r.Hits {
			l := explainedLimit{
				Rule: r.Rule.Name, Limit: h.Window.Name, Key: h.Window.KeyParts(h.Key), Cost: h.Cost, Shadow: h.Mode == rule.Shadow,
				Rest: words.Rule(r.Rule), Elastic: words.ElasticShare(r.Rule, e.signals),
			}
			if limit, _ := h.Limit.At(time.Now().UnixMicro()); limit != nil {
				l.Allows = strings.TrimSpace(words.Limit(limit, r.Rule))
			} else {
				l.Unlimited = true
			}
			if e.live != nil {
				var err error
				if _, l.Now, err = e.look(ctx, &h); err != nil {
					return err
				}
			}
			x.Meets = append(x.Meets, l)
		}
	}
	if e.live != nil && !e.matches.Exempt {
		if err := e.bansElsewhere(ctx); err != nil {
			return usageError(err)
		}
	}
	x.Bans = e.bans
	return printJSON(e.out, x)
}
