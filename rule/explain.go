package rule

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Reason says why a rule applies or not.
type Reason struct {
	Rule    *Rule
	Applies bool
	Why     string // "when.path: /login does not match /api/**"; "" if it applies
	// Fails is how many of the rule's when the request does not meet: how far it is from applying.
	Fails int
	Hits  []Hit // with own copies of the keys
}

// Explain says for every rule of q's domain whether it applies, and why not, in rule order. It is
// nil if the domain is unknown. It takes time in proportion to the number of rules.
func (s *Set) Explain(q *Query) []Reason {
	d := s.domain(q.Domain)
	if d == nil {
		return nil
	}
	var real Matches // what Match says holds; what follows only finds words for it
	s.Match(q, &real)
	hits := map[*Rule][]Hit{}
	for _, h := range real.Hits {
		h.Key = bytes.Clone(h.Key)
		hits[h.Window.Rule] = append(hits[h.Window.Rule], h)
	}
	e := &explainer{domain: d, firsts: map[int]*Rule{}}
	e.m.begin(d, q)
	defer e.m.end()
	if real.Exempt {
		e.exempt = e.exemption()
	}
	var reasons []Reason
	for _, r := range s.rules {
		if r.Domain != d.name {
			continue
		}
		reason := Reason{Rule: r, Hits: hits[r]}
		if r.Lyft != nil {
			reason.Applies = slices.ContainsFunc(real.Descriptors, func(m DescriptorMatch) bool { return m.Rule == r })
		} else {
			reason.Applies = len(reason.Hits) > 0
		}
		if why := e.why(r.compiled); !reason.Applies {
			reason.Applies, reason.Why = why == "", why // an unlimited rule has no hits
			if why != "" {
				reason.Fails = e.fails(r.compiled)
			}
		}
		reasons = append(reasons, reason)
	}
	e.replaced(reasons)
	return reasons
}

// explainer finds the reasons why rules do not apply.
type explainer struct {
	domain *domain
	m      Matches
	exempt string        // why the request is exempt
	firsts map[int]*Rule // by group: the rule that was met first
}

// exemption says which exempt entry holds.
func (e *explainer) exemption() string {
	for i := range e.domain.exempt {
		if c := &e.domain.exempt[i]; c.match(&e.m) {
			v := e.m.value(int(c.slot))
			if !v.present {
				return fmt.Sprintf("exempt: the request has no %s", c.Attribute)
			}
			return fmt.Sprintf("exempt: %s %s matches %s", c.Attribute, shorten(v.text), sources(c.Patterns))
		}
	}
	return "exempt"
}

// why says why r does not apply; "" if nothing but another rule's replaces stands against it.
func (e *explainer) why(r *matchRule) string {
	switch {
	case e.exempt != "":
		return e.exempt
	case r.levels != nil:
		return e.whyNotDescriptor(r)
	}
	if why := e.whyNotConditions(r); why != "" {
		return why
	}
	begin := len(e.m.buf)
	if why := e.whyNoKey(r); why != "" {
		return why
	}
	key := e.m.buf[begin:]
	if why := e.whyNotIf(r); why != "" {
		return why
	}
	if r.group >= 0 {
		if first := e.firsts[int(r.group)]; first != nil {
			return fmt.Sprintf("groups: first: %s of the same file is met before", first.Name)
		}
		// A rule in shadow takes the place of others in shadow only, as in Match.
		sure := e.m.surely(r)
		if r.modeFor(key) == Shadow && e.m.groups[r.group].any == e.m.generation {
			return "groups: first: another one of the same file is met before"
		}
		if sure && r.modeFor(key) != Shadow {
			e.firsts[int(r.group)] = r.rule
		}
		if sure {
			e.m.groups[r.group].any = e.m.generation
		}
	}
	return ""
}

// fails counts the conditions of r that do not hold.
func (e *explainer) fails(r *matchRule) (n int) {
	for i := range r.rule.When {
		if !r.rule.When[i].match(&e.m) {
			n++
		}
	}
	return n
}

func (e *explainer) whyNotConditions(r *matchRule) string {
	for i := range r.rule.When {
		c := &r.rule.When[i]
		if c.match(&e.m) {
			continue
		}
		v := e.m.value(int(c.slot))
		if !v.present {
			return fmt.Sprintf("when.%s: the request has no %s", c.Attribute, c.Attribute)
		}
		addr := e.m.addrOf(int(c.slot))
		for k := range c.Patterns {
			if p := &c.Patterns[k]; p.Negated && p.positive(v.text, addr) {
				return fmt.Sprintf("when.%s: %s is ruled out by %s", c.Attribute, shorten(v.text), p.Source)
			}
		}
		return fmt.Sprintf("when.%s: %s does not match %s", c.Attribute, shorten(v.text), sources(c.Patterns))
	}
	return ""
}

func (e *explainer) whyNoKey(r *matchRule) string {
	if e.m.appendKey(r) {
		return ""
	}
	for _, part := range r.per {
		var names []string
		for _, a := range part {
			if e.m.value(a.slot).present {
				names = nil
				break
			}
			names = append(names, a.name)
		}
		if names != nil {
			return fmt.Sprintf("per: the request has no %s", strings.Join(names, " and no "))
		}
	}
	return "per: a part is missing"
}

func (e *explainer) whyNotIf(r *matchRule) string {
	p := r.rule.predicate()
	if p == nil {
		return ""
	}
	e.m.vars.spent, e.m.stopped = [2]uint64{}, [2]bool{} // all rules are asked, each by itself
	before := e.m.CELErrors
	switch {
	case e.m.evalIf(r, p, nil, r.mode):
		return ""
	case e.m.CELErrors > before:
		return fmt.Sprintf("if: the expression failed: %v", e.m.failures[len(e.m.failures)-1].Err)
	}
	return "if: the expression is false"
}

