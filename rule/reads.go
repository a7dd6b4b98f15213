package rule

import "slices"

// Reads returns the attributes that the rules and exemptions of a domain read, in order of their
// names. all says that an expression goes through the attributes by itself (attr), so that any name
// may be read.
func (s *Set) Reads(domain string) (names []string, all bool) {
	d := s.domain(domain)
	if d == nil {
		return nil, false
	}
	for name := range d.slotOf {
		names = append(names, name)
	}
	for _, r := range s.rules {
		if r.Domain != domain {
			continue
		}
		if r.Lyft != nil {
			for _, e := range r.Lyft.Path {
				names = append(names, e.Key)
			}
		}
		for _, e := range []Reader{r.predicate(), r.amount()} {
			if e != nil {
				read, any := e.Reads()
				names, all = append(names, read...), all || any
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), all
}
