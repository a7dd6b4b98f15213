package insight

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/watch"
	"github.com/weir-rl/weir/rule"
)

// Options tune New. The zero value is right for most.
type Options struct {
	// Memory bounds what is gathered, in bytes; 0 means 64 MiB. With many rules less is known of
	// each.
	Memory int64
	// Known names attributes of which one makes a client known: "user", for one.
	Known []string
	// Hide names attributes whose values are not kept, beside those that look like secrets.
	Hide []string
	// GoodRefused is the share of good keys that a rule may refuse before it counts as too strict;
	// 0 is 0.001.
	GoodRefused float64
	// Tally counts, for whatever else watches decisions, too; nil is one of its own. Its seed is
	// that of the hash of keys.
	Tally *watch.Tally
	// Seed is the seed that Tally gets. Nodes whose snapshots are merged need the same one; 0
	// leaves it the random one that it has. SetSeed changes it.
	Seed uint64
	// Now tells the time; nil is time.Now.
	Now func() time.Time
	// Saturated tells whether the service is at its end now, and which signal says so; nil is
	// never.
	Saturated func() (signal string, saturated bool)
	// P99 reads how long 99 % of the decisions take at most, in s; nil if that is not known.
	P99 func() float64
	// Broken says why the rules that lie in the source are not in force; nil if that is not known,
	// "" if they are.
	Broken func() string
	// Text returns the text of a rule file in force by its name, so that proposals can show how it
	// would change; "" where it is not known. nil is never.
	Text func(file string) string
	// Recorded returns up to n of the latest requests, to say why none of them meets a rule. They
	// hold what the rules in force read of them; secret values as a hash. nil is none.
	Recorded func(n int) []rule.Query
	// Logger gets what an operator should know of the history file; nil is nobody.
	Logger *slog.Logger
}

// DefaultMemory is Options.Memory where that is 0, and LeastMemory the least that is of use.
const (
	DefaultMemory = 64 << 20
	LeastMemory   = 4 << 20
)

// Collector gathers what goes on, behind Hooks, and tells it as a Reader. Make one with New. Safe
// for concurrent use.
//
// Run must run beside it: it is the goroutine that reads the counters each second, and what the
// deciding path hands over.
type Collector struct {
	o       Options
	now     func() time.Time
	started time.Time
	veil    veil

	// What the deciding path reads.
	thinning atomic.Uint64 // a thinning
	tables   atomic.Pointer[tables]
	rings    []ring
	doors    doorNames
	woken    chan struct{}

	answers []answerCell

	thinned     atomic.Uint64
	taken       atomic.Uint64
	storeErrors atomic.Uint64

	// mu guards what follows. It is never taken on the deciding path, but for the first decision by
	// new rules.
	mu      sync.Mutex
	numbers []*ruleState // by gate.number; nil of a rule that went out of force
	rules   []*ruleState // in force, in rule order
	domains map[string]*domainState
	pace    pace
	size    size  // of the rules that are followed
	second  int64 // up to which the counters were read, Unix
	// When rules came into force that are judged before the minute ends, Unix, and after how many
	// seconds next; unruled is 0 if there are none.
	unruled, early int64
	minute         int64
	events         []Happening
	signal         string // why this minute is saturated; "" if it is not
	// When the minute began.
	lastAnswers answerCounts
	// The number of the generation of the samples.
	generation int64
	errors     wheel // of the store
	lastErrs   uint64
	past       map[pastName][]pastStep // of the history file, until its rules are there

	history *history // nil without one; Run's alone

	reasons struct {
		sync.Mutex
		explained
	}
}

var _ Reader = (*Collector)(nil)

// New returns a Collector without rules; the hook RulesChanged brings them.
func New(o Options) *Collector {
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	if o.GoodRefused == 0 {
		o.GoodRefused = 0.001
	}
	c := &Collector{o: o, now: o.Now, domains: map[string]*domainState{}, woken: make(chan struct{}, 1), errors: newWheel(60, minutes)}
	if c.now == nil {
		c.now = time.Now
	}
	if c.o.Tally == nil {
		c.o.Tally = watch.NewTally()
	}
	if o.Seed == 0 {
		o.Seed = c.o.Tally.Seed()
	}
	c.o.Tally.SetSeed(o.Seed)
	c.veil = veil{seed: o.Seed, hide: slices.Clone(o.Hide)}
	c.started = c.now()
	c.second, c.minute, c.generation = c.started.Unix(), c.started.Unix()/60, c.started.Unix()/generation
	c.answers = make([]answerCell, watch.Cells())
	c.rings = make([]ring, watch.Cells())
	for i := range c.rings {
		c.rings[i].init()
	}
	c.thinning.Store(uint64(packThinning(0, quietThin, 0, 0, c.minute)))
	c.tables.Store(new(tables))
	c.events = []Happening{{T: c.started.Unix(), Kind: "start"}}
	return c
}

