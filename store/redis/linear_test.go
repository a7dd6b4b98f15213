package redis_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// Histories of several nodes are linearizable: there is an order of all operations, each at some
// moment between its call and its return, in which the pure algorithms give the same answers, field
// by field, at the instants that the store names.

// machine is the pure algorithms behind a history, for porcupine.
type machine struct {
	history  *history
	counters []*rule.Counter
	places   []*algo.Limit // of all states that the history names
	index    map[stateRef]int
	// loose leaves out what depends on the instant of an operation of which nothing is known: the
	// times in the answers of logs and of slots, which remember instants.
	loose bool
	// order, unless it is nil, holds the instants of the decisions that are timely: only such
	// orders are looked for as follow them. There are few of those; and Redis' clock does not go
	// back, unless somebody sets it.
	order map[int64]*instant
}

// place names a state.
type stateRef struct {
	id  uint64 // of the counter
	key string
}

// world is all states. It is never changed, but replaced.
type world struct {
	states []*algo.State // by machine.places; nil: never touched
	now    int64         // of the last decision that is timely
	n      int           // how many decisions have been made at it
}

// instant is one at which decisions were made.
type instant struct {
	n    int   // how many
	next int64 // the one after it
}

func newMachine(t testing.TB, h *history) *machine {
	t.Helper()
	m := &machine{history: h, index: map[stateRef]int{}}
	for _, l := range h.Limits {
		c, err := l.counter()
		if err != nil {
			t.Fatal(err)
		}
		m.counters = append(m.counters, c)
	}
	for _, call := range h.Calls {
		for _, ch := range call {
			c := m.counters[ch.Limit]
			m.place(c, ch.Key)
			for _, p := range c.Previous {
				m.place(p, ch.Key)
			}
		}
	}
	return m
}

func (m *machine) place(c *rule.Counter, key string) int {
	p := stateRef{c.ID, key}
	i, ok := m.index[p]
	if !ok {
		i = len(m.places)
		m.index[p] = i
		m.places = append(m.places, c.Limit)
	}
	return i
}

// touched are the places that an operation names.
func (m *machine) touched(o *op) []int {
	var list []int
	for _, ch := range m.history.Calls[o.What] {
		c := m.counters[ch.Limit]
		list = append(list, m.place(c, ch.Key))
		for _, p := range c.Previous {
			list = append(list, m.place(p, ch.Key))
		}
	}
	return list
}

func clone(st *algo.State) *algo.State {
	if st == nil {
		return &algo.State{}
	}
	c := *st
	c.Ext = bytes.Clone(st.Ext)
	return &c
}

// timely reports whether an operation took effect at the instant that it names. Those that are
// settled by compare-and-swap name the instant at which they read; when they write, later, the
// states are still the same, but others may have been denied on them, or have looked at them,
// meanwhile.
func (m *machine) timely(o *op) bool {
	if o.Release != 0 || o.Err != "" {
		return false
	}
	call := m.history.Calls[o.What]
	for i, ch := range call {
		c := m.counters[ch.Limit]
		if len(c.Previous) > 0 || ch.Cost < 0 && c.Limit.Config().Buckets > 1 {
			return false
		}
		for _, other := range call[:i] {
			if other.Limit == ch.Limit && other.Key == ch.Key {
				return false
			}
		}
	}
	return true
}

// step makes an operation at an instant, and returns the world after it and the results.
func (m *machine) step(w *world, o *op, now int64) (*world, []algo.Result, bool) {
	next := &world{states: slices.Clone(w.states), now: w.now, n: w.n}
	if m.timely(o) {
		if now != w.now {
			next.now, next.n = now, 0
		}
		next.n++
	}
	if o.Release != 0 {
		ch := m.history.Calls[o.What][o.At]
		c := m.counters[ch.Limit]
		at := m.place(c, ch.Key)
		next.states[at] = clone(next.states[at])
		return next, nil, c.Limit.Release(next.states[at], next.now, o.Release)
	}
	list := charges(&m.history.workload, m.counters, o)
	states, fresh := make([]*algo.State, len(list)), map[int]bool{}
	for i := range list {
		c := &list[i]
		c.Ask.Slot = math.MaxUint64 // of no use, where the store did not admit
		if i < len(o.Slots) && o.Slots[i] != 0 {
			c.Ask.Slot = o.Slots[i]
		}
		at := m.place(c.Counter, string(c.Key))
		if !fresh[at] {
			next.states[at] = clone(next.states[at])
			fresh[at] = true
			m.inherit(next, at, c, now)
		}
		states[i] = next.states[at]
	}
	return next, decide(list, states, now), false
}

