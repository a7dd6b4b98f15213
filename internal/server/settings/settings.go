// Package settings is how a configuration is put together: what a setting
// is, and how it takes its value from a default, from weir.yaml, from the environment and from a
// flag, with errors that say where, and which name was meant. It knows no setting itself: package
// server has the table of them, and C, the type that they fill. Begin with Setting and Table.Load.
package settings

import "strings"

// Setting is one key of the configuration. Its path names it in weir.yaml; with dashes the flag, in
// capitals with underscores the environment variable.
type Setting[C any] struct {
	Path  string
	Help  string
	Value string // the default, as text
	Kind  Kind
	Set   Setter[C]
}

// Kind is the form in which a setting is written.
type Kind uint8

// Kinds of settings.
const (
	Scalar Kind = iota // one value: items holds it
	List               // any number: a sequence in YAML, comma-separated elsewhere
	// name → value: a mapping in YAML, name=value comma-separated elsewhere; items hold
	// name=value
	Mapping
)

// Flag returns the name of the flag, without its dashes.
func (s *Setting[C]) Flag() string { return FlagOf(s.Path) }

// Variable returns the name of the environment variable.
func (s *Setting[C]) Variable() string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(s.Path, ".", "_"))
}

// FlagOf returns the flag of a setting.
func FlagOf(path string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(path) }

// SetText sets the setting in c to the text of a flag or variable.
func (s *Setting[C]) SetText(c *C, value string) error { return s.Set(c, s.Kind.items(value)) }

// items splits the text of a flag or variable.
func (k Kind) items(value string) []string {
	if k == Scalar {
		return []string{value}
	}
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// Group is a table of settings in docs/reference/configuration.md.
type Group[C any] struct {
	Title    string
	Page     string // a page of docs with more about it; "" for none
	Settings []Setting[C]
}

// Table holds all settings, in the order in which --help lists them.
type Table[C any] []Setting[C]

// TableOf returns the settings of all groups.
func TableOf[C any](groups []Group[C]) (t Table[C]) {
	for _, g := range groups {
		t = append(t, g.Settings...)
	}
	return t
}

// Find finds a setting by its path; nil if there is none.
func (t Table[C]) Find(path string) *Setting[C] {
	for i := range t {
		if t[i].Path == path {
			return &t[i]
		}
	}
	return nil
}

// Variables are the names of the environment variables that a server reads.
func (t Table[C]) Variables() []string {
	names := []string{configVariable}
	for i := range t {
		names = append(names, t[i].Variable())
	}
	return names
}
