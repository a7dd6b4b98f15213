package file

import (
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// regional is what consistency.regions asks for. The zero value is nothing: each region counts for
// itself.
type regional struct {
	at      *yaml.Node // nil if it is not given
	counts  bool       // what other regions used has a say: over is above 0, or sync
	sync    bool
	refused bool // it was reported that an algorithm does not fit
}

// borrows reports whether a region may borrow units that others may admit. With sync each region
// may admit the whole limit, and needs no loan.
func (r *regional) borrows() bool { return r.at != nil && !r.sync }

const (
	regionsExample = "as in: consistency: {regions: {over: 20%}}"
	// mostOver is the largest over, in percent: eleven regions that admit N each.
	mostOver = 1000
	mostTell = 50
	// defaultTell spares reports on keys that are far from their limit, and keeps the unreported
	// use small beside the limit.
	defaultTell = 2
	// regionsLent is the share of a ceiling that other regions may have borrowed at a time, and
	// regionsLentFor the length of a generation: it is long beside the way between regions, and no
	// longer, since a region that has borrowed its share can have more when that has ended.
	regionsLent    = 50
	regionsLentFor = 2 * time.Second
	// leastBorrowed is the shortest window for which regions borrow: the way between regions takes
	// too large a part of a shorter one.
	leastBorrowed = 10 * time.Second
)

// regions reads consistency.regions into r.
func (l *loader) regions(v *yaml.Node, r *rule.Rule, s *settings) {
	s.regions.at = v
	of := rule.Regions{Tell: defaultTell}
	switch {
	case v.Kind == yaml.Scalar && v.Text == "sync":
		of.Sync = true
	case v.Kind == yaml.Mapping && len(v.Pairs) > 0:
		inner, _ := l.keys(v, keyRules{known: []string{"over", "tell"}, elsewhere: map[string]string{
			"sync":   "write over: sync",
			"weight": "weights belong into the configuration of the server, as they are the same for all rules",
			"lease":  "it belongs beside regions, as in: consistency: {lease: 5%, regions: {over: 20%}}",
		}})
		switch over := inner.val("over"); {
		case over != nil && over.Kind == yaml.Scalar && over.Text == "sync":
			of.Sync = true
		case over != nil:
			n, err := parsePercent(over, 0, mostOver)
			if of.Over = n; err != nil {
				l.err(over, "", "consistency.regions.over: expected sync, or %v", err)
			}
		case len(inner) == len(v.Pairs):
			l.err(v,
				"as in: regions: {over: 0%} for N in all, or {over: sync} for N in each region while they do not hear each other",
				"consistency.regions: over is missing, how much more than the limit all regions together may admit")
		}
		if tell := inner.val("tell"); tell != nil {
			of.Tell, _ = l.percent(tell, "consistency.regions.tell", 1, mostTell)
		}
	default:
		got := v.String()
		if v.Kind == yaml.Mapping {
			got = "an empty mapping"
		}
		l.err(v, regionsExample, "consistency.regions: expected sync, or {over: 20%%}, got %s", got)
	}
	s.regions.counts, s.regions.sync = of.Sync || of.Over > 0, of.Sync
	r.Regions = &of
}

// regionsFit reports whether a limit can hold over regions as s says. That its algorithm cannot is
// reported once for a rule.
func (l *loader) regionsFit(s *settings, c *algo.Config, at *yaml.Node) bool {
	a := c.Algorithm
	switch {
	case !s.regions.counts:
		return true
	case c.N > algo.MaxN:
		l.err(at, "write over: 0%, so that each region has its part",
			"consistency.regions: regions tell each other of at most %d requests, not %d", algo.MaxN, c.N)
		return false
	case a.Settles():
		return true
	}
	if !s.regions.refused {
		why := "turns that were handed out elsewhere are in nobody's way here"
		if a.HasSlots() {
			why = "a slot that is held elsewhere is given back there"
		}
		l.err(s.regions.at, "write over: 0%, so that each region has its part",
			"consistency.regions: %s only knows over: 0%%: %s", a, why)
	}
	s.regions.refused = true
	return false
}
