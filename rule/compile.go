package rule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/internal/util/suggest"
)

// File is one rule file, read and checked: what Compile makes a Set of. Package rule/file reads
// them.
type File struct {
	Name        string
	Domain      string
	Exempt      []Condition // a request that meets any of them is exempt from all limits
	First       bool        // groups: first
	ExactPaths  bool        // what Exempt excludes is excluded as it is written only
	Rules       []*Rule     // the native limits, in order
	Descriptors []*Node     // the Lyft form's first level
	// Origin belongs to the reader of the file. Lint finds in it what the rules lack, such as the
	// text.
	Origin any
}

// Node is one descriptor of the Lyft form.
type Node struct {
	Key            string
	Value          string // may hold wildcards; "" is the default rule of the key
	ValueToMetric  bool
	ShareThreshold bool
	// nil if it has no rate_limit and children; an allow-listed leaf has a Rule without Windows.
	// Its Lyft is filled in.
	Rule     *Rule
	Children []*Node
	Pos      Position
}

// Options tune Compile. The zero value is right for most.
type Options struct {
	// IPv6Prefix groups IPv6 addresses in per; 0 means 64.
	IPv6Prefix int
}

// Compile makes a Set of files, which are in order. It merges their domains, numbers rules and
// counters, and builds the indexes. Problems are what shows across rules only: a name or a
// descriptor that a domain has twice, a replaced name that does not exist. The Set is then nil.
//
// Compile takes the files and their rules over: they must not be changed afterwards, nor compiled
// again.
func Compile(files []*File, o Options) (*Set, []Problem) {
	b := &builder{
		set:        &Set{byName: map[string]*domain{}, files: files},
		ipv6Prefix: o.IPv6Prefix,
		byID:       map[uint64]*Counter{},
		byTag:      map[[2]uint64]bool{},
		parts:      map[*domain]*parts{},
		asks:       map[askKey]asks{},
	}
	if b.ipv6Prefix == 0 {
		b.ipv6Prefix = defaultIPv6Prefix
	}
	if b.ipv6Prefix < 1 || b.ipv6Prefix > 128 {
		return nil, []Problem{{Message: fmt.Sprintf("IPv6 addresses cannot be grouped by /%d", b.ipv6Prefix),
			Hint: "take 1 to 128; 64 is the default"}}
	}
	b.set.ipv6Prefix = b.ipv6Prefix
	for _, f := range files {
		b.addFile(f)
	}
	for _, d := range b.set.domains {
		b.finishDomain(d)
	}
	b.overrideCounters()
	if len(b.problems) > 0 {
		return nil, b.problems
	}
	return b.set, nil
}

// builder is what Compile knows on the way.
type builder struct {
	set        *Set
	ipv6Prefix int
	problems   []Problem
	suggested  int
	byID       map[uint64]*Counter
	byTag      map[[2]uint64]bool // group and lower half of the ID
	parts      map[*domain]*parts
	asks       map[askKey]asks // expressions often stand in many rules
}

// exemption is an entry of exempt, with the attributes that are folded for it.
type exemption struct {
	condition *Condition
	folds     spelling
}

// parts are the sources of a domain.
type parts struct {
	native  map[string]*Rule
	names   []string // of native, sorted; made when a name is looked for in vain
	exempt  []exemption
	lyft    []*Rule
	nameIDs map[string]int
	keys    map[string]*keyForm // by spelling
}

// maxProblems bounds the problems of one Compile.
const maxProblems = 10_000

func (b *builder) problem(r *Rule, hint, format string, args ...any) {
	if len(b.problems) >= maxProblems {
		return
	}
	b.problems = append(b.problems, Problem{Pos: r.Pos, Rule: r.Name, Message: fmt.Sprintf(format, args...),
		Hint: hint})
}