// inherit carries a state over that is kept under an older identity of the counter.
func (m *machine) inherit(w *world, at int, c *store.Charge, now int64) {
	if w.states[at].B != 0 {
		return
	}
	for _, p := range c.Counter.Previous {
		from := m.place(p, string(c.Key))
		if old := w.states[from]; old != nil && old.B != 0 {
			*w.states[at] = *clone(old)
			c.Limit.Carry(p.Limit, w.states[at], now)
			w.states[from] = nil
			return
		}
	}
}

// decide is store.Store.Take on states, said as plainly as possible.
func decide(charges []store.Charge, states []*algo.State, now int64) []algo.Result {
	results := make([]algo.Result, len(charges))
	if len(charges) == 1 {
		results[0] = charges[0].Limit.Take(states[0], now, charges[0].Ask)
		return results
	}
	tried := map[*algo.State]*algo.State{}
	enforced, quotas, open := true, false, false
	for i, c := range charges {
		if tried[states[i]] == nil {
			tried[states[i]] = clone(states[i])
		}
		results[i] = c.Limit.Take(tried[states[i]], now, c.Ask)
		switch c.Mode {
		case rule.Enforce:
			enforced = enforced && results[i].Allowed
		case rule.Quota:
			quotas, open = true, open || results[i].Allowed
		}
	}
	denied := !enforced || quotas && !open
	for i, c := range charges {
		own := results[i]
		if !denied || c.Mode == rule.Shadow {
			results[i] = c.Limit.Take(states[i], now, c.Ask)
			continue
		}
		if c.Limit.CountDenied() {
			results[i] = c.Limit.Take(states[i], now, c.Ask)
		} else {
			results[i] = c.Limit.Check(states[i], now, c.Ask)
		}
		r := &results[i]
		r.Allowed, r.RetryAfter, r.Delay, r.Soft = own.Allowed, own.RetryAfter, own.Delay, r.Soft && own.Allowed
	}
	return results
}

// agrees reports whether an operation came out as the pure algorithms say.
func (m *machine) agrees(o *op, want []algo.Result) bool {
	for i, w := range want {
		got := o.Results[i]
		if m.loose {
			switch m.counters[m.history.Calls[o.What][i].Limit].Limit.Algorithm() {
			case algo.SlidingLog, algo.Concurrency:
				got.RetryAfter, got.ResetAfter = 0, 0
				w.RetryAfter, w.ResetAfter = 0, 0
			}
		}
		if got != w {
			return false
		}
	}
	return true
}

// outcomes are the worlds that an operation can leave. Of one that failed nothing is known: it has
// been made, or it has not. When is not known either; that makes no difference where loose leaves
// it out, or, as a bucket drains by the same in two steps as in one, it does not stand empty; so it
// is made at the last instant that is known.
func (m *machine) outcomes(w *world, o *op) []*world {
	if o.Err != "" {
		next, _, _ := m.step(w, o, w.now)
		if m.equal(w, next) {
			return []*world{w}
		}
		return []*world{w, next}
	}
	if m.order != nil && m.timely(o) && o.Now != w.now {
		if at := m.order[w.now]; w.n != at.n || o.Now != at.next {
			return nil
		}
	}
	if m.order != nil && o.Now != 0 && !m.timely(o) {
		// What was decided at an earlier instant comes first.
		if at := m.order[w.now]; at.next != 0 && at.next < o.Now || w.n != at.n && w.now < o.Now {
			return nil
		}
	}
	next, results, released := m.step(w, o, o.Now)
	if o.Release != 0 && released != o.Released || !m.agrees(o, results) {
		return nil
	}
	return []*world{next}
}

