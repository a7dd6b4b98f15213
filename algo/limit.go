package algo

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"
)

// maxInt is the largest integer that a double holds exactly together with all below it. No number
// in a decision is larger. Times further away than this many µs (285 years) are reported as this.
const maxInt = 1<<53 - 1

// Limit is a compiled, immutable definition. Safe for concurrent use. Make one with New.
type Limit struct {
	algo        Algorithm
	countDenied bool
	first       bool // FixedWindow: a window starts at the key's first request
	interval    bool // TokenBucket: refilled at boundaries

	n     int64 // requests per window
	limit int64 // Result.Limit
	cap   int64 // the same with the soft margin
	admit int64 // the units that may be used: cap, or limit while the soft margin is closed
	w     int64 // window (Concurrency: time-out) in µs

	unit int64   // how many µs the limit's unit of time has
	perU divisor // by unit
	perW divisor // by w; SlidingWindow: by the sub-window
	// buckets: how far ahead of the clock a state may lie, in units (µs for interval refill)
	ahead int64

	// Buckets with continuous refill, SlidingWindow.
	rate       uint64  // N': levels drained in a unit
	token      uint64  // W': levels that one token has
	capLevel   uint64  // cap × token
	admitLevel uint64  // admit × token
	full       uint64  // units after which a full level has drained
	perRate    divisor // by rate
	perToken   divisor // by token
	tag        uint32  // State.C of a level scaled so

	// SlidingWindow.
	k    int    // number of sub-windows
	sub  int64  // length of one, in µs
	subU uint64 // the same in units
	perS divisor

	cal atomic.Pointer[span] // FixedWindow with a calendar: the window asked for last

	hard *Limit // the same while the soft margin is closed, where it closes; else nil
	// the same limit, admitting a cost of 1 while no more than limit is used; set if the margin
	// closes
	within *Limit
	margin *Limit     // of the margin's state; where it closes
	times  *timetable // of a limit that follows a schedule; else nil

	lease    *Limit // of the state of the units lent; nil: it lends nothing
	all      *Limit // if it lends: the same limit, which also charges requests it denies
	lendable int64  // units that may be out at a time

	charges atomic.Pointer[Limit] // see charging

	cfg Config
}

// New checks c and compiles it. Its error names the number that does not fit and one that would; it
// is meant for the author of the rule.
func New(c Config) (*Limit, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.fill()
	return build(c)
}

