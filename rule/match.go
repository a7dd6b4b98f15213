package rule

import (
	"errors"
	"net/netip"

	"github.com/weir-rl/weir/algo"
)

// Set is all rules in force: immutable, compiled, safe for concurrent use.
type Set struct {
	rules    []*Rule
	counters []*Counter
	domains  []*domain
	byName   map[string]*domain
	files    []*File
	// how many bits of an IPv6 address make a key
	ipv6Prefix int
	overrides  overrideCache
}

// Rules returns all rules in order.
func (s *Set) Rules() []*Rule { return s.rules }

// Files returns the files that the Set was made of, in order. They must not be changed.
func (s *Set) Files() []*File { return s.files }

// Counters returns the Counters by Index.
func (s *Set) Counters() []*Counter { return s.counters }

// Domains returns the domains that the rules hold, in order of their first rule.
func (s *Set) Domains() []string {
	names := make([]string, len(s.domains))
	for i, d := range s.domains {
		names[i] = d.name
	}
	return names
}

// DomainFor returns the domain of requests that name this one. "" stands for the only domain that
// the rules hold, or else for DefaultDomain.
func (s *Set) DomainFor(name string) string {
	switch {
	case name != "":
		return name
	case len(s.domains) == 1:
		return s.domains[0].name
	}
	return DefaultDomain
}

// IPv6Prefix returns by how many bits IPv6 addresses are grouped in keys.
func (s *Set) IPv6Prefix() int { return s.ipv6Prefix }

// HasDomain reports whether any file declares the domain.
func (s *Set) HasDomain(domain string) bool { return s.domain(domain) != nil }

func (s *Set) domain(name string) *domain {
	if len(s.domains) == 1 {
		if d := s.domains[0]; d.name == name {
			return d
		}
		return nil
	}
	return s.byName[name]
}

// Entry is one entry of an RLS descriptor.
type Entry struct{ Key, Value string }

// Descriptor is one descriptor of an RLS request.
type Descriptor struct {
	Entries  []Entry
	Override *DescriptorLimit // nil for none
	Hits     int64            // hits of this descriptor if HasHits, below 0 refunds
	HasHits  bool
}

// DescriptorLimit is a limit that the request itself brings (descriptor.limit of RLS). It is
// matched as a Rule of its own, named "request_override", with Lyft filled in, which Set.Rules does
// not list and whose Index lies behind theirs.
type DescriptorLimit struct {
	Requests uint32
	Unit     string // "SECOND" … "YEAR"; the door refuses others, Match takes them as no limit
}

// Query is the input of matching.
type Query struct {
	Domain     string
	Attributes Attributes // nil for none
	// Descriptors are for rules of the Lyft form; of the RLS door only. Without any, such a rule is
	// met where Attributes hold all keys on the path to it, as by the descriptor of these keys and
	// values.
	Descriptors []Descriptor
	// BanRules are rules of the Set whose keys BanKeys is to give too, beside the ones whose bans
	// hold everywhere in the domain (Ban.Domain). Rules that cannot ban so are left out, see
	// Rule.BansDomain.
	BanRules []*Rule
}

// Hit is one limit that the request meets.
type Hit struct {
	Window *Window
	Limit  *algo.Limit // the numbers in force for this key
	// the key's parts, length-prefixed; valid until the Matches is used again
	Key        []byte
	Cost       int64 // units for each hit
	Mode       Mode
	Descriptor int // index of the descriptor that led here; -1 for a native limit
}

// DescriptorMatch is the match of one descriptor of the query.
type DescriptorMatch struct {
	Rule      *Rule // nil if no rule, or one that another replaces
	Unlimited bool
	Hit       int // index into Matches.Hits; -1 if nothing is counted
	// StatsKey is the name that the reference gives the counted limit, with runtime values where
	// the rule asks for them, and not made fit for a name in statsd (where : and | become _); "" if
	// Hit < 0.
	StatsKey string
}