// SetSeed changes the seed of the hash of keys, to that of the other nodes. What was sampled so far
// is forgotten.
func (c *Collector) SetSeed(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Seed() == seed {
		return
	}
	c.drain()
	c.o.Tally.SetSeed(seed)
	c.veil.seed = seed
	for _, s := range c.rules {
		s.forgetKeys()
	}
}

// Thinned counts the events of decisions that were left out, since there were too many.
func (c *Collector) Thinned() uint64 { return c.thinned.Load() }

// Bytes is the memory that is taken.
func (c *Collector) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes()
}

// Seed returns the seed of the hash of keys.
func (c *Collector) Seed() uint64 { return c.o.Tally.Seed() }

// Hooks are what the limiter is to call, where nothing else watches.
func (c *Collector) Hooks() weir.Hooks { return c.o.Tally.Join(c) }

// Others implements watch.Watcher.
func (c *Collector) Others() weir.Hooks {
	return weir.Hooks{
		Answered:     c.answered,
		RulesChanged: c.rulesChanged,
		StoreError:   func(error) { c.storeErrors.Add(1) },
	}
}

// known reports whether a request has an attribute that makes its client known.
func (c *Collector) known(r *weir.Request) bool {
	if r.Attributes == nil {
		return false
	}
	for _, name := range c.o.Known {
		if v, ok := r.Attributes.Attribute(name); ok && v != "" {
			return true
		}
	}
	return false
}

// doorNames numbers the doors, of which there are a handful.
type doorNames struct {
	list atomic.Pointer[[]string]
	mu   sync.Mutex
}

func (n *doorNames) number(name string) uint8 {
	if list := n.list.Load(); list != nil {
		for i, have := range *list {
			if have == name {
				return uint8(i)
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	if have := n.list.Load(); have != nil {
		list = *have
	}
	if i := slices.Index(list, name); i >= 0 {
		return uint8(i)
	}
	if len(list) > 100 {
		return 0
	}
	next := append(slices.Clone(list), strings.Clone(name))
	n.list.Store(&next)
	return uint8(len(list))
}

func (n *doorNames) name(number uint8) string {
	if list := n.list.Load(); list != nil && int(number) < len(*list) {
		return (*list)[number]
	}
	return ""
}

// rulesChanged makes the table of s. What is known of rules that did not change stays.
func (c *Collector) rulesChanged(s *rule.Set, generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.tables.Load().now // a copy, so that the one before the last goes
	if generation <= old.generation {
		return // a decision was quicker than the hook
	}
	now := c.now()
	if old.set != nil {
		c.happened(Happening{T: now.Unix(), Kind: "rules"})
	}
	c.drain()
	c.count(now.Unix())
	type name struct{ domain, rule string }
	before := map[name]*ruleState{}
	for _, r := range c.rules {
		before[name{r.domain, r.name}] = r
	}
	next := table{set: s, generation: generation, limits: make([]limitRef, len(s.Counters())),
		rules: map[*rule.Rule]*gate{}, domains: map[string]*domainGate{}}
	domains := map[string]*domainState{}
	for _, d := range s.Domains() {
		if domains[d] = c.domains[d]; domains[d] == nil {
			domains[d] = &domainState{name: d, gate: newDomainGate(), series: newSeries(false), since: now.Unix()}
			if begin := c.recall(pastName{domain: d}, domains[d].series, nil); begin != 0 {
				domains[d].since = begin
			}
		}
		next.domains[d], next.sole, next.soleName = domains[d].gate, domains[d].gate, d
	}
	if len(domains) != 1 {
		next.sole = nil
	}
	c.domains = domains
	c.rules = nil
	var recalled []*ruleState
	state := func(r *rule.Rule, windows int) *ruleState {
		definition := definitionOf(r)
		st := before[name{r.Domain, r.Name}]
		if st == nil || st.definition != definition {
			st = newRuleState(uint32(len(c.numbers)), r, definition, now)
			st.domainBefore = domains[r.Domain].total
			c.numbers = append(c.numbers, st)
			if _, known := c.past[pastName{st.domain, st.name, definition}]; known {
				recalled = append(recalled, st)
			}
		} else {
			delete(before, name{r.Domain, r.Name})
		}
		st.rule, st.windows, st.spans, st.had, st.alone = r, windows, nil, st.alone, nil
		c.rules = append(c.rules, st)
		return st
	}
	places, alone := map[*rule.Counter]limitRef{}, c.o.Tally.Of(s, generation)
	for _, r := range s.Rules() {
		st := state(r, 0)
		next.rules[r] = st.gate
		place := func(windows []*rule.Window) {
			for _, w := range windows {
				if _, have := places[w.Counter]; !have && w.Counter != nil {
					places[w.Counter] = limitRef{st.gate, uint16(st.windows)}
					st.addWindow(w.Counter, alone[w.Counter.Index], generation)
				}
			}
		}
		place(r.Windows)
		for i := range r.Overrides {
			place(r.Overrides[i].Windows)
		}
	}
	brought := map[string]*ruleState{} // by domain: the limits that requests bring
	for _, k := range s.Counters() {
		ref, ok := places[k]
		if !ok {
			st := brought[k.Domain]
			if st == nil {
				st = state(&rule.Rule{Name: k.Rule, Domain: k.Domain}, 0)
				st.brought = true
				brought[k.Domain] = st
			}
			ref = limitRef{st.gate, uint16(st.windows)}
			st.addWindow(k, alone[k.Index], generation)
		}
		next.limits[k.Index] = ref
	}
	for _, gone := range before {
		c.numbers[gone.gate.number] = nil
	}
	for _, st := range c.rules {
		st.domainState, st.had = domains[st.domain], nil
	}
	for _, st := range recalled {
		if c.follow(st); st.series == nil {
			continue
		}
		if begin := c.recall(pastName{st.domain, st.name, st.definition}, st.series, st.minutes); begin != 0 {
			st.since = time.Unix(begin, 0)
		}
	}
	c.resize()
	c.unruled, c.early = c.now().Unix(), 1
	c.tables.Store(&tables{now: next, before: &old})
}

// happened notes something for the line of time.
func (c *Collector) happened(h Happening) {
	const most = 200
	if c.events = append(c.events, h); len(c.events) > most {
		c.events = slices.Delete(c.events, 0, len(c.events)-most)
	}
}

// Run gathers until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			c.gather(false)
			return
		case <-c.woken:
			c.gather(false)
		case <-tick.C:
			switch minute := c.gather(true); {
			case minute:
				c.judge()
				c.remember()
			case c.unjudged():
				c.judge()
			}
		}
	}
}

