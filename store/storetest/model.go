package storetest

import (
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// model is the contract of store.Store said as plainly as possible: a map of states, and the pure
// algorithms. It does not use store.Verdict, which the stores do: take says the rule by itself, so
// that a mistake in the one shows against the other.
type model struct {
	states map[stateKey]*kept
	notes  map[string]note
	slot   uint64
	// states that equal a fresh one are not forgotten, which shows when the clock steps back
	keeps bool
}

type stateKey struct {
	id  uint64
	key string
}

// kept is a state with the limit that it was last charged under.
type kept struct {
	st    algo.State
	limit *algo.Limit
}

// note is a reservation.
type note struct {
	text []byte
	end  int64
}

func newModel() *model { return &model{states: map[stateKey]*kept{}, notes: map[string]note{}} }

func clone(st algo.State) algo.State {
	st.Ext = append([]byte(nil), st.Ext...)
	return st
}

// state returns a counter's state of a key, carried to the counter and the limit; a fresh one if
// there is none.
func (m *model) state(c *rule.Counter, l *algo.Limit, key []byte, now int64) *kept {
	at := stateKey{c.ID, string(key)}
	k := m.states[at]
	if k == nil {
		for _, p := range c.Previous {
			from := stateKey{p.ID, string(key)}
			if k = m.states[from]; k == nil && p.Lease != nil && m.states[stateKey{p.Lease.ID, string(key)}] != nil {
				k = &kept{limit: p.Limit}
			}
			if k != nil {
				delete(m.states, from)
				if k.limit.Algorithm() == l.Algorithm() {
					m.roll(p, k, key, now)
					l.Carry(k.limit, &k.st, now)
				} else {
					k.st = algo.State{}
				}
				k.limit = l
				break
			}
		}
	}
	if k == nil {
		k = &kept{limit: l}
	}
	old, to := k.limit.Config(), l.Config()
	if l.Algorithm() == algo.Lease && old.Timeout != to.Timeout ||
		l.Algorithm() != algo.Lease && (old.Window != to.Window || old.Buckets != to.Buckets) {
		m.roll(c, k, key, now)
		l.Carry(k.limit, &k.st, now)
	}
	k.limit = l
	m.states[at] = k
	return k
}

// roll charges to a state the units lent whose generation has ended, before the state is carried.
func (m *model) roll(c *rule.Counter, k *kept, key []byte, now int64) {
	if c.Lease == nil {
		return
	}
	if lease := m.states[stateKey{c.Lease.ID, string(key)}]; lease != nil {
		k.limit.Lending(lease.limit).Roll(&k.st, &lease.st, now)
	}
}

// seen returns what state and beside would return, as copies, and changes nothing.
func (m *model) seen(c *rule.Counter, l *algo.Limit, key []byte, now int64) (st, beside algo.State) {
	copied := newModel()
	for name, k := range m.states {
		if name.key == string(key) {
			copied.states[name] = &kept{clone(k.st), k.limit}
		}
	}
	k := copied.state(c, l, key, now) // before the record beside it is carried
	if of, _ := copied.beside(c, l, key, now); of != nil {
		beside = of.st
	}
	return k.st, beside
}

// beside is state for the second state of a charge, and also returns its name: the state of the
// soft margin, or the record of the units lent; nil if the limit has neither.
func (m *model) beside(c *rule.Counter, l *algo.Limit, key []byte, now int64) (*kept, stateKey) {
	of, second := c.Margin, l.Margin()
	if of == nil || second == nil {
		of, second = c.Lease, l.Lease()
	}
	if of == nil || second == nil {
		return nil, stateKey{}
	}
	return m.state(of, second, key, now), stateKey{of.ID, string(key)}
}

// take is store.Store.Take. The slots that the store made are read from the charges.
func (m *model) take(charges []store.Charge, results []algo.Result, now int64) {
	m.takeAhead(charges, make([]algo.Ahead, len(charges)), results, now)
}

// takeAhead is store.Lender.TakeAhead.
func (m *model) takeAhead(charges []store.Charge, ahead []algo.Ahead, results []algo.Result, now int64) {
	asks := make([]algo.Ask, len(charges))
	real := map[stateKey]*algo.State{}
	tried := map[stateKey]*algo.State{}
	names, besides := make([]stateKey, len(charges)), make([]stateKey, len(charges))
	add := func(k *kept, name stateKey) {
		if k != nil {
			real[name] = &k.st
		}
	}
	for i := range charges {
		c := &charges[i]
		asks[i] = c.Ask
		if c.Limit.Algorithm() == algo.Concurrency && c.Ask.Slot == 0 {
			m.slot++
			asks[i].Slot = m.slot
		}
		names[i] = stateKey{c.Counter.ID, string(c.Key)}
		add(m.state(c.Counter, c.Limit, c.Key, now), names[i])
		var beside *kept
		beside, besides[i] = m.beside(c.Counter, c.Limit, c.Key, now)
		add(beside, besides[i]) // an empty name has no state
	}
	for i := range charges {
		ahead[i].Got, ahead[i].Until, ahead[i].Out = 0, 0, 0
		if lease := real[besides[i]]; lease != nil {
			charges[i].Limit.Learn(real[names[i]], lease, now, &ahead[i])
		}
	}
	for name, st := range real {
		try := clone(*st)
		tried[name] = &try
	}
	defer func() {
		for name := range real {
			m.forget(name, now)
		}
	}()
	if len(charges) == 1 { // the algorithm alone decides
		results[0] = charges[0].Limit.TakeWith(real[names[0]], real[besides[0]], now, asks[0])
		m.lend(charges, ahead, results, real, names, besides, now)
		return
	}
	enforced, quotas, open := true, 0, 0
	verdicts := make([]algo.Result, len(charges))
	for i := range charges {
		verdicts[i] = charges[i].Limit.TakeWith(tried[names[i]], tried[besides[i]], now, asks[i])
		switch charges[i].Mode {
		case rule.Enforce:
			enforced = enforced && verdicts[i].Allowed
		case rule.Quota:
			if verdicts[i].Off {
				break
			}
			quotas++
			if verdicts[i].Allowed {
				open++
			}
		}
	}
	denied := !enforced || quotas > 0 && open == 0
	for i := range charges {
		c, st, beside := &charges[i], real[names[i]], real[besides[i]]
		switch {
		case !denied || c.Mode == rule.Shadow:
			results[i] = c.Limit.TakeWith(st, beside, now, asks[i])
			continue
		case c.Limit.CountDenied():
			results[i] = c.Limit.TakeWith(st, beside, now, asks[i])
		default:
			results[i] = c.Limit.CheckWith(st, beside, now, asks[i])
			c.Limit.Mend(st, now)
			c.Limit.MendMargin(beside, now)
		}
		r, v := &results[i], &verdicts[i]
		r.Allowed, r.RetryAfter, r.Delay, r.Soft = v.Allowed, v.RetryAfter, v.Delay, r.Soft && v.Allowed
	}
	if !denied {
		m.lend(charges, ahead, results, real, names, besides, now)
	}
}

// lend lends to the charges of a call that was admitted.
func (m *model) lend(charges []store.Charge, ahead []algo.Ahead, results []algo.Result, real map[stateKey]*algo.State,
	names, besides []stateKey, now int64) {
	for i := range charges {
		if lease := real[besides[i]]; lease != nil && results[i].Allowed && !results[i].Off {
			charges[i].Limit.Lend(real[names[i]], lease, now, &ahead[i])
		}
	}
}

// settle is store.Reserver.Settle for one settlement.
func (m *model) settle(c *store.Settlement, now int64) {
	k := m.state(c.Counter, c.Limit, c.Key, now)
	beside, name := m.beside(c.Counter, c.Limit, c.Key, now)
	var lease *algo.State
	if beside != nil && c.Limit.Lease() != nil {
		lease = &beside.st
		defer m.forget(name, now)
	}
	c.Limit.Settle(&k.st, lease, now, c.At, c.Reserved, c.Actual)
	m.forget(stateKey{c.Counter.ID, string(c.Key)}, now)
}

// reset is store.Inspector.Reset for a counter that lends, under the limits of the last charge.
func (m *model) reset(c *rule.Counter, key []byte, now int64) {
	name, beside := stateKey{c.ID, string(key)}, stateKey{c.Lease.ID, string(key)}
	k, lease := m.states[name], m.states[beside]
	if k == nil {
		k = m.state(c, c.Limit, key, now)
	}
	if lease == nil {
		lease = m.state(c.Lease, k.limit.Lease(), key, now)
	}
	k.limit.Lending(lease.limit).Reset(&k.st, &lease.st, now)
	m.forget(name, now)
	m.forget(beside, now)
}

// hold, claim and expired are the methods of store.Reserver; expired hands out all.
func (m *model) hold(id string, text []byte, end int64) { m.notes[id] = note{text, end} }

func (m *model) claim(id string) (text []byte, ok bool) {
	n, ok := m.notes[id]
	delete(m.notes, id)
	return n.text, ok
}

func (m *model) expired(now int64) (texts [][]byte) {
	for id, n := range m.notes {
		if n.end <= now {
			texts = append(texts, n.text)
			delete(m.notes, id)
		}
	}
	return texts
}

// forget drops a state that equals a fresh one.
func (m *model) forget(name stateKey, now int64) {
	if k := m.states[name]; !m.keeps && k.limit.Fresh(&k.st, now) {
		delete(m.states, name)
	}
}

// release is store.Store.Release.
func (m *model) release(c *rule.Counter, key []byte, slot uint64, now int64) bool {
	at := stateKey{c.ID, string(key)}
	k := m.states[at]
	if k == nil {
		return false
	}
	ok := k.limit.Release(&k.st, now, slot)
	m.forget(at, now)
	return ok
}
