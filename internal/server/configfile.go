package server

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

const defaultConfigFile = "weir.yaml"

// readFile applies the settings of a configuration file, and returns all errors in it.
func (c *Config) readFile(path string) []error {
	data, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("configuration: %w", err)}
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return []error{fmt.Errorf("%s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, true)))}
	}
	r := configReader{c: c, file: path}
	documents := slices.DeleteFunc(slices.Clone(file.Docs), func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(documents) > 1 {
		r.fail(documents[1].Body, "a second document; the configuration is one")
	}
	if len(documents) > 0 {
		root := documents[0].Body
		if kind := manifestKind(root); kind != "" {
			r.fail(root,
				"this is a manifest of Kubernetes (%s), not the configuration; mounted as a volume, a ConfigMap is a folder with a file for each key below data", kind)
		} else if _, comment := root.(*ast.CommentGroupNode); !comment {
			r.mapping("", root)
		}
	}
	return r.problems
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

type configReader struct {
	c        *Config
	file     string
	problems []error
}

func (r *configReader) fail(n ast.Node, format string, args ...any) {
	line, column := 0, 0
	if t := n.GetToken(); t != nil && t.Position != nil {
		line, column = t.Position.Line, t.Position.Column
	}
	r.problems = append(r.problems, fmt.Errorf("%s:%d:%d: %s", r.file, line, column, fmt.Sprintf(format, args...)))
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
func (r *configReader) mapping(prefix string, n ast.Node) {
	entries, ok := pairs(n)
	if !ok {
		r.fail(n, "%s must be a mapping", strings.TrimSuffix("the configuration "+prefix, "."))
		return
	}
	for _, e := range entries {
		key, err := scalarText(e.Key)
		if err != nil {
			r.fail(e.Key, "a key must be plain text")
			continue
		}
		path := prefix + key
		s, above := findSetting(path), holdsSettings(path)
		if _, m := pairs(e.Value); above && (s == nil || m && e.Value.Type() != ast.NullType) {
			r.mapping(path+".", e.Value)
			continue
		}
		if own := findSetting(strings.TrimSuffix(prefix, ".")); s == nil && key == ownKey && own != nil {
			s = own
		}
		if s != nil {
			r.set(s, e.Value)
			continue
		}
		near := nearestSetting(prefix, key)
		if below, _ := pairs(e.Value); len(below) > 0 && !takesMapping(near) {
			r.mapping(path+".", e.Value) // none of its keys is known either: a hint says where each belongs
			continue
		}
		r.fail(e.Key, "unknown key %q%s", path, DidYouMean(near))
	}
}

// ownKey names, in the mapping of a setting that has others below it, its own value: the store may
// be written as store: URL, and as store: {url: URL, timeout: 1s}.
const ownKey = "url"

// holdsSettings reports whether there are settings below a path.
func holdsSettings(path string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool {
		return strings.HasPrefix(s.path, path+".")
	})
}

// takesMapping reports whether a mapping may stand at a path.
func takesMapping(path string) bool {
	s := findSetting(path)
	return holdsSettings(path) || s != nil && s.kind == mapping
}

// set sets a setting.
func (r *configReader) set(s *setting, n ast.Node) {
	r.c.name(s)
	items, err := valueItems(s.kind, n)
	if err == nil {
		err = s.set(r.c, items)
	}
	if err != nil {
		r.fail(n, "%s: %v", s.path, err)
	}
}

// valueItems reads the value of a setting. A list may also be a text as in a variable, and a single
// value.
func valueItems(k kind, n ast.Node) ([]string, error) {
	switch k {
	case list:
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
		return (&setting{kind: list}).items(s), nil
	case mapping:
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

// nearestSetting returns the known key nearest to an unknown one; "" if there is none.
func nearestSetting(prefix, key string) string {
	var known []string
	if prefix != "" && findSetting(strings.TrimSuffix(prefix, ".")) != nil {
		known = append(known, ownKey)
	}
	for _, s := range settings {
		if rest, ok := strings.CutPrefix(s.path, prefix); ok {
			first, _, _ := strings.Cut(rest, ".")
			known = append(known, first, rest)
		}
	}
	if near := suggest.Nearest(key, known); near != "" {
		return prefix + near
	}
	// The key may belong elsewhere.
	for _, all := range []string{key, "default_" + key} {
		if findSetting(all) != nil {
			return all
		}
	}
	paths := make([]string, len(settings))
	for i := range settings {
		paths[i] = settings[i].path
	}
	return only(paths, func(path string) bool {
		return strings.HasSuffix(path, "."+key) || strings.HasSuffix(path, "_"+key)
	})
}
