package sim

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/rule"
)

// A ruleTally gathers the facts of one rule for judge.Judge in a replay.
type ruleTally struct {
	rule    *rule.Rule
	windows []*rule.Window
	facts   judge.Facts
	with    map[*rule.Rule]uint64
	status  [600]uint64 // of the refused requests (or those in shadow), as the log has it
	known   uint64
	okays   uint64 // admitted requests that were answered well
	answers uint64 // admitted requests whose answer tells
	keys    keySample
	scratch judgedKey // for a key that is in no sample
	minute  ruleMinute
}

// judgedKey is one key of a rule.
type judgedKey struct {
	hash           uint64
	asked          uint64
	refused        uint64
	okays, answers uint64
	fill           float64
	own, known     bool
	windows        []judge.Demand
}

// keySample keeps the keys with the smallest hashes: all of them up to its bound, and beyond that a
// uniform sample of at least bound keys (K. Beyer and others, On Synopses for Distinct-Value
// Estimation, SIGMOD 2007).
type keySample struct {
	bound int
	most  uint64 // hashes above were dropped; 0: none
	index map[uint64]*judgedKey
	// Refused keys have a sample of their own: a sample of all keys holds few of them.
	refusedMost uint64
	refused     map[uint64]*judgedKey
}

// sampleBound is how many keys the rules of a set share among them, and fewestSampled the least for
// each rule.
const (
	sampleBound   = 1 << 16
	fewestSampled = 1 << 8
)

func newRuleTally(r *rule.Rule, bound int) *ruleTally {
	t := &ruleTally{rule: r,
		keys: keySample{bound: bound, index: map[uint64]*judgedKey{}, refused: map[uint64]*judgedKey{}}}
	f := &t.facts
	f.Domain, f.Rule, f.File, f.Line, f.Replay, f.OKShare = r.Domain, r.Name, r.Pos.File, r.Pos.Line, true, -1
	f.Mode = "enforce"
	switch {
	case inShadow(r):
		f.Mode = "shadow"
	case r.Lyft != nil && r.Lyft.Quota:
		f.Mode = "quota"
	}
	for _, k := range r.Per {
		f.Per = append(f.Per, k...)
	}
	if r.Lyft != nil {
		for _, e := range r.Lyft.Path {
			if e.Value == "" {
				f.Per = append(f.Per, e.Key)
			}
		}
	}
	for _, w := range r.Windows {
		if w.Limit != nil {
			t.windows = append(t.windows, w)
			f.Windows = append(f.Windows, judge.WindowOf(w))
		}
	}
	return t
}

// failed counts an expression of the rule that failed.
func (t *ruleTally) failed(key string, err error) {
	if t.facts.Errors++; t.facts.Errors > 1 {
		return
	}
	t.facts.Error = key + ": " + harmless(err.Error())
	if at := t.rule.Pos; at.File != "" && at.Line > 0 {
		t.facts.Error = at.File + ":" + strconv.Itoa(at.Line) + ": " + t.facts.Error
	}
}

// at returns the key with a hash; nil if it is not in the sample.
func (s *keySample) at(hash uint64, windows int) *judgedKey {
	if k := s.index[hash]; k != nil {
		return k
	}
	if k := s.refused[hash]; k != nil {
		return k // dropped from the sample of all keys
	}
	if s.most > 0 && hash > s.most {
		return nil
	}
	k := &judgedKey{hash: hash, windows: make([]judge.Demand, windows)}
	s.index[hash] = k
	if len(s.index) >= 2*s.bound {
		s.most = keepSmallest(s.index, s.bound)
	}
	return k
}

// refuse notes that a key was refused; k is nil if it is not in the sample of all keys.
func (s *keySample) refuse(hash uint64, k *judgedKey, windows int) *judgedKey {
	if s.refused[hash] != nil || s.refusedMost > 0 && hash > s.refusedMost {
		return k
	}
	if k == nil {
		// Its demand before its first refusal is not known.
		k = &judgedKey{hash: hash, windows: make([]judge.Demand, windows)}
	}
	s.refused[hash] = k
	if len(s.refused) >= 2*s.bound {
		s.refusedMost = keepSmallest(s.refused, s.bound)
	}
	return k
}

// keepSmallest drops all but n keys, and returns the largest hash that stays.
func keepSmallest(keys map[uint64]*judgedKey, n int) uint64 {
	hashes := make([]uint64, 0, len(keys))
	for h := range keys {
		hashes = append(hashes, h)
	}
	slices.Sort(hashes)
	for _, h := range hashes[n:] {
		delete(keys, h)
	}
	return hashes[n-1]
}

// distinct estimates how many different keys there were, with its relative standard error. most is
// the largest hash that is kept, 0 if all are.
func distinct(keys map[uint64]*judgedKey, most uint64) (n, err float64) {
	k := float64(len(keys))
	if most == 0 {
		return k, 0
	}
	// Any threshold that does not depend on the keys behind it will do. The threshold of the last
	// pruning, with all keys below it, makes k larger than the bound.
	return k / (float64(most) / math.MaxUint64), 1 / math.Sqrt(max(k-2, 1))
}

