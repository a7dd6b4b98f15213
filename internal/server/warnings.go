package server

import (
	"slices"

	doors "github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// LintOptions returns the parts of the configuration that Lint needs.
func (c *Config) LintOptions() file.LintOptions {
	o := file.LintOptions{Identity: c.identity, Nodes: c.fallback.FixedNodes, Quotas: c.rlqsDomains}
	if len(c.named) > 0 || c.store != storeMemory { // else nobody has configured anything
		o.NoLeases = c.noLeases()
		o.NoRegions, o.Regions = c.noRegions(), len(c.regionWeights)
		o.Weight = c.regionWeights[c.region]
		for _, weight := range c.regionWeights {
			o.Weights += weight
		}
	}
	return o
}

// warnOfRules warns of rules that ask for more than this server does.
func (p *program) warnOfRules(set *rule.Set) {
	p.warnOfDomains(set)
	p.warnOfLacking(set)
	p.warnOfLeases(set)
	p.warnOfQuotas(set)
	p.warnOfRegions(set)
}

// warnOfDomains warns where the configuration names a domain that no rule file declares.
func (p *program) warnOfDomains(set *rule.Set) {
	p.warnOfDomain(set, "default_domain", p.c.domain)
	for _, domain := range p.c.rlqsDomains {
		p.warnOfDomain(set, "rlqs.domains", domain)
	}
}

func (p *program) warnOfDomain(set *rule.Set, setting, domain string) {
	if domain != "" && !set.HasDomain(domain) {
		p.log.Warn(setting+" names a domain that no rule file declares"+
			suggest.DidYouMean(suggest.Nearest(domain, set.Domains()))+"; its requests are "+p.verdictOnUnknown(),
			"domain",
			domain)
	}
}

// verdictOnUnknown says what happens to requests for a domain that no rule file declares.
func (p *program) verdictOnUnknown() string {
	if p.c.denyUnknown {
		return "refused"
	}
	return "allowed"
}

// warnOfIdentity warns of rules that count by an attribute which the configuration's identity takes
// from clients without verifying it, or as it is though it lets them in.
func (p *program) warnOfIdentity(set *rule.Set) {
	if len(p.c.identity) > 0 {
		p.warnOf(set, file.UnverifiedIdentity, file.KeptSecret)
	}
}

// warnOfLeases warns of rules that ask for leases where this server lends nothing.
func (p *program) warnOfLeases(set *rule.Set) {
	leased := func(c *rule.Counter) bool { return c.Lease != nil && !c.Lent }
	if p.c.noLeases() != "" && slices.ContainsFunc(set.Counters(), leased) {
		p.warnOf(set, file.UnusedLease)
	}
}

// warnOfQuotas warns of rules that refuse the buckets of Envoys' quotas.
func (p *program) warnOfQuotas(set *rule.Set) {
	if len(p.c.rlqsDomains) > 0 {
		p.warnOf(set, file.QuotaNever)
	}
}

// warnOfRegions warns of rules for several regions where this server is in none, and of rules that
// each region counts for itself where it is in one.
func (p *program) warnOfRegions(set *rule.Set) {
	regional := func(c *rule.Counter) bool { return c.Regions != nil }
	switch {
	case p.c.region != "":
		p.warnOf(set, file.EachRegion)
	case slices.ContainsFunc(set.Counters(), regional):
		p.warnOf(set, file.UnusedRegions)
	}
}

// warnOf logs the warnings of these names.
func (p *program) warnOf(set *rule.Set, names ...string) {
	o := file.LintOptions{Identity: p.c.identity, NoLeases: p.c.noLeases(), NoRegions: p.c.noRegions(),
		Regions: len(p.c.regionWeights), Quotas: p.c.rlqsDomains}
	for _, w := range file.Lint(set, o) {
		if slices.Contains(names, w.Name) {
			p.log.Warn("rules", "problem", w.Error())
		}
	}
}

// warnOfLacking warns of rules that no request through the proxy can meet, because it never has an
// attribute that they need.
func (p *program) warnOfLacking(set *rule.Set) {
	c := p.c
	if c.listen.proxy == "" {
		return
	}
	domain := set.DomainFor(c.domain)
	lacks := set.Lacking(domain, func(attribute string) bool {
		_, identified := c.identity[attribute]
		return identified || httpfield.RequestAttribute(attribute)
	})
	if len(lacks) > 0 {
		p.log.Warn("no request through the proxy can meet "+human.Count(len(lacks), "rule")+
			": it knows method, path, host, ip, "+
			"header.*, query.* and what identity names", "domain", domain, "rules", doors.DescribeLacks(lacks))
	}
}
