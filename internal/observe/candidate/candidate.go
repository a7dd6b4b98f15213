// Package candidate follows rules that do not refuse yet, or that refuse on a share of their keys
// only. It compares what such a rule would have done with the live decision: how many requests it
// would have refused, on how many keys, and on which keys most often.
//
// A Tracker makes a Set for each rule set. Set.Count takes in each decision, and Set.Readings
// returns what people see. Counting runs on the deciding path: it waits for no lock and allocates
// nothing. Begin with Tracker; sketch.go holds the two estimates, the number of distinct keys and
// the most frequent keys.
package candidate

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

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// Reading says what a rule in shadow, or one that is enforced on a share of its keys, would have
// done since it came into force on this node.
type Reading struct {
	Domain  string    `json:"domain"`
	Limit   string    `json:"limit"`           // name of the rule
	Enforce int       `json:"enforce_percent"` // of its keys; 0 for a rule in shadow
	Since   time.Time `json:"since"`

	// Requests on keys for which the rule is not enforced, by the rule's verdict and the live
	// decision.
	WouldRefuse uint64 `json:"would_refuse"` // admitted, but not by this rule
	WouldAdmit  uint64 `json:"would_admit"`  // refused, but not by this rule
	BothRefuse  uint64 `json:"both_refuse"`
	BothAdmit   uint64 `json:"both_admit"`
	// Share of these requests that were admitted, and that this rule would refuse; 0 to 1.
	Share float64 `json:"share_would_refuse"`
	// KeysRefused is how many distinct keys it would have refused at least once. It is an estimate:
	// one in three is off by more than 3 %.
	KeysRefused uint64 `json:"keys_would_refuse"`

	// Requests on keys for which it is enforced, by its own verdict.
	EnforcedAdmitted    uint64 `json:"enforced_admitted"`
	EnforcedRefused     uint64 `json:"enforced_refused"`
	EnforcedKeysRefused uint64 `json:"enforced_keys_refused"` // an estimate, as KeysRefused

	// Top are the keys that it would have refused most often, most often first.
	Top []Key `json:"top"`
}

// Key is a key with how often a candidate would have refused it.
type Key struct {
	Key   string `json:"key"`
	Count uint64 `json:"count"`                // at most
	Over  uint64 `json:"count_may_be_over_by"` // by how much Count may be too large
}

// maxWatched bounds how many candidates have their refused keys followed: each takes about 5 KB.
const maxWatched = 1000

// topKeys is how many keys a Reading holds.
const topKeys = 10

// Tracker makes Sets and holds what they share. Make one with New. Safe for concurrent use.
type Tracker struct {
	veil    veil
	watched atomic.Int64 // refusedKeys of the newest Set
}

// New returns a Tracker. It hides the values of the attributes in hide, and of attributes that look
// like secrets.
func New(hide []string) *Tracker {
	return &Tracker{veil: veil{seed: maphash.MakeSeed(), hide: hide}}
}

// Set holds the candidates of one rule set. A nil Set has none. Safe for concurrent use.
type Set struct {
	tracker *Tracker
	list    []*candidate // by rule.Rule.Index; nil for rules that are no candidates
}

// candidate counts. Safe for concurrent use.
type candidate struct {
	domain, limit string
	enforce       int
	definition    string // of the rule: if it changes, counting starts again from 0
	since         time.Time
	// Requests on keys for which it is not enforced, by whether it refuses (first index) and
	// whether the live decision refuses (second index).
	verdicts [2][2]atomic.Uint64
	enforced [2]atomic.Uint64 // of the other keys, by whether it refuses
	keys     [2]atomic.Pointer[refusedKeys]
}

// Indexes of candidate.keys.
const (
	shadowKeys = iota
	enforcedKeys
)

// Of returns the candidates of s, or nil if it has none. A candidate of before whose definition is
// the same goes on counting. Calls must follow each other.
func (t *Tracker) Of(s *rule.Set, before *Set) *Set {
	type name struct{ domain, limit string }
	old := map[name]*candidate{}
	if before != nil {
		for _, c := range before.list {
			if c != nil {
				old[name{c.domain, c.limit}] = c
			}
		}
	}
	var list []*candidate
	watched := int64(0)
	for _, r := range s.Rules() {
		if !isCandidate(r) {
			continue
		}
		if list == nil {
			list = make([]*candidate, len(s.Rules()))
		}
		c := &candidate{domain: r.Domain, limit: r.Name, definition: definition(r), since: time.Now()}
		if !r.Shadow && r.EnforcePercent < 100 {
			c.enforce = r.EnforcePercent
		}
		if kept := old[name{r.Domain, r.Name}]; kept != nil && kept.definition == c.definition {
			c = kept
		}
		watched += c.watched()
		list[r.Index] = c
	}
	t.watched.Store(watched)
	if list == nil {
		return nil
	}
	return &Set{tracker: t, list: list}
}

