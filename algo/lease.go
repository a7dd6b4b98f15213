package algo

import "time"

// A limit with a lease (Config.Lease) lends units ahead: it sets them aside until an instant, and
// their holder admits requests with them by itself. Meanwhile the limit has that much less room:
// the units out count against the capacity as if they had just been used. Later the holder reports
// how many it used. Units become ordinary charges when they are reported or when their time is
// over, so never before they are used, and never after somebody else could have them.
// docs/how-it-works/algorithms.md proves that this keeps every guarantee.
//
// Each key keeps the units that are out as a second state, next to its ordinary one, under a Limit
// of its own (Limit.Lease). Units belong to one of two generations. State.A is when the older one
// ends; the newer one ends E later (Config.LeaseFor). When the older one has ended, the newer one
// becomes the older. State.B holds how many units are out in the newer one (30 bits) and in the
// older one (30 bits), and a mark that something is wanted. State.C holds how much was asked for
// since this generation became the newer one (16 bits), and how much in the generation before it
// (16 bits), in 1/1024 of the units that may be out.
//
// There are no records of holders. A holder that dies does not give its units back, and they count
// as used when they end.

// Lease is the algorithm of Limit.Lease; rule files cannot name it. In its Config, Timeout is the
// length of a generation, and Window the longest time for which a charge can count.
const Lease Algorithm = 254

// Bounds of Config.Lease, in percent, and of Config.LeaseFor.
const (
	MinLease    = 1
	MaxLease    = 90
	MinLeaseFor = 10 * time.Millisecond
	MaxLeaseFor = 2 * time.Minute
)

// The bounds of the length of a generation where Config.LeaseFor is 0.
const (
	shortestLease = 100 * time.Millisecond
	longestLease  = 15 * time.Second
)

const (
	lentBits  = 30 // more than MaxN×MaxLease/100 has
	lentMask  = 1<<lentBits - 1
	wantsMark = 1 << (2 * lentBits)
	wholeWant = 1 << 10 // a want for all that may be out
	mostWants = 1<<16 - 1
)

// Ahead asks a limit for units ahead, and reports the use of earlier ones. The zero value asks for
// nothing and reports nothing.
type Ahead struct {
	Told [2]Told // the use of earlier units; zero: nothing
	Want int64   // units wanted; 0 or less: none
	// First says that the asker has not asked for units of this key before in this generation: its
	// Want then counts when the units of the next generation are shared out. Until changes when a
	// generation begins.
	First bool

	Got int64 // filled in: units lent, 0 or from 2 up
	// filled in: when units lent now end, in µs, exclusive; 0 if nothing can be lent now
	Until int64
	Out   int64 // filled in: units out after the call, of all holders together, Got included
}

// Told reports the use of units that end at End: Used admitted requests, and Returned never will.
// Only report units that are no longer in use. The zero value reports nothing.
type Told struct{ End, Used, Returned int64 }

// Lent is a reading of the units that are out.
type Lent struct {
	Older, Newer int64 // units out in the two generations
	End          int64 // of the older one, in µs, exclusive
	Last         int64 // of the newer one
}

// Record is the state that Limit.Lent reads as n, with wants as its State.C.
func (n Lent) Record(wants uint32) (lease State) {
	keepLent(&lease, n, wants)
	return lease
}

// Out is the number of units out.
func (n Lent) Out() int64 { return n.Older + n.Newer }

// Lease returns the limit under which to keep the units that l lends, for TakeWith; nil if l lends
// nothing. It supports only Fresh, Mend, Check (a peek, whose ResetAfter is the time until nothing
// of the record can count any more), Carry and Lent.
func (l *Limit) Lease() *Limit { return l.lease }

// Lent reads a state kept under Limit.Lease as it is, also if its generations have ended.
func (l *Limit) Lent(lease *State) Lent {
	n := Lent{Older: int64(lease.B >> lentBits & lentMask), Newer: int64(lease.B & lentMask), End: lease.A}
	n.Last = n.End + l.w
	return n
}