// equal reports whether two worlds cannot be told apart.
func (m *machine) equal(w, v *world) bool {
	if w == v {
		return true
	}
	if w.now != v.now || w.n != v.n {
		return false
	}
	for i := range w.states {
		if a, b := w.states[i], v.states[i]; a != b && !m.same(m.places[i], a, b) {
			return false
		}
	}
	return true
}

func (m *machine) same(l *algo.Limit, a, b *algo.State) bool {
	if a == nil || a.B == 0 {
		return b == nil || b.B == 0
	}
	if b == nil || a.B != b.B && !m.loose {
		return false
	}
	if m.loose {
		switch l.Algorithm() {
		case algo.SlidingLog: // how many units there are
			return a.B>>32 == b.B>>32
		case algo.Concurrency: // who holds how many slots
			return a.B == b.B && maps.Equal(holders(a), holders(b))
		}
	}
	return a.A == b.A && a.B == b.B && a.C == b.C && bytes.Equal(a.Ext, b.Ext)
}

// holders are the ids of those who hold slots, and how many entries each has.
func holders(st *algo.State) map[uint64]int {
	ids := map[uint64]int{}
	for e := st.Ext; len(e) > 0; e = e[24:] {
		ids[binary.LittleEndian.Uint64(e[8:])]++
	}
	return ids
}

// model is the machine as porcupine wants it. Failed operations make it a set of worlds at each
// step.
func (m *machine) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return []*world{{states: make([]*algo.State, len(m.places))}} },
		Step: func(state, input, _ any) (bool, any) {
			var next []*world
			for _, w := range state.([]*world) {
				for _, v := range m.outcomes(w, input.(*op)) {
					if !slices.ContainsFunc(next, func(x *world) bool { return m.equal(x, v) }) {
						next = append(next, v)
					}
				}
			}
			return len(next) > 0, next
		},
		Equal: func(a, b any) bool {
			v, w := a.([]*world), b.([]*world)
			for _, x := range v {
				if !slices.ContainsFunc(w, func(y *world) bool { return m.equal(x, y) }) {
					return false
				}
			}
			return len(v) == len(w)
		},
	}
}

// partition puts operations that name a state in common, or are so linked by others, into one part.
func (m *machine) partition(all []porcupine.Operation) [][]porcupine.Operation {
	group := make([]int, len(m.places))
	for i := range group {
		group[i] = i
	}
	of := func(i int) int {
		for group[i] != i {
			i = group[i]
		}
		return i
	}
	for i := range all {
		at := m.touched(all[i].Input.(*op))
		for _, p := range at {
			group[of(p)] = of(at[0])
		}
	}
	parts := map[int][]porcupine.Operation{}
	for i := range all {
		g := of(m.touched(all[i].Input.(*op))[0])
		parts[g] = append(parts[g], all[i])
	}
	var list [][]porcupine.Operation
	for _, part := range parts {
		list = append(list, part)
	}
	return list
}

// operations is the history for porcupine. An operation that failed may take effect at any later
// time, unless it is known not to have had any.
func (m *machine) operations() []porcupine.Operation {
	var all []porcupine.Operation
	for i := range m.history.ops {
		o := &m.history.ops[i]
		if o.NotCharged {
			continue
		}
		p := porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
		if o.Err != "" {
			p.Return = math.MaxInt64
		}
		all = append(all, p)
	}
	return all
}

// checkLinearizable ends the test unless a history is linearizable and nodes were at operations at
// the same time.
func checkLinearizable(t testing.TB, m *machine) {
	t.Helper()
	overlaps, problem := linearizable(t, m)
	if problem != "" {
		t.Fatal(problem)
	}
	if overlaps == 0 {
		t.Error("no two nodes were at an operation at the same time: this shows nothing")
	}
}

