//go:build !race

package algo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// The check below walks through all states that a few regions can reach which share one limit. Each
// has a state of its own, under a ceiling, and lends to the others what it has left: a borrower
// takes as many units out of its own state as another region set aside. Questions and answers
// arrive late or never, and the regions' clocks differ. The limits are the code of this package.
// What is admitted is also counted as if there were one limit, with the sum of the ceilings: that
// must never be exceeded. Mutants of the protocol show that the check finds what it looks for.

// regionsWorld is one state of all that takes part.
type regionsWorld struct {
	now      int64    // by a clock that nobody has
	ahead    [3]int64 // how far ahead of it each region's clock is
	s, lease [3]State
	truth    State    // what was admitted, when it was
	counts   [3]int64 // in place of it, what was admitted in the window of the last clock, and in the next one
	opened   [3]int64 // for windows from the first request: when the region's window began, and counts is by region
	messages [2]regionsMessage
	table    [3]int // of which each region's ceiling is
	changed  int64  // since when none of them is the first one
	broken   string
}

// regionsMessage is a question, or an answer on its way to the borrower's own state.
type regionsMessage struct {
	kind         messageKind
	from, to     int // borrower and lender
	units        int64
	asked        int64 // by the borrower's clock
	since, until int64 // when the units may be given back, by the borrower's clock
	left         int64 // how long the lender lends
	table        int   // of the borrower: it names the lender's ceiling in the question
}

type messageKind byte

const (
	noMessage messageKind = iota
	question
	answer
	lateAnswer // of a mutant, which has set the deadline when it arrived
	againMade  // of a mutant, which gives back twice
)

// regionsCheck is a limit that is walked through.
type regionsCheck struct {
	name               string
	c                  Config
	ceilings           []int64
	window, generation time.Duration // in ticks
	clocks             [][3]int64    // how far ahead the clocks are, in ticks
	over               int64         // units beyond the ceilings, since each region rounds what it counts down
	// the numbers that follow, if the table of the regions changes: each region goes from its
	// ceiling to the lesser of the two, and on to the other when all have done so for wait ticks
	after  []int64
	wait   int64
	tables [3][]*Limit // before, meanwhile, after
	whole  *Limit
}

var regionsChecks = []regionsCheck{
	{name: "fixed window", c: Config{Algorithm: FixedWindow}, ceilings: []int64{3, 3}, window: 3, generation: 1, clocks: [][3]int64{{}, {1}}},
	{name: "log", c: Config{Algorithm: SlidingLog}, ceilings: []int64{3, 3}, window: 2, generation: 1, clocks: [][3]int64{{}, {2}}},
	{name: "bucket", c: Config{Algorithm: TokenBucket}, ceilings: []int64{3, 3}, window: 2, generation: 1, clocks: [][3]int64{{}, {2}}},
	{name: "sliding window", c: Config{Algorithm: SlidingWindow}, ceilings: []int64{3, 3}, window: 2, generation: 1, clocks: [][3]int64{{}}, over: 1},
	{name: "fixed window, three regions", c: Config{Algorithm: FixedWindow}, ceilings: []int64{3, 2, 1}, window: 2, generation: 1, clocks: [][3]int64{{}, {0, 0, 1}, {1}}},
	{name: "log, three regions", c: Config{Algorithm: SlidingLog}, ceilings: []int64{3, 2, 1}, window: 2, generation: 1, clocks: [][3]int64{{}}},
}

// regionsMutant breaks one rule.
type regionsMutant struct {
	name string
	// the borrower
	early, afterEnd, twice, anyWindow, fromArrival, lendersClock, returns bool
	more                                                                  int64
	// the lender
	beyond, forgets, charges, outIgnored bool
	// the limits that it is for: where it breaks nothing, or the rule is not one
	only string
}

