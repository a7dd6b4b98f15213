package gather

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// ruleState is what is known of one rule. The Collector's mu guards everything except the gate. A
// rule that nobody meets takes a few words: it shares notCounted and notFollowed with all others.
type ruleState struct {
	gate         *gate
	domain, name string
	definition   uint64
	rule         *rule.Rule // as it is in force
	windows      int        // limits of the rule, including overrides
	brought      bool       // the limits come with the requests
	unfollowed   bool       // there is no memory for more than its counters
	hasCells     bool       // the cells of the gate are among the memory that is taken
	isAsked      bool       // it is in Collector.asked
	fresh        bool       // something was learned since it was judged
	since        time.Time  // by the history file, if it has the rule
	began        int64      // since when this program counts it, Unix
	domainState  *domainState
	domainBefore uint64 // requests of the domain before it began

	alone []aloneCount // of the limits
	had   []aloneCount // under the rules before, while these come into force

	alike   *alikeRules   // with rules that are alike; nil if there are none
	kin     *kin          // the rules that are judged as this one until somebody meets it
	trial   *trial        // nil if the rule is enforced on all keys
	fullest []*fullestUse // of the limits
	spans   []int64       // µs, of the limits; 0 of one on requests in flight

	*ruleCounts
	*ruleFigures
}

// ruleCounts are what is counted of a rule that somebody asks for, or whose expressions fail.
type ruleCounts struct {
	last  gateCounts // the counters of the gate when they were read last
	total [snapshot.Lanes]uint64

	// Failures of if and cost.
	own        failureHistory
	ownFailing failureSource

	ended    insight.Episodes  // of refused keys, that ended on this node; never fewer than before
	verdicts []insight.Verdict // not changed once they are here
	memory   judge.Memory      // of the last judgement
	judged   Judged            // with the verdicts
}

// ruleFigures are what is known of a rule that is followed.
type ruleFigures struct {
	series *series.Series // nil if it is not followed

	size         keptSize
	live, long   [snapshot.TopKinds]topList
	liveAdmitted float64                   // decisions that the lists counted as admitted, fading as they do
	liveDrawn    float64                   // of these, those that were looked at
	eras         [snapshot.Eras]eraFigures // the latest first
	filtered     int                       // keys in the filter of the gate
	minuteKeys   int                       // sampled keys that came in this minute
	minutes      []series.Minute

	examples [snapshot.MostExamples]uint64 // ids of refusals
	example  int
}

// What is known of rules that nobody met. Nothing is ever written to these.
var (
	notCounted  ruleCounts
	notFollowed ruleFigures
)

func newRuleState(number uint32, r *rule.Rule, definition uint64, now time.Time) *ruleState {
	return &ruleState{
		gate: newGate(number), domain: r.Domain, name: r.Name, definition: definition, since: now, began: now.Unix(),
		ruleCounts: &notCounted, ruleFigures: &notFollowed,
	}
}

// isCounted reports whether a rule has counts of its own.
func (s *ruleState) isCounted() bool { return s.ruleCounts != &notCounted }

// refuses reports whether the rule refuses the request of an event, by the event's window or
// another one. If the whole rule is in shadow, it reports whether the rule would refuse. If the
// rule merely is not enforced for the key, there is no refusal.
func (s *ruleState) refuses(e *event) bool {
	return e.flags&flagRuleRefused != 0 || e.flags&flagRuleWould != 0 && s.shadow()
}

// windowRefuses is refuses for the window of the event alone.
func (s *ruleState) windowRefuses(e *event) bool {
	return e.flags&flagRefused != 0 && (e.flags&flagShadow == 0 || s.shadow())
}

// shadow reports whether nothing enforces the rule.
func (s *ruleState) shadow() bool { return modeOf(s.rule) == insight.ModeShadow }

// aloneCount counts the requests that met one limit of the rule and nothing else.
type aloneCount struct {
	*observe.Count
	last *[observe.Outcomes]uint64 // that was read; nil is none
}