// judged adds a decision to the tallies of the rules that it met.
func (x *outcome) judged(d *weir.Decision, e *accesslog.Entry, now int64, user bool) {
	status := 0
	if text := e.Get(accesslog.FieldStatus); len(text) == 3 {
		status, _ = strconv.Atoi(string(text))
	}
	x.answers.note(now, status)
	x.refusing = x.refusing[:0]
	for i := 0; i < len(d.Limits); {
		// The limits of one rule and key stand together.
		r := d.Limits[i].Window.Rule
		end := i + 1
		for end < len(d.Limits) && d.Limits[end].Window.Rule == r &&
			string(d.Matches.Hits[end].Key) == string(d.Matches.Hits[i].Key) {
			end++
		}
		if t := x.tallies[r]; t != nil {
			t.add(&x.answers, d, i, end, now, status, user)
			if t.refused(d, i, end) && !slices.Contains(x.refusing, t) {
				x.refusing = append(x.refusing, t)
			}
		}
		i = end
	}
	if d.Banned.Rule != nil {
		return
	}
	for _, t := range x.refusing {
		f := &t.facts
		f.Refused++
		if status >= 100 && status < 600 {
			t.status[status]++
		}
		if len(x.refusing) == 1 {
			f.Alone++
			continue
		}
		if t.with == nil {
			t.with = map[*rule.Rule]uint64{}
		}
		for _, other := range x.refusing {
			if other != t {
				t.with[other.rule]++
			}
		}
	}
}

// refused reports whether one of the limits from i to end refuses the request.
func (t *ruleTally) refused(d *weir.Decision, i, end int) bool {
	for ; i < end; i++ {
		if d.Refuses(&d.Limits[i]) {
			return true
		}
	}
	return false
}

// add counts a decision, whose limits from i to end belong to the rule.
func (t *ruleTally) add(a *answers, d *weir.Decision, i, end int, now int64, status int, user bool) {
	f := &t.facts
	f.Met++
	if user {
		t.known++
	}
	hash := xxhash.Sum64(d.Matches.Hits[i].Key)
	if hash == 0 {
		hash = 1
	}
	banned := d.Banned.Rule != nil
	denied, shadow, soft, near := false, false, false, false
	for n := i; n < end && !banned; n++ {
		l := &d.Limits[n]
		denied = denied || d.Refuses(l)
		shadow = shadow || l.Mode == rule.Shadow && !l.Allowed
		soft = soft || l.Allowed && l.Soft && (d.Allowed || l.Mode == rule.Shadow)
		near = near || l.Allowed && l.Near && (d.Allowed || l.Mode == rule.Shadow)
	}
	switch {
	case banned:
		f.Banned++
	case shadow:
		f.WouldRefuse++
		if status >= 100 && status < 600 {
			t.status[status]++
		}
	case denied:
	case soft:
		f.Soft++
	case near:
		f.Near++
	}
	// As in a server: if the rule is enforced for other keys, a refusal that is not enforced for
	// this one is none.
	refused := denied || shadow && f.Mode == "shadow"
	t.met(a, hash, refused)
	k := t.keys.at(hash, len(t.windows))
	if refused {
		k = t.keys.refuse(hash, k, len(t.windows))
	}
	if k == nil {
		k = &t.scratch
		*k = judgedKey{windows: k.windows[:0]}
	}
	k.hash = hash
	k.asked += uint64(max(d.Matches.Hits[i].Cost, 0))
	k.known = k.known || user
	if refused {
		k.refused++
		f.TopRefused = max(f.TopRefused, k.refused)
	}
	if well, tells := judge.AnsweredWell(status); d.Allowed && tells {
		k.answers++
		t.answers++
		if well {
			k.okays++
			t.okays++
		}
	}
	for n := i; n < end; n++ {
		t.window(k, d, n, now, banned)
	}
	f.MaxFill = max(f.MaxFill, k.fill)
}

// window counts the demand of a key in one window.
func (t *ruleTally) window(k *judgedKey, d *weir.Decision, n int, now int64, banned bool) {
	l, h := &d.Limits[n], &d.Matches.Hits[n]
	at := slices.IndexFunc(t.facts.Windows, func(w judge.WindowFacts) bool { return w.Name == l.Window.Name })
	if at < 0 {
		return
	}
	w := &t.facts.Windows[at]
	k.own = k.own || h.Limit != l.Window.Limit || l.Window != t.windows[at]
	fill := 0.0
	limit := float64(max(l.Limit, 1))
	if a := l.Window.Limit.Algorithm(); a.HasSlots() || a.HasBurst() {
		fill = float64(l.Limit-l.Remaining) / limit
	}
	if w.Window > 0 && at < len(k.windows) {
		units := k.windows[at].Add(now, w.Window.Microseconds(), max(h.Cost, 0))
		if !l.Window.Limit.Algorithm().HasBurst() {
			fill = float64(units) / limit
		}
	}
	if !l.Allowed && !banned {
		if l.Mode == rule.Shadow && t.facts.Mode == "shadow" || d.Refuses(l) {
			w.Refused++
		}
		fill = max(fill, 1+1/limit)
	}
	k.fill, w.MaxFill = max(k.fill, fill), max(w.MaxFill, fill)
}