// TakeAhead is TakeWith that lends: it takes down the report of h, asks for a.Cost, and if that is
// admitted lends up to h.Want units. lease is the key's state of l.Lease(). The result describes
// the limit before the lending. A limit that lends nothing ignores the report, and h.Got is 0.
func (l *Limit) TakeAhead(s, lease *State, now int64, a Ask, h *Ahead) Result {
	l.Learn(s, lease, now, h)
	r := l.TakeWith(s, lease, now, a)
	if r.Allowed && !r.Off {
		l.Lend(s, lease, now, h)
	}
	return r
}

// Learn takes down the report of h, after Roll: used units become charges at now, and units that
// are used or returned are out no more. It ignores units of a generation that has ended, which are
// settled already. It fills in h.Out, and sets h.Got and h.Until to 0. With a nil s it only changes
// the units out.
func (l *Limit) Learn(s, lease *State, now int64, h *Ahead) {
	h.Got, h.Until, h.Out = 0, 0, 0
	if l.lease == nil {
		return
	}
	now = max(now, 0)
	l.Roll(s, lease, now)
	in := l.inForce(now)
	for _, t := range h.Told {
		n := l.lease.Lent(lease)
		out := &n.Older
		if t.End == n.Last {
			out = &n.Newer
		}
		if lease.B == 0 || t.End != n.End && t.End != n.Last {
			continue
		}
		used := min(max(t.Used, 0), *out)
		*out -= used
		*out -= min(max(t.Returned, 0), *out)
		if used > 0 {
			in.force(s, now, used)
		}
		keepLent(lease, n, lease.C)
	}
	h.Out = l.lease.Lent(lease).Out()
}

// Lend lends up to h.Want units to an asker whose own request was admitted; call Learn before. It
// lends no more than the free units of the limit (never of the soft margin), than the units that
// may be out in all, and than the asker's share of the last generation's wants. An asker that wants
// more gets no single unit, because the request that asks for the next would use it up. Lend fills
// in h.Got, h.Until and h.Out.
func (l *Limit) Lend(s, lease *State, now int64, h *Ahead) {
	if l.lease == nil {
		return
	}
	now = max(now, 0)
	in, bound := l.At(now)
	if in == nil {
		return
	}
	left := func() int64 {
		var r Result
		in.plain(&r, s, now, Ask{}, false)
		return r.Remaining
	}
	if in.algo == FixedWindow {
		_, end, used, _ := in.current(s, now, false)
		if in.first && used == 0 {
			return // there is no window that the units could belong to
		}
		bound = min(bound, end)
	}
	in.lend(lease, now, bound, left, h)
}

// LendOf is Lend for an asker that does not have the state of a SlidingLog, but knows how many
// units are left within the limit, those that are out not taken off.
func (l *Limit) LendOf(left int64, lease *State, now int64, h *Ahead) {
	now = max(now, 0)
	if in, bound := l.At(now); l.lease != nil && in != nil {
		in.lend(lease, now, bound, func() int64 { return left }, h)
	}
}

func (l *Limit) lend(lease *State, now, bound int64, left func() int64, h *Ahead) {
	n := l.lease.Lent(lease)
	wants := lease.C
	if lease.B == 0 {
		n, wants = Lent{End: min(now+l.lease.w, bound)}, 0
		n.Last = n.End + l.lease.w
	}
	newer := n.Last <= bound
	if h.Out = n.Out(); l.lendable < 2 || n.Last > maxInt || !newer && n.End > bound || n.End <= now {
		return
	}
	if h.Until = n.End; newer {
		h.Until = n.Last
	}
	want := min(h.Want, l.lendable)
	if want <= 0 {
		return
	}
	last := int64(wants >> 16)
	if h.First {
		wants = uint32(last)<<16 | min(wants&mostWants+uint32((want*wholeWant+l.lendable/2)/l.lendable), mostWants)
	}
	got := min(want, l.lendable-h.Out, left()-h.Out)
	if last*l.lendable > want*wholeWant {
		got = min(got, (want*wholeWant+last-1)/last)
	}
	if got < min(want, 2) {
		got = 0
	}
	if h.Got = got; newer {
		n.Newer += got
	} else {
		n.Older += got
	}
	h.Out += got
	keepLent(lease, n, wants)
}

