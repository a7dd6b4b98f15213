package rule

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
)

// Many servers take /Login and /login/ for /login, and run the same code for HEAD as for GET. So a
// native limit takes these spellings for one: a path is folded (lowerPath, then cutEnd, both behind
// NormalPath), and HEAD is GET. It only ever tightens:
//
//   - A limit is met if it is met in any spelling, and counts all spellings under one key.
//   - Loosening holds only where it holds in every spelling: exempt, and that a rule replaces
//     others, takes the place of those behind it (groups: first), or says that a request is
//     critical. Its conditions match the request as written; its exclusions match the folded one.
//   - An override is for its key as it is written. Under another spelling of the key a request gets
//     the lower numbers, the override's or the rule's. So it is with grants.
//
// For most requests there is nothing to fold, which is found out while their path is looked at
// anyway (scanPath). Rules are folded when they are compiled.

// spelling is a set of things that may be spelled in other ways.
type spelling uint8

const (
	pathSpelled  spelling = 1 << iota // path: case, and what cutEnd cuts
	slashSpelled                      // path: what cutEnd cuts; of requests and expressions only
	headSpelled                       // method: HEAD for GET

	// For rules: the parts that are written otherwise than folded.
	whenWritten
	ifWritten
	costWritten
)

// setOddPath sets the value of the slot of the path, which is not folded or not even normal.
func (m *Matches) setOddPath(v *value, raw string, normal bool) {
	if !normal {
		v.text, _ = normalText(kindPath, raw, &m.scratch)
	}
	m.lowered = lowerPath(v.text, &m.scratch)
	m.folded = cutEnd(m.lowered)
	if len(m.folded) != len(m.lowered) {
		m.odd |= pathSpelled | slashSpelled
	} else if m.folded != v.text {
		m.odd |= pathSpelled
	}
}

// spellings returns the values that a request has, beside the one that it is written with, where
// spelled is of one attribute and m.odd holds it: a path without and with its end.
func (m *Matches) spellings(spelled spelling) (one, other string) {
	if spelled == headSpelled {
		return "GET", "HEAD"
	}
	return m.folded, m.lowered
}

// look sets which spellings expressions see.
func (m *Matches) look(spelled spelling) {
	if m.seen == spelled {
		return
	}
	m.seen = spelled
	if m.vars.Scratch != nil {
		m.vars.Scratch.Release()
	}
}

// spelled returns the value of a slot in the spelling that expressions see.
func (m *Matches) spelled(slot int, v *value) string {
	if m.seen == 0 {
		return v.text
	}
	switch kind := m.domain.slots[slot].kind; {
	case kind == kindMethod && m.seen&m.odd&headSpelled != 0:
		return "GET"
	case kind == kindPath && m.seen&m.odd&slashSpelled != 0:
		return m.lowered
	case kind == kindPath && m.seen&m.odd&pathSpelled != 0:
		return m.folded
	}
	return v.text
}

// respell evaluates an expression in all spellings but the one in which the request came, until
// eval says that it is done, while expressions see that spelling. all holds the spellings that the
// request or the rule has. tooCostly reports that the expression takes too long (ErrTooCostly).
func (m *Matches) respell(all spelling, eval func() (done bool, err error)) (tooCostly bool) {
	for s := all; s != 0; s = (s - 1) & all {
		if s&pathSpelled != 0 && s&slashSpelled != 0 {
			continue // the path is seen with or without its end
		}
		m.look(s)
		done, err := eval()
		if tooCostly = errors.Is(err, ErrTooCostly); done || tooCostly {
			break
		}
	}
	m.look(0)
	return tooCostly
}

// readSpelled reads what expressions read that may be spelled in other ways, so that m.odd holds
// it: an expression may have been decided before it came to that.
func (m *Matches) readSpelled(reads spelling) {
	if reads&pathSpelled != 0 {
		m.value(m.domain.pathSlot)
	}
	if reads&headSpelled != 0 {
		m.value(m.domain.methodSlot)
	}
}

// spellingsOfIf is what respell has to go through for the `if` of r.
func (m *Matches) spellingsOfIf(r *matchRule) spelling {
	m.readSpelled(r.ifReads)
	all := m.odd
	if r.folds&ifWritten != 0 {
		all |= pathSpelled
	}
	return all & r.ifReads
}

// spellingsOfCost is what respell has to go through for the `cost` of r.
func (m *Matches) spellingsOfCost(r *matchRule) spelling {
	m.readSpelled(r.costReads)
	all := m.odd
	if r.folds&costWritten != 0 {
		all |= pathSpelled
	}
	return all & r.costReads
}

