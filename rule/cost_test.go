package rule

import (
	"fmt"
	"testing"
)

// MatchNow does what Match does, or says that it takes too long: where hundreds of rules are tried
// or met, and only on requests on which they are.
func TestMatchNow(t *testing.T) {
	plain := func(n int, conditions ...string) []*Rule {
		return scaled(t, n, nil, conditions...).rules
	}
	patterns := func(n int, form string) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf(form, i+1))
		}
		return list
	}
	one := func(conditions ...Condition) []*Rule { return []*Rule{testRule(t, "a").when(conditions...)} }
	regexps, exprs := looseKinds[0].rules(t, 1000, 0), looseKinds[1].rules(t, 100, 0)
	for _, c := range []struct {
		name string
		file *File
		q    Map
		slow bool
	}{
		{"no rules", &File{}, Map{"path": "/"}, false},
		{"told apart", &File{Rules: plain(10_000, "path=/p/#/**")}, Map{"path": "/p/7/x"}, false},
		{"regexps", &File{Rules: regexps}, Map{"user": "x"}, true},
		{"regexps on another attribute", &File{Rules: regexps}, Map{"path": "/"}, false},
		{"few regexps", &File{Rules: regexps[:100]}, Map{"user": "x"}, false},
		{"expressions", &File{Rules: exprs}, Map{"path": "/"}, true},
		{"few expressions", &File{Rules: exprs[:20]}, Map{"path": "/"}, false},
		{"all are met", &File{Rules: plain(1000)}, Map{}, true},
		{"some are met", &File{Rules: plain(100)}, Map{}, false},
		{"the same value", &File{Rules: plain(1000, "path=/p")}, Map{"path": "/p"}, true},
		{"another value", &File{Rules: plain(1000, "path=/p")}, Map{"path": "/q"}, false},
		{"negated regexps", &File{Rules: plain(300, "user=!~[a-z]{3}[0-9]")}, Map{"user": "x"}, true},
		{"one list", &File{Rules: one(on(t, "user", patterns(999, "~^[a-z]{%d}[0-9]*$")...))}, Map{"user": "x"}, true},
		{"one list with literals", &File{Rules: one(on(t, "user", patterns(999, "~^x%d[0-9]*$")...))}, Map{"user": "x"}, false},
		{"exempt", &File{Rules: one(), Exempt: []Condition{on(t, "user", patterns(999, "~^[a-z]{%d}[0-9]*$")...)}}, Map{}, true},
	} {
		for _, r := range c.file.Rules {
			r.compiled = nil
		}
		s := testSet(t, c.file)
		var now, m Matches
		q := &Query{Domain: "default", Attributes: c.q}
		done := s.MatchNow(q, &now)
		if done == c.slow {
			t.Errorf("%s: done %v", c.name, done)
		}
		s.Match(q, &m)
		if done && met(&now) != met(&m) {
			t.Errorf("%s: met %q now, %q else", c.name, met(&now), met(&m))
		}
		s.Match(q, &now) // what was given up leaves no trace
		if met(&now) != met(&m) || now.looked != m.looked {
			t.Errorf("%s: met %q after MatchNow, %q else", c.name, met(&now), met(&m))
		}
	}
}
