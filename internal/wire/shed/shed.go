// Package shed turns requests away while this process has more to do than it can, so that those it
// does answer are answered in time. Begin with New; each door asks its Door.Late before it decides.
//
// A request stands in line from when its bytes could be read until its handler runs: behind the
// goroutines that are ready to run, those that the network has woken but the scheduler has not
// looked for, and other processes. None of this is seen from within a request. So a probe stands in
// the same line: a timer of the kernel that becomes readable at a known instant, as a connection
// does. How late it is read is how long all have waited that became ready then; and while it is
// overdue, by how much it is. That costs a request nothing, and is one number for all doors, with
// TLS or without.
package shed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Answer says how a door answers a request that is turned away.
type Answer string

// The answers.
const (
	Error Answer = "error" // that nothing was decided: what then happens is up to the caller
	Deny  Answer = "deny"  // as one that a limit refuses
	Allow Answer = "allow" // as one that no limit refuses
)

// Check returns an error that names valid values in place of a.
func (a Answer) Check() error {
	if a != Error && a != Deny && a != Allow {
		return fmt.Errorf("%q must be %s, %s or %s", string(a), Error, Deny, Allow)
	}
	return nil
}

// Reason is a door's message to a request that it turns away.
const Reason = "overloaded: the request has stood in line for too long, and nothing was decided; try again in a moment"

// How often the probe looks: after tense while there is a line, and less and less often while there
// is none. After a reading above a bound it looks atOnce, without giving up the processor: a
// process that stood still because others had it (a stopped process, a paused machine, a quota,
// other programs) has no line left then, and one that has more to do than it can has.
const (
	atOnce  = time.Nanosecond
	tense   = 2 * time.Millisecond
	relaxed = 64 * time.Millisecond
	// a line that is no reason to look more closely
	short = time.Millisecond
)

// fewest is how far apart requests may lie that make a line. If fewer arrive and all are equally
// slow, something else uses the processor, and shedding would not help: a processor that writes a
// snapshot, or compiles new rules, looks at its sockets every 10 ms or so.
const fewest = 4 * time.Millisecond

// tick is how often somebody looks at a probe that is overdue.
const tick = longest / 10

// Line is the one in which all requests of this process stand. Make one with New; a nil Line has no
// doors. Safe for concurrent use.
type Line struct {
	probe probe
	began time.Time // the clock's zero
	doors []*Door

	mu     sync.Mutex   // of the doors' controls, and stood
	waited atomic.Int64 // by the last reading, in ns
	due    atomic.Int64 // when the probe is to be read, in ns since began; far ahead while it rests
	asked  atomic.Bool  // since the last reading
	rests  atomic.Bool
	least  time.Duration // the smallest bound of a door
	counts atomic.Bool   // whether requests are counted: while there is a line
	came   atomic.Int64  // since the probe began
	// overdue calls lookOverdue; stood is how long the probe was overdue while this process ran,
	// beyond least
	overdue *time.Timer
	stood   time.Duration
	wake    chan struct{}
}

// probe becomes readable after a time.
type probe interface {
	// wait returns when a time has passed, and its turn has come.
	wait(time.Duration) error
	Close() error
}

// New returns the line. Run measures it.
func New() (*Line, error) {
	p, err := newProbe()
	if err != nil {
		return nil, err
	}
	return newLine(p), nil
}

func newLine(p probe) *Line {
	l := &Line{probe: p, began: time.Now(), wake: make(chan struct{}, 1)}
	l.due.Store(math.MaxInt64)
	return l
}

// Door returns the Door for a door, by the name that metrics have. bound is how long a request may
// stand in line under overload; 0 for any time. Run must not have been called yet.
func (l *Line) Door(name string, bound time.Duration, answer Answer) *Door {
	if l == nil || bound <= 0 {
		return nil
	}
	d := &Door{line: l, name: name, bound: bound, answer: answer}
	l.doors = append(l.doors, d)
	return d
}

// Close frees what New took, and ends Run.
func (l *Line) Close() error { return l.probe.Close() }

// Run measures the line until ctx ends.
func (l *Line) Run(ctx context.Context) error {
	if l == nil || len(l.doors) == 0 {
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = l.probe.Close() })()
	defer l.forget()
	l.least = l.doors[0].bound
	for _, d := range l.doors {
		l.least = min(l.least, d.bound)
	}
	l.overdue = time.AfterFunc(math.MaxInt64, l.lookOverdue)
	defer l.overdue.Stop()
	for every := tense; ; {
		if !l.asked.Swap(false) && l.sleep(ctx) {
			every = tense
		}
		due := l.begin(every)
		err := l.probe.wait(every)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the probe of the line failed: %w", err)
		}
		now := time.Now()
		waited := now.Sub(l.began) - due
		l.read(now, waited)
		switch {
		case waited > l.least:
			every = atOnce
		case waited > short || l.overloaded():
			every = tense
		default:
			every = min(2*max(every, tense), relaxed)
		}
	}
}

// begin returns when a probe that begins now is due.
func (l *Line) begin(every time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := time.Since(l.began) + every
	l.due.Store(int64(due))
	l.stood = 0
	l.came.Store(0)
	l.overdue.Reset(every + l.least)
	return due
}

// read passes a reading to the doors.
func (l *Line) read(now time.Time, waited time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waited.Store(int64(waited))
	l.counts.Store(waited > l.least)
	line := waited
	if l.few(waited) {
		line = 0
	}
	for _, d := range l.doors {
		d.overloaded.Store(d.control.Read(now, line, d.bound))
	}
}

