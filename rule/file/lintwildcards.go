package file

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir/rule"
)

// wildcards warns of wildcard descriptors of one level that match the same values.
func (l *linter) wildcards(rules []*rule.Rule) {
	type place struct{ path, key string }
	levels := map[place][]*rule.Rule{}
	var order []place
	seen := map[string]bool{}
	for _, r := range rules {
		if r.Lyft == nil {
			continue
		}
		path := ""
		for depth, e := range r.Lyft.Path {
			here := fmt.Sprintf("%s\x00%q", path, e)
			if strings.Contains(e.Value, "*") && !seen[here] {
				seen[here] = true
				p := place{path, e.Key}
				if levels[p] == nil {
					order = append(order, p)
				}
				levels[p] = append(levels[p], &rule.Rule{Name: r.Name, Pos: r.Pos, File: r.File, Lyft: &rule.Lyft{Path: r.Lyft.Path[depth : depth+1]}})
			}
			path = here
		}
	}
	for _, p := range order {
		list := levels[p]
		if len(list) > 200 {
			list = list[:200]
		}
		for i, later := range list {
			for _, earlier := range list[:i] {
				a, b := earlier.Lyft.Path[0].Value, later.Lyft.Path[0].Value
				if covers(a, b) {
					l.warn(warnNeverMet, later, later.Pos, "put the narrower one first", "no request can meet %s: %s of line %d stands before it and matches the same values", b, a, earlier.Pos.Line)
					break
				}
				if overlap(a, b) {
					l.warn(warnOverlap, later, later.Pos, "", "%s and %s of line %d match some of the same values; the first in the file holds", b, a, earlier.Pos.Line)
					break
				}
			}
		}
	}
}

// covers reports whether the wildcard a matches all that b matches: whether a matches b with its
// stars taken as text.
func covers(a, b string) bool {
	return globWalk(a, b, false)
}

// overlap reports whether some text matches both wildcards.
func overlap(a, b string) bool {
	return globWalk(a, b, true)
}

// globWalk matches the wildcard a against the text b; with both, the stars of b are wildcards as
// well.
func globWalk(a, b string, both bool) bool {
	if len(a)*len(b) > 1<<20 {
		return false
	}
	row := make([]bool, len(b)+1)
	next := make([]bool, len(b)+1)
	for i := 0; i <= len(a); i++ {
		for j := 0; j <= len(b); j++ {
			v := i == 0 && j == 0
			if i > 0 && a[i-1] == '*' {
				v = v || row[j] || j > 0 && next[j-1]
			}
			if both && j > 0 && b[j-1] == '*' {
				v = v || next[j-1] || i > 0 && row[j]
			}
			if i > 0 && j > 0 && a[i-1] == b[j-1] {
				v = v || row[j-1]
			}
			next[j] = v
		}
		row, next = next, row
	}
	return row[len(b)]
}