// checkRuns ends the test unless the histories that run makes on servers, of states of their own,
// are linearizable. It has them made until nodes were at operations at the same time and shows,
// unless it is nil, is true: almost always once, but the machine may have the nodes take turns, or
// have a server stand still in a call (stoodStill).
func checkRuns(t testing.TB, servers []*redistest.Server, run func() history, shows func(h *history) bool) {
	t.Helper()
	patience.Until(t, "a history shows what it is for", func() bool {
		for _, server := range servers {
			server.Do("SLOWLOG", "RESET")
		}
		h := run()
		m := newMachine(t, &h)
		overlaps, problem := linearizable(t, m)
		switch {
		case problem == "":
			return overlaps > 0 && (shows == nil || shows(&h))
		case !stoodStill(t, servers):
			t.Fatal(problem)
		}
		t.Logf("once more, as Redis stood still in the middle of a call:\n%.400s", problem)
		return false
	})
}

// stoodStill reports whether a call took a server so long that a window was over within it. Redis
// decides by the instant at which a call began, but forgets by the time of day: what it wrote at
// the beginning of such a call is gone at its end.
func stoodStill(t testing.TB, servers []*redistest.Server) bool {
	t.Helper()
	for _, server := range servers {
		calls, _ := server.Do("SLOWLOG", "GET", "-1").([]any)
		for _, call := range calls {
			fields, _ := call.([]any) // number, when, µs, …
			if len(fields) < 3 {
				t.Fatalf("SLOWLOG: %v", call)
			}
			if took, _ := fields[2].(int64); took >= shortest.Microseconds() {
				return true
			}
		}
	}
	return false
}

// merged reports whether decisions went as one.
func merged(h *history) bool { return h.stats.Merged > 0 }

// linearizable returns how many operations of a history began while another node was at one, and
// where the history is not linearizable; "" if it is.
func linearizable(t testing.TB, m *machine) (overlaps int, problem string) {
	t.Helper()
	all := m.operations()
	begin := time.Now()
	for _, part := range m.partition(all) {
		overlaps += m.overlaps(part)
		m.inOrder(part)
		verdict, info := porcupine.CheckOperationsVerbose(m.model(), part, patience.Left(t))
		if verdict == porcupine.Ok {
			continue
		}
		problem := m.explain(part, info)
		m.order = nil
		if verdict := porcupine.CheckOperationsTimeout(m.model(), part, patience.Left(t)); verdict != porcupine.Ok {
			return overlaps, fmt.Sprintf("the history is not linearizable (%s)\n%s", verdict, problem)
		}
		t.Logf("the history is linearizable, but not in the order of the instants; was the clock set?\n%s", problem)
	}
	admitted, denied, failed, uncharged := m.history.counts()
	t.Logf(
		"%d operations, %d of them while another node was at one; %d admitted, %d denied; %d failed, of which %d had no effect; checked in %v",
		len(all), overlaps, admitted, denied, failed, uncharged, time.Since(begin).Round(time.Millisecond))
	return overlaps, ""
}

// inOrder has only orders looked for that follow the instants of a part.
func (m *machine) inOrder(part []porcupine.Operation) {
	m.order = map[int64]*instant{0: {}}
	for _, x := range part {
		if o := x.Input.(*op); m.timely(o) {
			if m.order[o.Now] == nil {
				m.order[o.Now] = &instant{}
			}
			m.order[o.Now].n++
		}
	}
	last := m.order[0]
	for _, now := range slices.Sorted(maps.Keys(m.order))[1:] {
		last.next = now
		last = m.order[now]
	}
}

// overlaps returns how many operations began while one of another node was under way.
func (m *machine) overlaps(part []porcupine.Operation) (n int) {
	slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	until := map[int]int64{} // by node
	for _, o := range part {
		own := o.ClientId / m.history.Clients
		for other, end := range until {
			if other != own && end > o.Call {
				n++
				break
			}
		}
		until[own] = max(until[own], o.Return)
	}
	return n
}

