package gather

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// This file runs on the deciding path. It counts each decision once for each rule that it met, and
// hands a few decisions over to the goroutine that gathers: hardly any of a flood.
//
// A decision is handed over in three cases.
//   - It was drawn for the lists of top keys: by chance, one in 2^j. Admitted decisions below warn
//     have a j of their own. A random number settles this before anything is hashed.
//   - Its key belongs in a sample and is not there yet: the hash is below the rule's threshold, and
//     the filter does not know it.
//   - Its key is in a sample. Then one decision in 2^i is drawn, where i grows with the key's rate,
//     so that a client that floods is thinned and others are not. Every other decision on a sampled
//     key is looked at, even an admitted one. Otherwise we would not know the key's busiest window.
//
// A decision that was drawn by chance carries its weight, so that estimates stay right.

// outcome is the outcome of a request at one rule.
type outcome uint8

const (
	outcomePassed  outcome = iota
	outcomeNear            // passed, with most of the limit used
	outcomeSoft            // passed, in the soft margin
	outcomeAlone           // refused by nothing but this rule
	outcomeShared          // refused by this rule and others
	outcomeStopped         // passed, and refused by another rule
	outcomeWould           // a rule in shadow would have refused it, and nothing did
	outcomeWouldToo
	outcomeBanned // by a ban of this rule
	outcomes      = iota
)

// role says what a request counts for at a rule. It counts for the domain at the first rule that it
// met, and separately if it was near some limit.
type role uint8

const (
	roleOther role = iota
	roleFirst
	roleFirstNear
	roles = iota
)

// counterOf returns the place of a counter in gateCounts.
func counterOf(r role, o outcome) int { return int(r)*outcomes + int(o) }

// weights say for how many decisions an event stands: 1 << weight of them, in the lists of top keys
// and in the sample of its key. With noWeight it does not count there.
type weights struct{ top, key uint8 }

// Of a rule in shadow, or one that is enforced on a share of its keys, these count the requests
// that it let through: on keys for which it is not enforced, also by whether another rule refused
// them, and on the other keys.
const (
	counterUnenforced = roles*outcomes + iota
	counterUnenforcedStopped
	counterEnforced
	counters
)

// gateCounts are counters that wrap. Readers take differences.
type gateCounts [counters]uint32

// of returns the counters of a role, by outcome.
func (c *gateCounts) of(at role) []uint32 { return c[counterOf(at, 0):counterOf(at+1, 0)] }

// gateCell is a share of the counters of a rule. Decisions that are made at the same time hardly
// ever count in the same one.
type gateCell struct {
	n [counters]atomic.Uint32
	_ [128 - counters*4]byte
}

// gate is the part of a rule's state that the deciding path uses.
type gate struct {
	cells  atomic.Pointer[[]gateCell] // nil before something is counted there
	number uint32
	asked  atomic.Bool // it is in askedGates
	next   *gate       // in askedGates
	// below bounds the hashes of the keys in the samples. A key below belowAll belongs in the
	// sample of all keys. Once it is refused, a key below belowRefused belongs in the sample of
	// refused keys.
	below, belowAll, belowRefused atomic.Uint64
	beyond                        atomic.Uint64 // the largest of the three
	filter                        atomic.Pointer[filter]
	failing                       failureCounter // of the rule alone
}

// noKeys is the filter of all gates without keys. Nothing is ever put into it.
var noKeys = newFilter(64)

func newGate(number uint32) *gate {
	g := &gate{number: number}
	g.belowAll.Store(math.MaxUint64) // the first key that comes begins the samples
	g.belowRefused.Store(math.MaxUint64)
	g.beyond.Store(math.MaxUint64)
	g.filter.Store(noKeys)
	return g
}

// cell returns the cell in which to count a decision. The first decision makes the cells, of which
// there is one if wide, the number of gates that may still have many, has come to 0.
func (g *gate) cell(turn uint64, wide *atomic.Int64) *gateCell {
	cells := g.cells.Load()
	if cells == nil {
		n := 1
		if wide.Add(-1) >= 0 {
			n = observe.Cells()
		}
		some := make([]gateCell, n)
		g.cells.CompareAndSwap(nil, &some)
		cells = g.cells.Load()
	}
	return &(*cells)[turn&uint64(len(*cells)-1)]
}

// bytes returns the memory of the cells.
func (g *gate) bytes() int64 {
	cells := g.cells.Load()
	if cells == nil {
		return 0
	}
	return int64(len(*cells)) * int64(unsafe.Sizeof(gateCell{}))
}

