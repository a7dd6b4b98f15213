package admin

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/clientip"
	"github.com/weir-rl/weir/rule"
)

// Keys are clients' names and addresses. They are masked for a viewer, and for support unless
// support has named them. An address becomes its network (/24, or /48 for IPv6), and any other
// value its first character. So ip=198.51.100.7 becomes ip=198.51.100.0/24, and user=ada becomes
// user=a….

// cut replaces text that is not shown.
const cut = "…"

// seesKeys reports whether a role sees all keys.
func seesKeys(r auth.Role) bool { return r >= auth.Operator }

// keyNames are the names of the attributes of which a rule set makes keys. Only these are shown in
// front of a "=": other text there may be part of a client's value.
type keyNames struct {
	set    *rule.Set
	names  map[string]bool
	values map[string]bool // name=value, of values that the rules themselves name
}

// namesOf returns the names of which the rules of a set make keys.
func namesOf(s *rule.Set) *keyNames {
	k := &keyNames{s, map[string]bool{}, map[string]bool{}}
	if s == nil {
		return k
	}
	for _, r := range s.Rules() {
		for _, per := range r.Per {
			k.names[strings.Join(per, "|")] = true
			for _, name := range per {
				k.names[name] = true
			}
		}
		for _, c := range r.When {
			for i := range c.Patterns {
				k.values[c.Attribute+"="+c.Patterns[i].Text()] = true
			}
		}
		if r.Lyft != nil {
			for _, e := range r.Lyft.Path {
				k.names[e.Key] = true
				if e.Value != "" {
					k.values[e.Key+"="+e.Value] = true
				}
			}
		}
	}
	return k
}

// keyNames returns the names of the rules in force.
func (a *Handler) keyNames() *keyNames {
	set, _ := a.limiter.Rules()
	k := a.names.Load()
	if k == nil || k.set != set {
		k = namesOf(set)
		a.names.Store(k)
	}
	return k
}

// mask masks keys. A nil *mask leaves them as they are.
type mask struct {
	names map[string]bool
	named *naming // the key that is not masked; nil for none
}

// maskFor returns the mask for a role.
func (a *Handler) maskFor(r auth.Role) *mask {
	if seesKeys(r) {
		return nil
	}
	return &mask{names: a.keyNames().names}
}

// key masks a key as people read it: parts such as user=ada with "," or ", " between them.
func (m *mask) key(text string) string {
	if m == nil || text == "" {
		return text
	}
	parts := strings.Split(text, ",")
	for i, part := range parts {
		rest, space := strings.CutPrefix(part, " ")
		if parts[i] = m.part(rest); i > 0 && space {
			parts[i] = " " + parts[i]
		}
	}
	return strings.Join(parts, ",")
}

func (m *mask) part(text string) string {
	name, v, ok := strings.Cut(text, "=")
	if !ok || !m.names[name] && name != insight.CommandKeyName {
		return cut
	}
	if m.named.value(name, v) {
		return text
	}
	return name + "=" + value(v)
}

func (m *mask) parts(list []string) []string {
	if m == nil {
		return list
	}
	out := make([]string, len(list))
	for i, part := range list {
		out[i] = m.part(part)
	}
	return out
}

// value masks one value.
func value(v string) string {
	if p, err := netip.ParsePrefix(v); err == nil {
		return network(p.Addr())
	}
	if a, err := netip.ParseAddr(v); err == nil {
		return network(a)
	}
	if v == "" {
		return ""
	}
	r, n := utf8.DecodeRuneInString(v)
	if r == utf8.RuneError || n == len(v) {
		return cut
	}
	return string(r) + cut
}

func network(a netip.Addr) string {
	a = clientip.Addr(a)
	bits := 24
	if a.Is6() {
		bits = 48
	}
	return netip.PrefixFrom(a, bits).Masked().String()
}

// path masks a path. Its first segment says what was asked for; later ones may name a client.
func path(p string) string {
	first, rest, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	first, _, query := strings.Cut(first, "?")
	if rest != "" {
		return "/" + first + "/" + cut
	}
	if query {
		return "/" + first + "?" + cut
	}
	return "/" + first
}

