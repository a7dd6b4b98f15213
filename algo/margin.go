package algo

// A soft margin that closes (Config.SoftFor) needs a second state for each key, which is kept beside the first one under a
// Limit of its own, Limit.Margin: in State.A when the margin was first used, and in State.B when it opens again.

// Margin is the algorithm of Limit.Margin. It is not for rule files.
const Margin Algorithm = 255

// Margin returns the limit under which to keep the state of the soft margin, for TakeWith; nil if the margin does not
// close. All it is good for is Fresh, Check (a peek, whose ResetAfter is the time until the margin opens again) and Carry.
func (l *Limit) Margin() *Limit {
	if l.times != nil {
		for _, p := range append([]Phase{{Limit: l.times.otherwise}}, l.times.phases...) {
			if p.Limit != nil && p.Limit.hard != nil {
				return p.Limit.Margin()
			}
		}
		return nil
	}
	if l.hard == nil {
		return nil
	}
	return l.margin
}

// TakeWith is Take for a limit whose soft margin closes: margin is the key's state of l.Margin(). A nil margin, and one
// of a limit whose margin does not close, is Take.
func (l *Limit) TakeWith(s, margin *State, now int64, a Ask) (r Result) {
	l.decide(&r, s, margin, now, a, true)
	return r
}

// CheckWith is to Check what TakeWith is to Take.
func (l *Limit) CheckWith(s, margin *State, now int64, a Ask) (r Result) {
	l.decide(&r, s, margin, now, a, false)
	return r
}

// compileMargin makes what a margin that closes needs.
func (l *Limit) compileMargin() error {
	c := l.cfg
	c.Soft, c.SoftFor = 0, 0
	var err error
	if l.hard, err = build(c); err != nil {
		return err
	}
	// used + 1 ≤ N + 1 means used ≤ N.
	if l.algo == TokenBucket || l.algo == LeakyBucket {
		c.Burst = max(0, c.Burst) + 1
	} else {
		c.N++
	}
	if l.above, err = build(c); err != nil {
		return err
	}
	most := l.w + l.cfg.SoftFor.Microseconds() + 2*l.w
	if l.unit > 0 && l.full > 0 && l.full < maxInt/uint64(l.unit) {
		most += int64(l.full) * l.unit
	}
	l.margin = &Limit{algo: Margin, w: most, cfg: Config{Algorithm: Margin, Window: c.Window, SoftFor: l.cfg.SoftFor}}
	return nil
}

// marginOf returns the state of the margin as it counts at now.
func (l *Limit) marginOf(m *State, now int64) (first, reopens int64, used bool) {
	if m.B == 0 || now >= int64(m.B) || int64(m.B)-now > l.margin.w {
		return now, 0, false
	}
	return min(m.A, now), int64(m.B), true
}

func (l *Limit) decideMargin(r *Result, s, m *State, now int64, a Ask, take bool) {
	first, reopens, used := l.marginOf(m, now)
	closes := first + l.cfg.SoftFor.Microseconds()
	in := l
	if used && now >= closes {
		in = l.hard
	}
	in.plain(r, s, now, a, take)
	if take && a.Cost > 0 && (r.Allowed && r.Soft || !r.Allowed && l.countDenied && used) {
		var within Result
		l.above.plain(&within, s, now, Ask{Cost: 1, MaxDelay: -1}, false)
		if !used {
			m.A = now
		}
		m.B, m.C, m.Ext = uint64(max(reopens, now+within.RetryAfter+l.w)), 0, nil
	}
	if r.Allowed || a.Cost <= 0 || !used {
		return
	}
	// Will the margin be open by then?
	if d := r.RetryAfter; in == l && d != Never && (now+d < closes || now+d >= reopens) {
		return
	}
	var x Result
	if l.hard.plain(&x, s, now, a, false); !x.Allowed && x.RetryAfter != Never && now+x.RetryAfter < reopens {
		r.RetryAfter = x.RetryAfter
		return
	}
	x = Result{}
	if l.plain(&x, s, reopens, a, false); x.Allowed || x.RetryAfter != Never {
		r.RetryAfter = reopens - now + x.RetryAfter
	} else {
		r.RetryAfter = Never
	}
}

// peekMargin answers a peek at the state of a margin.
func (l *Limit) peekMargin(r *Result, s *State, now int64) {
	r.Allowed = true
	if _, reopens, used := (&Limit{margin: l}).marginOf(s, now); used {
		r.ResetAfter = reopens - now
	}
}
