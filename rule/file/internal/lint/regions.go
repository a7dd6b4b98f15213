package lint

import (
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// leastCeilings is how many units of a limit there should be for each region: with fewer, rounding
// takes a large part of a ceiling, and hearing of others comes too late.
const leastCeilings = 4

// regions warns of rules of a domain that do not fit the regions that are configured.
func (l *linter) regions(rules []*rule.Rule) {
	regions := l.options.Regions
	for _, r := range rules {
		all := r.Windows
		for i := range r.Overrides {
			if len(r.Windows) == 0 {
				all = append(all[:len(all):len(all)], r.Overrides[i].Windows...)
			}
		}
		switch {
		case len(all) == 0:
		case r.Regions == nil && regions > 1:
			l.warn(EachRegion, r, r.Pos,
				"say what they may admit together, as in: consistency: {regions: {over: 0%}}, or sync",
				"each of the %d regions counts for itself, so that together they admit %[1]d times the limit", regions)
		case r.Regions == nil:
		case l.options.NoRegions != "":
			l.warn(UnusedRegions, r, r.Pos, "", "consistency: its regions have no effect: %s", l.options.NoRegions)
		case regions > 1 && !r.Regions.Sync && r.Regions.Over < 100:
			l.regionsSmall(r, all)
		}
	}
}

// regionsSmall warns of a limit that is small beside the number of regions that share it.
func (l *linter) regionsSmall(r *rule.Rule, windows []*rule.Window) {
	least := leastCeilings * int64(l.options.Regions)
	for _, w := range windows {
		for _, p := range w.Parts() {
			c := p.Config()
			base := message.SoftBase(c)
			if base == 0 || base >= least {
				continue
			}
			what := "some refuse the second or third request while others have room"
			if base*int64(100+r.Regions.Over)/100 < int64(l.options.Regions) {
				what = "there is not a unit for each, and one without admits nothing"
			}
			l.warnOf(warnRegionsSmall, w.Name, r, r.Pos, "sync lets each region admit it by itself",
				"consistency: %s %d is shared out among %d regions: %s", message.SoftWhat(c), base, l.options.Regions, what)
			break
		}
	}
}

// ceiling is how many units a node may be lent of the base units that a limit of r admits at once:
// as many as its region may use.
func (l *linter) ceiling(r *rule.Rule, base int64) int64 {
	if r.Regions == nil || r.Regions.Sync || l.options.Regions < 2 {
		return base
	}
	weight, weights := int64(l.options.Weight), int64(l.options.Weights)
	if weights == 0 {
		weight, weights = 1, int64(l.options.Regions)
	}
	return min(base, base*int64(100+r.Regions.Over)/100*weight/weights)
}
