package rule

import (
	"fmt"
	"slices"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// asks are what the expression of a rule asks of attributes, for the index.
type asks struct {
	list []ask
	all  bool // the expression asks nothing else
}

// ask is an asked.Ask of which something is known that values must hold.
type ask struct {
	attribute string
	lookUp    bool
	presence  bool       // it asks only whether the attribute is there, and never fails
	absent    bool       // it holds where the attribute is absent
	ways      [][]anchor // ways to anchor it; at least one
	text      string     // tells it from others
}

// asksOf returns what an expression asks.
func asksOf(p Predicate) asks {
	a, ok := p.(asker)
	if !ok {
		return asks{}
	}
	list, all := a.Asks()
	out := asks{all: all}
	for i := range list {
		if q, ok := compileAsk(&list[i]); ok {
			out.list = append(out.list, q)
		} else {
			out.all = false
		}
	}
	return out
}

// compileAsk anchors an asked.Ask; it is not ok if nothing is known that values must hold.
func compileAsk(a *asked.Ask) (ask, bool) {
	q := ask{attribute: a.Attribute, lookUp: a.LookUp}
	var anchors []anchor
	for i := range a.OneOf {
		c := &a.OneOf[i]
		ways, absent := anchorsOfComparison(c)
		if len(ways) == 0 {
			return ask{}, false
		}
		text := fmt.Sprintf("%d %q %t %q", c.Op, a.Attribute, a.LookUp, c.Values)
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
	}
	kind := map[asked.Op]anchorKind{asked.HasPrefix: anchorPrefix, asked.HasSuffix: anchorSuffix, asked.Contains: anchorInner}[c.Op]
	if c.Values[0] == "" {
		return nil, false
	}
	return [][]anchor{{{kind: kind, text: c.Values[0]}}}, false
}