// finish returns the facts of the rule over the log.
func (t *ruleTally) finish(r *replay, text string) *judge.Facts {
	f := &t.facts
	f.From, f.To = time.UnixMicro(r.from).UTC(), time.UnixMicro(r.to).UTC()
	f.Since, f.DomainMet, f.Text, f.Known, f.Identity = f.From, uint64(r.count), text, t.known,
		[]string{accesslog.FieldUser}
	if t.answers > 0 {
		f.OKShare = float64(t.okays) / float64(t.answers)
	}
	for other, n := range t.with {
		f.With = append(f.With, insight.Count{Value: other.Name, Count: n})
	}
	slices.SortFunc(f.With, func(a, b insight.Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Value, b.Value))
	})
	f.Keys, f.KeysError = distinct(t.keys.index, t.keys.most)
	f.KeysRefused, f.RefusedError = distinct(t.keys.refused, t.keys.refusedMost)
	f.Sample, f.RefusedSample = keyFacts(t.keys.index), keyFacts(t.keys.refused)
	return f
}

func keyFacts(keys map[uint64]*judgedKey) []judge.KeyFacts {
	list := make([]judge.KeyFacts, 0, len(keys))
	for _, k := range keys {
		x := judge.KeyFacts{Hash: k.hash, Asked: k.asked, Refused: k.refused, Fill: k.fill, Own: k.own, Known: k.known,
			OK: -1}
		if k.answers > 0 {
			x.OK = float64(k.okays) / float64(k.answers)
		}
		for i := range k.windows {
			x.Demand = append(x.Demand, k.windows[i].Peak())
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b judge.KeyFacts) int { return cmp.Compare(a.Hash, b.Hash) })
	return list
}

// byStatus lists the refused requests by their status in the log, most first.
func (t *ruleTally) byStatus() []insight.Count {
	list := []insight.Count{}
	for status, n := range t.status {
		if n > 0 {
			list = append(list, insight.Count{Value: strconv.Itoa(status), Count: n})
		}
	}
	slices.SortStableFunc(list, func(a, b insight.Count) int { return cmp.Compare(b.Count, a.Count) })
	return list
}

// spread is a sample of the requests of a log, spread evenly over it, to find out why a rule is
// never met.
type spread struct {
	entries []accesslog.Entry
	stride  int64 // one in so many requests is kept
}

const spreadEntries = 256

// add looks at the n-th request, counted from 0.
func (s *spread) add(n int64, e *accesslog.Entry) {
	if s.stride = max(s.stride, 1); n%s.stride != 0 {
		return
	}
	if len(s.entries) == spreadEntries {
		for i := range spreadEntries / 2 {
			s.entries[i] = s.entries[2*i]
		}
		s.entries = s.entries[:spreadEntries/2]
		if s.stride *= 2; n%s.stride != 0 {
			return
		}
	}
	kept := accesslog.Entry{Time: e.Time}
	for _, f := range e.Fields {
		kept.Fields = append(kept.Fields,
			accesslog.Field{Name: f.Name, Value: slices.Clone(f.Value[:min(len(f.Value), maxValue)])})
	}
	s.entries = append(s.entries, kept)
}

// unmet says why no request met a rule, for each such rule.
func (x *outcome) unmet(s *spread) {
	whys := map[*ruleTally][]rule.Reason{}
	any := false
	for _, t := range x.tallies {
		any = any || t.facts.Met == 0
	}
	if !any || len(x.tallies) > explainedRules {
		return
	}
	for i := range s.entries {
		for _, reason := range x.Set.Explain(&rule.Query{Domain: x.Domain,
			Attributes: &attributes{entry: &s.entries[i]}}) {
			if t := x.tallies[reason.Rule]; t != nil && t.facts.Met == 0 && reason.Why != "" {
				reason.Why, reason.Hits = harmless(reason.Why), nil
				whys[t] = append(whys[t], reason)
			}
		}
	}
	for t, list := range whys {
		t.facts.Unmet = judge.UnmetOf(list)
	}
}

// explainedRules is the number of rules up to which explaining takes no noticeable time.
const explainedRules = 2000

// byRule reports on each rule of the domain.
func (x *outcome) byRule(r *replay) []insight.RuleReport {
	reports := []insight.RuleReport{}
	x.unmet(&r.spread)
	x.answers.end()
	for _, rl := range x.Set.Rules() {
		t := x.tallies[rl]
		if t == nil {
			continue
		}
		report := t.finish(r, x.Texts[rl.Pos.File]).Report(judge.Thresholds{})
		report.By = map[string][]insight.Count{"status": t.byStatus()}
		reports = append(reports, report)
	}
	return reports
}
