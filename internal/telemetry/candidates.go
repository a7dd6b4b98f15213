package telemetry

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// A candidate is a rule in shadow, or one that is enforced on a share of its keys: it says beside the live decision what it
// would have decided itself.

var descCandidates = prometheus.NewDesc("weir_candidate_decisions_total",
	"Requests that met a rule in shadow (on those of its keys on which it is not enforced), by what that rule would have done and by what was done.",
	[]string{"domain", "limit", "candidate", "live"}, nil)

// Candidate is a reading of what a rule in shadow, or one that is enforced on a share of its keys, would have done.
type Candidate struct {
	Domain  string
	Limit   string // name of the rule
	Enforce int    // percent of keys on which it is enforced; 0 for a rule in shadow
	Since   time.Time

	// Requests with keys on which it is not enforced, by what it would have done and what was done.
	WouldRefuse uint64 // that were admitted
	WouldAdmit  uint64 // that were refused, by other limits
	BothRefuse  uint64
	BothAdmit   uint64
	// Share of these requests that were admitted and would be refused if it was enforced; 0 to 1.
	Share       float64
	KeysRefused uint64 // distinct keys that it would have refused at least once; an estimate, of which one in three is off by more than 3 %

	// Requests with keys on which it is enforced, by its own verdict.
	EnforcedAdmitted    uint64
	EnforcedRefused     uint64
	EnforcedKeysRefused uint64

	// Top are the keys that it would have refused most often, most often first.
	Top []CandidateKey
}

// CandidateKey is a key with how often a candidate would have refused it. It is an alias, so that readings can be converted to
// other types of the same make.
type CandidateKey = struct {
	Key   string
	Count uint64 // at most
	Over  uint64 // by how much Count may be too large
}

// candidate counts. Safe for concurrent use.
type candidate struct {
	domain, limit string
	enforce       int
	definition    string // of the rule: another one starts from 0
	since         time.Time
	verdicts      [2][2]atomic.Uint64 // of keys on which it is not enforced, by whether it refuses, and whether the decision is a refusal
	enforced      [2]atomic.Uint64    // of the other keys
	keys          [2]atomic.Pointer[refusedKeys]
}

// Which keys a verdict is about; indexes of candidate.keys.
const (
	shadowKeys = iota
	enforcedKeys
)

// maxCandidateKeys bounds how many candidates have their keys looked at: what each keeps takes about 5 KB.
const maxCandidateKeys = 1000

// candidatesOf makes the candidates of s, by rule.Rule.Index, with nil for other rules; nil if there are none. Those whose rule
// is the same as in old go on.
func candidatesOf(s *rule.Set, old []*candidate) []*candidate {
	type name struct{ domain, limit string }
	before := map[name]*candidate{}
	for _, c := range old {
		if c != nil {
			before[name{c.domain, c.limit}] = c
		}
	}
	var list []*candidate
	for _, r := range s.Rules() {
		if !r.Shadow && r.EnforcePercent >= 100 && (r.Lyft == nil || !r.Lyft.Shadow) || len(r.Windows) == 0 {
			continue
		}
		if list == nil {
			list = make([]*candidate, len(s.Rules()))
		}
		c := &candidate{domain: r.Domain, limit: r.Name, definition: definition(r), since: time.Now()}
		if !r.Shadow && r.EnforcePercent < 100 {
			c.enforce = r.EnforcePercent
		}
		if kept := before[name{r.Domain, r.Name}]; kept != nil && kept.definition == c.definition {
			c = kept
		}
		list[r.Index] = c
	}
	return list
}

// definition is what a rule's verdicts depend on.
func definition(r *rule.Rule) string {
	var b strings.Builder
	for _, w := range r.Windows {
		if w.Limit != nil {
			fmt.Fprintf(&b, "%+v ", w.Limit.Config())
		}
	}
	for _, c := range r.When {
		fmt.Fprintf(&b, "%q:", c.Attribute)
		for _, p := range c.Patterns {
			fmt.Fprintf(&b, "%q,", p.Source)
		}
	}
	fmt.Fprintf(&b, "%q %q %d %q %d %v %v", r.If, r.Per, r.Cost, r.CostExpr, r.EnforcePercent, r.Shadow, len(r.Overrides))
	return b.String()
}

