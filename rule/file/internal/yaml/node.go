package yaml

import (
	"strconv"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// Kind is the shape of a value.
type Kind uint8

const (
	Null Kind = iota
	Scalar
	Mapping
	List
	Bad // could not be read, and has been reported
)

// Node is one value of a YAML file, with aliases and merge keys resolved. Values are shared between
// the places that alias them and must not be changed.
type Node struct {
	Kind   Kind
	Quoted bool   // of a scalar: text by its syntax, whatever it looks like
	Text   string // of a scalar: as written, without quotes
	Pairs  []Pair // of a mapping, in order; explicit keys before merged ones
	Items  []*Node
	rule.Position
	size  int32 // values in it after expansion, itself included
	depth int32
}

// Pair is one entry of a mapping.
type Pair struct {
	Key, Value *Node
}

// Get returns the value under key, nil if there is none. Of a repeated key the last one holds.
func (v *Node) Get(key string) *Node {
	if v.Kind != Mapping {
		return nil
	}
	var found *Node
	for i := range v.Pairs {
		if p := &v.Pairs[i]; p.Key.Kind == Scalar && p.Key.Text == key {
			found = p.Value
		}
	}
	return found
}

// String says what v is, for messages.
func (v *Node) String() string {
	switch v.Kind {
	case Null:
		return "nothing"
	case Mapping:
		return "a mapping"
	case List:
		return "a list"
	case Bad:
		return "something unreadable"
	}
	return strconv.Quote(message.Clip(v.Text))
}
