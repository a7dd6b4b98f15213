package quota

// Pool shares out among the Holders of one node what a limit has left for them: a store lends to
// whoever asks first, and as each Envoy asks at its own time of every Interval, always the same one
// would be first after the limit has got room. Between nodes the store shares by what was wanted.
//
// Where somebody got less than was wanted, each Holder asks for no more than its max-min fair share
// of what all of them got together within the last Interval. The zero value is ready. Not safe for
// concurrent use.
type Pool struct {
	states map[state]*pooled
	swept  int64
	wants  []int64
	shares []int64
}

// pooled is what the Holders of a node want of one state, and got.
type pooled struct {
	members []member
	short   int64 // when somebody got less than was asked for last; 0: never
	room    bool  // whoever asked last got all
	cycle   int64 // the number of the Interval
	got     int64 // what all got in it
	before  int64 // and in the one before
}

type member struct {
	holder *Holder
	want   int64
	at     int64
}

// remembered is how long a member counts.
const remembered = int64(Interval) + delay

// Bound lowers the wants of h to its shares, before they are put to the Lender.
func (p *Pool) Bound(now int64, h *Holder, asks []Ask) {
	if p.states == nil {
		p.states = map[state]*pooled{}
	}
	p.sweep(now)
	for i := range asks {
		a := &asks[i]
		if a.Ahead.Want <= 0 || a.parts[0].b.plan.kind == paced { // the latter asks all the time
			continue
		}
		id := state{a.Counter.ID, a.Key}
		s := p.states[id]
		if s == nil {
			s = &pooled{}
			p.states[id] = s
		}
		m := s.member(h, now)
		m.want = a.Ahead.Want
		if len(s.members) > 1 && s.short != 0 && now-s.short < remembered {
			s.turn(now)
			a.Ahead.Want = p.share(s, h)
		}
		a.bound = a.Ahead.Want
	}
}

// Got takes down what the Lender lent to h, after Bound.
func (p *Pool) Got(now int64, h *Holder, asks []Ask) {
	for i := range asks {
		a := &asks[i]
		if a.bound == 0 {
			continue
		}
		if s := p.states[state{a.Counter.ID, a.Key}]; s != nil && !a.Failed {
			s.turn(now)
			s.got += a.Ahead.Got
			if s.room = a.Ahead.Got >= a.bound; !s.room {
				s.short = now
			}
		}
	}
}

// Leave forgets h.
func (p *Pool) Leave(h *Holder) {
	for id, s := range p.states {
		s.keep(func(m *member) bool { return m.holder != h })
		if len(s.members) == 0 {
			delete(p.states, id)
		}
	}
}

// sweep forgets what is old, once an Interval.
func (p *Pool) sweep(now int64) {
	if now-p.swept < int64(Interval) {
		return
	}
	p.swept = now
	for id, s := range p.states {
		s.keep(func(m *member) bool { return now-m.at < remembered })
		if len(s.members) == 0 {
			delete(p.states, id)
		}
	}
}

func (s *pooled) keep(f func(m *member) bool) {
	n := 0
	for i := range s.members {
		if f(&s.members[i]) {
			s.members[n] = s.members[i]
			n++
		}
	}
	clear(s.members[n:])
	s.members = s.members[:n]
}

// member returns what is known of h, which is there now.
func (s *pooled) member(h *Holder, now int64) *member {
	for i := range s.members {
		if m := &s.members[i]; m.holder == h {
			m.at = now
			return m
		}
	}
	s.members = append(s.members, member{holder: h, at: now})
	return &s.members[len(s.members)-1]
}

// turn begins another Interval if it is time.
func (s *pooled) turn(now int64) {
	switch cycle := now / int64(Interval); cycle - s.cycle {
	case 0:
	case 1:
		s.cycle, s.before, s.got = cycle, s.got, 0
	default:
		s.cycle, s.before, s.got = cycle, 0, 0
	}
}

// share is how much h may want.
func (p *Pool) share(s *pooled, h *Holder) int64 {
	p.wants, p.shares = p.wants[:0], p.shares[:0]
	sum, wanted, at := max(s.got, s.before), int64(0), 0
	for i := range s.members {
		m := &s.members[i]
		if m.holder == h {
			at = i
		}
		p.wants, p.shares = append(p.wants, m.want), append(p.shares, 0)
		wanted += m.want
	}
	if s.room {
		sum += sum/4 + int64(len(s.members)) // there may be more
	}
	if sum >= wanted || sum == 0 {
		return s.members[at].want
	}
	fill(p.wants, sum, p.shares)
	return max(p.shares[at], min(s.members[at].want, MinFirst))
}