// Matches is the result of Set.Match; reuse it to save allocations. The zero value is ready.
type Matches struct {
	Known  bool // the domain is known
	Exempt bool // an exempt entry holds: Hits is empty
	Hits   []Hit
	// Descriptors has one for each of the query; of a query without any, one for each rule of the
	// Lyft form that is met.
	Descriptors []DescriptorMatch
	CELErrors   int // expressions that failed on this request
	// TooCostly is the rule that refuses the request since its expressions take too long on it, or
	// those before them did (ErrTooCostly); nil for none. Hits is then of its first window alone,
	// and nothing is to be charged.
	TooCostly *Rule
	// Priority is how important the rules that are met say the request is, those without a limit
	// included: critical if one of them says so, else sheddable if one does. Rules in shadow have
	// no say.
	Priority Priority

	buf      []byte  // the keys
	costly   []byte  // the key of TooCostly
	stopped  [2]bool // an expression of a rule that is enforced, or of one in shadow, was stopped
	bans     []banKey
	failures []Failure // of another request if CELErrors is 0

	domain      *domain
	source      Attributes
	pairs       Pairs // source, if it is that
	descriptors []Descriptor
	union       bool // the descriptors' entries are the attributes
	generation  uint32
	odd         spelling // attributes that the request spells otherwise than folded
	seen        spelling // which spellings expressions see
	values      []value  // by slot
	large       bool     // one of them is too large to be kept until the next request
	addr        netip.Addr
	scratch     []byte // values in normal form; only ever grows within a request
	candidates  []int32
	patterns    []int32  // of one condition, that the value brings in
	grams       []int32  // numbers of the grams that a value holds
	gramSeen    []uint64 // a bit for each of them; all 0 between uses
	met         []metRule
	groups      []groupMark
	// by id of a name of the Lyft form: the generation in which it was replaced
	replaced []uint32
	leaves   []leaf
	names    []string // the request's attributes that the domain uses, each once, if listed
	listed   bool
	trail    []Entry // of a request without descriptors: the way down the Lyft form's levels
	stats    map[string]string
	vars     Variables
	looked   int  // native rules whose conditions were looked at
	hasty    bool // others wait: what takes long is left to another goroutine
	slow     bool // which this is
	tried    int  // patterns of long lists that were looked at

	folded, lowered string       // the path without and with its end (cutEnd), if odd holds it
	written         []writtenKey // of hits whose keys were folded
}

// groupMark says whether a rule of a file with groups: first was met, enforced and at all.
type groupMark struct{ enforced, any uint32 }

// metRule is a native rule that the request meets.
type metRule struct {
	rule     *matchRule
	key      []byte
	mode     Mode
	replaced bool
	sure     bool // in every spelling
}

// writtenKey is the key of hits in the spelling in which the request came.
type writtenKey struct {
	first, behind int // indexes into Hits
	key           []byte
}

// leaf is the rule that a descriptor leads to, nil if there is none, and its key.
type leaf struct {
	rule  *matchRule
	key   []byte
	stats string // where that cannot be made later
}

// domain is the compiled rules of one domain.
type domain struct {
	name     string
	number   int // place among the Set's domains
	slots    []slot
	slotOf   map[string]int
	rules    []*matchRule // native ones, in order
	exempt   []Condition  // compiled
	index    *ruleIndex   // nil if there are few rules: then all are looked at
	groups   int          // files with groups: first
	replaces bool         // some native rule replaces others
	ipSlot   int          // -1 if ip is not used
	// where path and method are, if an expression reads them
	pathSlot, methodSlot int
	work                 int    // what looking at all rules takes, and exempt: see cost.go
	always               int    // the cost of each request
	lyft                 *level // nil if there are no descriptors
	names                int    // names that rules of the Lyft form replace
	overrides            [len(overrideUnits)]*Counter
	banning              []*Rule      // rules with a ban
	banned               []*matchRule // the ones whose bans hold everywhere in the domain
	fields               *Fields      // nil if it decides by none
}

