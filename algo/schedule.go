package algo

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
	"time"
)

// Phase is a part of the week in which other numbers hold.
type Phase struct {
	Days Days          // the days on which it begins; 0 means every day
	From time.Duration // local time of day at which it begins, 0 to 24 h
	// local time of day at which it ends, exclusive; not after From: on the day after
	Until time.Duration
	Limit *Limit // in force during the phase; nil means that there is no limit
}

// MaxPhases is how many phases a schedule may have.
const MaxPhases = 1000

// Days is a set of weekdays: bit 1<<time.Sunday to 1<<time.Saturday.
type Days uint8

// Has reports whether d holds a day. The empty set holds all.
func (d Days) Has(day time.Weekday) bool { return d == 0 || d>>day&1 != 0 }

const oneDay = 24 * time.Hour

const oneWeek = int64(7 * oneDay / time.Microsecond)

// Scheduled returns a limit that follows local time in loc (nil means UTC): the first of phases
// that holds at an instant gives the limit, and otherwise the parameter otherwise does (nil for no
// limit). A phase holds while the local clock reads a time in it. Where clocks are put forward, a
// phase begins no later than the jump over its beginning; where they are put back, it holds both
// times.
//
// The limits must agree in algorithm, window, buckets, calendar, lease and whether denied requests
// count, since they share a state. RetryAfter looks ahead: it is the time until a request is
// admitted under the limits of that time. A bucket's ResetAfter is the longest under any of the
// limits that refill it.
func Scheduled(otherwise *Limit, phases []Phase, loc *time.Location) (*Limit, error) {
	if loc == nil {
		loc = time.UTC
	}
	if len(phases) > MaxPhases {
		return nil, fmt.Errorf("a schedule has at most %d phases, not %d", MaxPhases, len(phases))
	}
	first := otherwise
	for i := range phases {
		p := &phases[i]
		switch {
		case p.From < 0 || p.From > oneDay || p.Until < 0 || p.Until > oneDay:
			return nil, fmt.Errorf("a time of day must be from 0 to 24 hours, not %v to %v", p.From, p.Until)
		case p.From%time.Microsecond != 0 || p.Until%time.Microsecond != 0:
			return nil, fmt.Errorf("a time of day must be a whole number of microseconds, not %v to %v", p.From,
				p.Until)
		case p.Days >= 1<<7:
			return nil, errors.New("a set of days has a bit for Sunday to Saturday each")
		case p.Limit == nil:
			continue
		case p.Limit.times != nil:
			return nil, errors.New("a phase of a schedule cannot have a schedule itself")
		}
		if first == nil {
			first = p.Limit
		}
		a, b := &first.cfg, &p.Limit.cfg
		if a.Algorithm != b.Algorithm || a.Window != b.Window || a.Buckets != b.Buckets || a.Calendar != b.Calendar ||
			a.FirstRequest != b.FirstRequest ||
			a.RefillInterval != b.RefillInterval || a.CountDenied != b.CountDenied || a.Timeout != b.Timeout ||
			a.Lease != b.Lease || a.LeaseFor != b.LeaseFor || zoneName(a.Location) != zoneName(b.Location) {
			return nil, fmt.Errorf(
				"the limits of a schedule share one state, and must agree in all but their numbers: %v, and %v", first, p.Limit)
		}
	}
	switch {
	case first == nil:
		return nil, errors.New("a schedule needs a limit at some time")
	case otherwise != nil && otherwise.times != nil:
		return nil, errors.New("a limit that has a schedule cannot get another one")
	}
	t := &timetable{otherwise: otherwise, phases: slices.Clone(phases), loc: loc}
	t.compile()
	l := &Limit{algo: first.algo, countDenied: first.countDenied, cfg: first.cfg, times: t}
	for _, of := range t.limits {
		if m := of.margin; m != nil && (l.margin == nil || m.w > l.margin.w) {
			l.margin = m
		}
		if of.lease != nil && (l.lease == nil || of.lease.cfg.Window > l.lease.cfg.Window) {
			l.lease = of.lease
		}
	}
	return l, nil
}

func zoneName(loc *time.Location) string {
	if loc == nil {
		return ""
	}
	return loc.String()
}

