package rule

import (
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
)

func (r *matchRule) byPath() bool { return len(r.levels) > 0 && len(r.per) == 0 }

// matchDescriptors finds the rule of each descriptor, takes away those that another one replaces,
// and emits the rest.
func (m *Matches) matchDescriptors(s *Set) {
	m.leaves = m.leaves[:0]
	for i := range m.descriptors {
		var found leaf
		if m.descriptors[i].Override == nil {
			found = m.leaf(m.descriptors[i].Entries)
		}
		m.leaves = append(m.leaves, found)
	}
	m.markReplaced()
	for i, leaf := range m.leaves {
		r := leaf.rule
		switch {
		case m.descriptors[i].Override != nil:
			m.emitOverride(s, i)
		case r == nil:
		case m.isReplaced(r):
		default:
			match := &m.Descriptors[i]
			match.Rule = r.rule
			match.Hit, match.Unlimited = m.emit(r, leaf.key, r.modeFor(leaf.key), i, true)
			if match.Hit >= 0 {
				match.StatsKey = m.statsKey(r, m.descriptors[i].Entries)
			}
		}
	}
	clear(m.leaves)
}

// markReplaced marks the rules that those in m.leaves replace.
func (m *Matches) markReplaced() {
	if names := m.domain.names; len(m.replaced) < names {
		m.replaced = append(m.replaced, make([]uint32, names-len(m.replaced))...)
	}
	for i := range m.leaves {
		if r := m.leaves[i].rule; r != nil {
			for _, id := range r.replaceIDs {
				m.replaced[id] = m.generation
			}
		}
	}
}

func (m *Matches) isReplaced(r *matchRule) bool {
	return r.nameID >= 0 && m.replaced[r.nameID] == m.generation
}

// leaf finds the rule that a descriptor's entries lead to and meet, and makes its key.
func (m *Matches) leaf(entries []Entry) leaf {
	r := m.domain.lyft.rule(entries, m)
	if r == nil {
		return leaf{}
	}
	return m.meet(r, entries)
}

// meet makes the key of a rule to which entries lead. There is no rule in the leaf if the request
// does not meet it.
func (m *Matches) meet(r *matchRule, entries []Entry) leaf {
	if !m.holds(r) {
		return leaf{}
	}
	begin := len(m.buf)
	if r.byPath() {
		for k, l := range r.levels {
			if l.varies() {
				m.buf = appendText(m.buf, 0, entries[k].Value)
			}
		}
	} else if !m.appendKey(r) {
		m.buf = m.buf[:begin]
		return leaf{}
	}
	key := m.buf[begin:len(m.buf):len(m.buf)]
	if p := r.rule.predicate(); p != nil && !m.evalIf(r, p, key, r.modeFor(key)) {
		m.buf = m.buf[:begin]
		return leaf{}
	}
	return leaf{rule: r, key: key}
}

// statsKey names a rule's statistics.
func (m *Matches) statsKey(r *matchRule, entries []Entry) string {
	if r.runtimeName {
		return m.runtimeStatsKey(r, entries)
	}
	return r.rule.Lyft.StatsKey
}

// maxStatsKeys and maxStatsKey bound the names of statistics that a Matches remembers, so as not to
// make them again.
const (
	maxStatsKeys = 1024
	maxStatsKey  = 512
)

// runtimeStatsKey names a rule's statistics with runtime values, for detailed_metric and
// value_to_metric.
func (m *Matches) runtimeStatsKey(r *matchRule, entries []Entry) string {
	begin := len(m.scratch)
	detailed, shared := r.rule.Lyft.DetailedMetric, false
	for _, l := range r.levels {
		shared = shared || l.node.ShareThreshold && l.glob != nil
	}
	b := append(m.scratch, r.rule.Domain...)
	for i, l := range r.levels {
		b = append(b, '.')
		b = append(b, l.node.Key...)
		value := l.node.Value
		if detailed && !(l.node.ShareThreshold && l.glob != nil) || l.varies() && l.node.ValueToMetric {
			value = entries[i].Value
		}
		if value != "" || detailed && !shared {
			b = append(b, '_')
			b = append(b, value...)
		}
	}
	m.scratch = b
	name := b[begin:]
	if known, ok := m.stats[string(name)]; ok {
		return known
	}
	made := string(name)
	if len(made) <= maxStatsKey {
		if m.stats == nil || len(m.stats) >= maxStatsKeys {
			m.stats = make(map[string]string)
		}
		m.stats[made] = made
	}
	return made
}

