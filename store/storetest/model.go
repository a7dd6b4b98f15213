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
			if k = m.states[from]; k != nil {
				delete(m.states, from)
				if k.limit.Algorithm() == l.Algorithm() {
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
	if old.Window != to.Window || old.Buckets != to.Buckets {
		l.Carry(k.limit, &k.st, now)
	}
	k.limit = l
	m.states[at] = k
	return k
}

// margin is state for the soft margin of a charge, and also returns its name; nil if the margin
// does not close.
func (m *model) margin(c *store.Charge, now int64) (*kept, stateKey) {
	if c.Counter.Margin == nil || c.Limit.Margin() == nil {
		return nil, stateKey{}
	}
	return m.state(c.Counter.Margin, c.Limit.Margin(), c.Key, now), stateKey{c.Counter.Margin.ID, string(c.Key)}
}

// take is store.Store.Take. The slots that the store made are read from the charges.
func (m *model) take(charges []store.Charge, results []algo.Result, now int64) {
	asks := make([]algo.Ask, len(charges))
	real := map[stateKey]*algo.State{}
	tried := map[stateKey]*algo.State{}
	names, margins := make([]stateKey, len(charges)), make([]stateKey, len(charges))
	add := func(k *kept, name stateKey) {
		if k != nil && real[name] == nil {
			try := clone(k.st)
			real[name], tried[name] = &k.st, &try
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
		var margin *kept
		margin, margins[i] = m.margin(c, now)
		add(margin, margins[i]) // an empty name has no state
	}
	defer func() {
		for name := range real {
			m.forget(name, now)
		}
	}()
	if len(charges) == 1 { // the algorithm alone decides
		results[0] = charges[0].Limit.TakeWith(real[names[0]], real[margins[0]], now, asks[0])
		return
	}
	enforced, quotas, open := true, 0, 0
	verdicts := make([]algo.Result, len(charges))
	for i := range charges {
		verdicts[i] = charges[i].Limit.TakeWith(tried[names[i]], tried[margins[i]], now, asks[i])
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
		c, st, margin := &charges[i], real[names[i]], real[margins[i]]
		switch {
		case !denied || c.Mode == rule.Shadow:
			results[i] = c.Limit.TakeWith(st, margin, now, asks[i])
			continue
		case c.Limit.CountDenied():
			results[i] = c.Limit.TakeWith(st, margin, now, asks[i])
		default:
			results[i] = c.Limit.CheckWith(st, margin, now, asks[i])
			c.Limit.Mend(st, now)
			c.Limit.MendMargin(margin, now)
		}
		r, v := &results[i], &verdicts[i]
		r.Allowed, r.RetryAfter, r.Delay, r.Soft = v.Allowed, v.RetryAfter, v.Delay, r.Soft && v.Allowed
	}
}

// settle is store.Reserver.Settle for one settlement.
func (m *model) settle(c *store.Settlement, now int64) {
	k := m.state(c.Counter, c.Limit, c.Key, now)
	c.Limit.Settle(&k.st, nil, now, c.At, c.Reserved, c.Actual)
	m.forget(stateKey{c.Counter.ID, string(c.Key)}, now)
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