// build is New for a configuration that is checked and filled in.
func build(c Config) (*Limit, error) {
	l := &Limit{
		algo: c.Algorithm, countDenied: c.CountDenied, first: c.FirstRequest, interval: c.RefillInterval,
		n: c.N, limit: c.N, w: int64(c.Window / time.Microsecond), unit: 1, cfg: c,
	}
	l.cap = l.n + margin(l.n, c.Soft)
	l.perU = newDivisor(1)
	var err error
	switch c.Algorithm {
	case FixedWindow, SlidingLog:
		l.perW = newDivisor(uint64(l.w))
	case SlidingWindow:
		err = l.compileWindow()
	case TokenBucket, LeakyBucket:
		err = l.compileBucket()
	case Concurrency, Margin, Lease:
		l.w = int64(c.Timeout / time.Microsecond)
		if l.cap > maxCount {
			return nil, fmt.Errorf(
				"%d slots with a soft margin of %d%% are more than the %d that concurrency can count: lower the margin or the number of slots",
				c.N, c.Soft, int64(maxCount))
		}
	}
	if err != nil {
		return nil, err
	}
	l.restrict(l.cap)
	if c.SoftFor > 0 && c.Algorithm != Margin {
		if err := l.compileMargin(); err != nil {
			return nil, err
		}
	}
	if c.Lease > 0 {
		if err := l.compileLease(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// restrict bounds the units that may be used by most. States are kept as before.
func (l *Limit) restrict(most int64) {
	l.admit, l.admitLevel = most, uint64(most)*l.token
}

// Config returns the configuration with every default filled in. A bucket of size 0 has the Burst
// NoBurst. New accepts it again, and makes the same limit of it.
func (l *Limit) Config() Config { return l.cfg }

// Algorithm returns the limit's algorithm.
func (l *Limit) Algorithm() Algorithm { return l.algo }

// CountDenied reports whether denied requests count. If such a limit admits a request that another
// one denies, call Take to count the request.
func (l *Limit) CountDenied() bool { return l.countDenied }

// String describes the limit in one line, such as "token_bucket, 100 per 1m0s, burst 20".
func (l *Limit) String() string {
	if l.times != nil {
		return l.times.some().String() + ", by a schedule"
	}
	c := &l.cfg
	s := c.Algorithm.String()
	switch {
	case c.Algorithm == Concurrency:
		s += fmt.Sprintf(", %d in flight, time-out %v", c.N, c.Timeout)
	case c.Calendar != NoCalendar:
		s += fmt.Sprintf(", %d per %v in %v", c.N, c.Calendar, c.Location)
	default:
		s += fmt.Sprintf(", %d per %v", c.N, c.Window)
	}
	switch {
	case c.Algorithm == LeakyBucket:
		s += fmt.Sprintf(", queue %d", max(0, c.Burst))
	case c.Algorithm == TokenBucket:
		s += fmt.Sprintf(", burst %d", max(0, c.Burst))
	case c.Algorithm == SlidingWindow && c.Buckets > 1:
		s += fmt.Sprintf(", %d buckets", c.Buckets)
	}
	if c.FirstRequest {
		s += ", from the first request"
	}
	if c.RefillInterval {
		s += ", refilled at intervals"
	}
	if c.Soft > 0 {
		s += fmt.Sprintf(", soft %d%%", c.Soft)
	}
	if c.SoftFor > 0 {
		s += fmt.Sprintf(" for %v", c.SoftFor)
	}
	if c.CountDenied {
		s += ", denied requests count"
	}
	if c.Lease > 0 {
		s += fmt.Sprintf(", leased %d%% for %v", c.Lease, c.generation())
	}
	return s
}

// Take asks for a.Cost at time now, and charges it to s if it is admitted (or if the limit counts
// denied requests). Other denied requests, and peeks, leave s as it is, except that Take mends it
// as Mend does.
func (l *Limit) Take(s *State, now int64, a Ask) (r Result) {
	l.decide(&r, s, nil, now, a, true)
	return r
}

// TakeInto is Take with the result written to *r, which saves copying it on the way.
func (l *Limit) TakeInto(r *Result, s *State, now int64, a *Ask) {
	*r = Result{}
	l.decide(r, s, nil, now, *a, true)
}

// Check answers as Take would, but charges nothing: it returns Take's verdict, and the other fields
// as they are without the charge. It never writes to s. A decision over several limits calls Check
// on each before it charges all or none.
func (l *Limit) Check(s *State, now int64, a Ask) (r Result) {
	l.decide(&r, s, nil, now, a, false)
	return r
}

// decide fills in r, which must be zero. margin is the state of a soft margin that closes, or of
// the limit's units lent; nil for a limit that has neither.
func (l *Limit) decide(r *Result, s, margin *State, now int64, a Ask, take bool) {
	now = max(now, 0)
	a.Cost = min(max(a.Cost, -MaxCost), MaxCost)
	if a.Room {
		if a.Room = false; a.Cost == 0 {
			l.room(r, s, margin, now, a, take)
			return
		}
	}
	switch {
	case l.times != nil:
		l.times.decide(r, s, margin, now, a, take)
	case margin == nil:
		l.plain(r, s, now, a, take)
	case l.hard != nil:
		l.decideMargin(r, s, margin, now, a, take)
	case l.lease != nil:
		l.decideLease(r, s, margin, now, a, take)
	default:
		l.plain(r, s, now, a, take)
	}
}

// room is decide for a peek that asks for room.
func (l *Limit) room(r *Result, s, margin *State, now int64, a Ask, take bool) {
	if take { // charges nothing, but may mend s
		l.decide(r, s, margin, now, a, true)
		*r = Result{}
	}
	a.Cost = 1
	if a.Slot == 0 {
		a.Slot = 1
	}
	l.decide(r, s, margin, now, a, false)
}

// plain is decide for a limit without a schedule and without a margin that closes, and that lends
// nothing.
func (l *Limit) plain(r *Result, s *State, now int64, a Ask, take bool) {
	switch l.algo {
	case TokenBucket, LeakyBucket:
		if l.interval {
			l.intervals(r, s, now, a.Cost, take)
		} else {
			l.bucket(r, s, now, &a, take)
		}
	case FixedWindow:
		l.fixed(r, s, now, a.Cost, take)
	case SlidingWindow:
		l.window(r, s, now, a.Cost, take)
	case SlidingLog:
		l.log(r, s, now, a.Cost, take)
	case Margin:
		l.peekMargin(r, s, now, take)
	default:
		if l.algo == Lease { // no case of its own, which would slow the others down
			l.peekLease(r, s, now, take)
			return
		}
		l.slots(r, s, now, a.Cost, a.Slot, take)
	}
}

// Mend corrects s if it is impossible at now: if the clock has leaped back, so that s lies further
// ahead than it ever could, or if s was kept under another way of refilling or of cutting the
// window. Take mends s itself, even if it denies; Check writes nothing, and only answers as if s
// were mended. So a store that keeps the state Take leaves needs Mend only where it denies after a
// Check. Mend reports whether it changed s.
func (l *Limit) Mend(s *State, now int64) bool {
	if s.B == 0 {
		return false
	}
	was := *s
	l.Take(s, now, Ask{})
	return was.A != s.A || was.B != s.B || was.C != s.C || len(was.Ext) != len(s.Ext)
}

// mended returns s as Take would leave it at now if it charged nothing. Answers for later instants
// start from this state.
func (l *Limit) mended(s *State, now int64) State {
	c := *s
	if s.A > now && len(s.Ext) > 0 {
		c.Ext = append([]byte(nil), s.Ext...)
	}
	var r Result
	l.plain(&r, &c, now, Ask{}, true)
	return c
}

// Fresh reports whether s is as good as the zero State at now, so that it may be forgotten. For a
// limit that lends, call it after Roll: Roll adds the charges of generations that have ended to s.
func (l *Limit) Fresh(s *State, now int64) bool {
	if l.times != nil && s.B != 0 {
		return l.times.reset(s, now) == 0
	}
	return s.B == 0 || l.Check(s, now, Ask{}).ResetAfter == 0
}

// Carry turns a state that was kept under old into one for l, at time now: old and l have the same
// algorithm but differ in W or K (N and B may differ freely and need no Carry). States that cannot
// be carried come out fresh. For a limit that lends, call old.Roll before, since generations that
// have ended count in s by the old numbers.
func (l *Limit) Carry(old *Limit, s *State, now int64) {
	if s.B == 0 || old.algo != l.algo {
		*s = State{}
		return
	}
	now = max(now, 0)
	l, old = l.inForce(now), old.inForce(now)
	switch l.algo {
	case FixedWindow:
		l.carryFixed(old, s, now)
	case SlidingLog:
		l.carryLog(old, s, now)
	case SlidingWindow:
		*s = l.carryWindow(s, now, old.sub)
	case TokenBucket, LeakyBucket:
		l.carryBucket(old, s, now)
	case Lease:
		l.carryLease(old, s)
	}
}

// counted fills in the result of an algorithm that counts; used is the count after the decision.
func (l *Limit) counted(r *Result, used int64, allowed bool) {
	r.Limit, r.SoftLimit, r.Remaining = l.limit, l.admit, max(0, l.limit-used)
	r.Allowed, r.Soft = allowed, allowed && used > l.limit && used <= l.admit
}

// divisor divides by a number that is known beforehand, without the division: m is 2^64/d rounded
// down, so that the high word of x×m is the quotient or one less.
type divisor struct{ d, m uint64 }

func newDivisor(d uint64) divisor { return divisor{d, ^uint64(0) / d} }

// divmod returns x/d and x%d for x < 2^63.
func (v *divisor) divmod(x uint64) (q, r uint64) {
	q, _ = bits.Mul64(x, v.m)
	r = x - q*v.d
	if r >= v.d {
		return q + 1, r - v.d
	}
	return q, r
}

// ceil returns x/d rounded up.
func (v *divisor) ceil(x uint64) uint64 {
	q, r := v.divmod(x)
	if r > 0 {
		q++
	}
	return q
}

// mulDiv returns x×y/d, rounded down or up; ok is false if that does not fit.
func mulDiv(x, y, d uint64, up bool) (q uint64, ok bool) {
	hi, lo := bits.Mul64(x, y)
	if hi >= d {
		return 0, false
	}
	q, r := bits.Div64(hi, lo, d)
	if up && r > 0 {
		q++
	}
	return q, true
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// monus is a − b, at least 0.
func monus(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}