// read sums the count over all doors, and returns what came since the last call.
func (a *aloneCount) read() (since [observe.Outcomes]uint64) {
	var sum [observe.Outcomes]uint64
	for _, n := range a.Read() {
		for o := range n {
			sum[o] += n[o]
		}
	}
	if a.last == nil {
		if sum == since {
			return since
		}
		a.last = new([observe.Outcomes]uint64)
	}
	for o := range sum {
		since[o] = sum[o] - a.last[o]
	}
	*a.last = sum
	return since
}

// newCounts returns the counts since the last call, of a rule that is counted.
func (s *ruleState) newCounts() (x gateCounts) {
	sum := s.gate.read()
	for i := range x {
		x[i] = sum[i] - s.last[i]
	}
	s.last = sum
	for i := range s.alone {
		for o, n := range s.alone[i].read() {
			at := roleFirst
			if o := observe.Outcome(o); o == observe.Near || o == observe.Soft {
				at = roleFirstNear
			}
			x[counterOf(at, countedOutcome[o])] += uint32(n)
		}
	}
	return x
}

// follows starts reading the count of a limit: from now on or, if the count began with this rule
// set, from its beginning.
func (s *ruleState) follows(count *observe.Count, generation uint64) {
	if slices.ContainsFunc(s.alone, func(a aloneCount) bool { return a.Count == count }) {
		return
	}
	a := aloneCount{Count: count}
	if i := slices.IndexFunc(s.had, func(a aloneCount) bool { return a.Count == count }); i >= 0 {
		a = s.had[i]
	} else if count.Since != generation {
		a.read()
	}
	s.alone = append(s.alone, a)
}

// place returns where the next limit to be added counts.
func (s *ruleState) place() limitRef {
	if s.windows == len(s.fullest) {
		s.fullest = append(s.fullest, new(fullestUse))
	}
	return limitRef{gate: s.gate, window: uint16(s.windows), fullest: s.fullest[s.windows]}
}

// noteFullest notes the peak use of the limits.
func (s *ruleState) noteFullest() {
	for i := range s.eras[currentEra].windows {
		if i < len(s.fullest) {
			w := &s.eras[currentEra].windows[i]
			w.maxFill = max(w.maxFill, s.fullest[i].take())
		}
	}
}

// addWindow adds a limit with its count.
func (s *ruleState) addWindow(k *rule.Counter, count *observe.Count, generation uint64) {
	s.follows(count, generation)
	s.windows, s.spans = s.windows+1, append(s.spans, spanOf(k))
}

// spanOf returns the window of a limit in µs; 0 for a limit on requests in flight.
func spanOf(k *rule.Counter) int64 {
	if k.Limit == nil || k.Limit.HasSlots() {
		return 0
	}
	return k.Limit.Config().Window.Microseconds()
}

// definitionOf hashes everything that the verdicts of a rule depend on. When it changes, the rule
// starts afresh.
func definitionOf(r *rule.Rule) uint64 {
	h := fnv.New64a()
	windows := func(list []*rule.Window) {
		for _, w := range list {
			if w.Limit != nil {
				fmt.Fprintf(h, "%v %+v;", w.Limit, w.Limit.Config())
			}
		}
	}
	windows(r.Windows)
	for _, c := range r.When {
		fmt.Fprintf(h, "%q:", c.Attribute)
		for _, p := range c.Patterns {
			fmt.Fprintf(h, "%q,", p.Source)
		}
	}
	for i := range r.Overrides {
		fmt.Fprintf(h, "%q", r.Overrides[i].Values)
		windows(r.Overrides[i].Windows)
	}
	for _, p := range r.Schedule {
		fmt.Fprintf(h, "%v %v %v %q", p.Days, p.From, p.Until, p.Allow)
	}
	if r.Elastic != nil {
		fmt.Fprintf(h, "%q %v", r.Elastic.Signal, r.Elastic.Curve)
	}
	if b := r.Ban; b != nil {
		fmt.Fprintf(h, "%v %v %v %v", b.After, b.Within, b.For, b.Domain)
	}
	fmt.Fprintf(h, "%q %q %d %q %d %d %v %d %v", r.If, r.Per, r.Cost, r.CostExpr, r.CostMin, r.EnforcePercent, r.Shadow,
		r.WarnPercent, r.ExactPaths)
	return h.Sum64()
}

