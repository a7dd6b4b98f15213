package rule

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// level is one level of the descriptors of a domain, or of a node.
type level struct {
	keys  []levelKey
	byKey map[string]*levelKey // nil if there are few keys
	// the values of byKey, for a request without descriptors; nil if there are many
	few []*levelKey
}

// levelKey holds the nodes of one level with one key.
type levelKey struct {
	key       string
	exact     map[string]*lyftNode
	maxExact  int
	wildcards []*lyftNode // in order
	index     *valueIndex // of wildcards; nil if there are few
	any       *lyftNode   // the default: a node without a value

	slot   int // the attribute of a request without descriptors that the key stands for
	orSlot int // another one, where that is absent; -1 for none
}

// lyftNode is a Node, compiled.
type lyftNode struct {
	node     *Node
	glob     *glob // nil if its value has no wildcard
	children *level
	rule     *matchRule
}

// varies reports whether the counters of a rule at or below n differ by the runtime value at n.
func (n *lyftNode) varies() bool {
	return n.node.Value == "" || n.glob != nil && !n.node.ShareThreshold
}

// addNodes adds the nodes of one level, and calls found with each rule and the path to it.
func (b *builder) addNodes(l *level, nodes []*Node, composite string, path []*lyftNode,
	found func(*Rule, []*lyftNode)) {
	for _, n := range nodes {
		name := composite + "." + n.Key
		if n.Value != "" {
			name += "_" + n.Value
		}
		k := l.add(n.Key)
		if old := k.sibling(n.Value); old != nil {
			b.problems = append(b.problems, Problem{
				Pos: n.Pos, Message: fmt.Sprintf("duplicate descriptor composite key '%s': it is there already, at %s", name, old.node.Pos),
				Hint: "descriptors of one level differ in key or value",
			})
			continue
		}
		c := &lyftNode{node: n}
		switch {
		case n.Value == "":
			k.any = c
		case strings.Contains(n.Value, "*"):
			c.glob = newGlob(n.Value, true)
			k.wildcards = append(k.wildcards, c)
			fallthrough // a value that looks like the pattern is an exact match of it
		default:
			k.exact[n.Value] = c
			k.maxExact = max(k.maxExact, len(n.Value))
		}
		here := append(path[:len(path):len(path)], c)
		if n.Rule != nil {
			found(n.Rule, here)
		}
		if len(n.Children) > 0 {
			c.children = &level{}
			b.addNodes(c.children, n.Children, name, here, found)
		}
	}
}

func (l *level) add(key string) *levelKey {
	if l.byKey == nil {
		l.byKey = map[string]*levelKey{}
	}
	k := l.byKey[key]
	if k == nil {
		k = &levelKey{key: key, exact: map[string]*lyftNode{}}
		l.byKey[key] = k
	}
	return k
}

func (k *levelKey) sibling(value string) *lyftNode {
	if value == "" {
		return k.any
	}
	return k.exact[value]
}

// finish makes a level quick to search once all its nodes are in.
func (l *level) finish() {
	if l == nil {
		return
	}
	for _, k := range l.byKey {
		if len(k.wildcards) > fewPatterns {
			k.index = &valueIndex{}
			for i, n := range k.wildcards {
				for _, a := range bestOf(globAnchors(n.glob)) {
					k.index.add(a, int32(i))
				}
			}
			k.index.finish()
		}
		for _, n := range k.exact {
			n.children.finish()
		}
		if k.any != nil {
			k.any.children.finish()
		}
	}
	if len(l.byKey) <= 4 {
		for _, k := range l.byKey {
			l.keys = append(l.keys, *k)
		}
		slices.SortFunc(l.keys, func(a, b levelKey) int { return strings.Compare(a.key, b.key) })
		l.byKey = nil
	}
}

// bindPaths gives the keys of l, and of the levels below it, their slots among the attributes of d.
func (d *domain) bindPaths(l *level) {
	if l == nil {
		return
	}
	bind := func(k *levelKey) {
		k.slot, k.orSlot = d.slot(k.key), -1
		if k.key == RemoteAddress {
			k.orSlot = d.slot("ip")
		}
		for _, n := range k.exact { // the nodes of wildcards are among them
			d.bindPaths(n.children)
		}
		if k.any != nil {
			d.bindPaths(k.any.children)
		}
	}
	for i := range l.keys {
		bind(&l.keys[i])
	}
	for _, k := range l.byKey {
		bind(k)
	}
	if l.byKey != nil && len(l.byKey) <= manySlots {
		for _, k := range l.byKey {
			l.few = append(l.few, k)
		}
		slices.SortFunc(l.few, func(a, b *levelKey) int { return cmp.Compare(a.slot, b.slot) })
	}
}

func (l *level) find(key string) *levelKey {
	if l.byKey != nil {
		return l.byKey[key]
	}
	for i := range l.keys {
		if l.keys[i].key == key {
			return &l.keys[i]
		}
	}
	return nil
}

// find returns the node for a value: an exact one, else the first wildcard that matches, else the
// default.
func (k *levelKey) find(value string, m *Matches) *lyftNode {
	if len(value) <= k.maxExact {
		if n := k.exact[value]; n != nil {
			return n
		}
	}
	if k.index == nil {
		for _, n := range k.wildcards {
			if n.glob.match(value) {
				return n
			}
		}
		return k.any
	}
	m.candidates = k.index.appendIDs(m, m.candidates[:0], value, netip.Addr{})
	best := int32(len(k.wildcards))
	for _, id := range m.candidates {
		if id < best && k.wildcards[id].glob.match(value) {
			best = id
		}
	}
	if int(best) < len(k.wildcards) {
		return k.wildcards[best]
	}
	return k.any
}

// rule returns the rule that the entries lead to. The node chosen at each level is final, and the
// rule's depth must be the entries'.
func (l *level) rule(entries []Entry, m *Matches) *matchRule {
	for i := range entries {
		if l == nil {
			return nil
		}
		k := l.find(entries[i].Key)
		if k == nil {
			return nil
		}
		n := k.find(entries[i].Value, m)
		if n == nil {
			return nil
		}
		if i == len(entries)-1 {
			return n.rule
		}
		l = n.children
	}
	return nil
}
