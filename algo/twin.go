package algo

// Params are the numbers of a Limit that a twin in another language needs to decide as the Limit
// does; the Lua script of package store/redis is such a twin. Each algorithm's file explains its
// numbers. Numbers that an algorithm does not have are 0; all are below 2^53.
type Params struct {
	Cap int64 // capacity with the soft margin
	// the capacity while a soft margin that closes is closed (Result.Limit); otherwise Cap
	Admit int64
	Unit  int64 // µs in the limit's unit of time
	// buckets: how far ahead of the clock a state may lie, in units (µs for interval refill)
	Ahead int64

	// TokenBucket and LeakyBucket with continuous refill.
	Rate, Token, CapLevel, Full int64
	Tag                         uint32 // of their states, interval refill included

	// SlidingWindow.
	Sub  int64 // length of a sub-window in µs
	SubU int64 // the same in units

	Entry int64 // SlidingLog: bytes a unit takes

	// Of a limit that lends (Config.Lease).
	Lendable int64 // units that may be out at a time
	LeaseFor int64 // length of a generation in µs
}

// Params returns the limit's numbers; of one with a schedule ask the limit in force (Limit.At).
func (l *Limit) Params() Params {
	p := Params{
		Cap: l.cap, Admit: l.cap, Unit: l.unit, Ahead: l.ahead,
		Rate: int64(l.rate), Token: int64(l.token), CapLevel: int64(l.capLevel), Full: int64(l.full), Tag: l.tag,
		Sub: l.sub, SubU: int64(l.subU),
	}
	if l.hard != nil {
		p.Admit = l.hard.admit
	}
	if l.lease != nil {
		p.Lendable, p.LeaseFor = l.lendable, l.lease.w
	}
	if l.algo == SlidingLog {
		p.Entry = int64(l.entrySize())
	}
	return p
}

// Span returns the window [start, end) of a FixedWindow that holds now, and the end of the next
// window, in µs since the Unix epoch. For windows that begin at a key's first request it returns
// the windows that would begin now.
func (l *Limit) Span(now int64) (start, end, next int64) {
	l = l.inForce(max(now, 0))
	if l.first {
		return now, now + l.w, now + 2*l.w
	}
	v := l.spanAt(max(now, 0), true)
	return v.start, v.end, v.next
}
