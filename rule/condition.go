package rule

import "slices"

// conditionTables find patterns of a Condition that has many.
type conditionTables struct {
	positive, negated *patternSet // nil if there are none
}

// compile makes c ready for requests to d. folds says which attributes are folded; compile reports
// whether c's patterns are written otherwise than folded.
func (c *Condition) compile(d *domain, folds spelling, loosens bool) (written bool) {
	c.slot = int32(d.slot(c.Attribute))
	c.folds, c.loosens = folds&spelledOf(kindOf(c.Attribute)), loosens
	if c.folds&pathSpelled != 0 {
		written = c.fold()
	}
	positive, negated := c.split()
	c.positive, c.many = len(positive) > 0, nil
	c.single = c.positive && len(c.Patterns) == 1
	if len(c.Patterns) <= fewPatterns {
		return written
	}
	c.many = &conditionTables{}
	if len(positive) > 0 {
		c.many.positive = newPatternSet(positive)
	}
	if len(negated) > 0 {
		c.many.negated = newPatternSet(negated)
	}
	return written
}

// split returns the patterns of c, those that are negated apart.
func (c *Condition) split() (positive, negated []Pattern) {
	isNegated := func(p Pattern) bool { return p.Negated }
	if !slices.ContainsFunc(c.Patterns, isNegated) {
		return c.Patterns, nil
	}
	for _, p := range c.Patterns {
		if p.Negated {
			negated = append(negated, p)
		} else {
			positive = append(positive, p)
		}
	}
	return positive, negated
}

// match reports whether c holds on the request that m is about.
func (c *Condition) match(m *Matches) bool {
	v := m.value(int(c.slot))
	if !v.present {
		return !c.positive
	}
	if c.folds&m.odd != 0 {
		return c.matchOdd(m, v)
	}
	if c.single {
		p := &c.Patterns[0]
		if p.kind == ExactPattern { // most often
			return v.text == p.text
		}
		return p.positive(v.text, m.addrOf(int(c.slot)))
	}
	addr := m.addrOf(int(c.slot))
	if t := c.many; t != nil {
		return (t.positive == nil || t.positive.match(m, v.text, addr)) &&
			(t.negated == nil || !t.negated.match(m, v.text, addr))
	}
	found := !c.positive
	for i := range c.Patterns {
		switch p := &c.Patterns[i]; {
		case p.Negated:
			if p.positive(v.text, addr) {
				return false
			}
		case !found:
			found = p.positive(v.text, addr)
		}
	}
	return found
}

// costly is the cost of comparing a value with the patterns that are tried one by one.
func (c *Condition) costly() (n int) {
	add := func(patterns []Pattern) {
		for i := range patterns {
			n += patterns[i].costly()
		}
	}
	if c.many == nil {
		add(c.Patterns)
		return n
	}
	for _, s := range []*patternSet{c.many.positive, c.many.negated} {
		if s != nil {
			add(s.few)
		}
	}
	return n
}
