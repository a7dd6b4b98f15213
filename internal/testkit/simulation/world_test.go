package simulation

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/rule"
)

// world is a run.
type world struct {
	seed    uint64
	mistake mistake
	plan    *plan
	begun   time.Time
	server  *server
	nodes   []*node

	mu       sync.Mutex
	lines    []line
	problems []string
	ops      []*op
	network  []weather // by node
	// disturbed counts what may change how a request is decided beside other requests: faults,
	// orders and rules.
	disturbed int
	faults    int       // that are in force
	first     *rule.Set // the first version of the rules
	accounts  allBooks
	orders    map[account]*order
	seen      counts
}

// counts say whether a run saw what it is there for.
type counts struct {
	Ops, Admitted, Refused, Local, Failed, Lost, Late    int
	Banned, Honest, Debts, Settled, Trips, Leased, Calls int
}

func (c *counts) add(o *counts) {
	for _, p := range [][2]*int{
		{&c.Ops, &o.Ops},
		{&c.Admitted, &o.Admitted},
		{&c.Refused, &o.Refused},
		{&c.Local, &o.Local},
		{&c.Failed, &o.Failed},
		{&c.Lost, &o.Lost},
		{&c.Late, &o.Late},
		{&c.Banned, &o.Banned},
		{&c.Honest, &o.Honest},
		{&c.Debts, &o.Debts},
		{&c.Settled, &o.Settled},
		{&c.Trips, &o.Trips},
		{&c.Leased, &o.Leased},
		{&c.Calls, &o.Calls},
	} {
		*p[0] += *p[1]
	}
}

// line is a line of the trace.
type line struct {
	at   time.Duration
	text string
}

// random returns numbers that depend on the seed and on words only, and not on who asks first.
func (w *world) random(words ...any) *rand.Rand {
	h := fnv.New64a()
	for _, word := range words {
		fmt.Fprintf(h, "%v|", word)
	}
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// now is the virtual time since the run began.
func (w *world) now() time.Duration { return time.Since(w.begun) }

// note writes a line of the trace.
func (w *world) note(format string, args ...any) {
	l := line{w.now(), fmt.Sprintf(format, args...)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, l)
}

// wrong notes something that must not be.
func (w *world) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.note("WRONG %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) < 20 {
		w.problems = append(w.problems, fmt.Sprintf("%v: %s", w.now(), text))
	}
}

// trace returns the lines in order; lines of one instant are sorted.
func (w *world) trace() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortFunc(w.lines, func(a, b line) int {
		if a.at != b.at {
			return cmp.Compare(a.at, b.at)
		}
		return strings.Compare(a.text, b.text)
	})
	var text strings.Builder
	for _, l := range w.lines {
		fmt.Fprintf(&text, "%d %s\n", l.at, l.text)
	}
	return text.String()
}

// count counts under the lock.
func (w *world) count(what *int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*what++
}

// disturb notes that something other than a request may change decisions from now on.
func (w *world) disturb() { w.count(&w.disturbed) }

// fault notes that a fault has begun, or ended.
func (w *world) fault(by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disturbed++
	w.faults += by
}

// clock is a clock of a machine, which may go at another pace than time itself, and be set.
type clock struct {
	mu     sync.Mutex
	from   time.Time
	base   int64 // µs since the Unix epoch, at from
	ppm    int64 // how much faster it goes, in millionths
	behind int   // how often it was set back
	ahead  int   // and how often ahead
}

// start is when the clocks begin: 2026-01-01T00:00:00Z. A window of the longest kind in use begins
// then, and none ends before the run does.
const start = int64(1767225600_000000)

func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base + c.elapsed()
}

// elapsed is the time since from as it goes, in µs.
func (c *clock) elapsed() int64 {
	elapsed := time.Since(c.from).Microseconds()
	return elapsed + elapsed*c.ppm/1_000_000
}

func (c *clock) step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base += by.Microseconds()
	if by < 0 {
		c.behind++
	} else {
		c.ahead++
	}
}

func (c *clock) setBack() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behind
}

func (c *clock) setAhead() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead
}

// until returns how long it takes until the clock has gone on by so many µs.
func (c *clock) until(µs int64) time.Duration {
	return time.Duration(µs*1_000_000/(1_000_000+c.ppm)+2) * time.Microsecond
}

// weather is what the network between a node and the server does.
type weather struct {
	refused bool          // connections are refused
	hole    bool          // packets vanish
	slow    time.Duration // a way takes up to that much longer
	lossy   int           // of a hundred calls so many are lost on the way there, and as many on the way back
	late    int           // of a hundred answers so many come after the deadline
}

func (w *world) weatherOf(node int) weather {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.network[node]
}

func (w *world) setWeather(node int, change func(*weather)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.network[node])
}