// matchRule is a rule, compiled. Of each limit there is one, so it is kept small.
type matchRule struct {
	rule     *Rule // whose conditions are compiled
	*keyForm       // shared by rules with the same
	*extras        // noExtras in most
	group    int32 // the file's number among those with groups: first; -1
	id       int32 // place among the domain's native rules
	cost     int32 // the cost of looking at it, and of charging it, in units of lookTime
	mode     Mode  // with keys on which the rule is enforced
	// attributes that are folded for the rule, and where it is written otherwise than folded
	folds spelling
	// attributes that its expressions read and that may be spelled in other ways
	ifReads, costReads spelling
}

// keyForm says how keys are made of requests.
type keyForm struct {
	per        [][]alternative
	ipv6Prefix uint8
	spelled    spelling // what of the parts may be spelled in other ways
}

// extras is what few rules have.
type extras struct {
	replaces  []int32              // ids of native rules, ascending
	overrides map[string]*Override // by key, with alternative 0 throughout
	// by folded key, what holds of overrides for other spellings of it; nil if keys are not folded
	respelled map[string]respelled
	salt      uint64      // of a rule that is enforced on a share of the keys
	alike     *alikeRules // nil if no other rule fares as this one

	// The rest is of rules of the Lyft form.
	levels []*lyftNode // from the top
	// the key holds names and values of all entries (a limit that a request brought)
	entries     bool
	runtimeName bool // the StatsKey holds runtime values
	nameID      int  // of rate_limit.name, if some rule replaces it; else -1
	replaceIDs  []int
}

// noExtras is of rules that have none. It is shared, and must not be changed.
var noExtras = &extras{nameID: -1}

// own returns the extras of r for a change.
func (r *matchRule) own() *extras {
	if r.extras == noExtras {
		r.extras = &extras{nameID: -1}
	}
	return r.extras
}

// Match fills m with the limits that q meets, in rule order (limits of the Lyft form before native
// ones, and limits of descriptors in request order). It allocates nothing once m has grown, unless
// a CEL expression or an override that a request brings is involved.
//
// In a file with groups: first, the first rule that is met is the only one; then each rule that is
// met removes the rules that it replaces, whether or not it is itself replaced. A rule in shadow
// does neither to an enforced one.
func (s *Set) Match(q *Query, m *Matches) {
	d := s.domain(q.Domain)
	m.begin(d, q)
	if d == nil {
		m.source, m.pairs, m.descriptors = nil, nil, nil
		return
	}
	m.Known = true
	if m.hasty && d.always > nowCost {
		m.slow = true
		m.end()
		return
	}
	for i := range d.exempt {
		if d.exempt[i].match(m) {
			m.Exempt = true
			m.end()
			return
		}
	}
	switch {
	case len(m.descriptors) > 0:
		m.matchDescriptors(s)
	case d.lyft != nil && m.source != nil:
		m.matchPaths()
	}
	if len(d.rules) > 0 {
		m.matchRules()
	}
	if len(d.banned)+len(q.BanRules) > 0 && !m.slow {
		m.matchBans(q.BanRules)
	}
	m.end()
}

