package storetest

import (
	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// model is the contract of weir.Store said as plainly as possible: a map of states, and the pure algorithms.
type model struct {
	states map[stateKey]*kept
	slot   uint64
	keeps  bool // states that equal a fresh one are not forgotten, which shows when the clock steps back
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

func newModel() *model { return &model{states: map[stateKey]*kept{}} }

func clone(st algo.State) algo.State {
	st.Ext = append([]byte(nil), st.Ext...)
	return st
}

// state returns the state that a charge names, carried to the charge's counter and limit; a fresh one if there is none.
func (m *model) state(c *weir.Charge, now int64) *kept {
	at := stateKey{c.Counter.ID, string(c.Key)}
	k := m.states[at]
	if k == nil {
		for _, p := range c.Counter.Previous {
			from := stateKey{p.ID, string(c.Key)}
			if k = m.states[from]; k != nil {
				delete(m.states, from)
				if k.limit.Algorithm() == c.Limit.Algorithm() {
					c.Limit.Carry(k.limit, &k.st, now)
				} else {
					k.st = algo.State{}
				}
				k.limit = c.Limit
				break
			}
		}
	}
	if k == nil {
		k = &kept{limit: c.Limit}
	}
	old, to := k.limit.Config(), c.Limit.Config()
	if old.Window != to.Window || old.Buckets != to.Buckets {
		c.Limit.Carry(k.limit, &k.st, now)
	}
	k.limit = c.Limit
	m.states[at] = k
	return k
}

// take is weir.Store.Take. The slots that the store made are read from the charges.
func (m *model) take(charges []weir.Charge, results []algo.Result, now int64) {
	asks := make([]algo.Ask, len(charges))
	real := map[stateKey]*algo.State{}
	tried := map[stateKey]*algo.State{}
	names := make([]stateKey, len(charges))
	for i := range charges {
		c := &charges[i]
		asks[i] = c.Ask
		if c.Limit.Algorithm() == algo.Concurrency && c.Ask.Slot == 0 {
			m.slot++
			asks[i].Slot = m.slot
		}
		names[i] = stateKey{c.Counter.ID, string(c.Key)}
		if real[names[i]] == nil {
			k := m.state(c, now)
			try := clone(k.st)
			real[names[i]], tried[names[i]] = &k.st, &try
		}
	}
	if len(charges) == 1 { // the algorithm alone decides
		results[0] = charges[0].Limit.Take(real[names[0]], now, asks[0])
		m.forget(names[0], now)
		return
	}
	enforced, quotas, open := true, 0, 0
	verdicts := make([]algo.Result, len(charges))
	for i := range charges {
		verdicts[i] = charges[i].Limit.Take(tried[names[i]], now, asks[i])
		switch charges[i].Mode {
		case rule.Enforce:
			enforced = enforced && verdicts[i].Allowed
		case rule.Quota:
			quotas++
			if verdicts[i].Allowed {
				open++
			}
		}
	}
	denied := !enforced || quotas > 0 && open == 0
	for i := range charges {
		c, st := &charges[i], real[names[i]]
		switch {
		case !denied || c.Mode == rule.Shadow:
			results[i] = c.Limit.Take(st, now, asks[i])
			continue
		case c.Limit.CountDenied():
			results[i] = c.Limit.Take(st, now, asks[i])
		default:
			results[i] = c.Limit.Check(st, now, asks[i])
			c.Limit.Mend(st, now)
		}
		r, v := &results[i], &verdicts[i]
		r.Allowed, r.RetryAfter, r.Delay, r.Soft = v.Allowed, v.RetryAfter, v.Delay, r.Soft && v.Allowed
	}
	for name := range real {
		m.forget(name, now)
	}
}

// forget drops a state that equals a fresh one.
func (m *model) forget(name stateKey, now int64) {
	if k := m.states[name]; !m.keeps && k.limit.Fresh(&k.st, now) {
		delete(m.states, name)
	}
}

// release is weir.Store.Release.
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
