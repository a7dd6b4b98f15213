package rule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/algo"
)

// Overrides are for a key as it is written. What holds for a key that a request spells in another
// way than its counter does, stands here too.

// compileOverrides keys the overrides of a rule as Match keys requests.
func (b *builder) compileOverrides(m *matchRule) {
	r := m.rule
	if len(r.Overrides) == 0 {
		return
	}
	m.own().overrides = map[string]*Override{}
	for i := range r.Overrides {
		o := &r.Overrides[i]
		at := *r
		if o.Pos != (Position{}) {
			at.Pos = o.Pos
		}
		keys, err := overrideKeys(m, o.Values, false)
		if err != nil {
			b.problem(&at, "join one value for each entry of per by a comma", "override %q: %v",
				strings.Join(o.Values, ","), err)
			continue
		}
		for _, k := range keys {
			if old := m.overrides[k]; old != nil && old != o {
				b.problem(&at, "keep one of the two", "override %q is for the same key as %q",
					strings.Join(o.Values, ","), strings.Join(old.Values, ","))
				break
			}
			m.overrides[k] = o
		}
		if m.folds&m.spelled == 0 {
			continue
		}
		keys, _ = overrideKeys(m, o.Values, true)
		for _, k := range keys {
			m.respell(k, o)
		}
	}
}

// maxOverrideForms bounds the keys that one override may stand for: they multiply with each part of
// per.
const maxOverrideForms = 256

// overrideKeys makes the keys for the values of an override, with alternative 0 throughout. There
// are several where a value has other normal forms for other alternatives of its part. A
// descriptor's key has a part for each level whose value is not fixed. With folded they are as the
// keys of m are folded.
func overrideKeys(m *matchRule, values []string, folded bool) ([]string, error) {
	parts := m.per
	if m.byPath() {
		parts = nil
		for _, l := range m.levels {
			if l.varies() {
				parts = append(parts, []alternative{{name: l.node.Key}})
			}
		}
	}
	if len(values) != len(parts) {
		return nil, fmt.Errorf("%s for keys of %s", quantity(len(values), "value"), quantity(len(parts), "part"))
	}
	keys := []string{""}
	for i, v := range values {
		if v == "" && !m.byPath() {
			return nil, fmt.Errorf("value %d is empty, which counts as absent", i+1)
		}
		var forms []string
		for _, a := range parts[i] {
			form := string(m.appendPart(nil, 0, a.kind, v, folded))
			if !slices.Contains(forms, form) {
				forms = append(forms, form)
			}
		}
		if len(keys)*len(forms) > maxOverrideForms {
			return nil, fmt.Errorf(
				"its values have more than %d forms, since per has so many alternatives of different kinds", maxOverrideForms)
		}
		longer := make([]string, 0, len(keys)*len(forms))
		for _, k := range keys {
			for _, f := range forms {
				longer = append(longer, k+f)
			}
		}
		keys = longer
	}
	return keys, nil
}

// respelled is the combined effect of a rule's overrides on a key that is spelled otherwise than
// they name it.
type respelled struct {
	windows   []*Window
	unlimited bool
	override  *Override // the one that names the key in some spelling, the last if there are several
}

// writeKey appends r's key to buf in the spelling in which the request came.
func (m *Matches) writeKey(r *matchRule) []byte {
	begin := len(m.buf)
	m.appendKeyIn(r, 0)
	return m.buf[begin:len(m.buf):len(m.buf)]
}

// WrittenKey returns the key of Hits[i] in the spelling in which the request came: Key, unless that
// was folded. Orders that give a key more than its rule does are for a key as it is written. It is
// to be called before anything is removed from Hits.
func (m *Matches) WrittenKey(i int) []byte {
	for k := range m.written {
		if w := &m.written[k]; w.first <= i && i < w.behind {
			return w.key
		}
	}
	return m.Hits[i].Key
}

// overridden returns the windows of r for a key, which the request writes as written.
func (m *Matches) overridden(r *matchRule, key, written []byte) (windows []*Window, unlimited bool) {
	if o := r.overrides[string(m.overrideKey(r, written))]; o != nil {
		return o.Windows, o.Unlimited
	}
	if r.respelled != nil {
		if s, ok := r.respelled[string(m.overrideKey(r, key))]; ok {
			return s.windows, s.unlimited
		}
	}
	return r.rule.Windows, r.rule.Unlimited
}

// overrideKey returns the key under which overrides for a key are kept: all parts have alternative
// 0.
func (m *Matches) overrideKey(r *matchRule, key []byte) []byte {
	alternatives := false
	for _, part := range r.per {
		alternatives = alternatives || len(part) > 1
	}
	if !alternatives {
		return key
	}
	begin := len(m.scratch)
	for i := 0; i < len(key); {
		m.scratch, i = appendPartZero(m.scratch, key, i, int(r.ipv6Prefix))
	}
	return m.scratch[begin:]
}

// respell notes that an override is for a key in some spelling. The key is folded.
func (r *matchRule) respell(key string, o *Override) {
	e := r.extras
	if e.respelled == nil {
		e.respelled = map[string]respelled{}
	}
	s, ok := e.respelled[key]
	if !ok {
		s = respelled{windows: r.rule.Windows, unlimited: r.rule.Unlimited}
	}
	s.override = o
	switch {
	case o.Unlimited:
	case s.unlimited:
		s.windows, s.unlimited = o.Windows, false
	default:
		s.windows = lowest(s.windows, o.Windows)
	}
	e.respelled[key] = s
}

// lowest joins two lists of windows. Of those that share a counter it takes the lower one.
func lowest(windows, others []*Window) []*Window {
	out := slices.Clone(windows)
	for _, o := range others {
		switch k := slices.IndexFunc(out, func(w *Window) bool { return w.Counter == o.Counter }); {
		case k < 0:
			out = append(out, o)
		case Lower(o.Limit, out[k].Limit):
			out[k] = o
		}
	}
	return out
}

// Lower reports whether a, with the algorithm and the window of b, has no number above b's; nil
// stands for no limit. It is false where a schedule changes the numbers.
func Lower(a, b *algo.Limit) bool {
	if a == nil || b == nil || a.Scheduled() || b.Scheduled() {
		return b == nil && a != nil
	}
	x, y := a.Config(), b.Config()
	return x.N <= y.N && burst(x) <= burst(y)
}

// burst is the size of a bucket.
func burst(c algo.Config) int64 {
	switch c.Burst {
	case 0:
		return c.N
	case algo.NoBurst:
		return 0
	}
	return c.Burst
}
