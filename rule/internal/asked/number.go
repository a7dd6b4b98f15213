package asked

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// Number is the way in which an expression makes a number of an attribute.
type Number uint8

// The ways, named by the functions of CEL.
const (
	NoNumber Number = iota
	Int
	Uint
	Double
	Size // in characters; never fails
)

// Key returns a key of the number that CEL makes of text, which orders as the numbers do; ok is
// false where CEL fails to make one. The key of NaN is in no Range, as NaN is less than no number,
// and equal to none.
func (n Number) Key(text string) (key int64, ok bool) {
	switch n {
	case Int:
		i, err := strconv.ParseInt(text, 10, 64)
		return i, err == nil
	case Uint:
		u, err := strconv.ParseUint(text, 10, 64)
		return UintKey(u), err == nil
	case Double:
		f, err := strconv.ParseFloat(text, 64)
		return DoubleKey(f), err == nil
	case Size:
		return int64(utf8.RuneCountInString(text)), true
	}
	return 0, false
}

// Fails reports whether there are texts, the empty one among them, that CEL cannot convert.
func (n Number) Fails() bool { return n != NoNumber && n != Size }

// UintKey is the key of a number that a Uint gives.
func UintKey(u uint64) int64 { return int64(u ^ 1<<63) }

// DoubleKey is the key of a number that a Double gives; the keys of neighbouring numbers are
// neighbours. NaN's key is beyond infinity's.
func DoubleKey(f float64) int64 {
	if math.IsNaN(f) {
		return math.MaxInt64
	}
	bits := int64(math.Float64bits(f + 0)) // -0 + 0 is 0
	if bits < 0 {
		bits ^= math.MaxInt64 // further below 0 is less
	}
	return bits
}

// Range is the keys of the numbers from Least to Most, both included; none if Most is less.
type Range struct {
	Of          Number
	Least, Most int64
}

// Empty reports that no number is in r.
func (r *Range) Empty() bool { return r.Most < r.Least }

// All returns the Range of all numbers that n gives.
func (n Number) All() Range {
	if n == Double {
		return Range{n, DoubleKey(math.Inf(-1)), DoubleKey(math.Inf(1))}
	}
	return Range{n, math.MinInt64, math.MaxInt64}
}

// And returns the intersection; both must be of the same Number.
func (r Range) And(o Range) Range {
	r.Least, r.Most = max(r.Least, o.Least), min(r.Most, o.Most)
	return r
}
