package rule

import (
	"fmt"
	"strings"
)

// One returns a Set of a single native limit of the default domain: name, what it allows in the scalar notation of
// `allow` ("10/min", "100/15m", "25"), and the attributes that make the counter's key, each as an entry of `per` ("user",
// "user|ip"); without any, the attribute "key". It is what weir.Limit is made of.
func One(name, allow string, per ...string) (*Set, error) {
	if len(per) == 0 {
		per = []string{"key"}
	}
	text := func(s string) *element { return &element{kind: scalarKind, quoted: true, text: s} }
	keys := &element{kind: listKind}
	for _, p := range per {
		keys.items = append(keys.items, text(p))
	}
	limit := &element{kind: mapKind, pairs: []pair{
		{key: text("name"), value: text(name)},
		{key: text("per"), value: keys},
		{key: text("allow"), value: text(allow)},
	}}
	l := &loader{}
	f := &file{domain: DefaultDomain}
	if r := l.limit(limit, f.domain); r != nil {
		f.rules = append(f.rules, r)
	}
	if len(l.errors) > 0 {
		return nil, fmt.Errorf("limit %q: %w", clip(name), Problems(l.errors))
	}
	set, problems := build([]*file{f}, Options{})
	if len(problems) > 0 {
		return nil, fmt.Errorf("limit %q: %w", clip(name), Problems(problems))
	}
	return set, nil
}

// Starter returns the rules that a server starts with when it has none of its own: 10 requests a minute and 500 an hour
// for each value of the attribute "key", in the default domain.
func Starter() Source {
	return Source{Name: "starter.yaml", Data: []byte(strings.TrimLeft(starter, "\n"))}
}

const starter = `
domain: default
limits:
  - name: starter
    per: [key]
    allow: [10/min, 500/hour]
    algorithm: sliding_log
`
