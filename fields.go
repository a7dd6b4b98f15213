package weir

import "github.com/weir-rl/weir/rule"

// Fields returns the fields of requests by which the rules in force decide in a domain; nil if
// there are none. "" is the domain of requests that name none.
func (l *Limiter) Fields(domain string) *rule.Fields {
	f := l.rules.Load()
	if f == nil {
		return nil
	}
	if domain == "" {
		domain = f.soleDomain
	}
	return f.set.Fields(domain)
}