// isCandidate reports whether r is in shadow, or enforced on a share of its keys only.
func isCandidate(r *rule.Rule) bool {
	shadow := r.Shadow || r.Lyft != nil && r.Lyft.Shadow
	return (shadow || r.EnforcePercent < 100) && len(r.Windows) > 0
}

// definition returns a text that changes whenever the verdicts of a rule may.
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
	fmt.Fprintf(&b, "%q %q %d %q %d %d %v %v %v", r.If, r.Per, r.Cost, r.CostExpr, r.CostMin, r.EnforcePercent, r.Shadow, len(r.Overrides), r.ExactPaths)
	return b.String()
}

// Count counts the verdicts of the candidates among the rules that d met. s must be made of the
// rule set of d.
func (s *Set) Count(d *weir.Decision) {
	if s == nil {
		return
	}
	for i := 0; i < len(d.Limits); {
		first := &d.Limits[i]
		r := first.Window.Rule
		refuses := false
		for at := i; i < len(d.Limits) && d.Limits[i].Window.Rule == r && d.Limits[i].Descriptor == d.Limits[at].Descriptor; i++ {
			refuses = refuses || !d.Limits[i].Allowed
		}
		if r.Index >= len(s.list) || s.list[r.Index] == nil {
			continue
		}
		c := s.list[r.Index]
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
		if keys := s.tracker.keysOf(c, which); keys != nil {
			keys.add(&s.tracker.veil, first.Window, d.Matches.Hits[i-1].Key)
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// keysOf returns the refused keys of c. It returns nil if c has none yet and maxWatched others are
// already followed.
func (t *Tracker) keysOf(c *candidate, which int) *refusedKeys {
	if k := c.keys[which].Load(); k != nil {
		return k
	}
	if t.watched.Load() >= maxWatched {
		return nil
	}
	if c.keys[which].CompareAndSwap(nil, new(refusedKeys)) {
		t.watched.Add(1)
	}
	return c.keys[which].Load()
}

// watched is how many refusedKeys c has.
func (c *candidate) watched() (n int64) {
	for which := range c.keys {
		if c.keys[which].Load() != nil {
			n++
		}
	}
	return n
}

// Verdict is the number of requests that met a candidate, on keys for which it is not enforced,
// with one combination of the candidate's verdict and the live decision.
type Verdict struct {
	Domain, Limit    string
	Refuses, Refused bool // the candidate; the live decision
	Requests         uint64
}

// Verdicts yields the four verdicts of each candidate, in rule order.
func (s *Set) Verdicts(yield func(Verdict) bool) {
	if s == nil {
		return
	}
	for _, c := range s.list {
		if c == nil {
			continue
		}
		for own := range c.verdicts {
			for live := range c.verdicts[own] {
				if !yield(Verdict{c.domain, c.limit, own == 1, live == 1, c.verdicts[own][live].Load()}) {
					return
				}
			}
		}
	}
}

// Readings returns the candidates of a domain in rule order, or of all domains if domain is "".
func (s *Set) Readings(domain string) []Reading {
	list := []Reading{}
	if s == nil {
		return list
	}
	for _, c := range s.list {
		if c != nil && (domain == "" || c.domain == domain) {
			list = append(list, c.read())
		}
	}
	return list
}

func (c *candidate) read() Reading {
	out := Reading{
		Domain: c.domain, Limit: c.limit, Enforce: c.enforce, Since: c.since,
		WouldRefuse: c.verdicts[1][0].Load(), WouldAdmit: c.verdicts[0][1].Load(),
		BothRefuse: c.verdicts[1][1].Load(), BothAdmit: c.verdicts[0][0].Load(),
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
		out.Top = append(out.Top, Key{string(t.text), t.count, t.over})
	}
	slices.SortStableFunc(out.Top, func(x, y Key) int { return cmp.Compare(y.Count, x.Count) })
	out.Top = out.Top[:min(len(out.Top), topKeys)]
	return out
}

// veil hides secrets in keys.
type veil struct {
	seed maphash.Seed // of hashes of keys
	hide []string     // attributes whose values are not shown
}

// edit makes the value in a part of a key, dst[at:], fit to be shown. It cuts a long value, and
// replaces a secret one by a hash that means nothing outside this process.
func (v *veil) edit(dst []byte, name string, at int) []byte {
	end := at + 64
	switch {
	case httpfield.HiddenAttribute(v.hide, name):
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
