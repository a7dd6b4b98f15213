package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// ErrDiffers says that a snapshot answers another question.
var ErrDiffers = errors.New("it answers another question")

// SkewError says that a node's clock is too far from this node's for their snapshots to merge.
type SkewError struct {
	Ahead time.Duration // of the clock of this node; below 0 it is behind
}

func (e *SkewError) Error() string {
	return fmt.Sprintf("its clock is %v ahead of this node's", e.Ahead)
}

// Fit checks that x, of another node, merges with s, of this one: both must cover the same time in
// the same steps. It drops the rules of x that s does not have or defines otherwise, and all but a
// few domains that s does not have. So a snapshot that waits to be merged takes no more memory than
// s. It returns the rules that both do not define alike, MostApart at most.
func (s *Snapshot) Fit(x *Snapshot) (differ []insight.RuleDiffers, err error) {
	if x.Step != s.Step || x.Over != s.Over {
		return nil, ErrDiffers
	}
	const most = int64(MostSkew / time.Second)
	if apart := x.Time - s.Time; max(apart, -apart) > most {
		const century = 100 * 365 * 24 * 60 * 60 // more than two of them do not fit into a Duration
		return nil, &SkewError{time.Duration(max(min(apart, century), -century)) * time.Second}
	}
	if apart := x.From - s.From; max(apart, -apart) > most+s.Step {
		return nil, ErrDiffers
	}
	type name struct{ domain, rule string }
	own := make(map[name]*Rule, len(s.Rules))
	for i := range s.Rules {
		own[name{s.Rules[i].Domain, s.Rules[i].Name}] = &s.Rules[i]
	}
	note := func(here, there *Rule) {
		r := cmp.Or(here, there)
		if len(differ) < insight.MostApart && !r.Brought {
			differ = append(differ, insight.RuleDiffers{Node: x.Node, Domain: r.Domain, Rule: r.Name,
				Here: here.allows(), There: there.allows()})
		}
	}
	x.Rules = slices.Clip(slices.DeleteFunc(x.Rules, func(r Rule) bool {
		at := name{r.Domain, r.Name}
		have := own[at]
		delete(own, at)
		if have != nil && have.Definition == r.Definition {
			return false
		}
		note(have, &r)
		return true
	}))
	for i := range s.Rules { // x lacks those that are left
		if r := &s.Rules[i]; own[name{r.Domain, r.Name}] != nil {
			note(r, nil)
		}
	}
	domains := map[string]bool{}
	for i := range s.Domains {
		domains[s.Domains[i].Name] = true
	}
	strange := 0
	x.Domains = slices.DeleteFunc(x.Domains, func(d Domain) bool {
		if domains[d.Name] {
			return false
		}
		strange++
		return strange > MostStrange
	})
	return differ, nil
}

// allows returns the limits of a rule in words; "" for no rule.
func (r *Rule) allows() string {
	if r == nil {
		return ""
	}
	var list []string
	for _, w := range r.Windows {
		list = append(list, w.Allows)
	}
	return cmp.Or(human.List(list, "and"), "no limit")
}