// counts returns how many decisions came out how. Of those that failed, uncharged are known not to
// have been made.
func (h *history) counts() (admitted, denied, failed, uncharged int) {
	for i := range h.ops {
		switch o := &h.ops[i]; {
		case o.Err != "":
			failed++
			if o.NotCharged {
				uncharged++
			}
		case o.Release != 0:
		case slices.ContainsFunc(o.Results, func(r algo.Result) bool { return !r.Allowed }):
			denied++
		default:
			admitted++
		}
	}
	return admitted, denied, failed, uncharged
}

// explain tells where a history goes wrong: after the longest order that was found, what each
// operation that could be next should have answered.
func (m *machine) explain(part []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, some := range info.PartialLinearizationsOperations()[0] {
		if len(some) > len(longest) {
			longest = some
		}
	}
	var b strings.Builder
	worlds := m.model().Init()
	done := map[*op]bool{}
	for _, x := range longest {
		done[x.Input.(*op)] = true
		_, worlds = m.model().Step(worlds, x.Input, nil)
	}
	fmt.Fprintf(&b, "%d of %d operations are in order; the last of them, and the first that are left:\n", len(longest),
		len(part))
	for _, x := range longest[max(0, len(longest)-5):] {
		fmt.Fprintf(&b, "  ok   %+v\n", *x.Input.(*op))
	}
	shown := 0
	for _, x := range part {
		o := x.Input.(*op)
		if done[o] || shown == 5 {
			continue
		}
		shown++
		fmt.Fprintf(&b, "  left %+v\n       of %+v\n", *o, m.history.Calls[o.What])
		for _, w := range worlds.([]*world) {
			_, want, released := m.step(w, o, cmp.Or(o.Now, w.now))
			fmt.Fprintf(&b, "       the algorithm says %+v, released %v\n", want, released)
		}
	}
	return b.String()
}

const keyCount = 5

func key(i int) string { return fmt.Sprint("key ", i) }

// eachKey are calls of one charge of the first limit, on each of the keys.
func eachKey(costs ...int64) [][]chargeSpec {
	var calls [][]chargeSpec
	for i := range keyCount {
		for _, cost := range costs {
			calls = append(calls, []chargeSpec{{Key: key(i), Cost: cost}})
		}
	}
	return calls
}

// window is the window of the limits whose histories are checked: so short that much is admitted,
// much is denied, and much comes free within a history; but longer than most machines let Redis
// wait in the middle of a call (stoodStill).
const window = 120 * time.Millisecond

// shortest is the shortest window of them; see stoodStill.
const shortest = window / 2

// variants are those limits.
var variants = []struct {
	name string
	c    algo.Config
}{
	{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, N: 40, Window: window}},
	{"fixed_window from the first request", algo.Config{Algorithm: algo.FixedWindow, N: 40, Window: window, FirstRequest: true}},
	{"fixed_window by the calendar", algo.Config{Algorithm: algo.FixedWindow, N: 100, Calendar: algo.Day, CountDenied: true}},
	{"sliding_window K=1", algo.Config{Algorithm: algo.SlidingWindow, N: 40, Window: window}},
	{"sliding_window K=60", algo.Config{Algorithm: algo.SlidingWindow, N: 40, Window: window, Buckets: 60}},
	{"sliding_window K=6 counting denied", algo.Config{Algorithm: algo.SlidingWindow, N: 60, Window: window, Buckets: 6, CountDenied: true, Soft: 20}},
	{"sliding_log", algo.Config{Algorithm: algo.SlidingLog, N: 40, Window: window}},
	{"sliding_log counting denied", algo.Config{Algorithm: algo.SlidingLog, N: 60, Window: window, CountDenied: true}},
	{"token_bucket", algo.Config{Algorithm: algo.TokenBucket, N: 40, Window: window}},
	{"token_bucket at intervals", algo.Config{Algorithm: algo.TokenBucket, N: 20, Window: window / 2, Burst: 40, RefillInterval: true}},
	{"leaky_bucket", algo.Config{Algorithm: algo.LeakyBucket, N: 40, Window: window}},
	{"concurrency", algo.Config{Algorithm: algo.Concurrency, N: 10, Timeout: time.Hour}},
}