// overrideUnits are the units of a limit that a request brings.
var overrideUnits = [...]struct {
	name   string
	length time.Duration
}{
	{"SECOND", time.Second},
	{"MINUTE", time.Minute},
	{"HOUR", time.Hour},
	{"DAY", 24 * time.Hour},
	{"WEEK", 7 * 24 * time.Hour},
	{"MONTH", 30 * 24 * time.Hour},
	{"YEAR", 365 * 24 * time.Hour},
}

// overrideName is the name of the rule under which limits that requests bring are counted.
const overrideName = "request_override"

// maxOverrides bounds the limits of requests that a Set keeps compiled.
const maxOverrides = 4096

// overrideCache keeps the compiled limits that requests bring.
type overrideCache struct {
	mu      sync.RWMutex
	windows map[overrideKey]*Window
}

type overrideKey struct {
	domain   *domain
	unit     int
	requests uint32
}

// overrideWindow returns the window for a limit that a request brings; nil if its unit is none.
func (s *Set) overrideWindow(d *domain, limit *DescriptorLimit) *Window {
	unit := -1
	for i := range overrideUnits {
		if overrideUnits[i].name == limit.Unit {
			unit = i
		}
	}
	if unit < 0 {
		return nil
	}
	key := overrideKey{d, unit, limit.Requests}
	c := &s.overrides
	c.mu.RLock()
	w := c.windows[key]
	c.mu.RUnlock()
	if w != nil {
		return w
	}
	compiled, err := algo.New(overrideConfig(unit, int64(limit.Requests)))
	if err != nil {
		return nil
	}
	r := &Rule{
		Name: overrideName, Domain: d.name, Index: len(s.rules) + d.number, Cost: 1, WarnPercent: 80, EnforcePercent: 100,
		Lyft: &Lyft{RequestsPerUnit: limit.Requests, Unit: limit.Unit},
	}
	w = &Window{Rule: r, Name: d.overrides[unit].Window, Seconds: int64(overrideUnits[unit].length / time.Second),
		Limit: compiled, Counter: d.overrides[unit]}
	r.Windows = []*Window{w}
	r.compiled = &matchRule{rule: r, group: -1, keyForm: &keyForm{}, extras: &extras{nameID: -1, entries: true}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.windows[key]; known != nil {
		return known
	}
	if c.windows == nil || len(c.windows) >= maxOverrides {
		c.windows = make(map[overrideKey]*Window)
	}
	c.windows[key] = w
	return w
}

func overrideConfig(unit int, requests int64) algo.Config {
	return algo.Config{
		Algorithm: algo.FixedWindow, N: requests, Window: overrideUnits[unit].length, CountDenied: true,
	}
}

// emitOverride emits the limit that descriptor i brings itself. No rule has a say in it.
func (m *Matches) emitOverride(s *Set, i int) {
	w := s.overrideWindow(m.domain, m.descriptors[i].Override)
	if w == nil {
		return
	}
	entries := m.descriptors[i].Entries
	begin, name := len(m.buf), len(m.scratch)
	m.scratch = append(m.scratch, m.domain.name...)
	for k := range entries {
		m.buf = appendText(appendText(m.buf, 0, entries[k].Key), 0, entries[k].Value)
		m.scratch = append(m.scratch, '.')
		m.scratch = append(m.scratch, entries[k].Key...)
		if entries[k].Value != "" {
			m.scratch = append(m.scratch, '_')
			m.scratch = append(m.scratch, entries[k].Value...)
		}
	}
	match := &m.Descriptors[i]
	match.Rule, match.Hit, match.StatsKey = w.Rule, len(m.Hits), string(m.scratch[name:])
	m.Hits = append(m.Hits, Hit{Window: w, Limit: w.Limit, Key: m.buf[begin:len(m.buf):len(m.buf)], Cost: 1,
		Mode: Enforce, Descriptor: i})
}
