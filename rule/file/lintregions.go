package file

import "github.com/weir-rl/weir/rule"

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
			l.warn(EachRegion, r, r.Pos, "say what they may admit together, as in: consistency: {regions: {over: 0%}}, or sync",
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
			base := softBase(c)
			if base == 0 || base >= least {
				continue
			}
			l.warnOf(warnRegionsSmall, w.Name, r, r.Pos, "sync lets each region admit it by itself",
				"consistency: %s %d is shared out among %d regions: some refuse the second or third request while others have room", softWhat(c), base, l.options.Regions)
			break
		}
	}
}
