// Package overload limits how many requests a server works on at the same time, so that it stays
// quick when more come than it can do. The rest is refused at once, the least important first.
//
// Most programs make a Limiter with New and hand it to their middleware: to httplimit.Options,
// grpclimit.Options, or both, since HTTP and gRPC calls of one process compete for the same
// processors and databases. The middleware then does the rest. A program that dispatches work by
// other means calls Acquire before each piece, and Done, Drop or Cancel of the Permit after it:
//
//	permit, ok := limiter.Acquire(overload.Default)
//	if !ok {
//		return errBusy
//	}
//	if err := work(); err != nil {
//		permit.Drop() // it failed as the work of an overloaded server does
//		return err
//	}
//	permit.Done()
//
// A Limiter finds its limit by itself, from how long requests take, or has a fixed one.
// docs/guides/overload.md says how it finds the limit, and how well that works; the law stands at
// the top of control.go. Rate limits, which bound requests in a time, are another matter: see
// package weir.
package overload

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
)

// Priority ranks requests under overload. The zero value is Default. The values below Always equal
// rule.Priority's.
type Priority int8

// The priorities.
const (
	Sheddable Priority = -1
	Default   Priority = 0
	Critical  Priority = 1
	// Always is admitted whatever the limit says, and counted all the same.
	Always Priority = 2
)

// Priorities are those that may be refused, least important first.
var Priorities = [...]Priority{Sheddable, Default, Critical}

// PriorityOf returns the priority of a decided request: Always if the rules exempt it, else the one
// that the rules it met give it (rule.Priority).
func PriorityOf(d *weir.Decision) Priority {
	if d.Exempt {
		return Always
	}
	return Priority(d.Priority())
}

// String returns the name of p as rule files write it.
func (p Priority) String() string {
	switch p {
	case Sheddable:
		return "sheddable"
	case Default:
		return "default"
	case Critical:
		return "critical"
	}
	return "always"
}

// index is p's place in arrays by priority.
func (p Priority) index() int { return int(min(max(p, Sheddable), Always)) + 1 }

// classes is how many priorities there are, Always included.
const classes = 4

// Load hears of the requests that a middleware passes on, to measure how busy a service is. It must
// be quick, and safe for concurrent use.
type Load interface {
	// Enter notes that a request is passed on.
	Enter()
	// Answered notes that the answer to a request has begun, and how long after the request was
	// passed on; over HTTP, after its body had arrived. It is not called for failures of an
	// overloaded server, such as answers of 500 and above.
	Answered(latency time.Duration)
	// Leave notes that a request is over. It is called once for each Enter.
	Leave()
}

// Options configure New. The zero value is an adaptive limit from 1 to 10,000 that begins at 20.
type Options struct {
	// Fixed is a limit that stays; 0 finds one.
	Fixed int
	// Min and Max bound the limit that is found, and Initial is where it begins. 0 means 1, 10,000
	// and 20.
	Min, Max, Initial int
}

// Bounds of a limit, and its defaults.
const (
	MaxLimit       = 1<<20 - 1
	defaultMax     = 10_000
	defaultInitial = 20
)

// Limiter admits requests while there is room. Safe for concurrent use. Make one with New.
type Limiter struct {
	fixed bool
	began time.Time // the clock's zero

	// packed: how many may be under way when a request of each priority is admitted
	room     atomic.Uint64
	inFlight atomic.Int64
	peak     atomic.Int64 // of inFlight, in the present window
	admitted [classes]atomic.Uint64
	refused  [classes]atomic.Uint64

	mu struct {
		sync.Mutex
		control
	}
}

// New returns a Limiter. Its errors say which option to change.
func New(o Options) (*Limiter, error) {
	if o.Fixed != 0 {
		if o.Fixed < 1 || o.Fixed > MaxLimit {
			return nil, fmt.Errorf("a concurrency of %d is not possible; write a number from 1 to %d, or adaptive",
				o.Fixed, MaxLimit)
		}
		if o.Min != 0 || o.Max != 0 || o.Initial != 0 {
			return nil, fmt.Errorf("a fixed concurrency has no bounds; leave out the bounds or the number %d", o.Fixed)
		}
		o.Min, o.Max, o.Initial = o.Fixed, o.Fixed, o.Fixed
	}
	fixed := o.Fixed != 0
	if o.Min == 0 {
		o.Min = 1
	}
	if o.Max == 0 {
		o.Max = max(defaultMax, o.Min)
	}
	if o.Initial == 0 {
		o.Initial = min(max(defaultInitial, o.Min), o.Max)
	}
	if o.Min < 1 || o.Max > MaxLimit || o.Min > o.Max || o.Initial < o.Min || o.Initial > o.Max {
		return nil, fmt.Errorf(
			"concurrency from %d to %d that begins at %d is not possible; it takes 1 ≤ min ≤ initial ≤ max ≤ %d", o.Min, o.Max, o.Initial, MaxLimit)
	}
	l := &Limiter{fixed: fixed, began: time.Now()}
	l.mu.control = newControl(o, fixed)
	l.publish()
	return l, nil
}

