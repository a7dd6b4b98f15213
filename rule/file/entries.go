package file

import (
	"math"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// comment is a comment of a rule file that speaks to lint.
type comment struct {
	line, column int
	text         string // without the #, trimmed
}

// findIgnores notes the comments of the file at hand that silence warnings.
func (l *loader) findIgnores(comments []comment, root *element) {
	if len(comments) == 0 {
		return
	}
	entries := l.entries(root)
	for _, c := range comments {
		l.src.AddIgnore(c.line, c.column, c.text, entries)
	}
}

// entries lists the limits and descriptors of the file at hand, those inside others behind them.
func (l *loader) entries(root *element) []message.Entry {
	var entries []message.Entry
	var walk func(list *element, next int)
	walk = func(list *element, next int) {
		if list == nil || list.kind != listKind {
			return
		}
		for i, item := range list.items {
			e := message.Entry{Start: item.line, End: lastLine(item), Next: next}
			if i+1 < len(list.items) {
				e.Next = list.items[i+1].line
			}
			if line := l.src.LineText(e.Start); strings.HasPrefix(strings.TrimSpace(line), "-") {
				e.Dash = strings.IndexByte(line, '-') + 1
			}
			entries = append(entries, e)
			walk(item.get("descriptors"), e.Next)
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

// silence removes the warnings that a comment silences.
func (l *loader) silence() {
	l.warnings = slices.DeleteFunc(l.warnings, func(p rule.Problem) bool {
		for _, o := range l.origins {
			if o.Name == p.Pos.File {
				return o.Ignores.Silence(p.Name, p.Pos.Line)
			}
		}
		return false
	})
}
