package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
)

// CheckAttributes reports the attributes and the keys of descriptors that the file sends and that
// nothing in the domain could mean: no rule reads them, and no door supplies them of itself. A test
// with a misspelt one would pass without testing anything.
func (f *TestFile) CheckAttributes(set *rule.Set, domain string) error {
	var problems rule.Problems
	read := readBy(set, domain)
	for _, t := range f.Tests {
		for _, s := range t.Steps {
			if s.Send == nil {
				continue
			}
			check := func(what, name string) {
				if v := read.judge(name); v.unread {
					problems = append(problems, rule.Problem{
						Pos: rule.Position{File: f.Name, Line: s.Line},
						Message: fmt.Sprintf("%s: send: no rule of domain %s reads the %s %q", t.Name, domain, what,
							name), Hint: v.hint,
					})
				}
			}
			for _, a := range s.Send.Attributes {
				check("attribute", a.Name)
			}
			for _, d := range s.Send.Descriptors {
				if d.Override != nil {
					continue // it needs no rule
				}
				for _, e := range d.Entries {
					if e.Key != rule.RemoteAddress { // which Envoy sends of itself
						check("descriptor key", e.Key)
					}
				}
			}
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// UnreadAttribute reports whether an attribute looks like a mistake: no rule of the domain reads
// it, and it is not an attribute that any request may have, such as its method or a header unlike
// those that are read. hint says how to correct it.
func UnreadAttribute(set *rule.Set, domain, name string) (hint string, unread bool) {
	v := readBy(set, domain).judge(name)
	return v.hint, v.unread
}

// commonAttributes are the attributes that a request may have even if no rule reads them.
var commonAttributes = []string{"method", "path", "host", "ip", "user"}

// reading holds the attributes that the rules of a domain read.
type reading struct {
	names  []string
	all    bool // any name may be read
	judged map[string]judgement
}

// judgement is the result for one name.
type judgement struct {
	hint   string
	unread bool
}

func readBy(set *rule.Set, domain string) *reading {
	names, all := set.Reads(domain)
	return &reading{names: names, all: all, judged: map[string]judgement{}}
}

// judge says whether a name looks like a mistake. It caches its results: a file sends few names,
// many times.
func (r *reading) judge(name string) judgement {
	v, ok := r.judged[name]
	if !ok {
		v.hint, v.unread = r.look(name)
		r.judged[name] = v
	}
	return v
}

func (r *reading) look(name string) (hint string, unread bool) {
	if _, read := slices.BinarySearch(r.names, name); r.all || read || slices.Contains(commonAttributes, name) {
		return "", false
	}
	if near := suggest.Nearest(name, slices.Concat(r.names, commonAttributes)); near != "" {
		return fmt.Sprintf("did you mean %q?", near), true
	}
	if strings.HasPrefix(name, "header.") || strings.HasPrefix(name, "query.") {
		return "", false
	}
	if len(r.names) == 0 {
		return "the rules read no attribute", true
	}
	const most = 8
	listed := r.names
	if more := len(listed) - most; more > 0 {
		listed = append(listed[:most:most], fmt.Sprintf("%d more", more))
	}
	return "the rules read " + strings.Join(listed, ", "), true
}