func (b *builder) addFile(f *File) {
	d := b.set.byName[f.Domain]
	if d == nil {
		d = &domain{name: f.Domain, number: len(b.set.domains), slotOf: map[string]int{}, ipSlot: -1}
		b.set.domains = append(b.set.domains, d)
		b.set.byName[f.Domain] = d
		b.parts[d] = &parts{native: map[string]*Rule{}, nameIDs: map[string]int{}, keys: map[string]*keyForm{}}
	}
	p := b.parts[d]
	for i := range f.Exempt {
		p.exempt = append(p.exempt, exemption{&f.Exempt[i], foldsOf(f.ExactPaths)})
	}
	group := -1
	if f.First {
		group = d.groups
		d.groups++
	}
	rules := slices.Clone(f.Rules)
	lyft := map[*Rule][]*lyftNode{}
	if len(f.Descriptors) > 0 {
		if d.lyft == nil {
			d.lyft = &level{}
		}
		b.addNodes(d.lyft, f.Descriptors, d.name, nil, func(r *Rule, path []*lyftNode) {
			rules = append(rules, r)
			lyft[r] = slices.Clone(path)
		})
	}
	if len(lyft) > 0 && len(f.Rules) > 0 {
		slices.SortStableFunc(rules, func(a, b *Rule) int {
			return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column))
		})
	}
	for _, r := range rules {
		r.Domain, r.File = f.Domain, f
		r.Index = len(b.set.rules)
		b.set.rules = append(b.set.rules, r)
		m := &matchRule{rule: r, group: -1, extras: noExtras}
		if levels := lyft[r]; levels != nil {
			m.own().levels = levels
		}
		r.compiled = m
		if m.levels == nil {
			if old := p.native[r.Name]; old != nil {
				b.problem(r, "names are unique in a domain", "a limit named %q is there already, at %s", r.Name,
					old.Pos)
				continue
			}
			p.native[r.Name] = r
			m.group, m.id = int32(group), int32(len(d.rules))
			d.rules = append(d.rules, m)
		} else {
			m.levels[len(m.levels)-1].rule = m
			p.lyft = append(p.lyft, r)
		}
		b.addCounters(r)
	}
}

// finishDomain compiles what needs all files of a domain.
func (b *builder) finishDomain(d *domain) {
	p := b.parts[d]
	for _, r := range p.lyft {
		if old := p.native[r.Name]; old != nil {
			b.problem(old, "rename the limit", "limit %q has the name of the descriptor at %s", r.Name, r.Pos)
		}
		for _, name := range r.Replaces {
			if _, ok := p.nameIDs[name]; !ok {
				p.nameIDs[name] = len(p.nameIDs)
			}
		}
	}
	d.names = len(p.nameIDs)
	for _, r := range p.lyft {
		m := r.compiled
		for _, name := range r.Replaces {
			m.replaceIDs = append(m.replaceIDs, p.nameIDs[name])
		}
		if id, ok := p.nameIDs[r.Lyft.LimitName]; ok && r.Lyft.LimitName != "" {
			m.nameID = id
		}
		m.runtimeName = r.Lyft.DetailedMetric
		for _, l := range m.levels {
			m.runtimeName = m.runtimeName || l.node.ValueToMetric && l.varies()
		}
		b.compileRule(d, m)
	}
	d.lyft.finish()
	d.bindPaths(d.lyft)
	for _, m := range d.rules {
		b.compileRule(d, m)
		b.resolveReplaces(d, m)
	}
	b.refuseCycles(d)
	b.compileExempt(d, p.exempt)
	if indexPays(d.rules) {
		d.index = newRuleIndex(d.rules, d, b.asks)
	}
	d.addUp()
	d.addFields(p.lyft)
}

// slot returns the number of an attribute among those that d uses.
func (d *domain) slot(attribute string) int {
	n, ok := d.slotOf[attribute]
	if !ok {
		n = len(d.slots)
		d.slots = append(d.slots, slot{attribute, kindOf(attribute)})
		d.slotOf[attribute] = n
		switch attribute {
		case "ip":
			d.ipSlot = n
		case "path":
			d.pathSlot = n
		case "method":
			d.methodSlot = n
		}
	}
	return n
}

func (b *builder) compileRule(d *domain, m *matchRule) {
	r := m.rule
	r.When = slices.Clone(r.When) // others may have the same, and other slots
	if m.levels == nil {
		m.folds = foldsOf(r.ExactPaths)
	}
	for i := range r.When {
		if r.When[i].compile(d, m.folds, false) {
			m.folds |= whenWritten
		}
	}
	m.keyForm = b.keyFormOf(d, r.Per)
	p := r.predicate()
	m.foldExprs()
	if p != nil || r.amount() != nil {
		for _, name := range OwnVariables {
			d.slot(name)
		}
	}
	if p != nil && m.levels == nil {
		k := r.compiled.askKey(p)
		if _, known := b.asks[k]; !known {
			b.asks[k] = asksOf(k)
		}
		for _, q := range b.asks[k].list {
			d.slot(q.attribute)
		}
	}
	switch {
	case r.Shadow || r.Lyft != nil && r.Lyft.Shadow:
		m.mode = Shadow
	case r.Lyft != nil && r.Lyft.Quota:
		m.mode = Quota
	}
	if r.EnforcePercent < 100 {
		m.own().salt = xxhash.Sum64String(d.name + "\x00" + r.Name)
	}
	if r.Ban != nil {
		d.banning = append(d.banning, r)
		if r.Ban.Domain && !m.byPath() {
			d.banned = append(d.banned, m)
		}
	}
	b.compileOverrides(m)
}

