package ruledb

import (
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule/file"
)

// Changes names what files put in force that is not in force in before, or is otherwise there:
// limits as domain/rule, and other parts as file: part. Comments, and what is in shadow in both,
// change nothing.
func Changes(files, before []file.Source) (list []string) {
	var names []string
	for _, s := range append(slices.Clone(files), before...) {
		if !rulesource.IsTestFile(path.Base(s.Name)) && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		a, okA := treeOf(files, name)
		b, okB := treeOf(before, name)
		if !okA || !okB {
			list = append(list, name)
			continue
		}
		list = append(list, a.changes(b, name)...)
	}
	return list
}

// tree is a rule file as it is parsed.
type tree map[string]any

// treeOf reads a file; ok is false if it cannot be compared. A file that is not there is empty.
func treeOf(files []file.Source, name string) (t tree, ok bool) {
	i := slices.IndexFunc(files, func(s file.Source) bool { return s.Name == name })
	if i < 0 {
		return nil, true
	}
	err := yaml.Unmarshal(files[i].Data, &t)
	return t, err == nil
}

// sameEntry reports whether two files have the same limit of a name.
func sameEntry(a, b []byte, name string) bool {
	var x, y tree
	if yaml.Unmarshal(a, &x) != nil || yaml.Unmarshal(b, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x.limit(name), y.limit(name))
}

func (t tree) limits() []any {
	list, _ := t["limits"].([]any)
	return list
}

func nameOf(limit any) string {
	m, _ := limit.(map[string]any)
	name, _ := m["name"].(string)
	return name
}

func (t tree) limit(name string) any {
	i := slices.IndexFunc(t.limits(), func(l any) bool { return nameOf(l) == name })
	if i < 0 {
		return nil
	}
	return t.limits()[i]
}

// changes names what is in force in t, and not in before, or the other way round.
func (t tree) changes(before tree, name string) (list []string) {
	var parts []string
	for _, x := range [...]tree{t, before} {
		for part := range x {
			if !slices.Contains(parts, part) {
				parts = append(parts, part)
			}
		}
	}
	slices.Sort(parts)
	for _, part := range parts {
		a, b := inForce(part, t[part]), inForce(part, before[part])
		switch {
		case reflect.DeepEqual(a, b):
		case part == "domain" && (t == nil || before == nil): // it comes or goes with the limits
		case part == "limits":
			list = append(list, t.changedLimits(before, name)...)
		default:
			list = append(list, name+": "+part)
		}
	}
	return list
}

func (t tree) changedLimits(before tree, name string) (list []string) {
	domain, _ := t["domain"].(string)
	if t == nil {
		domain, _ = before["domain"].(string)
	}
	if domain == "" {
		domain = "default"
	}
	for _, l := range t.limits() {
		if was := before.limit(nameOf(l)); !shadowed(l) && !reflect.DeepEqual(l, was) {
			list = append(list, domain+"/"+nameOf(l))
		}
	}
	for _, l := range before.limits() {
		if is := t.limit(nameOf(l)); !shadowed(l) && (is == nil || shadowed(is)) {
			list = append(list, domain+"/"+nameOf(l)+" (removed)")
		}
	}
	if len(list) == 0 {
		list = append(list, name+": the order of limits")
	}
	return list
}

// shadowed reports whether an entry is in shadow.
func shadowed(entry any) bool {
	m, _ := entry.(map[string]any)
	on, _ := m["on_limit"].(string)
	mode, _ := m["shadow_mode"].(bool)
	return mode || strings.TrimSpace(on) == "shadow"
}

// inForce returns a part of a file without what is in shadow; nil if nothing is left of a list.
func inForce(part string, value any) any {
	list, ok := value.([]any)
	if !ok || part != "limits" && part != "descriptors" {
		return value
	}
	var out []any
	for _, entry := range list {
		m, _ := entry.(map[string]any)
		if _, nests := m["descriptors"]; !nests {
			if !shadowed(entry) {
				out = append(out, entry)
			}
			continue
		}
		kept := maps.Clone(m)
		delete(kept, "descriptors")
		if shadowed(entry) { // those below it may be enforced
			delete(kept, "rate_limit")
			delete(kept, "shadow_mode")
		}
		below := inForce("descriptors", m["descriptors"])
		if below != nil {
			kept["descriptors"] = below
		}
		if below != nil || kept["rate_limit"] != nil {
			out = append(out, kept)
		}
	}
	if out == nil {
		return nil
	}
	return out
}
