package gather

import (
	"cmp"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// rulesChanged makes the table of s. The state of rules that did not change is kept.
func (c *Collector) rulesChanged(s *rule.Set, generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.tables.Load().now // a copy, so that the one before the last goes
	if generation <= old.generation {
		return // a decision was quicker than the hook
	}
	now := c.now()
	if old.set == nil {
		c.started = now
	} else {
		h := insight.Happening{T: now.Unix(), Kind: "rules"}
		if c.o.Changed != nil {
			h.RuleChanges = c.o.Changed(old.set, s)
		}
		c.happened(h)
	}
	c.drain()
	c.count(now.Unix())
	type name struct{ domain, rule string }
	before := map[name]*ruleState{}
	for _, r := range c.rules {
		if r != c.commands {
			before[name{r.domain, r.name}] = r
		}
	}
	next := table{set: s, generation: generation, limits: make([]limitRef, len(s.Counters())),
		gates: make([]*gate, len(s.Rules())), domains: map[string]*domainGate{}}
	domains, addedDomains := c.domainsOf(s, now.Unix())
	for name, d := range domains {
		next.domains[name], next.sole, next.soleName = d.gate, d.gate, name
	}
	if len(domains) != 1 {
		next.sole = nil
	}
	c.rules = nil
	var added []*ruleState
	state := func(r *rule.Rule, windows int) *ruleState {
		definition := definitionOf(r)
		st := before[name{r.Domain, r.Name}]
		if st == nil || st.definition != definition {
			st = newRuleState(uint32(len(c.numbers)), r, definition, now)
			st.domainBefore = domains[r.Domain].total
			c.numbers = append(c.numbers, st)
			added = append(added, st)
		} else {
			delete(before, name{r.Domain, r.Name})
		}
		if t := trialOf(r, now.Unix()); t == nil || st.trial == nil || t.Enforce != st.trial.Enforce {
			st.trial = t
		}
		st.rule, st.windows, st.spans, st.had, st.alone = r, windows, nil, st.alone, nil
		c.rules = append(c.rules, st)
		return st
	}
	places, alone := map[*rule.Counter]limitRef{}, c.o.Tally.Of(s, generation)
	for _, r := range s.Rules() {
		st := state(r, 0)
		next.gates[r.Index] = st.gate
		place := func(windows []*rule.Window) {
			for _, w := range windows {
				if _, have := places[w.Counter]; !have && w.Counter != nil {
					places[w.Counter] = st.place()
					st.addWindow(w.Counter, alone[w.Counter.Index], generation)
				}
			}
		}
		place(r.Windows)
		for i := range r.Overrides {
			place(r.Overrides[i].Windows)
		}
	}
	c.share(s, &next, c.rules)
	brought := map[string]*ruleState{} // by domain: the limits that requests bring
	for _, k := range s.Counters() {
		ref, ok := places[k]
		if !ok {
			st := brought[k.Domain]
			if st == nil {
				st = state(&rule.Rule{Name: k.Rule, Domain: k.Domain}, 0)
				st.brought = true
				brought[k.Domain] = st
			}
			ref = st.place()
			st.addWindow(k, alone[k.Index], generation)
		}
		ref.trial = ref.gate != nil && c.numbers[ref.gate.number].trial != nil
		ref.shift = snapshot.UnitShift(k.Limit.Capacity())
		next.limits[k.Index] = ref
	}
	for _, gone := range before {
		c.numbers[gone.gate.number] = nil
	}
	for _, st := range c.rules {
		st.domainState, st.had = domains[st.domain], nil
	}
	c.relate()
	c.rules = append(c.rules, c.commands)
	c.counted = nil
	for _, st := range c.rules {
		if st.isCounted() {
			c.counted = append(c.counted, st)
		}
	}
	c.asked = slices.DeleteFunc(c.asked, func(st *ruleState) bool { return c.numbers[st.gate.number] != st })
	c.widen()
	c.resize()
	for _, d := range addedDomains {
		c.recallDomain(d)
	}
	for _, st := range added {
		c.recallRule(st)
	}
	c.unruled, c.early = c.now().Unix(), 1
	c.tables.Store(&tables{now: next, before: &old})
}

// domainsOf makes the domains of a rule set, by name; added are those that are new.
func (c *Collector) domainsOf(s *rule.Set, now int64) (domains map[string]*domainState, added []*domainState) {
	domains = map[string]*domainState{}
	for _, d := range c.domains {
		domains[d.name] = d
	}
	c.domains, c.inDomains = nil, 0
	for _, name := range s.Domains() {
		d := domains[name]
		if d == nil {
			d = &domainState{name: name, gate: new(domainGate), series: &series.Nothing, since: now}
			added = append(added, d)
		}
		c.domains = append(c.domains, d)
		c.inDomains += d.series.Bytes()
	}
	clear(domains)
	for _, d := range c.domains {
		domains[d.name] = d
	}
	slices.SortFunc(c.domains, func(a, b *domainState) int { return cmp.Compare(a.name, b.name) })
	return domains, added
}

// domainState is what is known of a domain. The Collector's mu guards it.
type domainState struct {
	name   string
	gate   *domainGate
	last   uint32
	fresh  snapshot.Bucket // what came since the counters were read last
	series *series.Series  // noSeries until somebody asks
	total  uint64          // requests since this program began
	since  int64           // Unix seconds: from when on there are figures
}

// domainsNamed returns the domains in force by name, or only one if domain is not "".
func (c *Collector) domainsNamed(domain string) []*domainState {
	if domain == "" {
		return c.domains
	}
	for i, d := range c.domains {
		if d.name == domain {
			return c.domains[i : i+1]
		}
	}
	return nil
}
