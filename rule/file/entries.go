package file

import (
	"math"
	"strings"

	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// findIgnores notes the comments of a file that silence warnings.
func findIgnores(o *message.Origin, comments []yaml.Comment, root *yaml.Node) {
	if len(comments) == 0 {
		return
	}
	entries := entriesOf(o, root)
	for _, c := range comments {
		o.AddIgnore(c.Line, c.Column, c.Text, entries)
	}
}

// entriesOf lists the limits and descriptors of a file, those inside others behind them.
func entriesOf(o *message.Origin, root *yaml.Node) []message.Entry {
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
			if line := o.LineText(e.Start); strings.HasPrefix(strings.TrimSpace(line), "-") {
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