// read sums the counters.
func (g *gate) read() (sum gateCounts) {
	cells := g.cells.Load()
	if cells == nil {
		return sum
	}
	for i := range *cells {
		for k := range sum {
			sum[k] += (*cells)[i].n[k].Load()
		}
	}
	return sum
}

// askedGates are the gates of rules that were asked since they were last taken, each once. The zero
// value is empty. So nobody has to look at rules that are not asked.
type askedGates struct{ first atomic.Pointer[gate] }

// add adds a gate whose asked was false. Hardly any decision comes here.
func (a *askedGates) add(g *gate) {
	if !g.asked.CompareAndSwap(false, true) {
		return
	}
	for {
		g.next = a.first.Load()
		if a.first.CompareAndSwap(g.next, g) {
			return
		}
	}
}

// take empties a, and calls f for each gate.
func (a *askedGates) take(f func(*gate)) {
	for g := a.first.Swap(nil); g != nil; {
		next := g.next
		g.next = nil
		g.asked.Store(false) // from now on it may be added again
		f(g)
		g = next
	}
}

// thinning packs how much is left out at the moment: the powers of 2 for refused and near
// decisions, for admitted ones, for decisions on sampled keys, and for those on sampled refused
// keys. It also holds the low bits of the number of the minute.
type thinning uint64

func (t thinning) refused() uint8 { return uint8(t) }
func (t thinning) quiet() uint8   { return uint8(t >> 8) }
func (t thinning) keys() uint8    { return uint8(t >> 16) }
func (t thinning) watched() uint8 { return uint8(t >> 24) }
func (t thinning) minute() uint32 { return uint32(t>>32) & 0xff << 8 }

func packThinning(refused, quiet, keys, watched uint8, minute int64) thinning {
	return thinning(refused) | thinning(quiet)<<8 | thinning(keys)<<16 | thinning(watched)<<24 | thinning(
		uint8(minute))<<32
}

// answerThin thins answers: at most one in 1 << answerThin is looked at, except on refused keys in
// the sample.
const answerThin = 4

// table finds the gates of one rule set. Immutable.
type table struct {
	set        *rule.Set
	generation uint64
	limits     []limitRef // by rule.Counter.Index
	gates      []*gate    // by rule.Rule.Index
	alike      map[*rule.Alike]*failureCounter
	domains    map[string]*domainGate
	sole       *domainGate // if there is one domain only, soleName
	soleName   string
}

// limitRef is where a limit counts.
type limitRef struct {
	gate    *gate
	window  uint16 // its place in the rule
	shift   uint8  // see unitShift
	fullest *fullestUse
	trial   bool // the rule has one
}

// fullestUse is the largest share of a limit that any key used. Decisions below warn are sampled,
// so the fullest one would often be missed. The lower 32 bits hold the limit, and the upper 32 bits
// the use from which on it is raised; 0 means that nobody used the limit.
//
// It is raised by at least one 256th of the limit. Otherwise a use that grows with each request, as
// of a limit for a month, would be written each time.
type fullestUse struct{ atomic.Uint64 }

// raise notes the use after an admitted decision.
func (f *fullestUse) raise(l *weir.LimitResult) {
	shift := snapshot.UnitShift(l.Limit)
	used, limit := clamp32((l.Limit-l.Remaining)>>shift), clamp32(l.Limit>>shift)
	if v := f.Load(); uint32(v) != limit || used >= uint32(v>>32) {
		f.set(used, limit)
	}
}

func (f *fullestUse) set(used, limit uint32) {
	for limit > 0 {
		old, next := f.Load(), min(uint64(used)+stepOf(limit), math.MaxUint32)
		if float32(used)/float32(limit) <= shareOf(old) || f.CompareAndSwap(old, next<<32|uint64(limit)) {
			return
		}
	}
}

func stepOf(limit uint32) uint64 { return max(uint64(limit)>>8, 1) }

func shareOf(v uint64) float32 {
	if v == 0 {
		return 0
	}
	return float32(v>>32-stepOf(uint32(v))) / float32(uint32(v))
}

// take returns the share, and resets it.
func (f *fullestUse) take() float32 { return shareOf(f.Swap(0)) }

// domainGate counts the requests of a domain that met no rule.
type domainGate struct{ cells atomic.Pointer[[]domainCell] } // nil before there is one

type domainCell struct {
	n atomic.Uint32
	_ [60]byte
}

