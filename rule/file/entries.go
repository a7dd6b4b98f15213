package file

import (
	"math"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// findIgnores notes the comments of the file at hand that silence warnings.
func (l *loader) findIgnores(comments []yaml.Comment, root *yaml.Node) {
	if len(comments) == 0 {
		return
	}
	entries := l.entries(root)
	for _, c := range comments {
		l.src.AddIgnore(c.Line, c.Column, c.Text, entries)
	}
}

// entries lists the limits and descriptors of the file at hand, those inside others behind them.
func (l *loader) entries(root *yaml.Node) []message.Entry {
	var entries []message.Entry
	var walk func(list *yaml.Node, next int)
	walk = func(list *yaml.Node, next int) {
		if list == nil || list.Kind != yaml.List {
			return
		}
		for i, item := range list.Items {
			e := message.Entry{Start: item.Line, End: lastLine(item), Next: next}
			if i+1 < len(list.Items) {
				e.Next = list.Items[i+1].Line
			}
			if line := l.src.LineText(e.Start); strings.HasPrefix(strings.TrimSpace(line), "-") {
				e.Dash = strings.IndexByte(line, '-') + 1
			}
			entries = append(entries, e)
			walk(item.Get("descriptors"), e.Next)
		}
	}
	for i, p := range root.Pairs {
		if p.Key.Text == "limits" || p.Key.Text == "descriptors" {
			next := math.MaxInt
			if i+1 < len(root.Pairs) {
				next = root.Pairs[i+1].Key.Line
			}
			walk(p.Value, next)
		}
	}
	return entries
}

// lastLine is the last line on which a part of v begins.
func lastLine(v *yaml.Node) int {
	last := v.Line
	for _, p := range v.Pairs {
		last = max(last, p.Key.Line, lastLine(p.Value))
	}
	for _, i := range v.Items {
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
