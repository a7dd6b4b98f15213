package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule"
)

// expect adds the attributes that a rule of the Lyft form needs to those that no request has had so
// far.
func (x *outcome) expect(r *rule.Rule) {
	if r.Lyft == nil {
		return
	}
	if x.unseen == nil {
		x.unseen = map[string]bool{}
	}
	for _, e := range r.Lyft.Path {
		x.unseen[e.Key] = true
	}
}

// look takes those attributes out of x.unseen that a request has.
func (x *outcome) look(a *attributes) {
	if len(x.unseen) == 0 {
		return
	}
	for name, value := range a.All() {
		if value == "" {
			continue
		}
		delete(x.unseen, name)
		if name == "ip" {
			delete(x.unseen, rule.RemoteAddress)
		}
	}
}

// noteUnseen says which rules of the Lyft form no request could meet.
func (rep *Report) noteUnseen(x *outcome) {
	if len(x.unseen) == 0 {
		return
	}
	n := 0
	for _, r := range x.Set.Rules() {
		if r.Domain == x.Domain && r.Lyft != nil && slices.ContainsFunc(r.Lyft.Path, func(e rule.Entry) bool { return x.unseen[e.Key] }) {
			n++
		}
	}
	rules := "1 rule of %s in the Lyft form was met by no request, since none has %s. --fields takes more from a log."
	if n > 1 {
		rules = fmt.Sprint(n) + " rules of %s in the Lyft form were met by no request, since none has %s. --fields takes more from a log."
	}
	names := slices.Sorted(maps.Keys(x.unseen))
	if more := len(names) - 8; more > 0 {
		names = append(names[:8], fmt.Sprintf("%d more", more))
	}
	rep.note(fmt.Sprintf(rules, x.Name, strings.Join(names, ", ")))
}

// inShadow reports whether a rule refuses no request.
func inShadow(r *rule.Rule) bool { return r.Shadow || r.Lyft != nil && r.Lyft.Shadow }
