package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/observe/changes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/rulesource/xds"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// rulesSettings say where the rules are.
var rulesSettings = []setting{
	{Path: "rules", Value: "./rules",
		Help: "folder of rule files, or one file; or a PostgreSQL that holds rules, as postgres://USER@HOST/DATABASE?space=NAME, or a control plane, as xdss://HOST:PORT?node=ID; until ./rules is there: built-in starter rules",
		Set: settings.Text(func(c *Config, s string) (err error) {
			if s == "" {
				return errors.New("must name a folder or a file")
			}
			c.rules, c.rulesSet, c.Database, c.xds = s, true, nil, nil
			switch {
			case ruledb.IsURL(s):
				c.Database, err = ruledb.Parse(s)
			case xds.IsURL(s):
				c.xds, err = xds.Parse(s)
			}
			return err
		})},
	{Path: "rules_db.cache", Value: "./weir-rules.cache",
		Help: "file that keeps the rules in force, with which a node starts while their database is away; none if empty",
		Set:  settings.String(func(c *Config) *string { return &c.ruleCache })},
	{Path: "rules_db.every", Value: "5s",
		Help: "how often a node looks into the database of rules where no message comes",
		Set:  settings.Duration(100*time.Millisecond, func(c *Config) *time.Duration { return &c.ruleEvery })},
	{Path: "unknown_domain", Value: "allow",
		Help: "requests for a domain that no rule file declares: allow, or deny; each answer says so",
		Set: settings.Text(func(c *Config, s string) error {
			if s != "allow" && s != "deny" {
				return fmt.Errorf("%q must be allow or deny", s)
			}
			c.denyUnknown = s == "deny"
			return nil
		})},
}

// ruleConfig is the configuration of where rules come from.
type ruleConfig struct {
	rules     string
	rulesSet  bool            // somebody named the rules
	Database  *ruledb.Address // of rules; nil if they lie elsewhere
	xds       *xds.Address    // of rules; nil if they lie elsewhere
	ruleCache string          // file for the rules of the database; "" for none
	ruleEvery time.Duration   // between two looks into it

	denyUnknown bool // requests for unknown domains
}

// ruleSource is where the rules in force come from. Safe for concurrent use.
type ruleSource interface {
	Status() rulesource.Status
	// Sources returns the files in force.
	Sources() []file.Source
	// Reload makes Run look for changes at once.
	Reload()
	// Run puts changes in force until ctx ends.
	Run(ctx context.Context)
}

// openRules loads the rules. If nobody says where they lie, the starter rules are in force until
// ./rules exists.
func (p *program) openRules(ctx context.Context) (err error) {
	switch {
	case p.c.Database != nil:
		p.atStart, err = p.openDatabase(ctx)
	case p.c.xds != nil:
		p.atStart, err = p.openXDS(ctx)
	default:
		p.atStart, err = p.openFolder()
	}
	if err != nil {
		return err
	}
	p.warnOfIdentity(p.atStart)
	p.warnOfRules(p.atStart)
	return nil
}

// openFolder loads the rules of a folder or a file.
func (p *program) openFolder() (*rule.Set, error) {
	options := rulesource.Options{
		Path: p.c.rules, Rules: file.Options{IPv6Prefix: p.c.ipv6Prefix, Lend: p.c.rlqsDomains}, Logger: p.log, Changed: p.rulesChanged, Looked: p.auditRules,
	}
	if !p.c.rulesSet {
		if _, err := os.Stat(p.c.rules); errors.Is(err, fs.ErrNotExist) {
			options.Until = []file.Source{file.Starter()}
		}
	}
	folder, set, err := rulesource.Open(options)
	if err != nil {
		return nil, err
	}
	p.rules = folder
	if options.Until != nil {
		p.log.Info("there is no folder " + p.c.rules + ": the built-in starter rules are in force until it is there")
	}
	return set, nil
}

// runRules puts changes of the rules in force until ctx ends.
func (p *program) runRules(ctx context.Context) { p.rules.Run(ctx) }

// rulesChanged puts s in force.
func (p *program) rulesChanged(s *rule.Set) {
	before, _ := p.limiter.Rules()
	p.changed.between(before, s) // here, and not while the collector of insight is locked
	if err := p.firewall.open(s); err != nil {
		p.log.Error("banned addresses are refused, but the kernel does not drop their packets", "error", err)
	}
	p.limiter.SetRules(s)
	p.warnOfRules(s)
	p.signals.SetUsed(signalsOf(s))
	p.startDeferring(s)
}

// lastChanges remembers what differs between the last two rule sets that were compared, since the
// audit log and insight both tell it. Safe for concurrent use.
type lastChanges struct {
	mu            sync.Mutex
	before, after *rule.Set
	are           insight.RuleChanges
}

func (c *lastChanges) between(before, after *rule.Set) insight.RuleChanges {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.before != before || c.after != after {
		c.before, c.after, c.are = before, after, changes.Between(before, after)
	}
	return c.are
}

// take returns the last changes, and forgets the rule sets.
func (c *lastChanges) take() insight.RuleChanges {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.after = nil, nil
	return c.are
}

// openDatabase loads the rules at the head of their space in PostgreSQL.
func (p *program) openDatabase(ctx context.Context) (*rule.Set, error) {
	follower, set, err := ruledb.Follow(ctx, ruledb.FollowOptions{
		Address: p.c.Database, Cache: p.c.ruleCache, Every: p.c.ruleEvery,
		Rules: file.Options{IPv6Prefix: p.c.ipv6Prefix, Lend: p.c.rlqsDomains},
		Node:  p.node.String, Logger: p.log, Changed: p.rulesChanged, Looked: p.auditRules,
	})
	if err != nil {
		return nil, passing{err} // what is in the database changes without this configuration
	}
	p.rules = follower
	return set, nil
}