// foldExprs notes which attributes that may be spelled in other ways the expressions of r read, and
// whether they are written unfolded.
func (r *matchRule) foldExprs() {
	folds := r.folds & (pathSpelled | headSpelled)
	reads := func(e Reader, writes spelling) (read spelling) {
		names, all := e.Reads()
		if folds&pathSpelled != 0 && (all || slices.Contains(names, "path")) {
			read |= pathSpelled | slashSpelled
			if f, ok := e.(folder); ok && f.Folds() {
				r.folds |= writes
			}
		}
		if folds&headSpelled != 0 && (all || slices.Contains(names, "method")) {
			read |= headSpelled
		}
		return read
	}
	if p := r.rule.predicate(); p != nil {
		r.ifReads = reads(p, ifWritten)
	}
	if a := r.rule.amount(); a != nil {
		r.costReads = reads(a, costWritten)
	}
}

// surely reports whether the request, which meets r, also meets it in every spelling.
func (m *Matches) surely(r *matchRule) bool {
	if r.folds&(m.odd|whenWritten|ifWritten) == 0 ||
		r.group < 0 && len(r.replaces) == 0 && r.rule.Priority != Critical {
		return true // or nobody asks
	}
	for i := range r.rule.When {
		if !r.rule.When[i].surely(m) {
			return false
		}
	}
	p := r.rule.predicate()
	if p == nil {
		return true
	}
	sure, err := p.Holds(m.variables(r.mode))
	if err != nil || !sure {
		return false
	}
	// An expression means a method as it is written: it is unknown whether it names HEAD or
	// excludes it.
	m.respell(m.spellingsOfIf(r)&^headSpelled, func() (bool, error) {
		ok, err := p.Holds(m.variables(r.mode))
		sure = ok && err == nil
		return !sure, err
	})
	return sure
}

// surely reports whether c holds in every spelling.
func (c *Condition) surely(m *Matches) bool {
	v := m.value(int(c.slot))
	if c.folds == 0 || !v.present {
		return c.match(m)
	}
	one, other := v.text, v.text
	if c.folds&m.odd != 0 {
		one, other = m.spellings(c.folds)
	}
	found := !c.positive
	for i := range c.Patterns {
		switch p := &c.Patterns[i]; {
		case !p.Negated:
			found = found || p.Written().positive(v.text, netip.Addr{})
		case p.Folded().positive(one, netip.Addr{}), p.Folded().positive(other, netip.Addr{}),
			p.Written().positive(v.text, netip.Addr{}):
			return false
		}
	}
	return found
}

// matchOdd is match for a value that has other spellings.
func (c *Condition) matchOdd(m *Matches, v *value) bool {
	one, other := m.spellings(c.folds)
	no1, no2 := v.text, v.text
	if c.loosens {
		one, other, no1, no2 = no1, no2, one, other
	}
	var addr netip.Addr
	if t := c.many; t != nil {
		return (t.positive == nil || t.positive.match(m, one, addr) ||
			one != other && t.positive.match(m, other, addr)) &&
			(t.negated == nil || !t.negated.match(m, no1, addr) && (no1 == no2 || !t.negated.match(m, no2, addr)))
	}
	found := !c.positive
	for i := range c.Patterns {
		switch p := &c.Patterns[i]; {
		case !p.Negated:
			found = found || p.positive(one, addr) || one != other && p.positive(other, addr)
		case p.positive(no1, addr) || no1 != no2 && p.positive(no2, addr):
			return false
		}
	}
	return found
}

// fold makes patterns of c compare with folded values: patterns of a limit, or with loosens negated
// ones. It reports whether any pattern is written otherwise than folded.
func (c *Condition) fold() (written bool) {
	all, shared := c.Patterns, true // all are shared with other rules
	for i := range all {
		p := &all[i]
		if p.twin == nil {
			continue
		}
		written = true
		if p.Negated != c.loosens {
			continue
		}
		if shared {
			c.Patterns, shared = slices.Clone(all), false
		}
		q := *p.twin
		q.Source, q.Negated, q.Pos, q.twin = p.Source, p.Negated, p.Pos, p
		c.Patterns[i] = q
	}
	return written
}

// Folded returns p as it is compared with folded paths; p itself if it is written so.
func (p *Pattern) Folded() *Pattern {
	if p.twin == nil || p.folded {
		return p
	}
	return p.twin
}

// Written returns p as it is compared with paths as they came.
func (p *Pattern) Written() *Pattern {
	if p.twin == nil || !p.folded {
		return p
	}
	return p.twin
}