var regionsMutants = []regionsMutant{
	{name: "a borrower gives back before the lender has set anything aside", early: true},
	{name: "a borrower gives back after the end of what was lent", afterEnd: true, only: "log bucket"},
	{name: "a borrower gives back twice", twice: true},
	{name: "a borrower gives back in another window than the lender's", anyWindow: true, only: "fixed"},
	{name: "a borrower counts the deadline from the answer", fromArrival: true, only: "log bucket"},
	{name: "a borrower takes the lender's clock for its own", lendersClock: true, only: "log bucket"},
	{name: "a borrower gives back more than it was lent", more: 1},
	{name: "a borrower returns to the lender what it used", returns: true},
	{name: "a lender lends what it does not have", beyond: true},
	{name: "a lender forgets what ended", forgets: true},
	{name: "a lender charges when it lends", charges: true, only: "log bucket"},
	{name: "a lender admits as if nothing were out", outIgnored: true},
}

// TestRegionsStates walks through all states of each limit, and then lets each mutant fail.
func TestRegionsStates(t *testing.T) {
	for i := range regionsChecks {
		check := &regionsChecks[i]
		check.compile(t)
		t.Run(check.name, func(t *testing.T) {
			if check.name != "log, three regions" {
				effort.Long(t, "walks through all states of each limit")
			}
			t.Parallel()
			began := time.Now()
			states, trace := check.walk(&regionsMutant{})
			if trace != "" {
				t.Fatalf("%v, after %d states:\n%s", check.tables[0], states, trace)
			}
			t.Logf("%v: %d states, %v", check.tables[0], states, time.Since(began))
			for i := range regionsMutants {
				if len(check.ceilings) > 2 {
					break // the rules are the same
				}
				m := &regionsMutants[i]
				kind, _, _ := strings.Cut(strings.ReplaceAll(check.name, ",", ""), " ")
				if m.only != "" && !slices.Contains(strings.Fields(m.only), kind) {
					continue
				}
				states, trace := check.walk(m)
				if trace == "" {
					t.Errorf("%v: nothing is found in %d states where %s", check.tables[0], states, m.name)
				}
				t.Logf("%s: found after %d states, in %d steps", m.name, states, strings.Count(trace, "\n"))
			}
		})
	}
}

// TestRegionsFirstRequest shows why windows from the first request are not borrowed for: what is
// lent counts in the lender's window, and that may be over long before the borrower's is.
func TestRegionsFirstRequest(t *testing.T) {
	check := regionsCheck{
		c: Config{Algorithm: FixedWindow, FirstRequest: true}, ceilings: []int64{3, 3}, window: 3, generation: 1, clocks: [][3]int64{{}},
	}
	check.compile(t)
	states, trace := check.walk(&regionsMutant{})
	if trace == "" {
		t.Errorf("nothing is found in %d states", states)
	}
	t.Logf("found after %d states:\n%s", states, trace)
}

// TestRegionsTable moves weight from one region to another while they admit and lend. Each region
// first goes down to the lesser of its two ceilings. When all have done so, they wait, and then go
// up. What was used under the old ceilings must have left the window by then: in a log, what was
// lent under them counts from its end, which is up to two generations later; fixed windows end at
// an instant of each region's own clock; and a bucket must have had time to fill.
func TestRegionsTable(t *testing.T) {
	fixed := regionsCheck{name: "fixed window", c: Config{Algorithm: FixedWindow}, clocks: [][3]int64{{}, {1}, {0, 1}}}
	log := regionsCheck{name: "log", c: Config{Algorithm: SlidingLog}, clocks: [][3]int64{{}, {1}}}
	bucket := regionsCheck{name: "bucket", c: Config{Algorithm: TokenBucket}, clocks: [][3]int64{{}, {1}}}
	for _, c := range []struct {
		check regionsCheck
		wait  int64 // in ticks; a window has two, as have two generations
		holds bool
	}{
		{fixed, 3, true}, {fixed, 2, false}, {fixed, 0, false},
		{log, 4, true}, {log, 2, false}, {log, 0, false},
		{bucket, 4, true}, {bucket, 2, false}, {bucket, 0, false},
	} {
		t.Run(fmt.Sprintf("%s, %d ticks", c.check.name, c.wait), func(t *testing.T) {
			if c.wait > 0 {
				effort.Long(t, "walks through all states of each limit")
			}
			t.Parallel()
			check := c.check
			check.ceilings, check.after, check.window, check.generation, check.wait = []int64{3, 2}, []int64{1, 4}, 2,
				1, c.wait
			check.compile(t)
			states, trace := check.walk(&regionsMutant{})
			switch {
			case c.holds && trace != "":
				t.Errorf("after %d states:\n%s", states, trace)
			case !c.holds && trace == "":
				t.Errorf("nothing is found in %d states", states)
			}
			t.Logf("%d states, %d steps", states, strings.Count(trace, "\n"))
		})
	}
}

