package algo

import (
	"math/big"
	"slices"
	"time"
)

// The models below say each algorithm again as plainly as possible: lists of admissions, and
// rational arithmetic. They share nothing with the package except the words of the definition, the
// unit of time, and the scale to which a level is rounded when N changes, or the unit with B.

// verdict is what a model has to say about one ask.
type verdict struct {
	allowed, soft bool
	remaining     int64
	delay         int64
}

type model interface {
	// ask decides, and charges. l is the limit in force.
	ask(l *Limit, now int64, a Ask) verdict
}

func newModel(c Config) model {
	switch {
	case c.Algorithm == FixedWindow:
		return &fixedModel{}
	case c.Algorithm == SlidingLog:
		return &logModel{}
	case c.Algorithm == SlidingWindow:
		return &windowModel{counts: map[int64]int64{}}
	case c.Algorithm == Concurrency:
		return &slotModel{}
	case c.RefillInterval:
		return &intervalModel{}
	case c.Algorithm == LeakyBucket:
		return &queueModel{}
	}
	return &tokenModel{missing: new(big.Rat)}
}

func numbers(c Config) (limit, capacity int64) {
	limit = c.N
	extra := int64(0)
	if c.Algorithm == TokenBucket || c.Algorithm == LeakyBucket {
		limit = max(0, c.Burst)
	}
	capacity = limit + limit*int64(c.Soft)/100
	if c.Algorithm == LeakyBucket {
		extra = 1
	}
	return limit + extra, capacity + extra
}

