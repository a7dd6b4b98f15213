package door

import (
	"iter"
	"strings"

	"github.com/weir-rl/weir/rule"
)

const escapedSemicolon = "%3B"

// WithoutParameters returns a path in normal form as servlet containers read it: without what
// stands behind a semicolon in each segment, and in normal form again. An escaped semicolon counts,
// since a server in front of them may decode it. ok is false if that is the same path.
func WithoutParameters(path string) (bare string, ok bool) {
	if strings.IndexByte(path, ';') < 0 && !strings.Contains(path, escapedSemicolon) {
		return path, false
	}
	b, within := make([]byte, 0, len(path)), false
	for i := range len(path) {
		if path[i] == '/' {
			within = false
		} else if path[i] == ';' || strings.HasPrefix(path[i:], escapedSemicolon) {
			within = true
		}
		if !within {
			b = append(b, path[i])
		}
	}
	return rule.NormalPath(string(b)), true
}

// ReadParameters returns the readings of a request beside the first, which also has too, where some
// servers read its path without parameters and others do not: the first reading and each of also,
// with that path. It returns also itself for nearly all requests.
func ReadParameters(first rule.Attributes, path string, also []rule.Attributes) []rule.Attributes {
	bare, ok := WithoutParameters(path)
	if !ok {
		return also
	}
	all := append(also[:len(also):len(also)], otherPath{first, bare})
	for _, a := range also {
		all = append(all, otherPath{a, bare})
	}
	return all
}

// otherPath are the attributes of a request with another path.
type otherPath struct {
	rule.Attributes
	path string
}

// Attribute implements rule.Attributes.
func (o otherPath) Attribute(name string) (string, bool) {
	if name == "path" {
		return o.path, true
	}
	return o.Attributes.Attribute(name)
}

// All implements rule.Attributes.
func (o otherPath) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, value := range o.Attributes.All() {
			if name == "path" {
				value = o.path
			}
			if !yield(name, value) {
				return
			}
		}
	}
}