// sources lists patterns for a message.
func sources(patterns []Pattern) string {
	const most = 8
	var list []string
	for i, p := range patterns {
		if i == most {
			list = append(list, fmt.Sprintf("%d more", len(patterns)-most))
			break
		}
		list = append(list, shorten(p.Source))
	}
	if len(list) == 1 {
		return list[0]
	}
	return "any of " + strings.Join(list, ", ")
}

// whyNotDescriptor says why no descriptor of the request led to r. Of several descriptors the one
// that came nearest is spoken of.
func (e *explainer) whyNotDescriptor(r *matchRule) string {
	switch {
	case len(e.m.descriptors) > 0:
	case e.m.source != nil:
		return e.whyNotPath(r)
	default:
		return "the request has no descriptors"
	}
	best, why := -1, ""
	for i := range e.m.descriptors {
		depth, text := e.descend(r, &e.m.descriptors[i])
		if text == "" {
			return ""
		}
		if depth > best {
			best, why = depth, fmt.Sprintf("descriptor %d: %s", i+1, text)
		}
	}
	return why
}

// descend follows one descriptor towards r, and says how far it came (in half levels: a key, then
// its value) and why no further.
func (e *explainer) descend(r *matchRule, desc *Descriptor) (depth int, why string) {
	if desc.Override != nil {
		return 0, "it brings a limit of its own"
	}
	l := e.domain.lyft
	for i, want := range r.levels {
		if i == len(desc.Entries) {
			return 2 * i, fmt.Sprintf("it has %d entries, this rule is for %d", len(desc.Entries), len(r.levels))
		}
		entry := desc.Entries[i]
		if entry.Key != want.node.Key {
			return 2 * i, fmt.Sprintf("entry %d is %s, not %s", i+1, shorten(entry.Key), want.node.Key)
		}
		found := l.find(entry.Key).find(entry.Value, &e.m)
		if found != want {
			return 2*i + 1, astray(entry.Value, found, want)
		}
		l = want.children
	}
	if n := len(desc.Entries); n > len(r.levels) {
		return 2 * len(r.levels), fmt.Sprintf("it has %d entries, this rule is for %d", n, len(r.levels))
	}
	return 2 * len(r.levels), e.whyNotMet(r)
}

// whyNotPath says why the attributes of a request without descriptors do not lead to r.
func (e *explainer) whyNotPath(r *matchRule) string {
	l := e.domain.lyft
	for _, want := range r.levels {
		k := l.find(want.node.Key)
		v := e.m.pathValue(k)
		if !v.present {
			return fmt.Sprintf("the request has no %s", shorten(want.node.Key))
		}
		if found := k.find(v.text, &e.m); found != want {
			return astray(v.text, found, want)
		}
		l = want.children
	}
	return e.whyNotMet(r)
}

// astray says where a value leads instead of to want.
func astray(value string, found, want *lyftNode) string {
	text := fmt.Sprintf("%s=%s", want.node.Key, shorten(value))
	switch {
	case found == nil:
		return fmt.Sprintf("%s does not match %s", text, want.node.Value)
	case found.node.Value == "":
		return fmt.Sprintf("%s does not match %s, and leads to the default of %s", text, want.node.Value, want.node.Key)
	}
	return fmt.Sprintf("%s leads to %s=%s, which comes before", text, found.node.Key, found.node.Value)
}

// whyNotMet says why a request that leads to r does not meet it.
func (e *explainer) whyNotMet(r *matchRule) string {
	if why := e.whyNotConditions(r); why != "" {
		return why
	}
	if why := e.whyNotIf(r); why != "" {
		return why
	}
	if !r.byPath() {
		return e.whyNoKey(r)
	}
	return ""
}

// replaced gives those rules their reason that only another one's replaces keeps from applying.
func (e *explainer) replaced(reasons []Reason) {
	type bearer struct {
		lyft bool
		name string
	}
	named := map[bearer][]*Rule{}
	for i := range reasons {
		switch r := reasons[i].Rule; {
		case r.Lyft == nil:
			named[bearer{false, r.Name}] = []*Rule{r}
		case r.Lyft.LimitName != "":
			k := bearer{true, r.Lyft.LimitName}
			named[k] = append(named[k], r)
		}
	}
	by := map[*Rule]string{}
	for i := range reasons {
		a := reasons[i].Rule
		if reasons[i].Why != "" {
			continue
		}
		for _, name := range a.Replaces {
			for _, b := range named[bearer{a.Lyft != nil, name}] {
				if by[b] == "" && e.replaces(a, b) {
					by[b] = a.Name
				}
			}
		}
	}
	for i := range reasons {
		r := &reasons[i]
		if name := by[r.Rule]; name != "" && r.Why == "" && len(r.Hits) == 0 {
			r.Applies, r.Why = false, "replaced by "+name
		}
	}
}

// replaces reports whether a, which is met, keeps b from applying: a rule in shadow does so only to
// one in shadow, and one that is met in some spellings only does not.
func (e *explainer) replaces(a, b *Rule) bool {
	return a.Lyft != nil || e.m.surely(a.compiled) && (e.mode(a) != Shadow || e.mode(b) == Shadow)
}

func (e *explainer) mode(r *Rule) Mode {
	begin := len(e.m.buf)
	e.m.appendKey(r.compiled)
	return r.compiled.modeFor(e.m.buf[begin:])
}