// timetable is a schedule.
type timetable struct {
	otherwise *Limit
	phases    []Phase
	loc       *time.Location

	week   []part   // by from, the first of 0
	limits []*Limit // the distinct limits that hold at some time of the week
	last   atomic.Pointer[reign]
}

// part is a part of the week by the local clock, up to where the next one begins.
type part struct {
	from  int64  // µs since Sunday, 0:00
	limit *Limit // nil for none
}

// reign is the time [start, end) in which a limit is in force for certain.
type reign struct {
	start, end int64
	limit      *Limit
}

// compile cuts the week into pieces. The reading of the local clock alone chooses the limit,
// whatever clock changes lie between.
func (t *timetable) compile() {
	var cuts []int64
	for day := range int64(7) {
		midnight := day * oneDay.Microseconds()
		cuts = append(cuts, midnight)
		for i := range t.phases {
			p := &t.phases[i]
			cuts = append(cuts, (midnight+p.From.Microseconds())%oneWeek, (midnight+p.Until.Microseconds())%oneWeek)
		}
	}
	slices.Sort(cuts)
	for _, from := range slices.Compact(cuts) {
		today := time.Weekday(from / oneDay.Microseconds())
		tod := time.Duration(from%oneDay.Microseconds()) * time.Microsecond
		limit := t.otherwise
		for i := range t.phases {
			if p := &t.phases[i]; p.holds(today, (today+6)%7, tod) {
				limit = p.Limit
				break
			}
		}
		if n := len(t.week); n == 0 || t.week[n-1].limit != limit {
			t.week = append(t.week, part{from, limit})
		}
		if limit != nil && !slices.Contains(t.limits, limit) {
			t.limits = append(t.limits, limit)
		}
	}
}

func (p *Phase) holds(today, yesterday time.Weekday, tod time.Duration) bool {
	if p.From < p.Until {
		return p.Days.Has(today) && tod >= p.From && tod < p.Until
	}
	return p.Days.Has(today) && tod >= p.From || p.Days.Has(yesterday) && tod < p.Until
}

// At returns the limit in force at now, in µs since the Unix epoch, and the instant until which it
// certainly stays in force. It is nil while there is no limit. A limit without a schedule is in
// force for ever.
func (l *Limit) At(now int64) (in *Limit, until int64) {
	if l.times == nil {
		return l, maxInt
	}
	r := l.times.at(max(now, 0))
	return r.limit, r.end
}

// Scheduled reports whether the limit follows a schedule.
func (l *Limit) Scheduled() bool { return l.times != nil }

// Schedule returns the arguments of Scheduled; without a schedule it returns the limit itself and
// no phases. Callers must not change phases.
func (l *Limit) Schedule() (otherwise *Limit, phases []Phase, loc *time.Location) {
	if l.times == nil {
		return l, nil, nil
	}
	return l.times.otherwise, l.times.phases, l.times.loc
}

// inForce returns the limit in force at now. While there is none, it returns another limit of the
// schedule, since the state is the same under all.
func (l *Limit) inForce(now int64) *Limit {
	if l.times == nil {
		return l
	}
	return l.times.inForce(now)
}

func (t *timetable) inForce(now int64) *Limit {
	if in := t.at(now).limit; in != nil {
		return in
	}
	return t.some()
}

func (t *timetable) at(now int64) reign {
	if r := t.last.Load(); r != nil && now >= r.start && now < r.end {
		return *r
	}
	r := t.find(now)
	t.last.Store(&r)
	return r
}

// find reads the clock on the wall at now, and looks the reading up. It holds until the part of the
// week is over, or the clocks are changed.
func (t *timetable) find(now int64) reign {
	local := time.UnixMicro(now).In(t.loc)
	_, offset := local.Zone()
	// The week of instants that the clock would read if it were never changed. The epoch began on a
	// Thursday.
	reading := (now + int64(offset)*1e6 + 4*oneDay.Microseconds()) % oneWeek
	if reading < 0 {
		reading += oneWeek
	}
	sunday := now - reading
	i := sort.Search(len(t.week), func(i int) bool { return t.week[i].from > reading }) - 1
	r := reign{start: max(0, sunday+t.week[i].from), end: sunday + oneWeek, limit: t.week[i].limit}
	if i+1 < len(t.week) {
		r.end = sunday + t.week[i+1].from
	}
	from, to := local.ZoneBounds()
	if !from.IsZero() {
		r.start = min(max(r.start, from.UnixMicro()), now)
	}
	if !to.IsZero() {
		end := to.UnixMicro()
		if end <= now {
			// Beyond its table, ZoneBounds takes the last day of a leap year for one of the next:
			// no zone changes before that begins.
			end = now - now%oneDay.Microseconds() + oneDay.Microseconds()
		}
		r.end = min(r.end, end)
	}
	return r
}