// TestLinearizable is of 3 nodes with 8 clients each on 5 keys.
func TestLinearizable(t *testing.T) {
	server := redistest.Start(t)
	testLinearizable(t, redis.Options{URL: server.URL()}, server)
}

func testLinearizable(t *testing.T, o redis.Options, servers ...*redistest.Server) {
	fleet := startFleet(t, 3)
	fleet.open(o)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			if v.c.Buckets != 6 && v.name != "sliding_log" && v.name != "token_bucket" &&
				v.c.Algorithm != algo.Concurrency {
				effort.Long(t, "a quick run checks four other limits")
			}
			costs := []int64{1, 1, 1, 1, 2, 0}
			if v.c.Algorithm != algo.Concurrency { // slots go back by Release
				costs = append(costs, -1)
			}
			// Slots have ids of their own, and what a log that counts denied decisions answers
			// depends on the one before.
			alone := v.c.Algorithm == algo.Concurrency || v.c.Algorithm == algo.SlidingLog && v.c.CountDenied
			checkRuns(t, servers, func() history {
				return fleet.in(t).run(workload{Limits: []limitSpec{spec(t, v.c)}, Calls: eachKey(costs...), Clients: 8,
					Each: 120, Release: true, Pause: 3 * time.Millisecond})
			}, func(h *history) bool { return alone || merged(h) })
		})
	}
	// Where all ask for other costs, nothing is merged; and where a node has one client, nothing
	// even waits together.
	for name, w := range map[string]workload{
		"all apart":  {Clients: 8, Each: 120, Apart: true, Pause: 3 * time.Millisecond},
		"one client": {Clients: 1, Each: 500},
	} {
		w.Calls = eachKey(1)
		t.Run(name, func(t *testing.T) {
			checkRuns(t, servers, func() history {
				w.Limits = []limitSpec{spec(t, variants[0].c)}
				h := fleet.in(t).run(w)
				if merged(&h) {
					t.Errorf("%d decisions went as one with another", h.stats.Merged)
				}
				return h
			}, nil)
		})
	}
}