// now is the time since the limiter was made, in ns; from 1, so that 0 is never.
func (l *Limiter) now() int64 { return int64(time.Since(l.began)) + 1 }

// publish puts the limits of c.mu in force. l.mu is held, or l is new.
func (l *Limiter) publish() {
	r := l.mu.rooms()
	l.room.Store(uint64(r[0]) | uint64(r[1])<<20 | uint64(r[2])<<40)
}

// roomFor returns how many requests must be under way for one of priority p to be refused.
func (l *Limiter) roomFor(p Priority) int64 {
	if p >= Always {
		return 1 << 62
	}
	return int64(l.room.Load() >> (20 * p.index()) & (1<<20 - 1))
}

// WouldAdmit reports whether Acquire would admit a request now.
func (l *Limiter) WouldAdmit(p Priority) bool { return l.inFlight.Load() < l.roomFor(p) }

// Acquire admits a request or refuses it, at once. One of Done, Drop and Cancel of the permit must
// be called when an admitted request is over. The permit of a refused one is empty, and its methods
// do nothing.
func (l *Limiter) Acquire(p Priority) (permit Permit, ok bool) {
	room := l.roomFor(p)
	for {
		n := l.inFlight.Load()
		if n >= room {
			l.refused[p.index()].Add(1)
			return Permit{}, false
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			l.admitted[p.index()].Add(1)
			for peak := l.peak.Load(); n+1 > peak && !l.peak.CompareAndSwap(peak, n+1); peak = l.peak.Load() {
			}
			return Permit{l: l, start: l.now(), load: int32(n + 1)}, true
		}
	}
}

// Permit is the admission of one request. Not safe for concurrent use. The zero value is empty. It
// may be copied, but only one of the copies may be used.
type Permit struct {
	l     *Limiter
	start int64
	load  int32 // requests under way when it was admitted, itself included
}

// Held reports whether the permit is of a request that is under way.
func (p *Permit) Held() bool { return p.l != nil }

// Restart counts the time of the request from now, for one that was held after Acquire.
func (p *Permit) Restart() {
	if p.l != nil {
		p.start = p.l.now()
	}
}

// Exclude takes d off the time of the request: the server did not spend it.
func (p *Permit) Exclude(d time.Duration) { p.start += int64(d) }

// Streams reports whether the permit is to be ended when the answer begins, rather than when it is
// complete. An adaptive limit learns from the time until the answer begins, since the rest takes as
// long as its reader likes. A fixed limit counts requests until their end.
func (p *Permit) Streams() bool { return p.l != nil && !p.l.fixed }

// Done ends a request that was served.
func (p *Permit) Done() { p.end(served) }

// Drop ends a request that was passed on and failed, as requests to an overloaded server do.
func (p *Permit) Drop() { p.end(dropped) }

// Cancel ends a request whose client hung up: it would have taken at least this long.
func (p *Permit) Cancel() { p.end(cancelled) }

// Return gives back the permit of a request that was not passed on.
func (p *Permit) Return() { p.end(returned) }

// outcome is how a request ended.
type outcome int8

const (
	served outcome = iota
	dropped
	cancelled
	returned
)

func (p *Permit) end(o outcome) {
	l := p.l
	if l == nil {
		return
	}
	p.l = nil
	under := l.inFlight.Add(-1)
	if o == returned {
		return
	}
	now := l.now()
	l.mu.Lock()
	if l.mu.record(now, p.start, int(p.load), int(under), o) {
		l.mu.close(now, l.counts())
		l.peak.Store(l.inFlight.Load())
		l.publish()
	}
	l.mu.Unlock()
}

// counts reads the numbers for the control.
func (l *Limiter) counts() counts {
	c := counts{peak: int(l.peak.Load()), under: int(l.inFlight.Load())}
	for i := range classes {
		c.refused[i] = l.refused[i].Load()
		c.arrived[i] = c.refused[i] + l.admitted[i].Load()
	}
	return c
}

// Stats is a reading of a Limiter.
type Stats struct {
	Limit    int // in force
	InFlight int
	// Room is how many may be under way for a request to be admitted: of Sheddable, Default and
	// Critical.
	Room [len(Priorities)]int
	// Admitted and Refused count requests since the limiter was made, in the order of Priorities.
	Admitted, Refused [len(Priorities)]uint64
	// Baseline is the time that a request takes when it need not wait, and Latency the time that it
	// took of late; 0 if not known yet.
	Baseline, Latency time.Duration
}

// Stats returns a reading.
func (l *Limiter) Stats() Stats {
	s := Stats{InFlight: int(l.inFlight.Load())}
	for i, p := range Priorities {
		s.Room[i] = int(l.roomFor(p))
		s.Admitted[i], s.Refused[i] = l.admitted[i].Load(), l.refused[i].Load()
	}
	s.Admitted[Critical.index()] += l.admitted[Always.index()].Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Limit, s.Baseline, s.Latency = int(l.mu.limit), duration(l.mu.baseline), duration(l.mu.latency)
	return s
}

// Limit returns the limit in force.
func (l *Limiter) Limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.mu.limit)
}
