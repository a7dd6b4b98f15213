// Package asked describes the conditions on single attributes that an expression implies. Package
// rule/file finds them in CEL, and package rule files rules by them.
package asked

// Ask is a condition on one attribute that must hold for an expression to be true. Where it does
// not hold, the expression is false, whatever the rest of it gives and whether or not that fails.
type Ask struct {
	Attribute string
	// LookUp reports that the attribute is looked up in a map, which fails where it is absent.
	LookUp bool
	OneOf  []Comparison // at least one of them holds
}

// Comparison compares an attribute with constants.
type Comparison struct {
	Op     Op
	Values []string // several of Equals, which any of them meets; none of Present and Within; else one
	Ranges []Range  // for Within: it is in any of these, all of one Number; at least one
}

// Op is the way in which a Comparison compares.
type Op uint8

// The ways of comparing.
const (
	Present Op = iota // whether there is a value; never fails
	Equals
	HasPrefix
	HasSuffix
	Contains
	MatchesRegexp // RE2, anywhere in the value
	Within        // a number in a range; fails where the value is none
)