// rule masks what the conditions and expressions of a rule say of clients: values of the attributes
// of which rules make keys, and an if. (A cost_after reads nothing that a client sent.)
func (m *mask) rule(r *ruleInfo) {
	if m == nil {
		return
	}
	for name, list := range r.When {
		if !m.names[name] || name == "path" || name == "method" || name == "host" {
			continue
		}
		for i, pattern := range list {
			rest, not := strings.CutPrefix(pattern, "!")
			if list[i] = value(rest); not {
				list[i] = "!" + list[i]
			}
		}
	}
	if r.If != "" {
		r.If = cut
	}
}

// keyInfo masks a key of a store.
func (m *mask) keyInfo(k *KeyInfo) {
	if m == nil {
		return
	}
	k.Key, k.Path = m.key(k.Key), ""
	k.Parts = m.parts(k.Parts)
	if k.Ban != nil {
		k.Ban.Key = m.parts(k.Ban.Key)
	}
	if k.Grant != nil {
		k.Grant.Key = m.parts(k.Grant.Key)
	}
}

func (m *mask) keyCounts(list []insight.KeyCount) []insight.KeyCount {
	if m == nil || len(list) == 0 {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		k := &list[i]
		k.Key = m.key(k.Key)
		if k.BannedBy != nil {
			by := *k.BannedBy
			by.Key = m.parts(by.Key)
			k.BannedBy = &by
		}
	}
	return list
}

// overview returns o with the key in its sentences masked.
func (m *mask) overview(o *insight.Overview) *insight.Overview {
	if m == nil {
		return o
	}
	out := *o
	out.NeedsALook = m.verdicts(o.NeedsALook)
	out.Mentions = slices.DeleteFunc(slices.Clone(o.Mentions), func(x insight.Mention) bool {
		return x.Kind == insight.MentionsKey
	})
	out.Events = slices.Clone(o.Events)
	for i := range out.Events {
		out.Events[i].RuleChanges = out.Events[i].Masked()
	}
	if o.Named != "" {
		out.Sentences = slices.Clone(o.Sentences)
		for i, s := range out.Sentences {
			out.Sentences[i] = strings.ReplaceAll(s, o.Named, m.key(o.Named))
		}
	}
	return &out
}

// verdicts masks verdicts.
func (m *mask) verdicts(list []insight.Verdict) []insight.Verdict {
	if m == nil {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		list[i] = list[i].Masked()
	}
	return list
}

// report masks the keys of the report of a rule.
func (m *mask) report(r *insight.RuleReport) {
	if m == nil {
		return
	}
	r.Verdicts = m.verdicts(r.Verdicts)
	r.Top, r.NearNow = m.keyCounts(r.Top), m.keyCounts(r.NearNow)
	if paths := r.By["path"]; len(paths) > 0 {
		by := map[string][]insight.Count{}
		for name, list := range r.By {
			by[name] = list
		}
		by["path"] = masked(paths)
		r.By = by
	}
}

// masked masks paths, and adds up those that are then equal.
func masked(list []insight.Count) []insight.Count {
	var out []insight.Count
	for _, c := range list {
		c.Value = path(c.Value)
		if i := slices.IndexFunc(out, func(x insight.Count) bool { return x.Value == c.Value }); i >= 0 {
			out[i].Count += c.Count
			continue
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(x, y insight.Count) int { return cmp.Compare(y.Count, x.Count) })
	return out
}

// decision masks a decision from a list, unless its key was named. A masked decision has no id,
// because everybody who has the id may see all of it.
func (m *mask) decision(e *recent.Entry) {
	if m == nil || m.named != nil && m.named.decision(e) {
		return
	}
	e.ID = 0
	limits := slices.Clone(e.Limits)
	for i := range limits {
		limits[i].Key = m.key(limits[i].Key)
	}
	e.Limits = limits
	attributes := map[string]string{}
	for name, v := range e.Attributes {
		switch {
		case name == "method" || m.named.value(name, v):
			attributes[name] = v
		case name == "path":
			attributes[name] = path(v)
		default:
			attributes[name] = value(v)
		}
	}
	e.Attributes = attributes
}

func (m *mask) decisions(list []recent.Entry) {
	for i := range list {
		m.decision(&list[i])
	}
}

// candidate masks the keys of a candidate.
func (m *mask) candidate(c *insight.Candidate) {
	if m == nil {
		return
	}
	c.Top = slices.Clone(c.Top)
	for i := range c.Top {
		c.Top[i].Key = m.key(c.Top[i].Key)
	}
}