// TestLinearizableAcrossLimits is of decisions on several limits and subjects at once, which are
// all or nothing: the histories are checked whole.
func TestLinearizableAcrossLimits(t *testing.T) {
	server := redistest.Start(t)
	servers := []*redistest.Server{server}
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: server.URL()})
	// Of two limits, as most rules have them: one is charged only where the other admits.
	t.Run("pairs", func(t *testing.T) {
		effort.Long(t, "the calls of the windows of a rule, and random ones, have pairs too")
		w := workload{Clients: 8, Each: 80, Pause: 3 * time.Millisecond}
		for i := range keyCount {
			for j := range keyCount {
				w.Calls = append(w.Calls, []chargeSpec{{Limit: 0, Key: key(i), Cost: 1},
					{Limit: 1, Key: key(j), Cost: 1}})
			}
		}
		checkRuns(t, servers, func() history {
			w.Limits = []limitSpec{
				spec(t, algo.Config{Algorithm: algo.SlidingLog, N: 40, Window: window}),
				spec(t, algo.Config{Algorithm: algo.TokenBucket, N: 40, Window: window}),
			}
			return fleet.in(t).run(w)
		}, nil)
	})
	// The same pair for all, so that pairs go as one.
	t.Run("one pair", func(t *testing.T) {
		w := workload{
			Calls:   [][]chargeSpec{{{Limit: 0, Cost: 1}, {Limit: 1, Cost: 1}}},
			Clients: 8, Each: 80, Pause: 3 * time.Millisecond,
		}
		checkRuns(t, servers, func() history {
			w.Limits = []limitSpec{
				spec(t, algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: 366 * 24 * time.Hour}),
				spec(t, algo.Config{Algorithm: algo.SlidingWindow, N: 60, Window: window, Buckets: 6}),
			}
			return fleet.in(t).run(w)
		}, merged)
	})
	// Windows of one rule, whose states lie together, met in one decision or in several.
	t.Run("windows of a rule", func(t *testing.T) {
		w := workload{Clients: 8, Each: 100, Pause: 3 * time.Millisecond}
		for i := range keyCount {
			for _, limits := range [][]int{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2, 3, 4}, {0}, {2, 1}, {1, 3},
				{4, 0}} {
				var call []chargeSpec
				for _, limit := range limits {
					call = append(call, chargeSpec{Limit: limit, Key: key(i), Cost: 1})
				}
				w.Calls = append(w.Calls, call)
			}
			w.Calls = append(w.Calls, []chargeSpec{{Limit: 2, Key: key(i), Cost: -1}})
		}
		checkRuns(t, servers, func() history {
			w.Limits = grouped(
				spec(t, algo.Config{Algorithm: algo.FixedWindow, N: 80, Window: 2 * window}),
				spec(t, algo.Config{Algorithm: algo.SlidingWindow, N: 40, Window: window}),
				spec(t, algo.Config{Algorithm: algo.TokenBucket, N: 50, Window: window}),
				spec(t, algo.Config{Algorithm: algo.SlidingWindow, N: 40, Window: window, Buckets: 6}),
				spec(t, algo.Config{Algorithm: algo.SlidingLog, N: 40, Window: window}),
			)
			return fleet.in(t).run(w)
		}, merged)
	})
	// Anything: one to four limits of all kinds, in all modes.
	t.Run("random calls", func(t *testing.T) {
		w := workload{Clients: 8, Each: 80, Seed: redis.Seed(t), Pause: 3 * time.Millisecond}
		rnd := rand.New(rand.NewPCG(w.Seed, 0))
		for range 60 {
			var call []chargeSpec
			for range 1 + rnd.IntN(4) {
				c := chargeSpec{Limit: rnd.IntN(len(variants)), Key: key(rnd.IntN(keyCount)), Cost: 1}
				c.Mode = []rule.Mode{rule.Enforce, rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}[rnd.IntN(5)]
				if rnd.IntN(6) == 0 {
					c.Cost = int64(rnd.IntN(4))
				}
				if !slices.ContainsFunc(call, func(o chargeSpec) bool { return o.Limit == c.Limit && o.Key == c.Key }) {
					call = append(call, c)
				}
			}
			w.Calls = append(w.Calls, call)
		}
		checkRuns(t, servers, func() history {
			w.Limits = nil
			for _, v := range variants {
				if v.c.Algorithm == algo.Concurrency {
					// nothing is given back, which would be of no known instant
					v.c.N = 200
				}
				w.Limits = append(w.Limits, spec(t, v.c))
			}
			return fleet.in(t).run(w)
		}, nil)
	})
	// The same state twice in a decision, which is settled by compare-and-swap, among others that
	// are not.
	t.Run("twice the same", func(t *testing.T) {
		w := workload{Clients: 8, Each: 30}
		for i := range lasting {
			one := chargeSpec{Limit: i, Key: key(i % keyCount), Cost: 1}
			two := chargeSpec{Limit: i, Key: one.Key, Cost: 2, Mode: rule.Shadow}
			w.Calls = append(w.Calls, []chargeSpec{one, one}, []chargeSpec{one}, []chargeSpec{one, two})
		}
		checkRuns(t, servers, func() history {
			w.Limits = nil
			for _, v := range lasting {
				v.c.N = 60
				w.Limits = append(w.Limits, spec(t, v.c))
			}
			h := fleet.in(t).run(w)
			if h.stats.Swaps == 0 {
				t.Error("nothing was settled by compare-and-swap")
			}
			return h
		}, nil)
	})
}

