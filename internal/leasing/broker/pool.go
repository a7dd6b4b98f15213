package broker

// Pool shares out among the Holders of one node the room that a limit has left for them: a store
// lends to whoever asks first, and as each Envoy asks at its own time of every Interval, always the
// same one would be first after the limit has got room. Between nodes the store shares by the units
// wanted.
//
// If some Holder got less than it wanted, each asks for no more than its max-min fair share of the
// units that they got together within the last Interval. The zero value is ready. Not safe for
// concurrent use.
type Pool struct {
	states map[stateName]*pooledState
	swept  int64
	wants  []int64
	shares []int64
}

// pooledState is how many units the Holders of a node want of one state, and got.
type pooledState struct {
	seats  []*poolSeat
	short  int64 // when somebody got less than was asked for last; 0: never
	room   bool  // the last to ask got all it wanted
	cycle  int64 // the number of the Interval
	got    int64 // what all got in it
	before int64 // and in the one before
}

// poolSeat is the place of a Holder at a pooled state, where it knows it by itself.
type poolSeat struct {
	of    *pooledState // nil if it has none
	at    int          // in of.seats
	want  int64
	asked int64 // when it asked last
	cycle int64 // in which it got so much
	got   int64
}

// rememberedFor is how long a seat counts.
const rememberedFor = int64(Interval) + delayNs

// Bound lowers the wants of a Holder's asks to its shares, before they are put to the Lender.
func (p *Pool) Bound(now int64, asks []Ask) {
	if p.states == nil {
		p.states = map[stateName]*pooledState{}
	}
	p.sweep(now)
	for i := range asks {
		a := &asks[i]
		if a.Ahead.Want <= 0 || a.parts[0].b.plan.kind == assignRate { // the latter asks all the time
			continue
		}
		m := &a.of.seat
		if m.of == nil {
			p.sit(m, a.of.state)
		}
		m.want, m.asked = a.Ahead.Want, now
		if s := m.of; len(s.seats) > 1 && s.short != 0 && now-s.short < rememberedFor {
			s.turn(now)
			a.Ahead.Want = p.share(m)
		}
		a.bound = a.Ahead.Want
	}
}

// Got takes down the Lender's answers, after Bound.
func (p *Pool) Got(now int64, asks []Ask) {
	for i := range asks {
		a := &asks[i]
		m := &a.of.seat
		if a.bound == 0 || a.Failed || m.of == nil {
			continue
		}
		s := m.of
		s.turn(now)
		if m.cycle != s.cycle {
			m.cycle, m.got = s.cycle, 0
		}
		m.got += a.Ahead.Got
		s.got += a.Ahead.Got
		if s.room = a.Ahead.Got >= a.bound; !s.room {
			s.short = now
		}
	}
}

// Leave forgets h.
func (p *Pool) Leave(h *Holder) {
	for id, o := range h.states {
		if s := o.seat.of; s != nil {
			if s.leave(&o.seat); len(s.seats) == 0 {
				delete(p.states, id)
			}
		}
	}
}

// sweep forgets old states, once an Interval.
func (p *Pool) sweep(now int64) {
	if now-p.swept < int64(Interval) {
		return
	}
	p.swept = now
	for id, s := range p.states {
		for i := len(s.seats) - 1; i >= 0; i-- {
			if m := s.seats[i]; now-m.asked >= rememberedFor {
				s.leave(m)
			}
		}
		if len(s.seats) == 0 {
			delete(p.states, id)
		}
	}
}

// sit gives a seat its place.
func (p *Pool) sit(m *poolSeat, id stateName) {
	s := p.states[id]
	if s == nil {
		s = &pooledState{}
		p.states[id] = s
	}
	*m = poolSeat{of: s, at: len(s.seats)}
	s.seats = append(s.seats, m)
}

// leave takes a seat away.
func (s *pooledState) leave(m *poolSeat) {
	last := len(s.seats) - 1
	s.seats[m.at] = s.seats[last]
	s.seats[m.at].at = m.at
	s.seats[last] = nil
	s.seats = s.seats[:last]
	m.of = nil
}

// turn begins another Interval if it is time.
func (s *pooledState) turn(now int64) {
	switch cycle := now / int64(Interval); cycle - s.cycle {
	case 0:
	case 1:
		s.cycle, s.before, s.got = cycle, s.got, 0
	default:
		s.cycle, s.before, s.got = cycle, 0, 0
	}
}

// share is how much a Holder may want.
func (p *Pool) share(m *poolSeat) int64 {
	s := m.of
	sum, wanted := max(s.got, s.before), int64(0)
	for _, o := range s.seats {
		wanted += o.want
	}
	if s.room {
		sum += sum/4 + int64(len(s.seats)) // there may be more
	}
	if sum >= wanted || sum == 0 {
		return m.want
	}
	p.wants, p.shares = p.wants[:0], p.shares[:0]
	for _, o := range s.seats {
		p.wants, p.shares = append(p.wants, o.want), append(p.shares, 0)
	}
	maxMinShares(p.wants, sum, p.shares)
	mine := p.shares[m.at]
	if m.cycle == s.cycle {
		mine -= m.got
	}
	return max(mine, min(m.want, MinFirst))
}
