package weir

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
)

// Errors of Keys, by errors.Is, beside ErrNotFound, ErrNoInspector and errors of the store. Only
// Hottest returns ErrListing.
var (
	ErrNoSuchLimit = errors.New("weir: there is no such limit")
	ErrBadKey      = errors.New("weir: this is no key of the limit")
	ErrListing     = errors.New("weir: another listing of keys is under way; try again")
)

// namedLimit is a rule with the windows that a name means, each with a counter of its own.
type namedLimit struct {
	rule    *rule.Rule
	windows []*rule.Window
}

// limitsNamed finds the limits of a domain ("" for all) that a name means: a rule's name means all
// of its windows, overrides' included; a window's own name means that window.
func (f *inForce) limitsNamed(domain, name string) []namedLimit {
	var found []namedLimit
	for _, r := range f.names.of(f.set, name) {
		if domain != "" && r.Domain != domain {
			continue
		}
		l := namedLimit{rule: r}
		add := func(windows []*rule.Window) {
			for _, w := range windows {
				if (w.Name == name || r.Name == name) && w.Limit != nil &&
					!slices.ContainsFunc(l.windows, func(have *rule.Window) bool { return have.Counter == w.Counter }) {
					l.windows = append(l.windows, w)
				}
			}
		}
		add(r.Windows)
		for i := range r.Overrides {
			add(r.Overrides[i].Windows)
		}
		if len(l.windows) > 0 {
			found = append(found, l)
		}
	}
	return found
}

// nameOf returns the domain and the name of a limit. Without a domain, the name may hold both, as
// lists show them: shop/login. Else an empty domain means the only one that the rules hold, or of
// several the only one with a limit of this name. The domain is "" if that is none.
func (f *inForce) nameOf(domain, limit string) (_, _ string, err error) {
	if domain != "" {
		return domain, limit, nil
	}
	for i := range len(limit) {
		if limit[i] == '/' && (f.rule(limit[:i], limit[i+1:]) != nil ||
			len(f.limitsNamed(limit[:i], limit[i+1:])) > 0) && i > 0 {
			return limit[:i], limit[i+1:], nil
		}
	}
	if !f.several {
		return f.soleDomain, limit, nil
	}
	switch domains := f.domainsOf(limit); len(domains) {
	case 0:
		return "", limit, nil
	case 1:
		return domains[0], limit, nil
	default:
		return "", limit, &asked{fmt.Errorf("weir: the domains %s have a limit %q each: name one of them, as in %s/%s",
			strings.Join(domains, ", "), limit, domains[0], limit), ErrNoSuchLimit}
	}
}

// domainsOf returns the domains that have a limit of this name, which is the name of a rule or a
// window.
func (f *inForce) domainsOf(limit string) (domains []string) {
	for _, r := range f.names.of(f.set, limit) {
		if !slices.Contains(domains, r.Domain) {
			domains = append(domains, r.Domain)
		}
	}
	return domains
}

// rule finds a rule by its name; nil if there is none.
func (f *inForce) rule(domain, name string) *rule.Rule {
	for _, r := range f.names.of(f.set, name) {
		if r.Name == name && r.Domain == domain {
			return r
		}
	}
	return nil
}

// nameIndex finds rules by their names, and by the names of their windows, overrides' included. It
// is made when it is needed first.
type nameIndex struct {
	once sync.Once
	list []namedRule // sorted by name, and in rule order
}

type namedRule struct {
	name string
	rule *rule.Rule
}

// of returns the rules of a set that have a name, or a window of that name, in rule order.
func (x *nameIndex) of(s *rule.Set, name string) iter.Seq2[int, *rule.Rule] {
	x.once.Do(func() {
		for _, r := range s.Rules() {
			begin := len(x.list)
			add := func(name string) {
				if !slices.ContainsFunc(x.list[begin:], func(n namedRule) bool { return n.name == name }) {
					x.list = append(x.list, namedRule{name, r})
				}
			}
			add(r.Name)
			for _, w := range r.Windows {
				add(w.Name)
			}
			for i := range r.Overrides {
				for _, w := range r.Overrides[i].Windows {
					add(w.Name)
				}
			}
		}
		slices.SortStableFunc(x.list, func(a, b namedRule) int { return strings.Compare(a.name, b.name) })
	})
	at, _ := slices.BinarySearchFunc(x.list, name, func(n namedRule, name string) int { return strings.Compare(n.name, name) })
	return func(yield func(int, *rule.Rule) bool) {
		for i := at; i < len(x.list) && x.list[i].name == name && yield(i, x.list[i].rule); i++ {
		}
	}
}