// keyFormOf compiles per, once for all rules that have the same.
func (b *builder) keyFormOf(d *domain, per []Key) *keyForm {
	known := b.parts[d].keys
	var spelling []byte
	for _, key := range per {
		for _, name := range key {
			spelling = append(append(spelling, name...), '|')
		}
		spelling = append(spelling, ',')
	}
	if form := known[string(spelling)]; form != nil {
		return form
	}
	form := &keyForm{ipv6Prefix: uint8(b.ipv6Prefix)}
	for _, key := range per {
		var part []alternative
		for _, name := range key {
			part = append(part, alternative{d.slot(name), name, kindOf(name)})
			form.spelled |= spelledOf(kindOf(name))
		}
		form.per = append(form.per, part)
	}
	known[string(spelling)] = form
	return form
}

// compileExempt compiles the exempt entries. Entries on one attribute without negations become one.
func (b *builder) compileExempt(d *domain, entries []exemption) {
	merged := map[string]*Condition{}
	var all []exemption
	for _, e := range entries {
		c := e.condition
		if slices.ContainsFunc(c.Patterns, func(p Pattern) bool { return p.Negated }) {
			all = append(all, e)
			continue
		}
		if m := merged[c.Attribute]; m != nil {
			m.Patterns = append(m.Patterns, c.Patterns...)
			continue
		}
		m := &Condition{Attribute: c.Attribute, Patterns: slices.Clone(c.Patterns), Pos: c.Pos}
		merged[c.Attribute] = m
		all = append(all, exemption{m, e.folds})
	}
	for _, e := range all {
		d.exempt = append(d.exempt, *e.condition)
		d.exempt[len(d.exempt)-1].compile(d, e.folds, true)
	}
}

// maxSuggested is for how many names in all the nearest one is looked for: each look goes through
// all rules.
const maxSuggested = 100

func (p *parts) sortedNames() []string {
	if p.names == nil {
		p.names = slices.Sorted(maps.Keys(p.native))
	}
	return p.names
}

// resolveReplaces finds the limits that m replaces.
func (b *builder) resolveReplaces(d *domain, m *matchRule) {
	p := b.parts[d]
	var replaces []int32
	for _, name := range m.rule.Replaces {
		other := p.native[name]
		switch {
		case other == nil:
			hint := fmt.Sprintf("no limit of domain %q has this name", d.name)
			if b.suggested++; b.suggested <= maxSuggested {
				if n := suggest.Nearest(name, p.sortedNames()); n != "" {
					hint = fmt.Sprintf("did you mean %q?", n)
				}
			}
			b.problem(m.rule, hint, "replaces names %q, which does not exist", name)
		case other == m.rule:
			b.problem(m.rule, "name the limits that it stands in for", "a limit cannot replace itself")
		default:
			replaces = append(replaces, other.compiled.id)
			d.replaces = true
		}
	}
	if len(replaces) > 0 {
		slices.Sort(replaces)
		m.own().replaces = slices.Compact(replaces)
	}
}

// refuseCycles reports limits that replace each other, so that a request which meets them all would
// meet none.
func (b *builder) refuseCycles(d *domain) {
	const unseen, open, done = 0, 1, 2
	state := make([]uint8, len(d.rules))
	type frame struct {
		id   int32
		next int
	}
	for start := range d.rules {
		if state[start] != unseen {
			continue
		}
		stack := []frame{{id: int32(start)}}
		state[start] = open
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			r := d.rules[top.id]
			if top.next == len(r.replaces) {
				state[top.id] = done
				stack = stack[:len(stack)-1]
				continue
			}
			next := r.replaces[top.next]
			top.next++
			switch state[next] {
			case unseen:
				state[next] = open
				stack = append(stack, frame{id: next})
			case open:
				b.problem(r.rule, "take one of the names out of replaces",
					"%q and %q replace each other, so that neither would be left", r.rule.Name, d.rules[next].rule.Name)
			}
		}
	}
}

// foldsOf returns the attributes that are folded for a native rule.
func foldsOf(exactPaths bool) spelling {
	if exactPaths {
		return headSpelled
	}
	return pathSpelled | headSpelled
}
