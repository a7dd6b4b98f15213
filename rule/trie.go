package rule

import "slices"

// trie is a radix tree of literals; reversed, of literals read from their end.
type trie struct {
	root     trieNode
	reversed bool
}

type trieNode struct {
	label    string // the bytes that lead here from the parent
	ids      []int32
	heads    []byte // first byte of each child's label
	children []*trieNode
}

func (t *trie) insert(literal string, id int32) {
	if t.reversed {
		b := []byte(literal)
		slices.Reverse(b)
		literal = string(b)
	}
	n := &t.root
	for literal != "" {
		i := slices.Index(n.heads, literal[0])
		if i < 0 {
			child := &trieNode{label: literal}
			n.heads, n.children = append(n.heads, literal[0]), append(n.children, child)
			n, literal = child, ""
			break
		}
		child := n.children[i]
		common := 0
		for common < len(literal) && common < len(child.label) && literal[common] == child.label[common] {
			common++
		}
		if common < len(child.label) { // split the edge
			middle := &trieNode{label: child.label[:common], heads: []byte{child.label[common]},
				children: []*trieNode{child}}
			child.label = child.label[common:]
			n.children[i] = middle
			child = middle
		}
		n, literal = child, literal[common:]
	}
	if len(n.ids) == 0 || n.ids[len(n.ids)-1] != id {
		n.ids = append(n.ids, id)
	}
}

// appendIDs appends the ids of all literals that s begins with; in a reversed trie, ends with.
func (t *trie) appendIDs(dst []int32, s string) []int32 {
	n := &t.root
	for {
		dst = append(dst, n.ids...)
		if s == "" || len(n.heads) == 0 {
			return dst
		}
		head := s[0]
		if t.reversed {
			head = s[len(s)-1]
		}
		i := -1
		for k, h := range n.heads {
			if h == head {
				i = k
				break
			}
		}
		if i < 0 {
			return dst
		}
		n = n.children[i]
		if len(s) < len(n.label) {
			return dst
		}
		if !t.reversed {
			if s[:len(n.label)] != n.label {
				return dst
			}
			s = s[len(n.label):]
			continue
		}
		for k := range len(n.label) {
			if s[len(s)-1-k] != n.label[k] {
				return dst
			}
		}
		s = s[:len(s)-len(n.label)]
	}
}
