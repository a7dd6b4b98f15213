package file

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule"
)

// comment is a comment of a rule file that speaks to lint.
type comment struct {
	line, column int
	text         string // without the #, trimmed
}

// ignore is a comment "lint: ignore NAME, NAME: reason". It silences those warnings of the entry (a
// limit, a descriptor) in which or above which it stands, and of the whole file where it stands in
// no entry.
type ignore struct {
	comment
	names    []string
	from, to int // the lines that it applies to
	fault    string
	hint     string
}

// ignorer applies the ignores of one file. used counts by ignore and name.
type ignorer struct {
	list []ignore
	used [][]bool
}

// parseIgnore parses a comment; ok is false for one that does not speak to lint.
func parseIgnore(c comment) (ig ignore, ok bool) {
	rest, ok := strings.CutPrefix(c.text, "lint:")
	if !ok {
		return ig, false
	}
	ig.comment = c
	verb, list, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if verb != "ignore" {
		if rule.Nearest(verb, []string{"ignore"}) == "" {
			return ig, false
		}
		ig.fault, ig.hint = fmt.Sprintf("lint: %q is no word that is known here", clip(verb)), `did you mean "ignore"?`
		return ig, true
	}
	list, _, _ = strings.Cut(list, ":")
	for _, name := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		if !slices.Contains(ig.names, name) {
			ig.names = append(ig.names, name)
		}
	}
	if len(ig.names) == 0 {
		ig.fault, ig.hint = "lint: ignore names no warning", "as in: # lint: ignore long-wait: the client is a batch job"
	}
	return ig, true
}

// entry is the lines of one limit or descriptor.
type entry struct {
	start, end int
	next       int // the line on which something behind it begins
	dash       int // the column of its dash; 0 if it has none
}

// findIgnores finds the ignores of a file, and the lines that each applies to.
func (o *origin) findIgnores(comments []comment, root *element) {
	for _, c := range comments {
		ig, ok := parseIgnore(c)
		if !ok {
			continue
		}
		if o.entries == nil {
			o.entries = o.entriesOf(root)
		}
		ig.from, ig.to = o.scope(c)
		o.ignores.list = append(o.ignores.list, ig)
		o.ignores.used = append(o.ignores.used, make([]bool, len(ig.names)))
	}
	o.entries = nil
}

// entriesOf lists the entries of limits and descriptors, those inside others behind them.
func (o *origin) entriesOf(root *element) []entry {
	var entries []entry
	var walk func(list *element, next int)
	walk = func(list *element, next int) {
		if list == nil || list.kind != listKind {
			return
		}
		for i, item := range list.items {
			e := entry{start: item.line, end: lastLine(item), next: next}
			if i+1 < len(list.items) {
				e.next = list.items[i+1].line
			}
			if line := o.lineText(e.start); strings.HasPrefix(strings.TrimSpace(line), "-") {
				e.dash = strings.IndexByte(line, '-') + 1
			}
			entries = append(entries, e)
			walk(item.get("descriptors"), e.next)
		}
	}
	for i, p := range root.pairs {
		if p.key.text == "limits" || p.key.text == "descriptors" {
			next := math.MaxInt
			if i+1 < len(root.pairs) {
				next = root.pairs[i+1].key.line
			}
			walk(p.value, next)
		}
	}
	return entries
}

// lastLine is the last line on which a part of v begins.
func lastLine(v *element) int {
	last := v.line
	for _, p := range v.pairs {
		last = max(last, p.key.line, lastLine(p.value))
	}
	for _, i := range v.items {
		last = max(last, lastLine(i))
	}
	return last
}

// scope returns the lines that a comment is for.
func (o *origin) scope(c comment) (from, to int) {
	whole := func() (int, int) { return 0, math.MaxInt }
	line := []rune(o.lineText(c.line))
	alone := strings.TrimSpace(string(line[:min(len(line), max(0, c.column-1))])) == ""
	if alone {
		// Above an entry it is for that entry.
		below := c.line + 1
		for ; below <= len(o.lines); below++ {
			if s := strings.TrimSpace(o.lineText(below)); s != "" && s[0] != '#' {
				break
			}
		}
		for _, e := range o.entries {
			if e.start != below {
				continue
			}
			if e.dash > 0 && c.column <= e.dash || e.dash == 0 && strings.HasPrefix(strings.TrimSpace(o.lineText(below)), "{") {
				return e.start, e.end
			}
		}
	}
	best := entry{}
	for _, e := range o.entries { // the innermost is the last
		inside := e.start <= c.line && c.line <= e.end
		if alone && !inside {
			inside = e.start <= c.line && c.line < e.next && e.dash > 0 && c.column > e.dash
		}
		if inside {
			best = e
		}
	}
	if best.start == 0 {
		return whole()
	}
	return best.start, max(best.end, c.line)
}

// lineText returns a line of the file, "" if there is no such line.
func (o *origin) lineText(line int) string {
	o.splitLines()
	if line < 1 || line > len(o.lines) {
		return ""
	}
	text, _, _ := strings.Cut(o.text[o.lines[line-1]:], "\n")
	return text
}

// ignores reports whether a warning of that name at one of these lines is silenced.
func (g *ignorer) ignores(name string, lines ...int) bool {
	silenced := false
	for i := range g.list {
		ig := &g.list[i]
		k := slices.Index(ig.names, name)
		if k >= 0 && slices.ContainsFunc(lines, func(line int) bool { return ig.from <= line && line <= ig.to }) {
			g.used[i][k], silenced = true, true
		}
	}
	return silenced
}

// clone returns a copy whose use is counted apart.
func (g *ignorer) clone() *ignorer {
	out := &ignorer{list: g.list}
	for _, used := range g.used {
		out.used = append(out.used, slices.Clone(used))
	}
	return out
}

// silence removes the warnings that a comment silences.
func (l *loader) silence() {
	l.warnings = slices.DeleteFunc(l.warnings, func(p rule.Problem) bool {
		for _, o := range l.origins {
			if o.name == p.Pos.File {
				return o.ignores.ignores(p.Name, p.Pos.Line)
			}
		}
		return false
	})
}
