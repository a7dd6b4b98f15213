package gather

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// Failures of expressions (if, cost) are counted. A client can send a request on which 100,000
// alike rules fail at once. So the deciding path counts once for all of them, and the rules share
// the counts over time for as long as they have failed together.

// failureCounter counts failures on the deciding path, of one rule alone or of a group of alike
// rules.
type failureCounter struct {
	n     atomic.Uint64
	first atomic.Pointer[failure] // nil if there is none
}

// failure says why an expression failed.
type failure struct {
	order uint64 // smaller for an expression that failed earlier
	text  string
}

// count counts an expression that failed. order numbers the first failures.
func (f *failureCounter) count(key string, err error, order *atomic.Uint64) {
	if f.first.Load() == nil {
		f.first.CompareAndSwap(nil, &failure{order.Add(1), failureText(key, err)})
	}
	f.n.Add(1)
}

// quotedValue matches a quoted value in an error, which the client sent.
var quotedValue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"(?:[^"\\]|\\.)*"`) })

// failureText says which expression failed, and why. It leaves out quoted values, because everybody
// who sees verdicts sees the text.
func failureText(key string, err error) string {
	text := key + ": " + quotedValue().ReplaceAllString(strings.ToValidUTF8(err.Error(), "\ufffd"), `"…"`)
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '\ufffd'
	}, text)
	const most = 200
	if len(text) > most {
		text = text[:observe.CutAt(text, most)] + observe.CutMark
	}
	return text
}

// failed counts the expressions that failed on a request.
func (t *table) failed(m *rule.Matches, order *atomic.Uint64, asked *askedGates) {
	for _, f := range m.Failures() {
		switch {
		case f.Alike != nil:
			t.alike[f.Alike].count(f.Key, f.Err, order)
		case f.Rule.Index < len(t.gates):
			g := t.gates[f.Rule.Index]
			if g.failing.count(f.Key, f.Err, order); !g.asked.Load() {
				asked.add(g)
			}
		}
	}
}

// failureHistory counts failures over time. The Collector's mu guards it.
type failureHistory struct {
	tally series.Tally // empty until there is one
	first *failure     // of all
}

// failureSource is a counter, with the count that was read last.
type failureSource struct {
	*failureCounter
	last uint64
}

// add reads a counter up to an instant. It returns how many bytes of memory this took, which is 0
// after the first failure.
func (f *failureHistory) add(unix int64, from *failureSource) (took int64) {
	n := from.n.Load()
	if n == from.last {
		return 0
	}
	if !f.tally.HasRoom() {
		f.tally = series.NewTally(600, snapshot.Eras*snapshot.EraLasts/600+1)
		took = f.bytes()
	}
	f.tally.Add(unix, n-from.last)
	from.last = n
	if first := from.first.Load(); f.first == nil || first.order < f.first.order {
		f.first = first
	}
	return took
}

func (f *failureHistory) bytes() int64 {
	return f.tally.Bytes()
}

// alikeRules holds the failures of rules that have failed together so far: they are in the same
// groups of alike rules. A reload may part them, which copies their failures. It may also bring
// other rules into their groups; these get an alike of their own, because they failed less.
type alikeRules struct {
	failureHistory
	before *alikeRules // the alike that it continues; nil for none
	// The counters of their groups. The first old of them belong to the previous rules, which may
	// still make decisions.
	from []failureSource
	old  int
}

// failureSharing finds out which rules of a new table share their failures.
type failureSharing struct {
	roots  map[*alikeRules]*alikeRules // by the alike that they continue
	joined map[joinedGroup]*alikeRules
}

type joinedGroup struct {
	*alikeRules
	group *failureCounter
}

// goOn returns the alike that continues before under the new rules. Those without failures so far
// become one if their groups are the same.
func (x *failureSharing) goOn(before *alikeRules) *alikeRules {
	if before == nil {
		return nil
	}
	var s *alikeRules
	if before.tally.HasRoom() {
		if s = x.roots[before]; s == nil {
			s = &alikeRules{before: before}
			x.roots[before] = s
		}
	}
	for _, f := range before.from[before.old:] {
		s = x.join(s, f)
		s.old = len(s.from)
	}
	return s
}

// join returns the alike for the rules of s that are in group as well. s may be nil.
func (x *failureSharing) join(s *alikeRules, group failureSource) *alikeRules {
	at := joinedGroup{s, group.failureCounter}
	j := x.joined[at]
	if j == nil {
		j = &alikeRules{}
		if s != nil {
			j.before, j.from, j.old = s.before, slices.Clip(s.from), s.old
		}
		j.from = append(j.from, group)
		x.joined[at] = j
	}
	return j
}

// share finds out which rules of a set share their failures, and makes the counters of its groups.
// states are by rule.Rule.Index.
func (c *Collector) share(s *rule.Set, t *table, states []*ruleState) {
	x := failureSharing{map[*alikeRules]*alikeRules{}, map[joinedGroup]*alikeRules{}}
	for _, st := range states {
		st.alike = x.goOn(st.alike)
	}
	t.alike = map[*rule.Alike]*failureCounter{}
	for _, a := range s.Alike() {
		f := &failureCounter{}
		t.alike[a] = f
		for _, r := range a.Rules {
			st := states[r.Index]
			st.alike = x.join(st.alike, failureSource{failureCounter: f})
		}
	}
	c.alike = nil
	seen := map[*alikeRules]bool{nil: true}
	for _, st := range states {
		s := st.alike
		if seen[s] {
			continue
		}
		seen[s] = true
		c.alike = append(c.alike, s)
		if b := s.before; b != nil {
			s.failureHistory, s.before = b.failureHistory, nil
			if seen[b] { // another one has its buckets
				s.tally = b.tally.Clone()
			}
			seen[b] = true
		}
	}
}

// countFailures reads the counts of failures up to an instant. It returns how many bytes of memory
// this took. mu is held.
func (c *Collector) countFailures(unix int64) (took int64) {
	for _, s := range c.alike {
		for i := range s.from {
			took += s.add(unix, &s.from[i])
		}
	}
	for _, s := range c.asked {
		took += s.own.add(unix, &s.ownFailing)
	}
	return took
}

// failuresOf returns how often expressions of a rule failed between two instants, and why the first
// one did; "" if none did.
func (s *ruleState) failuresOf(from, to int64) (n uint64, why string) {
	n = s.own.tally.Sum(from, to)
	first := s.own.first
	if s.alike != nil {
		n += s.alike.tally.Sum(from, to)
		if first == nil || s.alike.first != nil && s.alike.first.order < first.order {
			first = s.alike.first
		}
	}
	if n == 0 {
		return 0, ""
	}
	return n, s.at() + first.text
}

// at returns where the rule is written, to say before what is wrong with it; "" if that is not
// known.
func (s *ruleState) at() string {
	if at := s.rule.Pos; at.File != "" && at.Line > 0 {
		return fmt.Sprintf("%s:%d: ", at.File, at.Line)
	}
	return ""
}
