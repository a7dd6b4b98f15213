package settings

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/weir-rl/weir/internal/util/suggest"
)

// readFile applies the settings of a configuration file, and notes all errors in it.
func (l *loader[C]) readFile(path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		l.problems = append(l.problems, fmt.Errorf("configuration: %w", err))
		return
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		l.problems = append(l.problems,
			fmt.Errorf("%s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, true))))
		return
	}
	l.file = path
	documents := slices.DeleteFunc(slices.Clone(file.Docs), func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(documents) > 1 {
		l.fail(documents[1].Body, "a second document; the configuration is one")
	}
	if len(documents) > 0 {
		root := documents[0].Body
		if kind := manifestKind(root); kind != "" {
			l.fail(root,
				"this is a manifest of Kubernetes (%s), not the configuration; mounted as a volume, a ConfigMap is a folder with a file for each key below data", kind)
		} else if _, comment := root.(*ast.CommentGroupNode); !comment {
			l.mapping("", root)
		}
	}
}

// manifestKind is the kind of a manifest of Kubernetes; "" if n is none.
func manifestKind(n ast.Node) (kind string) {
	entries, _ := pairs(n)
	version := false
	for _, e := range entries {
		switch key, _ := scalarText(e.Key); key {
		case "apiVersion":
			version = true
		case "kind":
			kind, _ = scalarText(e.Value)
		}
	}
	if !version {
		return ""
	}
	return kind
}

// fail notes an error at the place of n.
func (l *loader[C]) fail(n ast.Node, format string, args ...any) {
	line, column := 0, 0
	if t := n.GetToken(); t != nil && t.Position != nil {
		line, column = t.Position.Line, t.Position.Column
	}
	l.problems = append(l.problems, fmt.Errorf("%s:%d:%d: %s", l.file, line, column, fmt.Sprintf(format, args...)))
}

// pairs returns the entries of a mapping; ok is false if n is not a mapping.
func pairs(n ast.Node) (entries []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	case *ast.NullNode:
		return nil, true
	}
	return nil, false
}

// mapping reads the mapping of keys below prefix ("" or "listen.").
func (l *loader[C]) mapping(prefix string, n ast.Node) {
	entries, ok := pairs(n)
	if !ok {
		l.fail(n, "%s must be a mapping", strings.TrimSuffix("the configuration "+prefix, "."))
		return
	}
	for _, e := range entries {
		key, err := scalarText(e.Key)
		if err != nil {
			l.fail(e.Key, "a key must be plain text")
			continue
		}
		path := prefix + key
		s, above := l.table.Find(path), l.table.holds(path)
		if _, m := pairs(e.Value); above && (s == nil || m && e.Value.Type() != ast.NullType) {
			l.mapping(path+".", e.Value)
			continue
		}
		if own := l.table.Find(strings.TrimSuffix(prefix, ".")); s == nil && key == ownKey && own != nil {
			s = own
		}
		if s != nil {
			l.set(s, e.Value)
			continue
		}
		near := l.table.nearest(prefix, key)
		if below, _ := pairs(e.Value); len(below) > 0 && !l.table.takesMapping(near) {
			l.mapping(path+".", e.Value) // none of its keys is known either: a hint says where each belongs
			continue
		}
		l.fail(e.Key, "unknown key %q%s", path, suggest.DidYouMean(near))
	}
}

// ownKey names, in the mapping of a setting that has others below it, its own value: the store may
// be written as store: URL, and as store: {url: URL, timeout: 1s}.
const ownKey = "url"

// holds reports whether there are settings below a path.
func (t Table[C]) holds(path string) bool {
	return slices.ContainsFunc(t, func(s Setting[C]) bool {
		return strings.HasPrefix(s.Path, path+".")
	})
}

// takesMapping reports whether a mapping may stand at a path.
func (t Table[C]) takesMapping(path string) bool {
	s := t.Find(path)
	return t.holds(path) || s != nil && s.Kind == Mapping
}

// set sets a setting.
func (l *loader[C]) set(s *Setting[C], n ast.Node) {
	l.name(s)
	items, err := valueItems(s.Kind, n)
	if err == nil {
		err = s.Set(l.c, items)
	}
	if err != nil {
		l.fail(n, "%s: %v", s.Path, err)
	}
}

// valueItems reads the value of a setting. A list may also be a text as in a variable, and a single
// value.
func valueItems(k Kind, n ast.Node) ([]string, error) {
	switch k {
	case List:
		if seq, ok := n.(*ast.SequenceNode); ok {
			items := make([]string, 0, len(seq.Values))
			for _, v := range seq.Values {
				item, err := scalarText(v)
				if err != nil {
					return nil, err
				}
				items = append(items, item)
			}
			return items, nil
		}
		s, err := scalarText(n)
		if err != nil {
			return nil, errors.New("must be a list")
		}
		return List.items(s), nil
	case Mapping:
		entries, ok := pairs(n)
		if !ok {
			return nil, errors.New("must be a mapping")
		}
		var items []string
		for _, e := range entries {
			name, err := scalarText(e.Key)
			if err != nil {
				return nil, err
			}
			value, err := scalarText(e.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			items = append(items, name+"="+value)
		}
		return items, nil
	}
	s, err := scalarText(n)
	if err != nil {
		return nil, err
	}
	return []string{s}, nil
}

// scalarText returns a scalar as it is written; null and an empty value are "".
func scalarText(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.NullNode:
		return "", nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, nil
	}
	return "", errors.New("must be a single value")
}

// nearest returns the known key nearest to an unknown one; "" if there is none.
func (t Table[C]) nearest(prefix, key string) string {
	var known []string
	if prefix != "" && t.Find(strings.TrimSuffix(prefix, ".")) != nil {
		known = append(known, ownKey)
	}
	for _, s := range t {
		if rest, ok := strings.CutPrefix(s.Path, prefix); ok {
			first, _, _ := strings.Cut(rest, ".")
			known = append(known, first, rest)
		}
	}
	if near := suggest.Nearest(key, known); near != "" {
		return prefix + near
	}
	// The key may belong elsewhere.
	for _, all := range []string{key, "default_" + key} {
		if t.Find(all) != nil {
			return all
		}
	}
	paths := make([]string, len(t))
	for i := range t {
		paths[i] = t[i].Path
	}
	return only(paths, func(path string) bool {
		return strings.HasSuffix(path, "."+key) || strings.HasSuffix(path, "_"+key)
	})
}