// TestLinearizableReload: a limit's window changes while nodes work, and not on all of them at
// once. The new counter takes the old one's state over, once, whoever comes first.
func TestLinearizableReload(t *testing.T) {
	server := redistest.Start(t)
	fleet := startFleet(t, 3)
	fleet.open(redis.Options{URL: server.URL()})
	for _, v := range []struct {
		name string
		c    algo.Config
	}{
		{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, N: 90, Window: 300 * 24 * time.Hour}},
		{"sliding_window K=1", algo.Config{Algorithm: algo.SlidingWindow, N: 90, Window: 100 * 24 * time.Hour}},
		{"sliding_window K=60", algo.Config{Algorithm: algo.SlidingWindow, N: 90, Window: 60 * time.Hour, Buckets: 60}},
		{"sliding_log", algo.Config{Algorithm: algo.SlidingLog, N: 90, Window: time.Hour}},
		{"token_bucket", algo.Config{Algorithm: algo.TokenBucket, N: 90, Window: time.Hour}},
		{"leaky_bucket", algo.Config{Algorithm: algo.LeakyBucket, N: 90, Window: time.Hour}},
	} {
		c := v.c
		c.Window = c.Window * 12 / 10
		testReload(t, fleet, v.name, func() []limitSpec { return []limitSpec{spec(t, v.c), spec(t, c, spec(t, v.c))} })
		testReload(t, fleet, v.name+", of a rule",
			func() []limitSpec { return grouped(spec(t, v.c), spec(t, c, spec(t, v.c))) })
	}
}

func testReload(t *testing.T, fleet *fleet, name string, limits func() []limitSpec) {
	run := func(t *testing.T) (h history) {
		fleet := fleet.in(t)
		w := workload{Limits: limits(), Clients: 8, Each: 10}
		w.Limits[1].Previous[0].ID = w.Limits[0].ID
		// First all by the old counter, then some by either, then all by the new one.
		for _, limits := range [][]int{{0}, {0, 1}, {1}} {
			w.Calls = nil
			for i := range keyCount {
				for _, limit := range limits {
					w.Calls = append(w.Calls, []chargeSpec{{Limit: limit, Key: key(i), Cost: 1}})
				}
			}
			h.join(fleet.run(w))
		}
		if h.stats.Swaps == 0 {
			t.Error("no state was taken over")
		}
		return h
	}
	t.Run(name, func(t *testing.T) { checkRuns(t, nil, func() history { return run(t) }, nil) })
}

// TestLinearizableNotices: what is not linearizable is found out.
func TestLinearizableNotices(t *testing.T) {
	server := redistest.Start(t)
	fleet := startFleet(t, 2)
	fleet.open(redis.Options{URL: server.URL()})
	good := fleet.run(workload{
		Limits:  []limitSpec{spec(t, algo.Config{Algorithm: algo.SlidingLog, N: 100, Window: time.Hour})},
		Calls:   [][]chargeSpec{{{Cost: 1}}},
		Clients: 4, Each: 20,
	})
	// In the order in which Redis decided.
	slices.SortFunc(good.ops, func(a, b op) int { return cmp.Compare(b.Results[0].Remaining, a.Results[0].Remaining) })
	for name, spoil := range map[string]func(ops []op) []op{
		"a charge is lost":       func(ops []op) []op { return slices.Delete(ops, 10, 11) },
		"a charge is made twice": func(ops []op) []op { return slices.Insert(ops, 10, ops[10]) },
		"two hours later":        func(ops []op) []op { ops[10].Now += 2 * time.Hour.Microseconds(); return ops },
		"before its call": func(ops []op) []op {
			// The first is said to have been asked after the last had come out.
			ops[0].Call, ops[0].Return = ops[len(ops)-1].Return+1, ops[len(ops)-1].Return+2
			return ops
		},
	} {
		h := good
		h.ops = spoil(slices.Clone(good.ops))
		m := newMachine(t, &h)
		for _, part := range m.partition(m.operations()) {
			if verdict, _ := porcupine.CheckOperationsVerbose(m.model(), part, patience.Left(t)); verdict != porcupine.Illegal {
				t.Errorf("%s: %s", name, verdict)
			}
		}
	}
	m := newMachine(t, &good)
	for _, part := range m.partition(m.operations()) {
		if verdict, _ := porcupine.CheckOperationsVerbose(m.model(), part, patience.Left(t)); verdict != porcupine.Ok {
			t.Errorf("as it was: %s", verdict)
		}
	}
}