// begin resets m for a request to d.
func (m *Matches) begin(d *domain, q *Query) {
	m.Known, m.Exempt, m.CELErrors, m.looked, m.tried = false, false, 0, 0, 0
	m.Priority, m.slow, m.odd, m.seen, m.TooCostly, m.stopped = DefaultPriority, false, 0, 0, nil, [2]bool{}
	m.Hits, m.buf, m.scratch, m.met, m.bans = m.Hits[:0], m.buf[:0], m.scratch[:0], m.met[:0], m.bans[:0]
	m.written = m.written[:0]
	m.Descriptors = m.Descriptors[:0]
	for range q.Descriptors {
		m.Descriptors = append(m.Descriptors, DescriptorMatch{Hit: -1})
	}
	m.domain, m.source, m.descriptors, m.union = d, q.Attributes, q.Descriptors, false
	m.vars.spent = m.vars.before
	m.pairs, _ = q.Attributes.(Pairs)
	if m.generation++; m.generation == 0 { // after 2^32 requests: old marks would look new
		clear(m.values)
		clear(m.groups)
		clear(m.replaced)
		m.generation = 1
	}
	if d == nil {
		return
	}
	if len(m.values) < len(d.slots) {
		m.values = append(m.values, make([]value, len(d.slots)-len(m.values))...)
	}
	if len(m.groups) < d.groups {
		m.groups = append(m.groups, make([]groupMark, d.groups-len(m.groups))...)
	}
	if m.source == nil && len(m.descriptors) > 0 {
		m.union = true
		m.fillUnion()
	}
}

// end drops the references to the request.
func (m *Matches) end() {
	m.source, m.pairs, m.descriptors = nil, nil, nil
	if m.TooCostly != nil {
		m.onlyCostly()
	}
	if m.large {
		clear(m.values)
		m.large = false
		if cap(m.scratch) > maxKeptScratch {
			m.scratch = nil
		}
	}
	if m.vars.m != nil {
		m.vars.release()
	}
}

// matchRules finds the native rules.
func (m *Matches) matchRules() {
	d := m.domain
	if d.index == nil {
		for _, r := range d.rules {
			m.consider(r)
		}
	} else {
		ids, always := d.index.candidates(m), d.index.always
		if m.hasty && m.slowWith(ids) {
			return
		}
		for len(ids) > 0 || len(always) > 0 {
			if len(always) == 0 || len(ids) > 0 && ids[0] < always[0] {
				m.consider(d.rules[ids[0]])
				ids = ids[1:]
			} else {
				m.consider(d.rules[always[0]])
				always = always[1:]
			}
		}
	}
	if d.replaces {
		m.emitMet()
	}
}

// consider looks whether the request meets r.
func (m *Matches) consider(r *matchRule) {
	m.looked++
	var mark *groupMark
	if r.group >= 0 {
		mark = &m.groups[r.group]
		if mark.enforced == m.generation || r.rule.Shadow && mark.any == m.generation {
			return
		}
	}
	if !m.holds(r) {
		return
	}
	begin := len(m.buf)
	if !m.appendKey(r) {
		m.buf = m.buf[:begin]
		return
	}
	key := m.buf[begin:len(m.buf):len(m.buf)]
	mode := r.modeFor(key)
	if p := r.rule.predicate(); p != nil && !m.evalIf(r, p, key, mode) {
		m.buf = m.buf[:begin]
		return
	}
	sure := r.folds&(m.odd|whenWritten|ifWritten) == 0 || m.surely(r)
	if mark != nil {
		if mode == Shadow && mark.any == m.generation {
			return
		}
		if sure {
			mark.any = m.generation
			if mode != Shadow {
				mark.enforced = m.generation
			}
		}
	}
	if m.domain.replaces {
		m.met = append(m.met, metRule{rule: r, key: key, mode: mode, sure: sure})
		return
	}
	m.emit(r, key, mode, -1, sure)
}

// holds reports whether all of r's conditions hold.
func (m *Matches) holds(r *matchRule) bool {
	for i := range r.rule.When {
		if !r.rule.When[i].match(m) {
			return false
		}
	}
	return true
}

func (m *Matches) evalIf(r *matchRule, p Predicate, key []byte, mode Mode) bool {
	ok, err := p.Holds(m.variables(mode))
	if all := m.spellingsOfIf(r); all != 0 && !ok && !errors.Is(err, ErrTooCostly) {
		if m.respell(all, func() (bool, error) {
			holds, failed := p.Holds(m.variables(mode))
			ok = holds && failed == nil
			return ok, failed
		}) {
			err = ErrTooCostly
		}
	}
	switch {
	case ok:
		return true
	case err == nil:
	case errors.Is(err, ErrTooCostly):
		m.overspent(r, "if", key, mode)
	default:
		m.failed(r, "if", err)
	}
	return false
}