// countCandidates counts the verdicts of the candidates among the rules that d met. list is by rule.Rule.Index.
func (m *Metrics) countCandidates(list []*candidate, d *weir.Decision) {
	for i := 0; i < len(d.Limits); {
		first := &d.Limits[i]
		r := first.Window.Rule
		refuses := false
		for at := i; i < len(d.Limits) && d.Limits[i].Window.Rule == r && d.Limits[i].Descriptor == d.Limits[at].Descriptor; i++ {
			refuses = refuses || !d.Limits[i].Allowed
		}
		if r.Index >= len(list) || list[r.Index] == nil {
			continue
		}
		c := list[r.Index]
		which := shadowKeys
		if first.Mode == rule.Shadow {
			c.verdicts[bit(refuses)][bit(!d.Allowed)].Add(1)
		} else {
			which = enforcedKeys
			c.enforced[bit(refuses)].Add(1)
		}
		if !refuses || i-1 >= len(d.Matches.Hits) {
			continue
		}
		if keys := m.keysOf(c, which); keys != nil {
			keys.add(&m.veil, first.Window, d.Matches.Hits[i-1].Key)
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// keysOf returns what c keeps of the keys that it refuses; nil if too many candidates keep something.
func (m *Metrics) keysOf(c *candidate, which int) *refusedKeys {
	if k := c.keys[which].Load(); k != nil {
		return k
	}
	if m.candidateKeys.Load() >= maxCandidateKeys {
		return nil
	}
	k := new(refusedKeys)
	if c.keys[which].CompareAndSwap(nil, k) {
		m.candidateKeys.Add(1)
	}
	return c.keys[which].Load()
}

// countKeys counts the refusedKeys of list.
func countKeys(list []*candidate) (n int64) {
	for _, c := range list {
		if c == nil {
			continue
		}
		for which := range c.keys {
			if c.keys[which].Load() != nil {
				n++
			}
		}
	}
	return n
}

// topKeys is how many keys a reading tells of.
const topKeys = 10

// Candidates returns a reading of the candidates in force, in rule order; those of one domain, unless that is "".
func (m *Metrics) Candidates(domain string) []Candidate {
	list := []Candidate{}
	for _, c := range m.tables.Load().now.candidates {
		if c != nil && (domain == "" || c.domain == domain) {
			list = append(list, c.read())
		}
	}
	return list
}

func (c *candidate) read() Candidate {
	out := Candidate{
		Domain: c.domain, Limit: c.limit, Enforce: c.enforce, Since: c.since,
		WouldRefuse: c.verdicts[1][0].Load(), WouldAdmit: c.verdicts[0][1].Load(), BothRefuse: c.verdicts[1][1].Load(), BothAdmit: c.verdicts[0][0].Load(),
		EnforcedAdmitted: c.enforced[0].Load(), EnforcedRefused: c.enforced[1].Load(),
	}
	if all := out.WouldRefuse + out.WouldAdmit + out.BothRefuse + out.BothAdmit; all > 0 {
		out.Share = float64(out.WouldRefuse) / float64(all)
	}
	if k := c.keys[enforcedKeys].Load(); k != nil {
		out.EnforcedKeysRefused = k.distinct.estimate()
	}
	k := c.keys[shadowKeys].Load()
	if k == nil {
		return out
	}
	out.KeysRefused = k.distinct.estimate()
	k.top.mu.Lock()
	defer k.top.mu.Unlock()
	for i := range k.top.n {
		t := &k.top.keys[i]
		out.Top = append(out.Top, CandidateKey{string(t.text), t.count, t.over})
	}
	slices.SortStableFunc(out.Top, func(x, y CandidateKey) int { return cmp.Compare(y.Count, x.Count) })
	out.Top = out.Top[:min(len(out.Top), topKeys)]
	return out
}

// collectCandidates sends the candidates as metrics.
func (t *table) collectCandidates(counter func(d *prometheus.Desc, v uint64, labels ...string)) {
	names := [2]string{outcomeNames[allowed], outcomeNames[denied]}
	for _, c := range t.candidates {
		if c == nil {
			continue
		}
		for own := range c.verdicts {
			for live := range c.verdicts[own] {
				counter(descCandidates, c.verdicts[own][live].Load(), label(c.domain), label(c.limit), names[own], names[live])
			}
		}
	}
}

// veil hides what is secret of keys.
type veil struct {
	seed maphash.Seed // of hashes of keys
	hide []string     // Options.Hide
}

// edit makes the value of a part of a key fit to be shown, dst[at:]: it is cut, and one that is secret becomes a hash that
// means nothing outside this process.
func (v *veil) edit(dst []byte, name string, at int) []byte {
	end := at + 64
	switch {
	case rule.SecretAttribute(name) || slices.Contains(v.hide, name):
		sum := maphash.Bytes(v.seed, dst[at:])
		return strconv.AppendUint(append(dst[:at], "hidden:"...), sum>>32, 16)
	case len(dst) > end:
		for end > at && !utf8.RuneStart(dst[end]) {
			end--
		}
		return append(dst[:end], "…"...)
	}
	return dst
}