func (check *regionsCheck) compile(t *testing.T) {
	c := check.c
	c.Window = check.window * 10 * time.Millisecond
	sized := func(n int64) Config {
		l := c
		if l.N = n; l.Algorithm == TokenBucket {
			l.Burst = n
		}
		return l
	}
	var sum int64
	for i, n := range check.ceilings {
		sum += n
		after := n
		if check.after != nil {
			after = check.after[i]
		}
		for j, n := range [...]int64{n, min(n, after), after} {
			l := sized(n)
			l.Lease, l.LeaseFor = MaxLease, check.generation*10*time.Millisecond
			check.tables[j] = append(check.tables[j], must(t, l))
		}
	}
	check.whole = must(t, sized(sum+check.over))
}

func (check *regionsCheck) walk(m *regionsMutant) (states int, trace string) {
	begin := make([]regionsWorld, len(check.clocks))
	for i, ahead := range check.clocks {
		begin[i].now = base - base%(12*tick)
		for j, ticks := range ahead {
			begin[i].ahead[j] = ticks * tick
		}
	}
	return walk(begin,
		func(w *regionsWorld, b []byte) []byte { return w.key(check, m, b) },
		func(w *regionsWorld, visit func(*regionsWorld, move)) { w.next(check, m, visit) },
		func(w *regionsWorld) string { return w.broken })
}

// clock is what region i takes the time to be.
func (w *regionsWorld) clock(i int) int64 { return w.now + w.ahead[i] }

// limit is region i's.
func (w *regionsWorld) limit(check *regionsCheck, i int) *Limit { return check.tables[w.table[i]][i] }

// copied returns a world that shares nothing with w.
func (w *regionsWorld) copied() regionsWorld {
	c := *w
	for i := range c.s {
		c.s[i].Ext, c.lease[i].Ext = slices.Clone(w.s[i].Ext), slices.Clone(w.lease[i].Ext)
	}
	c.truth.Ext = slices.Clone(w.truth.Ext)
	return c
}

// firstWindow is the number of the window of the clock that is behind all others.
func (w *regionsWorld) firstWindow(check *regionsCheck) int64 {
	return w.now / check.whole.w
}

// admit notes a unit that region i admits.
func (w *regionsWorld) admit(check *regionsCheck, i int) {
	if check.whole.first {
		w.admitFirst(check, i)
		return
	}
	if check.whole.algo == FixedWindow {
		k := w.clock(i)/check.whole.w - w.firstWindow(check)
		if w.counts[k]++; w.counts[k] > check.whole.limit {
			w.broken = "more is admitted in a window than the ceilings make together"
		}
		return
	}
	if !check.whole.Take(&w.truth, w.now, Ask{Cost: 1}).Allowed {
		w.broken = "more is admitted than one limit with all ceilings would admit"
	}
}

// admitFirst is admit for windows that begin with the first request.
func (w *regionsWorld) admitFirst(check *regionsCheck, i int) {
	if began := w.s[i].A; began != w.opened[i] {
		w.opened[i], w.counts[i] = began, 0
	}
	w.counts[i]++
	var sum int64
	for j := range check.ceilings {
		if w.clock(j) < w.opened[j]+check.whole.w {
			sum += w.counts[j]
		}
	}
	if sum > check.whole.limit {
		w.broken = "more is admitted in the regions' windows than the ceilings make together"
	}
}

