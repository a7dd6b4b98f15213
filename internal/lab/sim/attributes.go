package sim

import (
	"bytes"
	"iter"
	"net/url"
	"strings"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/util/chars"
)

// attributes are the attributes of a log entry: its fields, and query.NAME for the parameters of
// its path. Their values share the memory of the entry, and are valid as long as it is.
type attributes struct {
	entry *accesslog.Entry
}

// Attribute implements rule.Attributes.
func (a *attributes) Attribute(name string) (string, bool) {
	fields := a.entry.Fields
	for i := range fields {
		if fields[i].Name == name {
			return chars.View(fields[i].Value), true
		}
	}
	if parameter, ok := strings.CutPrefix(name, "query."); ok {
		for key, value := range a.parameters() {
			if key == parameter {
				return value, true
			}
		}
	}
	return "", false
}

// All implements rule.Attributes.
func (a *attributes) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, f := range a.entry.Fields {
			if !yield(f.Name, chars.View(f.Value)) {
				return
			}
		}
		for key, value := range a.parameters() {
			if !yield("query."+key, value) {
				return
			}
		}
	}
}

// parameters iterates over the query of the path; it skips parameters that do not parse.
func (a *attributes) parameters() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		_, query, _ := bytes.Cut(a.entry.Get(accesslog.FieldPath), []byte("?"))
		query, _, _ = bytes.Cut(query, []byte("#"))
		for len(query) > 0 {
			var pair []byte
			pair, query, _ = bytes.Cut(query, []byte("&"))
			k, v, _ := bytes.Cut(pair, []byte("="))
			key, err := url.QueryUnescape(chars.View(k))
			if err != nil || key == "" {
				continue
			}
			value, err := url.QueryUnescape(chars.View(v))
			if err != nil {
				continue
			}
			if !yield(key, value) {
				return
			}
		}
	}
}