func counted(c Config, used int64, allowed bool) verdict {
	limit, capacity := numbers(c)
	return verdict{allowed: allowed, soft: allowed && used > limit && used <= capacity, remaining: max(0, limit-used)}
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// fixedModel remembers all charges of the newest window.
type fixedModel struct {
	start   int64 // of the window that the events lie in
	events  []int64
	existed bool
}

func (m *fixedModel) ask(l *Limit, now int64, a Ask) verdict {
	c := l.Config()
	_, capacity := numbers(c)
	start := now
	if c.FirstRequest {
		if m.existed && now < m.start+micros(c.Window) {
			start = m.start
		}
	} else {
		start = windowStart(c, now)
		if m.existed {
			start = max(start, m.start)
		}
	}
	var used int64
	if m.existed && start == m.start {
		for _, e := range m.events {
			used = max(0, used+e)
		}
	}
	ok := a.Cost < 0 || a.Cost == 0 && (used <= capacity || c.N == 0 && !c.CountDenied) ||
		a.Cost > 0 && used+a.Cost <= capacity
	if a.Cost != 0 && (ok || c.CountDenied) {
		if !m.existed || start != m.start {
			m.events = nil
		}
		m.events = append(m.events, a.Cost)
		used = max(0, used+a.Cost)
		m.start, m.existed = start, used > 0
		if used == 0 {
			m.events = nil
		}
	}
	return counted(c, used, ok)
}

// windowStart finds a window's beginning by walking, and by nothing but the calendar's names of
// days.
func windowStart(c Config, now int64) int64 {
	if c.Calendar == NoCalendar {
		return now - now%micros(c.Window)
	}
	name := func(t int64) int {
		tm := time.UnixMicro(t).In(c.Location)
		switch c.Calendar {
		case Day:
			return tm.Year()*1000 + tm.YearDay()
		case Week:
			y, w := tm.ISOWeek()
			return y*100 + w
		case Month:
			return tm.Year()*100 + int(tm.Month())
		default:
			return tm.Year()
		}
	}
	// Back by days to an instant before, then a bisection; good where no day begins twice.
	before := now
	for name(before) == name(now) {
		before -= 12 * hour
	}
	lo, hi := before, now
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; name(mid) == name(now) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// logModel is a list of instants, one for each unit.
type logModel struct{ times []int64 }

func (m *logModel) ask(l *Limit, now int64, a Ask) verdict {
	c := l.Config()
	_, capacity := numbers(c)
	if n := len(m.times); n > 0 {
		now = max(now, m.times[n-1])
	}
	live := slices.DeleteFunc(slices.Clone(m.times), func(t int64) bool { return t <= now-micros(c.Window) })
	used := int64(len(live))
	ok := a.Cost < 0 || a.Cost == 0 && (used <= capacity || c.N == 0 && !c.CountDenied) ||
		a.Cost > 0 && used+a.Cost <= capacity
	switch {
	case a.Cost > 0 && (ok || c.CountDenied):
		keep := max(used, capacity+1)
		for range min(a.Cost, keep) {
			live = append(live, now)
		}
		if over := int64(len(live)) - keep; over > 0 {
			live = live[over:]
		}
		m.times = live
	case a.Cost < 0:
		live = live[:max(0, used+a.Cost)]
		m.times = live
	}
	return counted(c, int64(len(live)), ok)
}

// windowModel counts by sub-window.
type windowModel struct {
	counts map[int64]int64 // by number of the sub-window
	newest int64           // beginning of the one in which it was charged last; 0 if all are empty
}

func (m *windowModel) ask(l *Limit, now int64, a Ask) verdict {
	c := l.Config()
	_, capacity := numbers(c)
	sub := micros(c.Window) / int64(c.Buckets)
	now = max(now, m.newest)
	i, k := now/sub, int64(c.Buckets)
	estimate := func() int64 {
		whole := int64(0)
		for j := i - k + 1; j <= i; j++ {
			whole += m.counts[j]
		}
		elapsed := (now - i*sub) / l.unit
		r := big.NewRat(sub/l.unit-elapsed, sub/l.unit)
		r.Mul(r, new(big.Rat).SetInt64(m.counts[i-k]))
		r.Add(r, new(big.Rat).SetInt64(whole))
		return floor(r)
	}
	used := estimate()
	ok := a.Cost < 0 || a.Cost == 0 && (used <= capacity || c.N == 0 && !c.CountDenied) ||
		a.Cost > 0 && used+a.Cost <= capacity
	switch {
	case a.Cost > 0 && (ok || c.CountDenied):
		m.counts[i] = min(m.counts[i]+a.Cost, 1<<32-1)
	case a.Cost < 0:
		back := -a.Cost
		for j := i; j >= i-k; j-- {
			less := min(back, m.counts[j])
			m.counts[j] -= less
			back -= less
		}
	}
	if a.Cost < 0 || a.Cost > 0 && (ok || c.CountDenied) {
		for j, n := range m.counts {
			if n > 0 && j >= i-k {
				m.newest = i * sub
			} else {
				delete(m.counts, j) // gone, even if the clock steps back
			}
		}
		if len(m.counts) == 0 {
			m.newest = 0
		}
	}
	return counted(c, estimate(), ok)
}

// roundUp rounds up to a whole number of parts.
func roundUp(r *big.Rat, parts *big.Int) *big.Rat {
	n := new(big.Int).Mul(r.Num(), parts)
	n.Neg(n.Div(n.Neg(n), r.Denom()))
	return new(big.Rat).SetFrac(n, parts)
}

func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }

func ceil(r *big.Rat) int64 {
	return -new(big.Int).Div(new(big.Int).Neg(r.Num()), r.Denom()).Int64()
}

// scaleOf is the number of parts that a token has under l.
func scaleOf(l *Limit) *big.Int {
	c := l.Config()
	r := big.NewRat(max(c.N, 0), micros(c.Window)/l.unit)
	return r.Denom()
}

// perUnit is the tokens that flow in one unit of time.
func perUnit(l *Limit) *big.Rat {
	return big.NewRat(l.Config().N, micros(l.Config().Window)/l.unit)
}

// furthest is how many units of time ahead a bucket of this many tokens may lie.
func furthest(l *Limit, tokens int64) int64 {
	if l.Config().N == 0 {
		return micros(l.Config().Window) / l.unit
	}
	return floor(new(big.Rat).Quo(new(big.Rat).SetInt64(tokens), perUnit(l)))
}

// tokenModel is a bucket with a rational number of missing tokens.
type tokenModel struct {
	last    int64 // µs
	missing *big.Rat
}

func (m *tokenModel) at(l *Limit, now int64) (t int64, missing *big.Rat) {
	c := l.Config()
	_, capacity := numbers(c)
	t = now / l.unit
	missing = new(big.Rat).Set(m.missing)
	if missing.Sign() == 0 {
		return t, missing
	}
	missing = roundUp(missing, scaleOf(l)) // N may have changed since, and B with the unit of time
	if most := new(big.Rat).SetInt64(capacity); missing.Cmp(most) > 0 {
		missing = most
	}
	last := (m.last + l.unit - 1) / l.unit
	if most := t + furthest(l, capacity); last > most {
		last = most
		m.last, m.missing = last*l.unit, new(big.Rat).Set(missing)
	}
	t = max(t, last)
	flown := new(big.Rat).SetInt64(t - last)
	flown.Mul(flown, perUnit(l))
	if missing.Sub(missing, flown).Sign() < 0 {
		missing.SetInt64(0)
	}
	return t, missing
}

func (m *tokenModel) ask(l *Limit, now int64, a Ask) verdict {
	c := l.Config()
	limit, capacity := numbers(c)
	t, missing := m.at(l, now)
	after := new(big.Rat).Add(missing, new(big.Rat).SetInt64(a.Cost))
	ok := a.Cost <= 0 || c.N > 0 && after.Cmp(new(big.Rat).SetInt64(capacity)) <= 0
	if a.Cost != 0 && ok {
		if missing = after; missing.Sign() < 0 {
			missing = new(big.Rat)
		}
		m.last, m.missing = t*l.unit, missing
	}
	v := counted(c, ceil(missing), ok)
	v.remaining = max(0, limit-ceil(missing))
	if c.N == 0 {
		v.remaining = 0
	}
	return v
}

// intervalModel steps from boundary to boundary.
type intervalModel struct{ anchor, missing int64 }

func (m *intervalModel) ask(l *Limit, now int64, a Ask) verdict {
	c := l.Config()
	limit, capacity := numbers(c)
	anchor, missing := m.anchor, min(m.missing, capacity)
	for c.N > 0 && missing > 0 && anchor+micros(c.Window) <= now {
		anchor += micros(c.Window)
		missing = max(0, missing-c.N)
	}
	if w := micros(c.Window); c.N == 0 && now > anchor {
		anchor += (now - anchor) / w * w
	}
	if missing == 0 {
		anchor = now
	}
	ok := a.Cost <= 0 || c.N > 0 && missing+a.Cost <= capacity
	if a.Cost != 0 && ok {
		missing = max(0, missing+a.Cost)
		m.anchor, m.missing = anchor, missing
	}
	v := counted(c, missing, ok)
	v.remaining = max(0, limit-missing)
	if c.N == 0 {
		v.remaining = 0
	}
	return v
}

// queueModel is a queue that knows when its next turn is. Turns are rational instants in the
// limit's unit.
type queueModel struct {
	queued *big.Rat // turns still to come at last; nil if there are none
	last   int64    // µs: when it was charged last
}

func (m *queueModel) ask(l *Limit, now int64, a Ask) verdict {
	c := l.Config()
	limit, capacity := numbers(c)
	t := now / l.unit
	queued := new(big.Rat)
	if m.queued != nil {
		queued = roundUp(m.queued, scaleOf(l)) // as in tokenModel
		if most := new(big.Rat).SetInt64(capacity); queued.Cmp(most) > 0 {
			queued = most
		}
	}
	last := (m.last + l.unit - 1) / l.unit
	if queued.Sign() > 0 {
		if most := t + furthest(l, capacity-1); last > most {
			last = most
			m.last, m.queued = last*l.unit, queued
		}
		t = max(t, last)
	}
	keep := func() {
		m.queued, m.last = queued, t*l.unit
		if queued.Sign() <= 0 {
			m.queued = nil
		}
	}
	if c.N == 0 { // nothing moves
		if a.Cost < 0 && m.queued != nil {
			queued.Add(queued, new(big.Rat).SetInt64(a.Cost))
			keep()
		}
		return verdict{allowed: a.Cost <= 0, soft: a.Cost <= 0 && ceil(queued) > limit}
	}

	gap := new(big.Rat).Inv(perUnit(l)) // between two turns
	here := new(big.Rat).SetInt64(t)
	turn := new(big.Rat).SetInt64(last)
	turn.Add(turn, new(big.Rat).Mul(queued, gap))
	if turn.Cmp(here) < 0 || queued.Sign() == 0 {
		turn.Set(here)
	}
	ahead := func() *big.Rat { return new(big.Rat).Sub(turn, here) }
	v := verdict{allowed: true}
	if a.Cost > 0 {
		lastTurn := new(big.Rat).Mul(gap, new(big.Rat).SetInt64(a.Cost-1))
		lastTurn.Add(lastTurn, ahead())
		v.allowed = lastTurn.Cmp(new(big.Rat).Mul(gap, new(big.Rat).SetInt64(capacity-1))) <= 0
		if v.allowed && ahead().Sign() > 0 {
			d := new(big.Int).Mul(big.NewInt(ceil(turn)), big.NewInt(l.unit))
			if v.delay = 1<<53 - 1; d.Sub(d, big.NewInt(now)).Cmp(big.NewInt(v.delay)) < 0 {
				v.delay = d.Int64()
			}
		}
		if a.MaxDelay >= 0 && v.delay > a.MaxDelay {
			v.allowed, v.delay = false, 0
		}
	}
	if a.Cost != 0 && v.allowed {
		turn.Add(turn, new(big.Rat).Mul(gap, new(big.Rat).SetInt64(a.Cost)))
		if turn.Cmp(here) < 0 {
			turn.Set(here)
		}
		queued = new(big.Rat).Quo(ahead(), gap)
		if a.Cost > 0 || m.queued != nil {
			keep()
		}
	}
	used := ceil(new(big.Rat).Quo(ahead(), gap))
	v.remaining = max(0, limit-used)
	v.soft = v.allowed && used > limit
	return v
}

// slotModel is a list of holders.
type slotModel struct{ held []slot }

func (m *slotModel) ask(l *Limit, now int64, a Ask) verdict {
	c := l.Config()
	_, capacity := numbers(c)
	if n := len(m.held); n > 0 {
		now = max(now, m.held[n-1].since)
	}
	used := int64(0)
	for _, h := range m.held {
		if h.since+micros(c.Timeout) > now {
			used += h.units
		}
	}
	ok := a.Cost < 0 || a.Cost == 0 && (used <= capacity || c.N == 0 && !c.CountDenied) ||
		a.Cost > 0 && used+a.Cost <= capacity
	if a.Cost > 0 && ok {
		used += a.Cost
		m.held = slices.DeleteFunc(m.held, func(h slot) bool { return h.since+micros(c.Timeout) <= now })
		m.held = append(m.held, slot{now, a.Slot, a.Cost})
	}
	return counted(c, used, ok)
}

// release reports whether id held any slots.
func (m *slotModel) release(l *Limit, now int64, id uint64) bool {
	if n := len(m.held); n > 0 {
		now = max(now, m.held[n-1].since)
	}
	live := slices.DeleteFunc(slices.Clone(m.held),
		func(h slot) bool { return h.since+micros(l.Config().Timeout) <= now })
	kept := slices.DeleteFunc(slices.Clone(live), func(h slot) bool { return h.id == id })
	if len(kept) == len(live) {
		return false
	}
	m.held = kept
	return true
}