// variables returns the variables for expressions on this request, for a rule that takes part so.
func (m *Matches) variables(mode Mode) *Variables {
	m.vars.m, m.vars.shadow = m, mode == Shadow
	return &m.vars
}

// mix spreads the bits of x (the finaliser of SplitMix64, Steele et al. 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// appendKey appends r's key to buf; false if the request lacks a part.
func (m *Matches) appendKey(r *matchRule) bool { return m.appendKeyIn(r, r.folds) }

// appendKeyIn is appendKey in a spelling in which folds is folded.
func (m *Matches) appendKeyIn(r *matchRule, folds spelling) bool {
next:
	for _, part := range r.per {
		for alt := range part {
			v := m.value(part[alt].slot)
			if !v.present {
				continue
			}
			if part[alt].kind == kindIP && m.addr.IsValid() { // there is one slot for ip
				m.buf = appendAddr(m.buf, alt, m.addr, int(r.ipv6Prefix))
			} else if s := folds & m.odd; s != 0 && s&spelledOf(part[alt].kind) != 0 {
				m.buf = appendText(m.buf, alt, m.keyText(r, part[alt].kind, v.text))
			} else {
				m.buf = appendText(m.buf, alt, v.text)
			}
			continue next
		}
		return false
	}
	return true
}

// emitMet emits the met rules that no other one replaces.
func (m *Matches) emitMet() {
	for i := range m.met {
		a := &m.met[i]
		replaces := a.rule.replaces
		for k := 0; k < len(m.met) && len(replaces) > 0; {
			b := &m.met[k]
			switch {
			case b.rule.id < replaces[0]:
				k++
			case b.rule.id > replaces[0]:
				replaces = replaces[1:]
			default:
				if a.sure && (a.mode != Shadow || b.mode == Shadow) {
					b.replaced = true
				}
				k++
			}
		}
	}
	for i := range m.met {
		if a := &m.met[i]; !a.replaced {
			m.emit(a.rule, a.key, a.mode, -1, a.sure)
		}
	}
	clear(m.met)
}

// emit appends the Hits of a rule that is met; sure says that it is met in every spelling. It
// returns the index of the first, -1 if there are none, and whether the key is unlimited.
func (m *Matches) emit(r *matchRule, key []byte, mode Mode, descriptor int, sure bool) (first int, unlimited bool) {
	windows := r.rule.Windows
	unlimited = r.rule.Unlimited
	if p := r.rule.Priority; p != DefaultPriority && mode != Shadow && m.Priority != Critical &&
		(sure || p != Critical) {
		m.Priority = p
	}
	written := key
	if r.folds&m.odd&r.spelled != 0 {
		written = m.writeKey(r)
	}
	if r.overrides != nil {
		windows, unlimited = m.overridden(r, key, written)
	}
	if unlimited {
		return -1, true
	}
	first = -1
	cost := r.rule.Cost
	for _, w := range windows {
		if w.Limit == nil {
			continue
		}
		if first < 0 {
			first = len(m.Hits)
			if a := r.rule.amount(); a != nil {
				cost = m.evalCost(r, a, key, mode)
			}
		}
		// Field by field: append of a whole Hit makes it on the stack, and copying fields that were
		// just written makes the processor wait.
		n := len(m.Hits)
		if n == cap(m.Hits) {
			m.Hits = append(m.Hits, Hit{})
		}
		m.Hits = m.Hits[:n+1]
		h := &m.Hits[n]
		h.Window, h.Limit, h.Key, h.Cost, h.Mode, h.Descriptor = w, w.Limit, key, cost, mode, descriptor
	}
	if r.folds&m.odd&r.spelled != 0 && first >= 0 {
		m.written = append(m.written, writtenKey{first, len(m.Hits), written})
	}
	return first, false
}
