package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrDiffers says that a snapshot answers another question.
var ErrDiffers = errors.New("it answers another question")

// SkewError says that a node's clock is too far from this node's for their snapshots to merge.
type SkewError struct {
	Ahead time.Duration // of the clock of this node; below 0 it is behind
}

func (e *SkewError) Error() string {
	return fmt.Sprintf("its clock is %v ahead of that of this node", e.Ahead)
}

// Fit checks that x, of another node, merges with s, of this one: both must cover the same time in
// the same steps. It drops the rules of x that s does not have or defines otherwise, and all but a
// few domains that s does not have. So a snapshot that waits to be merged takes no more memory than
// s.
func (s *Snapshot) Fit(x *Snapshot) error {
	if x.Step != s.Step || x.Over != s.Over {
		return ErrDiffers
	}
	const most = int64(MostSkew / time.Second)
	if apart := x.Time - s.Time; max(apart, -apart) > most {
		const century = 100 * 365 * 24 * 60 * 60 // more than two of them do not fit into a Duration
		return &SkewError{time.Duration(max(min(apart, century), -century)) * time.Second}
	}
	if apart := x.From - s.From; max(apart, -apart) > most+s.Step {
		return ErrDiffers
	}
	type name struct{ domain, rule string }
	own := make(map[name]uint64, len(s.Rules))
	for i := range s.Rules {
		own[name{s.Rules[i].Domain, s.Rules[i].Name}] = s.Rules[i].Definition
	}
	x.Rules = slices.Clip(slices.DeleteFunc(x.Rules, func(r Rule) bool {
		definition, have := own[name{r.Domain, r.Name}]
		return !have || definition != r.Definition
	}))
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
	return nil
}