// next calls visit with every state that can follow.
func (w *regionsWorld) next(check *regionsCheck, m *regionsMutant, visit func(*regionsWorld, move)) {
	c := w.copied()
	window := c.firstWindow(check)
	c.now += tick
	if c.firstWindow(check) != window && !check.whole.first {
		c.counts = [3]int64{c.counts[1]}
	}
	for i := range c.messages {
		c.messages[i].expire(&c, check)
	}
	visit(&c, move{"a tick", 0, 0})
	free := slices.IndexFunc(w.messages[:], func(m regionsMessage) bool { return m.kind == noMessage })
	for i := range check.ceilings {
		l := w.limit(check, i)
		c := w.copied()
		if m.forgets {
			c.forget(l, i)
		}
		lease := &c.lease[i]
		if m.outIgnored {
			l.Roll(&c.s[i], lease, c.clock(i))
			lease = nil
		}
		if l.TakeWith(&c.s[i], lease, c.clock(i), Ask{Cost: 1}).Allowed {
			c.admit(check, i)
			visit(&c, move{"region %d admits", i, 0})
		}
		for j := range check.ceilings {
			if free < 0 || i == j || check.tables[w.table[i]][j].lendable < 2 {
				continue
			}
			c := w.copied()
			c.messages[free] = regionsMessage{kind: question, from: i, to: j, units: 2, asked: c.clock(i),
				table: w.table[i]}
			if m.early {
				l.TakeWith(&c.s[i], &c.lease[i], c.clock(i), Ask{Cost: -2})
			}
			visit(&c, move{"region %d asks region %d", i, j})
		}
	}
	if check.after != nil {
		w.change(check, visit)
	}
	for k := range w.messages {
		if kind := w.messages[k].kind; kind != noMessage {
			c := w.copied()
			c.messages[k] = regionsMessage{}
			visit(&c, move{"a message is lost", 0, 0})
			c = w.copied()
			if how := c.deliver(check, m, k); how != (move{}) {
				visit(&c, how)
			}
			if m.twice && kind == answer {
				c := w.copied()
				c.deliver(check, m, k)
				again := w.messages[k]
				again.kind = againMade
				c.messages[k] = again
				visit(&c, move{"an answer comes, and comes again", 0, 0})
			}
		}
	}
}

// change lets a region go on to another table.
func (w *regionsWorld) change(check *regionsCheck, visit func(*regionsWorld, move)) {
	regions := w.table[:len(check.ceilings)]
	all := !slices.Contains(regions, 0)
	for i, table := range regions {
		c := w.copied()
		switch {
		case table == 0:
			c.table[i] = 1
			c.changed = c.now
		case table == 1 && all && w.now-w.changed >= check.wait*tick:
			c.table[i] = 2
		default:
			continue
		}
		visit(&c, move{"region %d takes table %d", i, c.table[i]})
	}
}

// expire drops a message that can do nothing any more.
func (m *regionsMessage) expire(w *regionsWorld, check *regionsCheck) {
	now := w.clock(m.from)
	if m.kind == question && now >= m.asked+2*w.limit(check, m.to).lease.w || m.kind > question && now >= m.until {
		*m = regionsMessage{}
	}
}

// deliver lets a message arrive.
func (w *regionsWorld) deliver(check *regionsCheck, m *regionsMutant, k int) (how move) {
	msg := &w.messages[k]
	borrower, lender := w.limit(check, msg.from), w.limit(check, msg.to)
	mine, theirs := w.clock(msg.from), w.clock(msg.to)
	switch {
	case msg.kind == question:
		h := w.lend(check, check.tables[msg.table][msg.to], m, msg.to, msg.units)
		if h.Got == 0 || m.early {
			*msg = regionsMessage{}
			break
		}
		msg.kind, msg.units, msg.left = answer, h.Got+m.more, h.Until-theirs
		msg.until = msg.asked + msg.left
		switch {
		case m.lendersClock:
			msg.until = h.Until
		case m.fromArrival:
			msg.until = maxInt
		case m.afterEnd:
			msg.until = msg.asked + 2*check.whole.w + 2*lender.lease.w
		}
		if check.whole.algo == FixedWindow && !check.whole.first && !m.anyWindow {
			start, end, _ := lender.Span(theirs)
			msg.since, msg.until = start, min(msg.until, end)
		}
		msg.asked, msg.table = 0, 0
		if !m.fromArrival {
			msg.left = 0
		}
		msg.expire(w, check)
		return move{"region %d lends %d", msg.to, int(h.Got)}
	case m.fromArrival && msg.kind == answer:
		msg.kind, msg.until, msg.left = lateAnswer, mine+msg.left, 0
		return move{"region %d gets an answer", msg.from, 0}
	case mine >= msg.since && mine < msg.until:
		borrower.TakeWith(&w.s[msg.from], &w.lease[msg.from], mine, Ask{Cost: -msg.units})
		if m.returns {
			n := lender.lease.Lent(&w.lease[msg.to])
			h := Ahead{Told: [2]Told{{End: n.End, Returned: msg.units}, {End: n.Last, Returned: msg.units}}}
			lender.Learn(&w.s[msg.to], &w.lease[msg.to], theirs, &h)
		}
		how = move{"region %d gives itself %d back", msg.from, int(msg.units)}
		*msg = regionsMessage{}
		return how
	}
	return move{}
}

