// Package gather takes in decisions for package insight, behind weir.Hooks and in bounded memory:
// counters over time, a sample of all keys and one of refused keys, and the keys that ask most, are
// refused most and come nearest to their limit.
//
// Begin with Collector (collector.go). gate.go and emit.go run on the deciding path. state.go,
// series.go, sample.go and top.go hold what is known of a rule, snapshot.go copies it, and
// history.go keeps the counts over a restart.
package gather

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// Options tune New. The zero value is right for most.
type Options struct {
	// Memory bounds the memory of the Collector, in bytes; 0 means 64 MiB. With many rules it keeps
	// less of each.
	Memory int64
	// Known names the attributes that make a client known, each by itself: "user", for example.
	Known []string
	// Hide names attributes whose values are not kept, as are those of attributes that look like
	// secrets.
	Hide []string
	// Tally counts, and may be shared with other watchers; nil makes one. Its seed hashes the keys.
	Tally *observe.Tally
	// Seed is the seed for Tally; 0 leaves Tally its random one. Nodes whose snapshots are merged
	// need the same seed. SetSeed changes it.
	Seed uint64
	// Now returns the time; nil is time.Now. StoreNow returns the time by the store's clock, which
	// dates decisions; nil is Now.
	Now, StoreNow func() time.Time
	// Saturated reports whether the service is saturated now, and which signal says so; nil is
	// never.
	Saturated func() (signal string, saturated bool)
	// P99 returns the 99th percentile of the duration of decisions, in s; nil if it is not known.
	P99 func() float64
	// Broken says why the rules in the source are not in force, "" if they are; nil if it is not
	// known.
	Broken func() string
	// Text returns the text of a rule file in force by its name, so that proposals can include a
	// patch; "" if it is not known. nil is never.
	Text func(file string) string
	// Proven returns what the text of some rules alone proves of them, by domain and name. nil is
	// nothing.
	Proven func(*rule.Set) map[[2]string]judge.Proof
	// Changed says what differs between two rule sets. nil says nothing.
	Changed func(before, after *rule.Set) insight.RuleChanges
	// Recorded returns up to n of the latest requests, to say why none of them meets a rule. They
	// hold the attributes that the rules in force read, with hashes for secret values. nil is none.
	Recorded func(n int) []rule.Query
	// Banned reports whether a key, as people read it, is banned now, by domain and rule: nobody is
	// advised to ban it then. nil is never.
	Banned func(domain, rule, key string) bool
	// Logger reports problems with the history file; nil reports nothing.
	Logger *slog.Logger
}

// DefaultMemory is used if Options.Memory is 0. LeastMemory is the least that is of use.
const (
	DefaultMemory = 64 << 20
	LeastMemory   = 4 << 20
)

// Collector gathers data from decisions, behind Hooks, and answers questions about it as a Reader.
// Make one with New. Safe for concurrent use.
//
// Run must run beside it. It is the goroutine that reads the counters each second, and takes the
// events from the deciding path.
type Collector struct {
	o        Options
	now      func() time.Time
	storeNow func() time.Time
	started  time.Time
	veil     veil

	// The fields that the deciding path reads.
	thinning atomic.Uint64 // a thinning
	tables   atomic.Pointer[tables]
	wide     atomic.Int64 // gates that may still have a cell for each processor
	askedGates
	rings    []eventRing
	doors    doorNames
	woken    chan struct{}
	commands *ruleState // its gate alone

	answers []answerCell

	thinned     atomic.Uint64
	taken       atomic.Uint64
	storeErrors atomic.Uint64
	failed      atomic.Uint64 // expressions that failed for the first time
	unknown     unknownDomains

	// mu guards the fields below. The deciding path takes it only for the first decisions by a new
	// rule set, if they come before the RulesChanged hook.
	mu         sync.Mutex
	numbers    []*ruleState   // by gate.number; nil of a rule that went out of force
	rules      []*ruleState   // in force, in rule order; the last one is commands
	counted    []*ruleState   // of these, those with counts of their own
	asked      []*ruleState   // of these, those that were asked lately, each once
	kins       []*kin         // of the rules in force
	alike      []*alikeRules  // of the rules, each once
	domains    []*domainState // by name
	turn       int            // place in counted of the next rule to be judged though nobody asks it
	kinTurn    int            // place in kins of the kin that was judged last
	judgements int            // made so far, of a rule or a kin
	inDomains  int64          // bytes of memory that the series of the domains take
	pace       pacing
	size       keptSize // of the rules that are followed
	left       int64    // bytes of memory that are left
	short      int64    // left, when the memory was divided last
	second     int64    // up to which the counters were read, Unix
	// unruled is when rules came into force that are judged before the minute ends, in Unix
	// seconds; 0 if there are none. early is after how many seconds they are judged next.
	unruled, early int64
	minute         int64
	events         []insight.Happening
	signal         string // why this minute is saturated; "" if it is not
	// When the minute began.
	lastAnswers answerCounts
	era         int64        // the number of the one that goes on
	errors      series.Tally // of the store
	lastErrs    uint64
	unknowns    series.Tally // requests for unknown domains
	lastUnknown uint64
	past        map[series.Name][]series.Step // of the history file, until its rules are there

	history *series.File // nil without one; Run's alone

	provenAsked *rule.Set // whose proven rules were asked for
	reasons     struct {
		sync.Mutex
		explanations
	}
}