// Folds reports whether what c names is compared with folded values: it is a condition on the path
// of a native limit, unless its paths are exact. It is known once the rule is compiled.
func (c *Condition) Folds() bool { return c.folds&pathSpelled != 0 && !c.loosens }

// makeTwin gives a pattern of paths its twin, if it is written otherwise than folded.
func (p *Pattern) makeTwin() {
	var scratch []byte
	switch p.kind {
	case ExactPattern:
		if text := cutEnd(lowerPath(p.text, &scratch)); text != p.text {
			p.twin = &Pattern{kind: ExactPattern, folded: true, text: strings.Clone(text)}
		}
	case GlobPattern:
		if text := foldGlob(p.glob.source); text != p.glob.source {
			p.twin = &Pattern{kind: GlobPattern, folded: true, glob: newGlob(text, false)}
		}
	case RegexpPattern:
		if re := foldRegexp(p.re); re != p.re {
			p.twin = &Pattern{kind: RegexpPattern, folded: true, re: re}
		}
	}
}

// foldGlob folds a glob of paths. A final slash behind ** stays: the glob asks for it.
func foldGlob(source string) string {
	var scratch []byte
	text := strings.Clone(lowerPath(source, &scratch))
	if strings.HasSuffix(text, "**/") || text == "*/" {
		return text
	}
	return cutEnd(text)
}

// keyText is a value as it stands in the keys of r. The value has other spellings.
func (m *Matches) keyText(r *matchRule, kind attributeKind, text string) string {
	if kind == kindMethod {
		return "GET"
	}
	return r.keyPath(text, m.folded, m.lowered, &m.scratch)
}

// keyPath is a path as it stands in the keys of r: folded, but where a wildcard of r's conditions
// stands, the case is kept.
func (r *matchRule) keyPath(written, folded, lowered string, scratch *[]byte) string {
	if len(lowered) != len(written) {
		return folded // its letters have other places (likeASCII)
	}
	begin := len(*scratch)
	var key []byte
	for i := range r.rule.When {
		c := &r.rule.When[i]
		if c.folds&pathSpelled == 0 {
			continue
		}
		for k := range c.Patterns {
			p := &c.Patterns[k]
			if p.Negated || !p.positive(folded, netip.Addr{}) && !p.positive(lowered, netip.Addr{}) {
				continue
			}
			if p.kind != GlobPattern {
				return folded
			}
			if key == nil {
				*scratch = append(*scratch, written[:len(folded)]...)
				key = (*scratch)[begin:]
			}
			foldLiterals(cutEnd(p.glob.source), folded, key)
		}
	}
	if key == nil {
		return folded
	}
	return view(key)
}

// foldLiterals puts into key what folded has in the places where glob, which matches it and is cut
// as it is, has no wildcard. The segments of the two belong together from the front up to the first
// **, and from the end up to the last one. What stands between the two has no known place, so that
// all there is folded if any of it is a literal.
func foldLiterals(glob, folded string, key []byte) {
	from, front := 0, glob
	for {
		segment, after, more := strings.Cut(front, "/")
		if strings.Contains(segment, "**") {
			break
		}
		end := len(folded)
		if i := strings.IndexByte(folded[from:], '/'); i >= 0 {
			end = from + i
		}
		foldSegment(segment, folded[from:end], key[from:end])
		if !more || end == len(folded) {
			return
		}
		from, front = end+1, after
	}
	to, back := len(folded), front
	for {
		i := strings.LastIndexByte(back, '/')
		segment := back[i+1:]
		if strings.Contains(segment, "**") {
			break
		}
		begin := strings.LastIndexByte(folded[:to], '/') + 1
		foldSegment(segment, folded[begin:to], key[begin:to])
		if i < 0 || begin <= from {
			return
		}
		back, to = back[:i], begin-1
	}
	foldSegment(back, folded[from:to], key[from:to])
}

// foldSegment is foldLiterals for a part that begins and ends with a segment with a **, or for one
// segment without any.
func foldSegment(glob, folded string, key []byte) {
	first, last := strings.IndexByte(glob, '*'), strings.LastIndexByte(glob, '*')
	if first < 0 {
		copy(key, folded)
		return
	}
	head, tail := first, len(folded)-(len(glob)-last-1)
	if head > tail || strings.Trim(glob[first:last+1], "*/") != "" {
		head, tail = len(folded), len(folded)
	}
	copy(key, folded[:head])
	copy(key[tail:], folded[tail:])
}