// addTop counts an event in the lists of top keys. with is another rule that refused it, "" if none
// did.
func (s *ruleState) addTop(v *veil, e *event, with string) {
	n := uint64(1) << e.weights.top
	if e.flags&flagBanned != 0 {
		// Who asks most is told all the same. All else is about decisions of limits: an operator
		// who bans a key does not make its rule look strict.
		for _, lists := range [...]*[snapshot.TopKinds]topList{&s.live, &s.long} {
			s.addTo(&lists[snapshot.TopAsked], v, e, n)
		}
		return
	}
	refused := s.refuses(e)
	x := &s.eras[currentEra]
	if int(e.window) < len(x.windows) {
		w := &x.windows[e.window]
		if s.windowRefuses(e) {
			w.refused += n
		}
		w.maxFill = max(w.maxFill, e.fill())
	}
	for _, lists := range [...]*[snapshot.TopKinds]topList{&s.live, &s.long} {
		s.addTo(&lists[snapshot.TopAsked], v, e, n)
		if refused {
			s.addTo(&lists[snapshot.TopRefused], v, e, n)
		} else if e.flags&flagRuleNear != 0 {
			s.addTo(&lists[snapshot.TopNear], v, e, n)
		}
	}
	if s.trial != nil && e.flags&flagRuleWould != 0 {
		s.addTo(&s.trial.top, v, e, n)
	}
	if e.flags&flagFirst == 0 {
		return
	}
	x.drawn += n
	if !refused {
		s.liveAdmitted += float64(n)
		s.liveDrawn++
	}
	if refused {
		x.byDoor[e.door] += n
		if with != "" {
			x.with[with] += n
		}
	}
	if e.flags&flagKnown != 0 {
		x.drawnKnown += n
	}
	if refused && e.decision != 0 {
		s.examples[s.example%len(s.examples)] = e.decision
		s.example++
	}
}

// addTo counts an event in a list, once for each request: at the first window of the rule. The
// other windows only show which of them is used most.
func (s *ruleState) addTo(l *topList, v *veil, e *event, n uint64) {
	if e.flags&flagFirst == 0 {
		if k := l.find(e.hash); k != nil && e.fill() > k.now.fill {
			k.now.raise(e.fill(), e.window)
		}
		return
	}
	k, fresh := l.add(e.hash, n)
	if k == nil {
		return
	}
	if fresh {
		k.text = s.appendText(k.text[:0], v, e)
	}
	k.estimated = k.estimated || n > 1
	if e.flags&flagBanned == 0 {
		k.asked += n
	}
	if s.refuses(e) {
		k.refused += n
	}
	k.now.raise(e.fill(), e.window)
	k.at, k.known = e.at, e.flags&flagKnown != 0
}

// fill is the share of the limit that the key has used; more than 1 if it asked for more.
func (e *event) fill() float32 {
	if e.limit == 0 || e.flags&flagBanned != 0 {
		return 0
	}
	used := float32(e.used)
	if e.flags&flagRefused != 0 {
		used += float32(e.asked)
	}
	return used / float32(e.limit)
}

// keyText bounds the text of a key, in bytes.
const keyText = 96

// appendText appends the key of an event as people read it, cut and veiled.
func (s *ruleState) appendText(dst []byte, v *veil, e *event) []byte {
	begin := len(dst)
	if s.isCommand() {
		dst = appendCommandKey(dst, e)
	} else if len(s.rule.Windows) > 0 {
		dst = s.rule.Windows[0].AppendKeyText(dst, e.key[:e.length], v.edit)
	}
	if e.flags&flagCut != 0 && len(dst) > begin {
		dst = append(dst, observe.CutMark...)
	}
	if len(dst)-begin > keyText {
		dst = append(dst[:begin+observe.CutAt(dst[begin:], keyText)], observe.CutMark...)
	}
	return dst
}

// veil hides secrets in keys.
type veil struct {
	seed uint64
	hide []string
}

// edit makes the value in a part of a key, dst[at:], fit to be shown.
func (v *veil) edit(dst []byte, name string, at int) []byte {
	if v.hides(name) {
		return observe.Hide(dst, at, v.seed, observe.ShownDigits)
	}
	return dst
}

func (v *veil) hides(name string) bool { return httpfield.HiddenAttribute(v.hide, name) }