// few reports whether hardly anybody came in a time for which the probe waited.
func (l *Line) few(waited time.Duration) bool {
	return time.Duration(l.came.Load())*fewest < waited
}

// lookOverdue is called every tick while the probe is not read. In a rush the probe waits in line
// for a long time, and no reading would come before the line is as long as that; but the wait so
// far is a reading, too. Ticks count, and not the clock: while this process stands still there are
// none, and requests that wait after that are no rush.
func (l *Line) lookOverdue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	overdue := now.Sub(l.began) - time.Duration(l.due.Load())
	if overdue < l.least { // it was read meanwhile
		return
	}
	for _, d := range l.doors {
		if since := l.least + l.stood - d.bound; since >= interval(d.bound) && !l.few(l.stood) {
			d.control.Read(now.Add(-since), d.bound+1, d.bound) // when it came to be above the bound
			d.overloaded.Store(d.control.Read(now, overdue, d.bound))
		}
	}
	l.counts.Store(true)
	l.stood += tick
	l.overdue.Reset(tick)
}

// forget drops the measurements, so that stale ones turn nobody away.
func (l *Line) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due.Store(math.MaxInt64)
	l.waited.Store(0)
	for _, d := range l.doors {
		d.control = Control{}
		d.overloaded.Store(false)
		d.behind.Store(0)
	}
}

func (l *Line) overloaded() bool {
	for _, d := range l.doors {
		if d.overloaded.Load() {
			return true
		}
	}
	return false
}

// sleep waits until somebody asks: an idle server is to have nothing to do. While there is a line,
// or overload, it does not, so that there is an end to that. It reports whether it slept.
func (l *Line) sleep(ctx context.Context) bool {
	if l.overloaded() || time.Duration(l.waited.Load()) > l.least {
		return false
	}
	l.due.Store(math.MaxInt64)
	l.waited.Store(0)
	l.overdue.Stop()
	l.rests.Store(true)
	if !l.asked.Load() {
		select {
		case <-l.wake:
		case <-ctx.Done():
		}
	}
	l.rests.Store(false)
	return true
}

// Waited is how long requests stand in line now: the last reading, or more where the probe is
// overdue.
func (l *Line) Waited() time.Duration {
	overdue := int64(time.Since(l.began)) - l.due.Load()
	return time.Duration(max(l.waited.Load(), overdue, 0))
}

// Door is a door's view of the line. A nil Door turns nobody away. Safe for concurrent use.
type Door struct {
	line       *Line
	name       string
	bound      time.Duration
	answer     Answer
	overloaded atomic.Bool
	turned     atomic.Uint64
	control    Control // guarded by Line.mu
	// of a Queue: until when there is overload, in ns since the line began, 0 for none; and how
	// long it takes until the turn of the next, in ns
	behind atomic.Int64
	ahead  atomic.Int64
}

func (d *Door) isOverloaded() bool { return d.overloaded.Load() || d.isBehind() }

// isBehind reports whether a Queue is overloaded. That ends by itself: there may be no request any
// more that is queued.
func (d *Door) isBehind() bool {
	until := d.behind.Load()
	if until == 0 {
		return false
	}
	if int64(time.Since(d.line.began)) < until {
		return true
	}
	d.behind.CompareAndSwap(until, 0)
	return false
}

// Late reports whether the requests at hand waited too long, and are to be turned away. n is how
// many have come since the last call, with the one at hand. It costs no more than a few loads
// unless there is a line.
func (d *Door) Late(n int) bool {
	if d == nil {
		return false
	}
	l := d.line
	if !l.asked.Load() {
		l.asked.Store(true)
		if l.rests.Load() {
			select {
			case l.wake <- struct{}{}:
			default:
			}
		}
	}
	if l.counts.Load() {
		l.came.Add(int64(n))
	}
	return d.isOverloaded() && l.Waited() > d.bound
}

// Bound is how long a request may stand in line under overload; 0 for any time.
func (d *Door) Bound() time.Duration {
	if d == nil {
		return 0
	}
	return d.bound
}

// Answer says how to answer a request that is turned away.
func (d *Door) Answer() Answer { return d.answer }

// Turned counts n requests that were turned away.
func (d *Door) Turned(n int) { d.turned.Add(uint64(n)) }

// Stats is a reading of the line.
type Stats struct {
	Waited time.Duration
	Turned map[string]uint64 // requests that were turned away, by door
}

// Stats returns a reading.
func (l *Line) Stats() Stats {
	if l == nil {
		return Stats{}
	}
	s := Stats{Waited: l.Waited(), Turned: map[string]uint64{}}
	for _, d := range l.doors {
		s.Turned[d.name] += d.Count()
	}
	return s
}

var errClosed = errors.New("closed")

// sleeper is the probe where there is no timer that a connection's readers could wait for: it
// stands behind those that are ready to run, but does not see for how long the network was not
// looked at.
type sleeper struct {
	closed chan struct{}
	once   sync.Once
	yield  func()
}

func newSleeper(yield func()) *sleeper { return &sleeper{closed: make(chan struct{}), yield: yield} }

func (s *sleeper) wait(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.closed:
		return errClosed
	case <-timer.C:
		s.yield() // a timer's goroutine goes before all others
		return nil
	}
}

func (s *sleeper) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Overloaded returns a Door at which every request is late, for tests of doors.
func Overloaded(answer Answer) *Door {
	l := &Line{began: time.Now()}
	l.waited.Store(math.MaxInt64)
	l.asked.Store(true)
	d := &Door{line: l, bound: 1, answer: answer}
	d.overloaded.Store(true)
	return d
}

// Count is how many requests were turned away.
func (d *Door) Count() uint64 { return d.turned.Load() }