// add counts one.
func (g *domainGate) add(turn uint64) {
	cells := g.cells.Load()
	if cells == nil {
		some := make([]domainCell, observe.Cells())
		g.cells.CompareAndSwap(nil, &some)
		cells = g.cells.Load()
	}
	(*cells)[turn&uint64(len(*cells)-1)].n.Add(1)
}

func (g *domainGate) read() (n uint32) {
	cells := g.cells.Load()
	if cells == nil {
		return 0
	}
	for i := range *cells {
		n += (*cells)[i].n.Load()
	}
	return n
}

// tables are the table in force, and the one before for decisions that were under way. The first is
// a value: nearly every decision goes through it, and is spared a pointer.
type tables struct {
	now    table
	before *table
}

// tableFor returns the table of the rule set of d; nil if that set went out of force long ago.
func (c *Collector) tableFor(d *weir.Decision) *table {
	ts := c.tables.Load()
	if ts.now.set == d.Rules {
		return &ts.now
	}
	if ts.now.generation < d.Generation {
		// The set has just come into force, and its hook has not run yet.
		c.rulesChanged(d.Rules, d.Generation)
		if ts = c.tables.Load(); ts.now.set == d.Rules {
			return &ts.now
		}
	}
	if ts.before != nil && ts.before.set == d.Rules {
		return ts.before
	}
	return nil
}

// Decided implements observe.Watcher. The Tally has counted decisions on one limit already.
func (c *Collector) Decided(r *weir.Request, d *weir.Decision, f observe.Facts) {
	ts := c.tables.Load()
	if f.Outcome == observe.Unclear || ts.now.set != d.Rules {
		c.decided(r, d, f)
		return
	}
	at, now := &ts.now.limits[d.Limits[0].Window.Counter.Index], thinning(c.thinning.Load())
	g, thin := at.gate, now.refused()
	if f.Outcome == observe.Passed {
		thin = now.quiet()
		at.fullest.raise(&d.Limits[0])
	}
	if !g.asked.Load() {
		c.askedGates.add(g)
	}
	if f.Random&powerMask(thin) != 0 && f.Key >= g.beyond.Load() {
		return // neither drawn nor in a sample, as most are
	}
	o := countedOutcome[f.Outcome]
	if w, take := g.draw(f.Key, o, now, f.Random); take {
		c.emit(&ts.now, r, d, looked{gate: g, end: 1, outcome: o, hash: f.Key, weights: w, turn: observe.Turn(d)})
	}
}

// countedOutcome maps each observe.Outcome to an outcome of the rule.
var countedOutcome = [observe.Outcomes]outcome{
	observe.Passed: outcomePassed, observe.Near: outcomeNear, observe.Soft: outcomeSoft, observe.Refused: outcomeAlone,
}

// decided counts and draws a decision of any kind.
func (c *Collector) decided(r *weir.Request, d *weir.Decision, f observe.Facts) {
	if r.Cost() <= 0 && len(r.Descriptors) == 0 {
		return
	}
	if !d.Known {
		if d.UnknownDomain() {
			c.unknown.add(d)
		}
		return
	}
	t := c.tableFor(d)
	if t == nil {
		return
	}
	if d.Matches.CELErrors > 0 {
		t.failed(&d.Matches, &c.failed, &c.askedGates)
	}
	turn := observe.Turn(d)
	if n := len(d.Limits); n == 0 || len(d.Matches.Hits) != n {
		g := t.sole
		if g == nil || d.Domain != t.soleName {
			g = t.domains[d.Domain]
		}
		if g != nil {
			g.add(turn)
		}
		return
	}
	refusing := 0
	if !d.Allowed && d.Banned.Rule == nil {
		for i := 0; i < len(d.Limits); {
			end, refuses := groupEnd(d, i), false
			for ; i < end; i++ {
				refuses = refuses || d.Refuses(&d.Limits[i])
			}
			if refuses {
				refusing++
			}
		}
	}
	// All rules draw by one number, so that rules which see the same requests know the same of
	// them.
	now, random := thinning(c.thinning.Load()), f.Random
	at := roleFirst
	if d.Allowed && (d.NearLimit() || d.SoftExceeded()) {
		at = roleFirstNear
	}
	for i := 0; i < len(d.Limits); {
		begin, end := i, groupEnd(d, i)
		i = end
		l := &d.Limits[begin]
		if r.Descriptors != nil && noHits(r, l) || l.Window.Counter.Index >= len(t.limits) {
			continue
		}
		o := outcomeOf(d, begin, end, refusing)
		g := t.limits[l.Window.Counter.Index].gate
		if !g.asked.Load() {
			c.askedGates.add(g)
		}
		if f.Outcome == observe.Unclear {
			g.cell(turn, &c.wide).n[counterOf(at, o)].Add(1)
		}
		if ref := &t.limits[l.Window.Counter.Index]; ref.trial && !refusesAt(o) && o != outcomeBanned {
			counter := counterEnforced
			switch {
			case l.Mode == rule.Shadow && o == outcomeStopped:
				counter = counterUnenforcedStopped
			case l.Mode == rule.Shadow:
				counter = counterUnenforced
			}
			g.cell(turn, &c.wide).n[counter].Add(1)
		}
		at = roleOther
		for k := begin; k < end; k++ {
			if l := &d.Limits[k]; l.Allowed && l.Window.Counter.Index < len(t.limits) {
				t.limits[l.Window.Counter.Index].fullest.raise(l)
			}
		}
		hash := c.o.Tally.Hash(d.Matches.Hits[begin].Key)
		if w, take := g.draw(hash, o, now, random); take {
			c.emit(t, r, d, looked{gate: g, begin: begin, end: end, outcome: o, hash: hash, weights: w, turn: turn})
		}
	}
}