// keepLent writes a record.
func keepLent(lease *State, n Lent, wants uint32) {
	b := uint64(n.Older)<<lentBits | uint64(n.Newer)
	if wants != 0 {
		b |= wantsMark
	}
	if b == 0 {
		*lease = State{}
		return
	}
	lease.A, lease.B, lease.C, lease.Ext = n.End, b, wants, nil
}

// Roll ends the generations that are over at now: it charges their units to s, as of the last
// instant at which they could be used. Each function that is handed the lease of a key calls it;
// call it before others read or change s. It reports whether it changed anything.
func (l *Limit) Roll(s, lease *State, now int64) bool {
	now = max(now, 0)
	if l.lease == nil || lease == nil || lease.B == 0 || now < lease.A && !l.lease.farLease(lease, now) {
		return false
	}
	l.inForce(now).roll(s, lease, now)
	return true
}

func (l *Limit) roll(s, lease *State, now int64) {
	l.lease.mendLease(lease, now)
	n, wants := l.lease.Lent(lease), lease.C
	for now >= n.End && (n.Out() > 0 || wants != 0) {
		if n.Older > 0 {
			// Later charges, as by a node that does not lend, must not count as an impossible
			// future at that instant.
			l.force(s, max(0, n.End-1, min(l.lies(s), now)), n.Older)
		}
		n = Lent{Older: n.Newer, End: n.Last, Last: n.Last + l.lease.w}
		wants <<= 16
	}
	keepLent(lease, n, wants)
}

// lies returns the instant at which s lies, in µs; 0 if that is nil or fresh.
func (l *Limit) lies(s *State) int64 {
	if s == nil || s.B == 0 {
		return 0
	}
	unit := int64(1)
	if l.algo == TokenBucket && s.C != intervalTag {
		unit, _ = l.scale(s.C)
	}
	return min(s.A, maxInt/unit) * unit
}

// farLease reports whether a record lies further ahead than it ever could.
func (l *Limit) farLease(lease *State, now int64) bool {
	return lease.B != 0 && lease.A-now > 2*MaxLeaseFor.Microseconds()
}

// mendLease brings a record back that lies too far ahead, since the clock was set back: to where
// its holders have certainly stopped, however long their generations were.
func (l *Limit) mendLease(lease *State, now int64) {
	if l.farLease(lease, now) {
		lease.A = now + 2*MaxLeaseFor.Microseconds()
	}
}

// peekLease answers a peek at a record.
func (l *Limit) peekLease(r *Result, lease *State, now int64, take bool) {
	r.Allowed = true
	if lease.B == 0 {
		return
	}
	c := *lease
	l.mendLease(&c, now)
	if take {
		*lease = c
	}
	n := l.Lent(&c)
	end := n.Last // the wants of one generation count in the next one
	if n.Out() > 0 {
		end += l.cfg.Window.Microseconds()
	}
	r.ResetAfter = min(max(0, end-now), maxInt)
}

// carryLease makes a record under l of one that was kept under old. If the generations' length
// changes, all that is out ends with the newer one.
func (l *Limit) carryLease(old *Limit, lease *State) {
	if old.w == l.w {
		return
	}
	n := old.Lent(lease)
	if n.Newer > 0 {
		n.End = n.Last
	}
	keepLent(lease, Lent{Older: n.Out(), End: n.End}, 0)
}

// force charges c units to s, which may be nil, at now, whether there is room or not.
func (l *Limit) force(s *State, now, c int64) {
	if s == nil {
		return
	}
	switch l.algo {
	case SlidingLog:
		c = min(c, MaxLogN) // more were never lent, and each takes memory
		r, eff := l.ring(s, now), now
		if r.n > 0 && r.ref > now {
			if eff = min(r.ref, r.most); r.ref > r.most {
				r.mend()
			}
		}
		r.drop(r.dead(eff - l.w))
		if need := r.n + int(c); need > r.size {
			r.resize(max(need, min(2*r.size, int(l.cap)), 4))
		}
		r.ref = eff
		for range c {
			r.put(r.n, eff)
			r.n++
		}
		r.save(s)
	case TokenBucket:
		t, level, _ := l.level(s, now)
		l.keepLevel(s, t, min(level+uint64(min(c, l.cap))*l.token, l.capLevel))
	default:
		var r Result
		l.all.plain(&r, s, now, Ask{Cost: c}, true)
	}
}
