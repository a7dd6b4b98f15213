package rule

// Copy returns a copy of f for another Compile, since Compile takes its files over. ok is false of
// a file that holds more than descriptors as envoyproxy/ratelimit knows them: conditions,
// expressions, overrides, bans and what else Compile fills in are not copied. f must not have been
// compiled.
func (f *File) Copy() (_ *File, ok bool) {
	if len(f.Rules) > 0 || len(f.Exempt) > 0 {
		return nil, false
	}
	c := *f
	c.Descriptors, ok = copyNodes(f.Descriptors, &c)
	return &c, ok
}

func copyNodes(nodes []*Node, f *File) (_ []*Node, ok bool) {
	if len(nodes) == 0 {
		return nil, true
	}
	all, copies := make([]Node, len(nodes)), make([]*Node, len(nodes))
	for i, n := range nodes {
		all[i] = *n
		copies[i] = &all[i]
		if copies[i].Children, ok = copyNodes(n.Children, f); !ok {
			return nil, false
		}
		if n.Rule == nil {
			continue
		}
		if copies[i].Rule, ok = n.Rule.copy(f); !ok {
			return nil, false
		}
	}
	return copies, true
}

// copy returns a copy of r as a rule of f.
func (r *Rule) copy(f *File) (_ *Rule, ok bool) {
	if r.Lyft == nil || r.compiled != nil || r.Exprs != nil || r.Ban != nil || r.Elastic != nil || r.Regions != nil ||
		r.Response != nil || r.CostAfter != "" || len(r.When)+len(r.Per)+len(r.Overrides)+len(r.Schedule) > 0 {
		return nil, false
	}
	c := *r
	c.File = f
	if len(r.Windows) == 0 {
		return &c, true
	}
	windows := make([]Window, len(r.Windows))
	c.Windows = make([]*Window, len(r.Windows))
	for i, w := range r.Windows {
		windows[i] = Window{Rule: &c, Name: w.Name, Seconds: w.Seconds, Limit: w.Limit}
		c.Windows[i] = &windows[i]
	}
	return &c, true
}