// ruleNames returns the names of the rules of a domain.
func (f *inForce) ruleNames(domain string) (names []string) {
	for _, r := range f.set.Rules() {
		if r.Domain == domain {
			names = append(names, r.Name)
		}
	}
	return names
}

// ruleNamed finds the rule in force that a domain and a name mean, for bans and grants. These hold
// for a rule with all its windows, so that the name of a window means its rule.
func (l *Limiter) ruleNamed(domain, name string) (*rule.Rule, error) {
	f := l.rules.Load()
	if f == nil {
		return nil, &asked{errors.New("weir: no rules are in force"), ErrNoSuchLimit}
	}
	domain, name, err := f.nameOf(domain, name)
	if err != nil {
		return nil, err
	}
	if domain == "" {
		return nil, f.noSuchLimit(domain, name, true)
	}
	if !f.set.HasDomain(domain) {
		return nil, &asked{fmt.Errorf("weir: no rule file declares the domain %q; there are %s", domain,
			strings.Join(f.set.Domains(), ", ")), ErrNoSuchLimit}
	}
	if r := f.rule(domain, name); r != nil {
		return r, nil
	}
	// Lists call the limit of a rule with several windows by one of them (api:60s).
	if of := f.limitsNamed(domain, name); len(of) == 1 {
		return of[0].rule, nil
	} else if len(of) > 1 {
		return nil, fmt.Errorf("weir: %q is a window of several rules of the domain %q: name the rule", name, domain)
	}
	hint := ""
	if near := suggest.Nearest(name, f.ruleNames(domain)); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return nil, &asked{fmt.Errorf("weir: the domain %q has no limit %q%s", domain, name, hint), ErrNoSuchLimit}
}

// asked is an error in a question. It is the sentinel is, whose text it does not repeat.
type asked struct {
	error
	is error
}

func (e *asked) Is(target error) bool { return target == e.is }

var errNoRules = &asked{errors.New("no rule in force has a limit of this name: there are no rules"), ErrNoSuchLimit}

// noSuchLimit returns the error for a name that means no limit in a domain. It says where the name
// was looked for, and what may have been meant. anyDomain: the question named no domain, and the
// rules hold several.
func (f *inForce) noSuchLimit(domain, limit string, anyDomain bool) error {
	text := "no rule in force has a limit of this name"
	if anyDomain {
		text += "; name one with domain; there are " + strings.Join(f.set.Domains(), ", ")
	} else {
		text += fmt.Sprintf(" in the domain %q", domain)
		if !f.set.HasDomain(domain) {
			text += ", which no rule file declares; there are " + strings.Join(f.set.Domains(), ", ")
		}
	}
	var names []string
	domainOf := map[string]string{}
	for _, r := range f.set.Rules() {
		if _, known := domainOf[r.Name]; !known && (anyDomain || r.Domain == domain) {
			names, domainOf[r.Name] = append(names, r.Name), r.Domain
		}
	}
	near := suggest.Nearest(limit, names)
	switch {
	case near == "":
		text += "; /api/v1/rules lists them"
	case anyDomain:
		text += fmt.Sprintf("; did you mean %q?", domainOf[near]+"/"+near)
	default:
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return &asked{errors.New(text), ErrNoSuchLimit}
}

// keyTarget finds the limits that a name means, and makes a key of its parts. If several rules have
// the name, the first one that the parts fit is meant.
func (l *Limiter) keyTarget(domain, limit string, parts []string) (named namedLimit, key []byte, err error) {
	f := l.rules.Load()
	if f == nil {
		return named, nil, errNoRules
	}
	domain, limit, err = f.nameOf(domain, limit)
	if err != nil {
		return named, nil, err
	}
	if domain == "" {
		return named, nil, f.noSuchLimit(domain, limit, true)
	}
	limits := f.limitsNamed(domain, limit)
	if len(limits) == 0 {
		return named, nil, f.noSuchLimit(domain, limit, false)
	}
	for _, named = range limits {
		var problem error
		if key, problem = named.windows[0].AppendKey(nil, parts); problem == nil {
			return named, key, nil
		}
		err = &asked{fmt.Errorf("key: %w", problem), ErrBadKey}
	}
	return named, nil, err
}
