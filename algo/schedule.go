package algo

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Phase is a part of the week in which other numbers hold.
type Phase struct {
	Days  Days          // the days on which it begins; 0 means every day
	From  time.Duration // local time of day at which it begins, 0 to 24 h
	Until time.Duration // local time of day at which it ends, exclusive; not after From: on the day after
	Limit *Limit        // in force meanwhile; nil means that there is no limit
}

// Days is a set of weekdays: bit 1<<time.Sunday to 1<<time.Saturday.
type Days uint8

// Has reports whether d holds a day. The empty set holds all.
func (d Days) Has(day time.Weekday) bool { return d == 0 || d>>day&1 != 0 }

const oneDay = 24 * time.Hour

// Scheduled returns a limit that follows the clock on the wall of loc (nil means UTC): the first of phases that fits an
// instant holds then, and otherwise the limit of that name (nil for none). A phase holds while the local clock reads a time in
// it: where clocks are put forward it begins no later than they jump over its beginning, and where they are put back it holds on
// both runs through its hours.
//
// The limits must agree in algorithm, window, buckets, calendar and whether denied requests count, since they share a
// state. RetryAfter looks ahead: it tells when a request is admitted under the limits that will hold by then.
func Scheduled(otherwise *Limit, phases []Phase, loc *time.Location) (*Limit, error) {
	if loc == nil {
		loc = time.UTC
	}
	first := otherwise
	for i := range phases {
		p := &phases[i]
		switch {
		case p.From < 0 || p.From > oneDay || p.Until < 0 || p.Until > oneDay:
			return nil, fmt.Errorf("a time of day must be from 0 to 24 hours, not %v to %v", p.From, p.Until)
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
		if a.Algorithm != b.Algorithm || a.Window != b.Window || a.Buckets != b.Buckets || a.Calendar != b.Calendar || a.FirstRequest != b.FirstRequest ||
			a.RefillInterval != b.RefillInterval || a.CountDenied != b.CountDenied || a.Timeout != b.Timeout {
			return nil, fmt.Errorf("the limits of a schedule share one state, and must agree in all but their numbers: %v, and %v", first, p.Limit)
		}
	}
	switch {
	case first == nil:
		return nil, errors.New("a schedule needs a limit at some time")
	case otherwise != nil && otherwise.times != nil:
		return nil, errors.New("a limit that has a schedule cannot get another one")
	}
	return &Limit{
		algo: first.algo, countDenied: first.countDenied, cfg: first.cfg,
		times: &timetable{otherwise: otherwise, phases: phases, loc: loc},
	}, nil
}

// timetable is a schedule.
type timetable struct {
	otherwise *Limit
	phases    []Phase
	loc       *time.Location
	last      atomic.Pointer[reign]
}

// reign is the time [start, end) in which a limit is in force for certain.
type reign struct {
	start, end int64
	limit      *Limit
}

// At returns the limit that is in force at now, in µs since the Unix epoch, and until when that is certain; it may be in
// force for longer. It is nil while there is none. A limit without a schedule is in force for ever.
func (l *Limit) At(now int64) (in *Limit, until int64) {
	if l.times == nil {
		return l, maxInt
	}
	r := l.times.at(max(now, 0))
	return r.limit, r.end
}

// Scheduled reports whether the limit follows a schedule.
func (l *Limit) Scheduled() bool { return l.times != nil }

func (t *timetable) at(now int64) *reign {
	if r := t.last.Load(); r != nil && now >= r.start && now < r.end {
		return r
	}
	r := t.find(now)
	t.last.Store(r)
	return r
}

// find looks at all instants at which something may change around now: midnight, the beginning and the end of a phase, and
// a change of the clocks.
func (t *timetable) find(now int64) *reign {
	local := time.UnixMicro(now).In(t.loc)
	_, offset := local.Zone()
	r := &reign{start: 0, end: maxInt, limit: t.otherwise}
	from, to := local.ZoneBounds()
	if !from.IsZero() {
		r.start = max(0, from.UnixMicro())
	}
	if !to.IsZero() && to.UnixMicro() > now {
		r.end = to.UnixMicro()
	}
	y, m, d := local.Date()
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).UnixMicro() - int64(offset)*1e6
	tod := time.Duration(now-midnight) * time.Microsecond
	change := func(of time.Duration) {
		for _, at := range [...]int64{midnight + (of - oneDay).Microseconds(), midnight + of.Microseconds(), midnight + (of + oneDay).Microseconds()} {
			if at <= now {
				r.start = max(r.start, at)
			} else {
				r.end = min(r.end, at)
			}
		}
	}
	change(0)
	found := false
	today := local.Weekday()
	yesterday := (today + 6) % 7
	for i := range t.phases {
		p := &t.phases[i]
		change(p.From)
		change(p.Until)
		if !found && p.holds(today, yesterday, tod) {
			r.limit, found = p.Limit, true
		}
	}
	return r
}

func (p *Phase) holds(today, yesterday time.Weekday, tod time.Duration) bool {
	if p.From < p.Until {
		return p.Days.Has(today) && tod >= p.From && tod < p.Until
	}
	return p.Days.Has(today) && tod >= p.From || p.Days.Has(yesterday) && tod < p.Until
}

// decide is Limit.decide under a schedule.
func (t *timetable) decide(r *Result, s, margin *State, now int64, a Ask, take bool) {
	v := t.at(now)
	if v.limit == nil {
		r.Allowed, r.Off = true, true
		return
	}
	v.limit.decide(r, s, margin, now, a, take)
	if l := v.limit; (l.algo == TokenBucket || l.algo == LeakyBucket) && r.ResetAfter != Never {
		r.ResetAfter = t.reset(s, now, r.ResetAfter)
	}
	if !r.Allowed && a.Cost > 0 && (r.RetryAfter == Never || now+r.RetryAfter >= v.end) {
		r.RetryAfter = t.retry(s, margin, now, v, a)
	}
}

// reset returns the time after which a bucket is full at whatever rate it may be refilled meanwhile.
func (t *timetable) reset(s *State, now, longest int64) int64 {
	for i := range len(t.phases) + 1 {
		l := t.otherwise
		if i > 0 {
			l = t.phases[i-1].Limit
		}
		if l == nil {
			continue
		}
		var r Result
		if l.plain(&r, s, now, Ask{}, false); r.ResetAfter == Never {
			return Never
		}
		longest = max(longest, r.ResetAfter)
	}
	return longest
}

// lookAhead bounds how many changes of a schedule are looked at for an instant at which a request is admitted.
const lookAhead = 1000

// retry returns how long after now a request is admitted, if not before v ends.
func (t *timetable) retry(s, margin *State, now int64, v *reign, a Ask) int64 {
	for range lookAhead {
		if v.end >= maxInt {
			break
		}
		v = t.find(v.end)
		at := v.start
		if v.limit == nil {
			return at - now
		}
		var r Result
		v.limit.decide(&r, s, margin, at, a, false)
		switch {
		case r.Allowed:
			return at - now
		case r.RetryAfter != Never && at+r.RetryAfter < v.end:
			return at - now + r.RetryAfter
		}
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
