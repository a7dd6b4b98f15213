package rule

import (
	"errors"
	"strings"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// Exprs are the compiled expressions of a rule; nil where the rule has none. Package rule/file
// compiles them, from CEL.
type Exprs struct {
	If        Predicate
	Cost      Amount
	CostAfter Settlement
}

// Predicate is a compiled `if`. Safe for concurrent use, and comparable.
type Predicate interface {
	// Holds evaluates the expression on a request.
	Holds(v *Variables) (bool, error)
	Reader
}

// asker is a Predicate that can list its conditions on attributes, as the predicates of package
// rule/file can. A rule with another Predicate is found by its when and per alone.
type asker interface {
	// Asks returns the conditions on single attributes that the expression implies, with folded
	// those for a folded path; all reports that it has no other conditions.
	Asks(folded bool) (asks []asked.Ask, all bool)
}

// folder is a Predicate or an Amount that knows which of its texts are written otherwise than
// folded.
type folder interface {
	// Folds reports whether the expression compares the path with texts that are not folded.
	Folds() bool
}

// Amount is a compiled `cost`. Safe for concurrent use.
type Amount interface {
	// Amount evaluates the expression on a request.
	Amount(v *Variables) (int64, error)
	Reader
}

// Reader knows which attributes an expression reads.
type Reader interface {
	// Reads returns the attributes that the expression names; all reports that it may read any
	// other one as well.
	Reads() (names []string, all bool)
}

// Settlement is a compiled `cost_after`. Safe for concurrent use.
type Settlement interface {
	// Settle evaluates the expression on a response.
	Settle(r ResponseInfo) (int64, error)
}

// Variables gives an expression the attributes of a request. It is valid during one evaluation.
type Variables struct {
	m *Matches
	// Scratch belongs to the evaluator, which may keep data in it for the next expression or the
	// next request.
	Scratch Scratch
	spent   [2]uint64 // by the expressions of rules that are enforced, and of those in shadow
	before  [2]uint64 // what other readings of the request have spent
	shadow  bool      // it is the turn of one in shadow
}

// ErrTooCostly is the error of an expression that would take, or of several on one request that
// together would take, more than the evaluator spends on a request.
var ErrTooCostly = errors.New("it takes too long on this request")

// Spent returns what evaluations on this request have cost so far, for the evaluator to add to and
// to bound. Rules in shadow have an account of their own.
func (v *Variables) Spent() *uint64 {
	if v.shadow {
		return &v.spent[1]
	}
	return &v.spent[0]
}

// Scratch is an evaluator's data in Variables.
type Scratch interface {
	// Release drops the references to one request.
	Release()
}

// OwnVariables are the attributes that expressions have variables for; all others are entries of
// maps. They must not be changed.
var OwnVariables = [...]string{"method", "path", "host", "ip", "user"}

// Domain returns the domain of the request.
func (v *Variables) Domain() string { return v.m.domain.name }

// Attribute returns the value of an attribute in its normal form; ok is false if it is absent or
// empty.
func (v *Variables) Attribute(name string) (value string, ok bool) { return v.m.attribute(name) }

// Folded reports whether the path is given as it is folded (FoldPath): then the texts that the
// expression compares it with are folded too. An expression that fails or is false for the path as
// it came is asked again for the folded one.
func (v *Variables) Folded() bool { return v.m.seen&(pathSpelled|slashSpelled) != 0 }

// FromDescriptors reports whether the attributes are the entries of descriptors. Each look-up then
// goes through all of them.
func (v *Variables) FromDescriptors() bool { return v.m.union }

// All returns the attributes whose names begin with prefix, by the rest of their names and in
// their normal form. Those that are empty are left out.
func (v *Variables) All(prefix string) map[string]string {
	all := map[string]string{}
	for name, value := range v.m.attributes() {
		key, ok := strings.CutPrefix(name, prefix)
		if _, twice := all[key]; ok && !twice {
			all[key] = value
		}
	}
	for key, value := range all {
		if slot, known := v.m.domain.slotOf[prefix+key]; known {
			value = v.m.spelled(slot, v.m.value(slot))
			all[key] = value
		}
		if value == "" {
			delete(all, key)
		}
	}
	return all
}

// release ends the evaluations on one request.
func (v *Variables) release() {
	v.m = nil
	if v.Scratch != nil {
		v.Scratch.Release()
	}
}
