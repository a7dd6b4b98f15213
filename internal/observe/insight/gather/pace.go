package gather

// pacing keeps each kind of event to its rate: drawn from refused and near decisions, drawn from
// admitted ones, on sampled keys, and on sampled keys that were refused, whose episodes are read.
type pacing struct{ refused, quiet, keys, watched governor }

// governor finds the power of 2 by which events are thinned.
type governor struct {
	power  uint8
	events int // since the last tick
}

// mostDrawn is how many events of a kind are taken in drainEvery: 1,250 a second. Four times as
// many took over 1 % more of the processor of a busy proxy, and made no verdict better. Admitted
// decisions are the most frequent and tell the least: 600 of them a second are enough to say which
// keys come most.
const (
	mostDrawn    = 125
	mostAdmitted = 60
)

func (p *pacing) each(f func(g *governor, most int)) {
	f(&p.refused, mostDrawn)
	f(&p.quiet, mostAdmitted)
	f(&p.keys, mostDrawn)
	f(&p.watched, mostDrawn)
}

// adapt thins more if there are too many events; it reports whether it did.
func (p *pacing) adapt() (changed bool) {
	p.each(func(g *governor, most int) {
		for g.events > most && g.power < 24 {
			g.power++
			g.events /= 2
			changed = true
		}
	})
	return changed
}

// tick thins less if there were few events.
func (p *pacing) tick() {
	p.each(func(g *governor, most int) {
		if g.events < most/3 && g.power > 0 {
			g.power--
		}
		g.events = 0
	})
}

// storePace passes the pace to the deciding path. mu is held.
func (c *Collector) storePace() {
	c.thinning.Store(uint64(packThinning(c.pace.refused.power, c.pace.quiet.power, c.pace.keys.power,
		c.pace.watched.power, c.minute)))
}

// paced counts an event for the pace of its kind. A drawn event of a refused or near decision
// stands for others, which count as thinned. Admitted decisions never do: enough of them are always
// looked at.
func (c *Collector) paced(s *ruleState, e *event) {
	switch {
	case e.weights.top == noWeight && s.eras[currentEra].refused.find(e.hash) >= 0:
		c.pace.watched.events++
	case e.weights.top == noWeight:
		c.pace.keys.events++
	case e.flags&(flagRuleRefused|flagRuleWould|flagRuleNear|flagBanned|flagStopped) == 0:
		c.pace.quiet.events++
	default:
		c.pace.refused.events++
		c.thinned.Add(1<<e.weights.top - 1)
	}
}
