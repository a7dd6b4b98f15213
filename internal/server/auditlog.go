package server

import (
	"context"
	"fmt"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/rulesource"
)

// openAudit opens the audit log; without audit.path only the log knows of changes. It comes before
// the store: of two programs with one file the second one ends there, before it has read or written
// a snapshot, or has shown up in Redis. Records wait until the store has named this node.
func (p *program) openAudit(context.Context) (err error) {
	if p.audit, err = audit.Prepare(audit.Options{Path: p.c.auditPath, Logger: p.log}); err != nil {
		return fmt.Errorf("audit.path: %w", err)
	}
	return nil
}

// reopenAudit opens the file of the audit log anew.
func (p *program) reopenAudit() {
	_ = p.audit.Reopen() // logs errors itself
}

func (p *program) closeAudit() error { return p.audit.Close() }

// auditRules records that other rules came into force, or that those in the source cannot.
func (p *program) auditRules(before, now rulesource.Status) {
	holds := func(s rulesource.Status) map[string]any {
		h := map[string]any{"digest": s.Digest, "files": len(s.Files)}
		if s.Version != "" {
			h["version"] = s.Version
		}
		return h
	}
	switch {
	case now.Loads != before.Loads:
		after := holds(now)
		if lines := p.changed.take().Lines(); len(lines) > 0 {
			after["changes"] = lines
		}
		if p.insight != nil {
			p.insight.RulesVersion(now.Version)
		}
		p.audit.Tell(audit.Entry{Who: audit.Weir, What: "rules in force", Before: holds(before), After: after,
			Note: now.Path})
	case now.Err != nil:
		p.audit.Tell(audit.Entry{Who: audit.Weir, What: "rules refused", Before: holds(now), Note: oneLine(now.Err)})
	default:
		p.audit.Tell(audit.Entry{Who: audit.Weir, What: "rules as in force again", After: holds(now), Note: now.Path})
	}
}

// banChanged receives changes of bans, on the deciding path. Those that an operator makes are
// recorded where they are asked for.
func (p *program) banChanged(b *weir.Ban, lifted bool) {
	p.firewall.changed(b, lifted)
	if !lifted && !b.Manual {
		p.audit.Count(audit.Entry{Who: audit.Weir, What: "bans by denials", Domain: b.Domain, Limit: b.Rule})
	}
}
