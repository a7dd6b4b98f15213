package file

import (
	"cmp"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// Bounds on elastic limits. Each keeps room for one limit for each percent of the signal, and is
// tried at load.
const (
	maxElastic = 100_000   // windows of all elastic rules
	maxScaled  = 2_000_000 // limits that are tried
	// N or B from which on a limit is tried at each percent, since not every number fits every
	// window
	largeScale = 1_000_000
	maxShare   = 1000 // percent
)

// throttle reads throttle into s and r.
func (l *loader) throttle(v *yaml.Node, r *rule.Rule, s *settings) {
	const expected = "throttle: expected hard, {soft: 10%%}, or {elastic: …}, got %s"
	if v.Kind == yaml.Scalar && v.Text == "hard" {
		return
	}
	if v.Kind != yaml.Mapping {
		hint := ""
		if v.Kind == yaml.Scalar && v.Text == "soft" {
			hint = "write the margin, as in: throttle: {soft: 10%}"
		}
		l.err(v, hint, expected, v)
		return
	}
	keys, _ := l.keys(v, keyRules{known: []string{"soft", "elastic"}, elsewhere: map[string]string{
		"signal": "it belongs into elastic", "curve": "it belongs into elastic", "over": "it belongs into soft", "for": "it belongs into soft",
	}})
	if len(v.Pairs) == 0 {
		l.err(v, "", expected, "an empty mapping")
	}
	if e := keys.val("elastic"); e != nil {
		s.elasticAt = keys.key("elastic")
		r.Elastic = l.elastic(e)
	}
	m := keys.val("soft")
	if m == nil {
		return
	}
	if m.Kind == yaml.Mapping {
		inner, _ := l.keys(m, keyRules{known: []string{"over", "for"}})
		if f := inner.val("for"); f != nil {
			s.softFor, _ = l.span(f, "throttle.soft.for", algo.MaxWindow)
			s.softForAt = f
		}
		if m = inner.val("over"); m == nil {
			l.err(v, "as in: throttle: {soft: {over: 10%}}", "throttle.soft: over is missing")
			return
		}
	}
	s.soft, _ = l.percent(m, "throttle.soft", 0, algo.MaxSoft)
}

// closing puts the time into c after which its soft margin closes, where it has one.
func (l *loader) closing(s *settings, c *algo.Config) bool {
	switch {
	case s.softFor == 0:
	case c.Algorithm.HasSlots():
		l.err(s.softForAt, "leave for out: the margin then stays open",
			"throttle.soft.for does not fit concurrency, which has no window to stay within")
		return false
	case message.SoftBase(*c)*int64(c.Soft)/100 > 0:
		c.SoftFor = s.softFor
	}
	return true
}

// emptyMargin reports a margin that is to close, and that none of the rule's windows has.
func (l *loader) emptyMargin(s *settings, c algo.Config) {
	l.err(s.softForAt, message.Enough(message.SoftBase(c)),
		"throttle.soft.for: a margin of %d%% of %s %d rounds to nothing, so that there is nothing to close", s.soft, message.SoftWhat(c), message.SoftBase(c))
}

// elastic reads throttle.elastic; nil if it cannot be used.
func (l *loader) elastic(v *yaml.Node) *rule.Elastic {
	const example = "as in: elastic: {signal: cpu, curve: {50%: 200%, 80%: 100%, 95%: 25%}}"
	keys, ok := l.keys(v, keyRules{
		expected: "throttle.elastic: expected a mapping of signal and curve", example: example, known: []string{"signal", "curve"},
	})
	if !ok {
		return nil
	}
	e := &rule.Elastic{Pos: v.Position}
	if s := keys.val("signal"); s == nil {
		l.err(v, example, "throttle.elastic: signal is missing")
	} else if name, ok := l.text(s, "throttle.elastic.signal"); ok {
		if e.Signal = name; !rule.SignalName(name) {
			l.err(s, "as in cpu or queue_depth",
				"throttle.elastic.signal: expected 1 to 100 lower-case letters, digits, _, . and -, got %q", message.Clip(name))
		}
		e.Pos = s.Position
	}
	c := keys.val("curve")
	switch {
	case c == nil:
		l.err(v, example, "throttle.elastic: curve is missing")
		return nil
	case c.Kind != yaml.Mapping || len(c.Pairs) == 0:
		got := c.String()
		if c.Kind == yaml.Mapping {
			got = "an empty one"
		}
		l.err(c, example, "throttle.elastic.curve: expected a mapping from values of the signal to shares, got %s", got)
		return nil
	}
	seen := map[int]bool{}
	for _, p := range c.Pairs {
		at, ok1 := l.percent(p.Key, "throttle.elastic.curve: a value of the signal", 0, 100)
		share, ok2 := l.percent(p.Value, "throttle.elastic.curve: a share", 0, maxShare)
		if !ok1 || !ok2 {
			continue
		}
		if seen[at] {
			l.err(p.Key, "keep one of them", "throttle.elastic.curve: %d%% stands twice", at)
			continue
		}
		seen[at] = true
		e.Curve = append(e.Curve, rule.Point{At: at, Share: share})
	}
	if len(e.Curve) == 0 {
		return nil
	}
	slices.SortFunc(e.Curve, func(a, b rule.Point) int { return cmp.Compare(a.At, b.At) })
	return e
}

// elasticWindows prepares the windows of an elastic rule, and tries whether their limits can be
// scaled: at the points of the curve, and large ones at each percent.
func (l *loader) elasticWindows(s *settings, r *rule.Rule) {
	e := r.Elastic
	if e == nil {
		return
	}
	all := slices.Clone(r.Windows)
	for i := range r.Overrides {
		all = append(all, r.Overrides[i].Windows...)
	}
	for _, w := range all {
		if l.compiled.elastic++; l.compiled.elastic > maxElastic {
			l.err(s.elasticAt, "", "throttle.elastic: more than %d elastic limits", maxElastic)
			return
		}
		parts := w.Parts()
		var values []int
		for _, p := range e.Curve {
			values = append(values, p.At)
		}
		if slices.ContainsFunc(parts,
			func(p *algo.Limit) bool { c := p.Config(); return max(c.N, c.Burst) > largeScale }) {
			values = values[:0]
			for v := range 101 {
				values = append(values, v)
			}
		}
		for _, v := range values {
			if l.compiled.scaled += len(parts); l.compiled.scaled > maxScaled {
				l.err(s.elasticAt, "",
					"throttle.elastic: the elastic limits of all rules together are too many to be tried")
				return
			}
			num, den := e.Share(v)
			if _, err := w.Limit.Scale(num, den); err != nil {
				l.err(s.elasticAt, "", "throttle.elastic: %s at %s %d%%: %v", w.Name, e.Signal, v, err)
				return
			}
		}
	}
}
