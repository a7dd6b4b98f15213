package rule

import (
	"fmt"
	"slices"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// asks are the conditions on attributes that the expression of a rule implies, for the index.
type asks struct {
	list []ask
	all  bool // the expression asks nothing else
}

// ask is an asked.Ask with literals or ranges that values must hold.
type ask struct {
	attribute string
	lookUp    bool
	presence  bool           // it asks only whether the attribute is there, and never fails
	absent    bool           // it holds where the attribute is absent
	ways      [][]anchor     // ways to anchor it; none if another ask of the same expression has them
	text      string         // distinguishes it from others
	numbers   []asked.Number // that it makes of the attribute
	only      asked.Number   // the one of them, if it asks nothing else
}

// failsIfAbsent reports whether q fails on every request that lacks the attribute.
func (q *ask) failsIfAbsent() bool {
	return (q.lookUp || q.only.Fails()) && !q.presence
}

// sameIfNoNumber reports whether q comes out the same for all values of which of makes no number: a
// comparison of that number fails, and a question for the attribute's presence holds.
func (q *ask) sameIfNoNumber(of asked.Number) bool {
	return q.presence || q.only == of
}

// askKey is an expression, and whether a folded path is put in it.
type askKey struct {
	Predicate
	folded bool
}

// askKey returns the key under which the asks of r's `if` are kept.
func (r *matchRule) askKey(p Predicate) askKey {
	return askKey{p, r.folds&pathSpelled != 0}
}

// asksOf returns the conditions on attributes that an expression implies.
func asksOf(p askKey) asks {
	a, ok := p.Predicate.(asker)
	if !ok {
		return asks{}
	}
	list, all := a.Asks(p.folded)
	out := asks{all: all}
	for i := range list {
		if q, ok := compileAsk(&list[i]); ok {
			out.list = append(out.list, q)
		} else {
			out.all = false
		}
	}
	out.joinRanges()
	return out
}

// joinRanges makes one range of the ranges that the expression asks of one number, such as its
// least and its most: the first ask is anchored at their intersection.
func (a *asks) joinRanges() {
	for i := range a.list {
		q := &a.list[i]
		r := q.singleRange()
		if r == nil {
			continue
		}
		joined := *r
		for k := i + 1; k < len(a.list); k++ {
			o := &a.list[k]
			if s := o.singleRange(); s != nil && o.attribute == q.attribute && o.lookUp == q.lookUp && s.Of == r.Of {
				joined, o.ways = joined.And(*s), nil
			}
		}
		q.ways[0][0].numbers = &joined
	}
}

// singleRange returns the range of q if q asks for that alone; else nil.
func (q *ask) singleRange() *asked.Range {
	if len(q.ways) == 1 && len(q.ways[0]) == 1 && q.ways[0][0].kind == anchorRange {
		return q.ways[0][0].numbers
	}
	return nil
}

// compileAsk anchors an asked.Ask; it is not ok if nothing is known that values must hold.
func compileAsk(a *asked.Ask) (ask, bool) {
	q := ask{attribute: a.Attribute, lookUp: a.LookUp}
	var anchors []anchor
	for i := range a.OneOf {
		c := &a.OneOf[i]
		of := asked.NoNumber
		if c.Op == asked.Within {
			of = c.Ranges[0].Of
			if !slices.Contains(q.numbers, of) {
				q.numbers = append(q.numbers, of)
			}
		}
		if i == 0 {
			q.only = of
		} else if q.only != of {
			q.only = asked.NoNumber
		}
		ways, absent := anchorsOfComparison(c)
		if len(ways) == 0 {
			return ask{}, false
		}
		text := fmt.Sprintf("%d %q %t %q %d", c.Op, a.Attribute, a.LookUp, c.Values, c.Ranges)
		if len(a.OneOf) == 1 {
			q.ways, q.text = ways, text
		} else {
			anchors = append(anchors, bestOf(ways)...)
			q.text += " or " + text
		}
		q.presence = len(a.OneOf) == 1 && c.Op == asked.Present
		// an empty value of a map is absent: the look-up fails
		q.absent = q.absent || absent && !a.LookUp
	}
	if len(a.OneOf) > 1 {
		q.ways = [][]anchor{anchors}
	}
	return q, len(q.ways) > 0
}

// anchorsOfComparison returns ways to anchor a comparison, and whether it holds of an empty value.
func anchorsOfComparison(c *asked.Comparison) (ways [][]anchor, empty bool) {
	switch c.Op {
	case asked.Present:
		return [][]anchor{{{kind: anchorPresent}}}, false
	case asked.Equals:
		return [][]anchor{anchorsOf(anchorExact, false, c.Values)}, slices.Contains(c.Values, "")
	case asked.MatchesRegexp:
		return regexpAnchors(c.Values[0])
	case asked.Within:
		return anchorsOfRanges(c.Ranges)
	}
	kind := map[asked.Op]anchorKind{asked.HasPrefix: anchorPrefix, asked.HasSuffix: anchorSuffix,
		asked.Contains: anchorInner}[c.Op]
	if c.Values[0] == "" {
		return nil, false
	}
	return [][]anchor{{{kind: kind, text: c.Values[0]}}}, false
}

// anchorsOfRanges returns the way to anchor a comparison with ranges, and whether it holds of an
// empty value.
func anchorsOfRanges(ranges []asked.Range) (ways [][]anchor, empty bool) {
	var way []anchor
	for i := range ranges {
		r := &ranges[i]
		way = append(way, anchor{kind: anchorRange, numbers: r})
		if key, ok := r.Of.Key(""); ok {
			empty = empty || r.Least <= key && key <= r.Most
		}
	}
	return [][]anchor{way}, empty
}