var _ insight.Reader = (*Collector)(nil)

// New returns a Collector without rules; the hook RulesChanged brings them.
func New(o Options) *Collector {
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	c := &Collector{o: o, now: o.Now, woken: make(chan struct{}, 1),
		errors: series.NewTally(60, snapshot.MinuteSteps), unknowns: series.NewTally(60, snapshot.MinuteSteps)}
	if c.now == nil {
		c.now = time.Now
	}
	if c.storeNow = o.StoreNow; c.storeNow == nil {
		c.storeNow = c.now
	}
	if c.o.Tally == nil {
		c.o.Tally = observe.NewTally()
	}
	if o.Seed == 0 {
		o.Seed = c.o.Tally.Seed()
	}
	c.o.Tally.SetSeed(o.Seed)
	c.veil = veil{seed: o.Seed, hide: slices.Clone(o.Hide)}
	c.started = c.now()
	c.second, c.minute, c.era = c.started.Unix(), c.started.Unix()/60, c.started.Unix()/snapshot.EraLasts
	c.commands = newCommands(c.started)
	c.numbers, c.rules = []*ruleState{c.commands}, []*ruleState{c.commands}
	c.answers = make([]answerCell, observe.Cells())
	c.rings = make([]eventRing, observe.Cells())
	for i := range c.rings {
		c.rings[i].init()
	}
	c.thinning.Store(uint64(packThinning(0, 0, 0, 0, c.minute)))
	c.tables.Store(new(tables))
	c.events = []insight.Happening{{T: c.started.Unix(), Kind: "start"}}
	c.widen()
	c.resize()
	return c
}

// SetSeed changes the seed that hashes keys, to the seed of the other nodes. It forgets all
// samples.
func (c *Collector) SetSeed(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Seed() == seed {
		return
	}
	c.drain()
	c.o.Tally.SetSeed(seed)
	c.veil.seed = seed
	for _, s := range c.counted {
		if s.series != nil {
			s.forgetKeys()
		}
	}
}

// Thinned returns how many events were left out, because there were too many.
func (c *Collector) Thinned() uint64 { return c.thinned.Load() }

// Taken returns how many events were looked at.
func (c *Collector) Taken() uint64 { return c.taken.Load() }

// StoreErrors returns how many errors the store has returned.
func (c *Collector) StoreErrors() uint64 { return c.storeErrors.Load() }

// Bytes returns the memory in use, at most.
func (c *Collector) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.o.Memory - c.left
}

// Seed returns the seed that hashes keys.
func (c *Collector) Seed() uint64 { return c.o.Tally.Seed() }

// Hooks returns the hooks for the limiter, if there is no other watcher.
func (c *Collector) Hooks() weir.Hooks { return c.o.Tally.Join(c) }

// Others implements observe.Watcher.
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

// RulesVersion notes the version that the source gives the rules which came into force last.
func (c *Collector) RulesVersion(version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.events) - 1; i >= 0; i-- {
		if c.events[i].Kind == "rules" {
			c.events[i].Version = version
			return
		}
	}
}

// happened adds an event to the timeline.
func (c *Collector) happened(h insight.Happening) {
	detailed := 0
	for i := len(c.events) - 1; len(h.Changes) > 0 && i >= 0; i-- {
		if e := &c.events[i]; len(e.Changes) > 0 {
			if detailed++; detailed >= snapshot.MostDetailed {
				e.More, e.Changes = e.More+len(e.Changes), nil
			}
		}
	}
	if c.events = append(c.events, h); len(c.events) > snapshot.MostEvents {
		c.events = slices.Delete(c.events, 0, len(c.events)-snapshot.MostEvents)
	}
}

// Run gathers until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	tick := time.NewTimer(drainEvery)
	defer tick.Stop()
	taken := c.taken.Load()
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
			next := drainEvery
			if now := c.taken.Load(); now == taken {
				next = idleEvery
			} else {
				taken = now
			}
			tick.Reset(next)
		}
	}
}

// unjudged reports whether rules that have just come into force should be judged before the minute
// ends, if only to say that it is too early. They are judged after 1, 2, 4 … 32 seconds: so their
// verdicts are about all requests so far, and not about the first second.
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

// idleEvery is how often the counters are read while no events come. Waking more often took more
// processor time than everything else that an idle server does.
const idleEvery = time.Second

// gather takes in everything that the deciding path has left. tick says that Run's timer fired, so
// that the counters are read too; minute reports that a minute ended.
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

// take takes in one event. mu is held.
func (c *Collector) take(e *event) {
	if int(e.rule) >= len(c.numbers) || c.numbers[e.rule] == nil {
		return
	}
	s := c.numbers[e.rule]
	c.ask(s)
	if e.at == 0 {
		e.at = c.storeNow().UnixMicro()
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
	if e.weights.top != noWeight {
		with := ""
		if n := int(e.with) - 1; n >= 0 && n < len(c.numbers) && c.numbers[n] != nil {
			with = c.numbers[n].name
		}
		s.addTop(&c.veil, e, with)
	}
	s.takeKey(c, e)
}