// lend lets region i lend, under the ceiling l.
func (w *regionsWorld) lend(check *regionsCheck, l *Limit, m *regionsMutant, i int, want int64) (h Ahead) {
	s, lease, now := &w.s[i], &w.lease[i], w.clock(i)
	h.Want = want
	if m.forgets {
		w.forget(l, i)
	}
	switch {
	case m.beyond:
		l.Learn(s, lease, now, &h)
		l.Lend(&State{}, lease, now, &h)
		return h
	case m.charges:
		l.TakeAhead(s, lease, now, Ask{}, &h)
		if h.Got > 0 {
			l.force(s, now, h.Got)
			*lease = State{}
		}
		return h
	}
	l.TakeAhead(s, lease, now, Ask{}, &h)
	if left := l.CheckWith(s, lease, now, Ask{}); !left.Allowed && check.after == nil {
		w.broken = "more is charged and out than a ceiling has"
	}
	return h
}

// forget lets what has ended at region i count as never used.
func (w *regionsWorld) forget(l *Limit, i int) {
	if n := l.lease.Lent(&w.lease[i]); w.lease[i].B != 0 && w.clock(i) >= n.End {
		if n.Older = 0; w.clock(i) >= n.Last {
			n.Newer = 0
		}
		keepLent(&w.lease[i], n, w.lease[i].C)
	}
}

// key says all of w that matters from now on, with times as they are from now.
func (w *regionsWorld) key(check *regionsCheck, m *regionsMutant, b []byte) []byte {
	ticks := func(d int64) byte { return byte(min(max(0, d/tick+8), 100)) }
	if check.whole.first {
		for i := range check.ceilings {
			b = append(b, ticks(w.opened[i]-w.clock(i)), byte(w.counts[i]))
		}
	} else if a := check.whole.algo; a == FixedWindow || a == SlidingWindow {
		b = append(b, byte(w.now%check.whole.w/tick), byte(w.counts[0]), byte(w.counts[1]))
	}
	for i := range check.ceilings {
		l := w.limit(check, i)
		b = append(b, byte(w.ahead[i]/tick), byte(w.table[i]))
		b = appendLeaseState(b, l, &w.s[i], w.clock(i))
		n := Lent{}
		if w.lease[i].B != 0 {
			n = l.lease.Lent(&w.lease[i])
		}
		b = append(b, ticks(n.End-w.clock(i)), byte(n.Older), byte(n.Newer))
	}
	if check.whole.algo != FixedWindow {
		b = appendLeaseState(b, check.whole, &w.truth, w.now)
	}
	if check.after != nil && w.table != [3]int{} {
		b = append(b, byte(min((w.now-w.changed)/tick, check.wait)))
	}
	var messages [2][]byte
	for i := range w.messages {
		msg := &w.messages[i]
		if msg.kind != noMessage {
			now := w.clock(msg.from)
			messages[i] = append(make([]byte, 0, 8), byte(msg.kind), byte(msg.from), byte(msg.to), byte(msg.units),
				ticks(msg.asked-now), ticks(max(0, msg.since-now)), ticks(msg.until-now), ticks(msg.left),
				byte(msg.table))
		}
	}
	if slices.Compare(messages[0], messages[1]) > 0 {
		messages[0], messages[1] = messages[1], messages[0]
	}
	b = append(append(b, messages[0]...), 255)
	return append(append(b, messages[1]...), 255)
}