// decide is Limit.decide under a schedule.
func (t *timetable) decide(r *Result, s, margin *State, now int64, a Ask, take bool) {
	v := t.at(now)
	if v.limit == nil {
		r.Allowed, r.Off = true, true
		return
	}
	v.limit.decide(r, s, margin, now, a, take)
	bucket := v.limit.algo.HasBurst()
	later := !r.Allowed && a.Cost > 0 && (r.RetryAfter == Never || now+r.RetryAfter >= v.end)
	if !take && (bucket || later) {
		mended := v.limit.mended(s, now)
		s = &mended
		if margin != nil && v.limit.margin != nil {
			mended := v.limit.margin.mended(margin, now)
			margin = &mended
		}
	}
	if bucket {
		r.ResetAfter = t.reset(s, now)
	}
	if later && margin != nil && v.limit.lease != nil {
		// Units that are out end with the phase.
		settled := v.limit.settled(s, margin)
		s, margin = &settled, nil
	}
	if later {
		r.RetryAfter = t.retry(s, margin, now, v, a)
	}
}

// reset returns the time after which a state is fresh under every limit of the timetable; Never if
// it stays as it is. A bucket is as good as fresh under a limit that lets nothing in.
func (t *timetable) reset(s *State, now int64) int64 {
	var r Result
	if in := t.inForce(now); !in.algo.HasBurst() {
		in.plain(&r, s, now, Ask{}, false)
		return r.ResetAfter
	}
	longest, stays := int64(0), s.B != 0
	for _, l := range t.limits {
		if l.n > 0 {
			r = Result{}
			l.plain(&r, s, now, Ask{}, false)
			longest, stays = max(longest, r.ResetAfter), false
		}
	}
	if stays {
		return Never
	}
	return longest
}

// retry looks ahead by whole weeks, plus days that a clock change may skip. A request that is not
// admitted in several such spans never is.
const (
	lookAhead = oneWeek + 3*int64(oneDay/time.Microsecond)
	lookTimes = 8
)

// retry returns how long after now a request is admitted, if not before v ends.
func (t *timetable) retry(s, margin *State, now int64, v reign, a Ask) int64 {
	at := v.end
	for range lookTimes {
		next := int64(Never) // before this nothing is admitted under any of the limits
		for until := at + lookAhead; at < until; at = v.end {
			if at >= maxInt {
				return Never
			}
			v = t.find(at)
			if v.limit == nil {
				return at - now
			}
			var r Result
			v.limit.decide(&r, s, margin, at, a, false)
			switch {
			case r.Allowed:
				return at - now
			case r.RetryAfter == Never:
				continue
			case at+r.RetryAfter < v.end:
				return at - now + r.RetryAfter
			}
			if next == Never || at+r.RetryAfter < next {
				next = at + r.RetryAfter
			}
		}
		if next == Never {
			break
		}
		at = max(at, next)
	}
	return Never
}

// some returns a limit to take the unchanging properties of all phases from.
func (t *timetable) some() *Limit {
	if t.otherwise != nil {
		return t.otherwise
	}
	for i := range t.phases {
		if l := t.phases[i].Limit; l != nil {
			return l
		}
	}
	return nil
}

// each returns the schedule with f of each limit.
func (t *timetable) each(f func(*Limit) (*Limit, error)) (*Limit, error) {
	var err error
	otherwise := t.otherwise
	if otherwise != nil {
		if otherwise, err = f(otherwise); err != nil {
			return nil, err
		}
	}
	phases := make([]Phase, len(t.phases))
	for i, p := range t.phases {
		if phases[i] = p; p.Limit != nil {
			if phases[i].Limit, err = f(p.Limit); err != nil {
				return nil, err
			}
		}
	}
	return Scheduled(otherwise, phases, t.loc)
}
