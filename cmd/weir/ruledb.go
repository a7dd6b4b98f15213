package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// openDatabase loads the rules at the head of their space in PostgreSQL.
func (p *program) openDatabase(ctx context.Context) (*rule.Set, error) {
	follower, set, err := ruledb.Follow(ctx, ruledb.FollowOptions{
		Address: p.c.database, Cache: p.c.ruleCache, Every: p.c.ruleEvery,
		Rules: file.Options{IPv6Prefix: p.c.ipv6Prefix, Lend: p.c.rlqsDomains},
		Node:  p.nameAmongRules, Logger: p.log, Changed: p.rulesChanged, Looked: p.auditRules,
	})
	if err != nil {
		return nil, err
	}
	p.rules = follower
	return set, nil
}

// nameAmongRules is the name under which this node reports its rules. Nodes that share no store may
// run on one machine, so its name alone would not distinguish them.
func (p *program) nameAmongRules() string {
	name := p.nodeName()
	if p.storage.redis == nil {
		name = fmt.Sprintf("%s-%06x", name, rand.Uint32()>>8)
	}
	return name
}
