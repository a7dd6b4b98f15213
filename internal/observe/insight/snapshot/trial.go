package snapshot

import (
	"context"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// Trial counts requests that met a rule in shadow, or one that is enforced on a share of its keys,
// since it came into force. It is zero for other rules.
type Trial struct {
	Since   int64 // Unix seconds
	Enforce int   // percent of the keys; 0 in shadow

	// On keys for which the rule is not enforced, by its verdict and the live decision.
	WouldRefuse, WouldAdmit, BothRefuse, BothAdmit uint64
	// On the other keys.
	EnforcedAdmitted, EnforcedRefused uint64
}

func (t *Trial) counts() [6]*uint64 {
	return [...]*uint64{&t.WouldRefuse, &t.WouldAdmit, &t.BothRefuse, &t.BothAdmit, &t.EnforcedAdmitted,
		&t.EnforcedRefused}
}

// merge adds the requests of another node.
func (t *Trial) merge(x *Trial) {
	if x.Since != 0 {
		t.Since = min(t.Since, x.Since)
	}
	theirs := x.counts()
	for i, n := range t.counts() {
		*n += *theirs[i]
	}
}

// Candidate returns the trial as the API has it, without figures of keys.
func (t *Trial) Candidate(domain, name string) insight.Candidate {
	c := insight.Candidate{
		Domain: domain, Limit: name, Enforce: t.Enforce, Since: unixTime(t.Since),
		WouldRefuse: t.WouldRefuse, WouldAdmit: t.WouldAdmit, BothRefuse: t.BothRefuse, BothAdmit: t.BothAdmit,
		EnforcedAdmitted: t.EnforcedAdmitted, EnforcedRefused: t.EnforcedRefused, Top: []insight.CandidateKey{},
	}
	if all := c.WouldRefuse + c.WouldAdmit + c.BothRefuse + c.BothAdmit; all > 0 {
		c.Share = float64(c.WouldRefuse) / float64(all)
	}
	return c
}

// candidate returns the trial as the API has it, without Top.
func (r *Rule) candidate() insight.Candidate {
	c := r.Trial.Candidate(r.Domain, r.Name)
	c.KeysRefused = uint64(r.Summary.KeysRefused + 0.5)
	if c.Enforce > 0 {
		c.KeysRefused, c.EnforcedKeysRefused = uint64(r.Summary.KeysWould+0.5), c.KeysRefused
	}
	return c
}

// candidateKeys is how many keys a Candidate names.
const candidateKeys = 10

// Candidates implements insight.Reader.
func (v *View) Candidates(ctx context.Context, domain string) ([]insight.Candidate, insight.Nodes, error) {
	s, nodes, err := v.ask(ctx, wantAll(domain, 0))
	if err != nil {
		return nil, nodes, err
	}
	list := []insight.Candidate{}
	for i := range s.Rules {
		r := &s.Rules[i]
		if r.Trial.Since == 0 {
			continue
		}
		c, keys := r.candidate(), r.Long[TopRefused]
		if c.Enforce > 0 {
			keys = r.WouldTop
		}
		for _, k := range keys[:min(len(keys), candidateKeys)] {
			c.Top = append(c.Top, insight.CandidateKey{Key: k.Text, Count: k.Count, Over: k.Over})
		}
		list = append(list, c)
	}
	return list, nodes, nil
}