// unjudged reports whether rules that came into force a short while ago are to be judged without
// waiting for the minute, if only to say that it is too early. That is after 1, 2, 4 … 32 seconds:
// what they say is of the requests so far then, and not of the first second.
func (c *Collector) unjudged() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.second - c.unruled
	if c.unruled == 0 || since < c.early {
		return false
	}
	for c.early <= since {
		c.early *= 2
	}
	if c.early > 32 {
		c.unruled = 0
	}
	return true
}

// drainEvery is how often the rings are emptied at least; a ring that is half full asks for it
// sooner.
const drainEvery = 100 * time.Millisecond

// gather takes in what the deciding path has left. tick says that drainEvery has passed since the
// last one; minute says that a minute ended.
func (c *Collector) gather(tick bool) (minute bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
	if !tick {
		return false
	}
	c.pace.tick()
	unix := c.now().Unix()
	if unix > c.second {
		c.count(unix)
	}
	if unix/60 > c.minute {
		c.eachMinute(unix)
		c.minute, minute = unix/60, true
	}
	c.storePace()
	return minute
}

// drain takes in the events.
func (c *Collector) drain() {
	for i := range c.rings {
		r := &c.rings[i]
		n := r.drain(c.take)
		c.taken.Add(uint64(n))
		if dropped := r.dropped.Swap(0); dropped > 0 {
			c.thinned.Add(dropped)
		}
	}
	if c.pace.adapt() {
		c.storePace()
	}
}

func (c *Collector) storePace() {
	c.thinning.Store(uint64(packThinning(c.pace.refused.power, quietThin+c.pace.quiet.power, c.pace.keys.power, c.pace.watched.power, c.minute)))
}

// take takes in one event. mu is held.
func (c *Collector) take(e *event) {
	if int(e.rule) >= len(c.numbers) || c.numbers[e.rule] == nil {
		return
	}
	s := c.numbers[e.rule]
	if e.at == 0 {
		e.at = c.now().UnixMicro()
	}
	if e.flags&flagFirst != 0 {
		c.paced(s, e)
	}
	if c.follow(s); s.series == nil {
		return
	}
	if e.flags&flagAnswer != 0 {
		s.answered(e)
		return
	}
	if e.weightTop != none {
		with := ""
		if n := int(e.with) - 1; n >= 0 && n < len(c.numbers) && c.numbers[n] != nil {
			with = c.numbers[n].name
		}
		s.addTop(&c.veil, e, with)
	}
	s.takeKey(c, e)
}

