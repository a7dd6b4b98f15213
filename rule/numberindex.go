package rule

import (
	"cmp"
	"slices"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// numberIndex finds the ranges that hold a number. It is a binary tree of ranges in the order of
// their least numbers, the root in the middle, and each node knows how far the ranges below it
// reach: so a look-up takes a way down, and one more for each range that it finds. A list for each
// piece of the axis would be quicker, but takes the square of their number where ranges lie in each
// other.
type numberIndex struct {
	of    asked.Number
	spans []span
	odd   []int32 // brought in by a value that is no number
}

type span struct {
	least, most int64
	reach       int64 // the greatest most in this node's part of the tree
	id          int32
}

// numberIndex returns the index of the numbers into which of converts values. The first call makes
// it.
func (x *valueIndex) numberIndex(of asked.Number) *numberIndex {
	for _, n := range x.numbers {
		if n.of == of {
			return n
		}
	}
	n := &numberIndex{of: of}
	x.numbers = append(x.numbers, n)
	return n
}

func (x *numberIndex) add(r *asked.Range, id int32) {
	if !r.Empty() {
		x.spans = append(x.spans, span{least: r.Least, most: r.Most, id: id})
	}
}

func (x *numberIndex) finish() {
	slices.SortFunc(x.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.least, b.least), cmp.Compare(a.most, b.most), cmp.Compare(a.id, b.id))
	})
	x.spans = slices.Clip(x.spans)
	if len(x.spans) > 0 {
		setReach(x.spans)
	}
}

// setReach fills in reach in a part of the tree.
func setReach(part []span) int64 {
	middle := len(part) / 2
	n := &part[middle]
	n.reach = n.most
	if middle > 0 {
		n.reach = max(n.reach, setReach(part[:middle]))
	}
	if middle+1 < len(part) {
		n.reach = max(n.reach, setReach(part[middle+1:]))
	}
	return n.reach
}

// appendIDs appends the ids of the ranges that hold the number which text is, or if it is none, of
// those that want to know of it.
func (x *numberIndex) appendIDs(dst []int32, text string) []int32 {
	key, ok := x.of.Key(text)
	if !ok {
		return append(dst, x.odd...)
	}
	return appendHolding(dst, x.spans, key)
}

func appendHolding(dst []int32, part []span, key int64) []int32 {
	for len(part) > 0 {
		middle := len(part) / 2
		n := &part[middle]
		if n.reach < key {
			break
		}
		dst = appendHolding(dst, part[:middle], key)
		if n.least > key {
			break
		}
		if key <= n.most {
			dst = append(dst, n.id)
		}
		part = part[middle+1:]
	}
	return dst
}