// noHits reports whether a descriptor asks for nothing, or gives units back.
func noHits(r *weir.Request, l *weir.LimitResult) bool {
	at := l.Descriptor
	return at >= 0 && at < len(r.Descriptors) && r.Descriptors[at].HasHits && r.Descriptors[at].Hits <= 0
}

// groupEnd returns where the windows of the rule and descriptor of d.Limits[i] end.
func groupEnd(d *weir.Decision, i int) int {
	w, descriptor := d.Limits[i].Window, d.Limits[i].Descriptor
	for i++; i < len(d.Limits) && d.Limits[i].Window.Rule == w.Rule && d.Limits[i].Descriptor == descriptor; i++ {
	}
	return i
}

// outcomeOf returns the outcome of a request at one rule, whose windows are d.Limits[begin:end].
// refusing is how many rules refused it.
func outcomeOf(d *weir.Decision, begin, end, refusing int) outcome {
	if d.Banned.Rule != nil {
		return outcomeBanned
	}
	var refuses, wouldRefuse, isSoft, isNear bool
	for i := begin; i < end; i++ {
		l := &d.Limits[i]
		refuses = refuses || d.Refuses(l)
		wouldRefuse = wouldRefuse || l.Mode == rule.Shadow && !l.Allowed
		isSoft, isNear = isSoft || l.Soft, isNear || l.Near
	}
	switch {
	case refuses && refusing == 1:
		return outcomeAlone
	case refuses:
		return outcomeShared
	case wouldRefuse && d.Allowed:
		return outcomeWould
	case wouldRefuse:
		return outcomeWouldToo
	case !d.Allowed:
		return outcomeStopped
	case isSoft:
		return outcomeSoft
	case isNear:
		return outcomeNear
	}
	return outcomePassed
}

// refusesAt reports whether an outcome is a refusal by the rule, or would be, in shadow.
func refusesAt(o outcome) bool {
	return o >= outcomeAlone && o <= outcomeWouldToo && o != outcomeStopped
}

// draw decides whether a decision is looked at, and with which weights.
func (g *gate) draw(hash uint64, o outcome, now thinning, random uint64) (w weights, take bool) {
	w = weights{noWeight, noWeight}
	thin := now.refused()
	if o == outcomePassed {
		thin = now.quiet()
	}
	if random&powerMask(thin) == 0 {
		w.top, take = thin, true
	}
	known := uint32(0)
	if hash < g.below.Load() {
		var at *atomic.Uint32
		if at, known = g.filter.Load().find(hash); known != 0 {
			thin := now.keys()
			if known&filterWatched != 0 {
				thin = now.watched()
			}
			thin = max(thin, uint8(known&filterThin))
			if random>>34&powerMask(thin) == 0 {
				take, w.key = true, thin
			} else if known&filterMinute != now.minute() && at.CompareAndSwap(known, known&^filterMinute|now.minute()) {
				take = true // once a minute, to know that the key was there
			}
		}
	}
	if known&filterWatched == 0 && o != outcomeBanned &&
		(known == 0 && hash < g.belowAll.Load() || refusesAt(o) && hash < g.belowRefused.Load()) {
		take, w.key = true, 0 // new to a sample
	}
	return w, take
}
