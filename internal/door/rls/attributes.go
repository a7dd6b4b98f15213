package rls

import (
	"iter"

	"github.com/weir-rl/weir/rule"
)

// attributes are the entries of all descriptors as the attributes that native limits see: the
// first value of a key holds, and remote_address is also ip, unless there is one.
type attributes struct {
	descriptors []rule.Descriptor
	index       map[string]string // of a large request
	indexed     bool
}

const indexFrom = 32 // descriptors

// Attribute implements rule.Attributes.
func (a *attributes) Attribute(name string) (string, bool) {
	v, ok := a.entry(name)
	if !ok && name == "ip" {
		return a.entry("remote_address")
	}
	return v, ok
}

func (a *attributes) entry(name string) (string, bool) {
	if a.useIndex() {
		v, ok := a.index[name]
		return v, ok
	}
	for i := range a.descriptors {
		for j := range a.descriptors[i].Entries {
			if e := &a.descriptors[i].Entries[j]; e.Key == name {
				return e.Value, true
			}
		}
	}
	return "", false
}

// useIndex reports whether a.index is to be used, and makes it when it is first needed.
func (a *attributes) useIndex() bool {
	if a.indexed || len(a.descriptors) < indexFrom {
		return a.indexed
	}
	a.indexed = true
	if a.index == nil {
		a.index = make(map[string]string)
	}
	for i := range a.descriptors {
		for _, e := range a.descriptors[i].Entries {
			if _, ok := a.index[e.Key]; !ok {
				a.index[e.Key] = e.Value
			}
		}
	}
	return true
}

// All implements rule.Attributes: each name once.
func (a *attributes) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if a.useIndex() {
			for k, v := range a.index {
				if !yield(k, v) {
					return
				}
			}
		} else {
			for i := range a.descriptors {
				for j, e := range a.descriptors[i].Entries {
					if !a.earlier(e.Key, i, j) && !yield(e.Key, e.Value) {
						return
					}
				}
			}
		}
		if _, own := a.entry("ip"); !own {
			if v, ok := a.entry("remote_address"); ok {
				yield("ip", v)
			}
		}
	}
}

// earlier reports whether an entry before the j-th of descriptor i has the key.
func (a *attributes) earlier(key string, i, j int) bool {
	for d := 0; d <= i; d++ {
		for n, e := range a.descriptors[d].Entries {
			if d == i && n == j {
				return false
			}
			if e.Key == key {
				return true
			}
		}
	}
	return false
}
