package main

import (
	doors "github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// warnOfLacking warns of rules that no request through the proxy can meet, because it never has an
// attribute that they need.
func (p *program) warnOfLacking(set *rule.Set) {
	c := p.c
	if c.listen.proxy == "" {
		return
	}
	domain := set.DomainFor(c.proxy.Domain)
	lacks := set.Lacking(domain, func(attribute string) bool {
		_, identified := c.identity[attribute]
		return identified || httpfield.RequestAttribute(attribute)
	})
	if len(lacks) > 0 {
		p.log.Warn("no request through the proxy can meet "+count(len(lacks), "rule")+": it knows method, path, host, ip, "+
			"header.*, query.* and what identity names", "domain", domain, "rules", doors.DescribeLacks(lacks))
	}
}
