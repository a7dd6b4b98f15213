package sim

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/weir-rl/weir/rule"
)

// descriptors reads the descriptors of a request through Envoy. They are a list. Each descriptor is
// a mapping from key to value in the order of its entries or, if a key occurs twice, a list of
// mappings.
func (p *testParser) descriptors(n ast.Node) []rule.Descriptor {
	const example = "as in: descriptors: [{message_type: marketing, to_number: \"555\"}]"
	var list []rule.Descriptor
	items, ok := unwrap(n).(*ast.SequenceNode)
	if !ok || len(items.Values) == 0 {
		p.fail(n, example, "descriptors: expected a list of one descriptor or more, not %s", shape(n))
		return nil
	}
	for _, item := range items.Values {
		var d rule.Descriptor
		before := len(p.problems)
		parts := []ast.Node{item}
		if s, ok := unwrap(item).(*ast.SequenceNode); ok {
			parts = s.Values
		}
		for _, part := range parts {
			p.mapping(part, "a descriptor", nil, func(key string, v ast.Node) {
				if value, ok := p.text(v, key); ok {
					d.Entries = append(d.Entries, rule.Entry{Key: key, Value: value})
				}
			})
		}
		if len(d.Entries) == 0 && len(p.problems) == before {
			p.fail(item, example, "a descriptor needs an entry")
		}
		list = append(list, d)
	}
	return list
}

// describeDescriptors writes descriptors as the file does.
func describeDescriptors(list []rule.Descriptor) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('{')
		for k, e := range d.Entries {
			if k > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s: %s", e.Key, e.Value)
		}
		b.WriteByte('}')
	}
	b.WriteByte(']')
	return b.String()
}