// paced counts an event for the pace, and what it stands for as thinned.
func (c *Collector) paced(s *ruleState, e *event) {
	switch {
	case e.weightTop == none && s.refused[current].find(e.hash) >= 0:
		c.pace.watched.events++
	case e.weightTop == none:
		c.pace.keys.events++
	case e.flags&(flagRefused|flagNear|flagBanned|flagStopped) == 0:
		c.pace.quiet.events++
		if e.weightTop > quietThin {
			c.thinned.Add(1<<e.weightTop - 1<<quietThin)
		}
	default:
		c.pace.refused.events++
		c.thinned.Add(1<<e.weightTop - 1)
	}
}

// pace holds each kind of events to its rate: those drawn of refused and near decisions, those
// drawn of admitted ones, those on sampled keys, and those on sampled keys that were refused, of
// which episodes are read.
type pace struct{ refused, quiet, keys, watched governor }

// governor finds the power of 2 by which events are thinned.
type governor struct {
	power  uint8
	events int // since the last tick
}

// most is how many events of a kind are taken in drainEvery: together 20,000 a second.
const most = 500

func (p *pace) each(f func(*governor)) {
	f(&p.refused)
	f(&p.quiet)
	f(&p.keys)
	f(&p.watched)
}

// adapt thins more if there are too many events; it reports whether it did.
func (p *pace) adapt() (changed bool) {
	p.each(func(g *governor) {
		for g.events > most && g.power < 24 {
			g.power++
			g.events /= 2
			changed = true
		}
	})
	return changed
}

// tick thins less if there were few events.
func (p *pace) tick() {
	p.each(func(g *governor) {
		if g.events < most/3 && g.power > 0 {
			g.power--
		}
		g.events = 0
	})
}

// count reads the counters, up to an instant. mu is held.
func (c *Collector) count(unix int64) {
	perDomain := map[*domainState]*bucket{}
	for _, d := range c.domains {
		n := d.gate.read()
		perDomain[d] = &bucket{laneMet: n - d.last}
		d.last = n
	}
	for _, s := range c.rules {
		s.countFailures(unix)
		x := s.counted()
		if x == (counts{}) {
			continue
		}
		b := ruleBucket(&x)
		if c.follow(s); s.series != nil {
			s.series.add(unix, &b)
		}
		for i := range b {
			s.total[i] += uint64(b[i])
		}
		if into := perDomain[s.domainState]; into != nil {
			db := domainBucket(&x)
			into.add(&db)
		}
	}
	for d, b := range perDomain {
		d.series.second.advance(unix)
		if *b != (bucket{}) {
			d.series.add(unix, b)
			d.total += uint64(b[laneMet])
		}
	}
	if n := c.storeErrors.Load(); n != c.lastErrs {
		c.errors.add(unix, &bucket{laneMet: uint32(n - c.lastErrs)})
		c.lastErrs = n
	}
	c.second = unix
	c.noteSaturation(unix)
}

// ruleBucket is what a rule counted.
func ruleBucket(x *counts) (b bucket) {
	for role := range roles {
		n := x[role*outcomes : (role+1)*outcomes]
		for o, v := range n {
			if o != banned {
				b[laneMet] += v
			}
		}
		b[laneRefused] += n[alone] + n[shared]
		b[laneAlone] += n[alone]
		b[laneNear] += n[near]
		b[laneSoft] += n[soft]
		b[laneBanned] += n[banned]
		b[laneWould] += n[would] + n[wouldToo]
	}
	return b
}

// domainBucket is what the requests that met a rule first were.
func domainBucket(x *counts) (b bucket) {
	for _, role := range [...]int{first, firstNear} {
		n := x[role*outcomes : (role+1)*outcomes]
		for o, v := range n {
			b[laneMet] += v
			if role == firstNear {
				b[laneNear] += v
			}
			if refusesAt(o) && o != would || o == stopped || o == banned {
				b[laneRefused] += v
			}
		}
		b[laneBanned] += n[banned]
	}
	for role := range roles {
		b[laneWould] += x[role*outcomes+would]
	}
	return b
}

// domainState is what is known of a domain. mu of the Collector guards it.
type domainState struct {
	name   string
	gate   *domainGate
	last   uint32
	series *series
	total  uint64 // requests since this program began
	since  int64  // Unix seconds: from when on there are figures
}

// sortedDomains returns the domains in force by name; one, unless that is "".
func (c *Collector) sortedDomains(domain string) (list []*domainState) {
	for name, d := range c.domains {
		if domain == "" || name == domain {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *domainState) int { return cmp.Compare(a.name, b.name) })
	return list
}
