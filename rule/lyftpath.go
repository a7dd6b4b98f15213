package rule

import (
	"cmp"
	"slices"
)

// A request that comes without descriptors, as through every door but the rate limit service, meets
// a rule of the Lyft form when its attributes hold all keys on the path to the rule. Each path that
// is met counts as the descriptor of its keys and values would: under the same key, so that one
// budget is shared with Envoy.

// RemoteAddress is what Envoy calls the address of the client, which is ip at the other doors.
const RemoteAddress = "remote_address"

// pathValue is the value that the request has for a key of a level.
func (m *Matches) pathValue(k *levelKey) *value {
	v := m.value(k.slot)
	if !v.present && k.orSlot >= 0 {
		return m.value(k.orSlot)
	}
	return v
}

// matchPaths finds the rules of the Lyft form whose paths the attributes hold, takes away those
// that another one replaces, and emits the rest in rule order. In m.Descriptors each has an entry
// of its own.
func (m *Matches) matchPaths() {
	m.leaves, m.trail = m.leaves[:0], m.trail[:0]
	m.walk(m.domain.lyft)
	if len(m.leaves) > 1 {
		slices.SortFunc(m.leaves, func(a, b leaf) int { return cmp.Compare(a.rule.rule.Index, b.rule.rule.Index) })
	}
	m.markReplaced()
	for i := range m.leaves {
		r, key := m.leaves[i].rule, m.leaves[i].key
		if m.isReplaced(r) {
			continue
		}
		match := DescriptorMatch{Rule: r.rule}
		match.Hit, match.Unlimited = m.emit(r, key, r.modeFor(key), -1, true)
		if match.Hit >= 0 {
			match.StatsKey = m.leaves[i].stats
		}
		m.Descriptors = append(m.Descriptors, match)
	}
	clear(m.leaves)
	clear(m.names)
	m.names, m.listed = m.names[:0], false
	clear(m.trail[:cap(m.trail)])
}

// walk goes down to all rules below l whose keys the request has. m.trail holds the keys and values
// above.
func (m *Matches) walk(l *level) {
	switch {
	case l.byKey == nil:
		for i := range l.keys {
			m.enter(&l.keys[i])
		}
	case l.few != nil:
		for _, k := range l.few {
			m.enter(k)
		}
	default:
		m.walkPresent(l)
	}
}

// walkPresent is walk for a level of many keys: it looks at those that the request has.
func (m *Matches) walkPresent(l *level) {
	if !m.listed {
		m.listNames()
	}
	for _, name := range m.names {
		if k := l.byKey[name]; k != nil {
			m.enter(k)
		}
	}
	k := l.byKey[RemoteAddress]
	if k != nil && k.orSlot >= 0 && m.values[k.slot].listed != m.generation {
		m.enter(k) // it may be there as ip
	}
}

// listNames fills m.names. A name that a request has twice stands there once, or each level would
// be gone down twice as often as the one above. It is apart so that the variables that the loop
// captures are allocated here only.
func (m *Matches) listNames() {
	m.listed = true
	for name := range m.source.All() {
		if s, ok := m.domain.slotOf[name]; ok {
			if v := m.value(s); v.listed != m.generation {
				v.listed = m.generation
				m.names = append(m.names, name)
			}
		}
	}
}

// enter follows the value of one key.
func (m *Matches) enter(k *levelKey) {
	v := m.pathValue(k)
	if !v.present {
		return
	}
	n := k.find(v.text, m)
	if n == nil {
		return
	}
	m.trail = append(m.trail, Entry{k.key, v.text})
	if r := n.rule; r != nil {
		if found := m.meet(r, m.trail); found.rule != nil {
			found.stats = m.statsKey(r, m.trail)
			m.leaves = append(m.leaves, found)
		}
	}
	if n.children != nil {
		m.walk(n.children)
	}
	m.trail = m.trail[:len(m.trail)-1]
}
