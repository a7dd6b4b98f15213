package lint

import (
	"fmt"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

const (
	// leastLease is how many units a lease has at least that saves anything.
	leastLease = 4
	// leaseUnits is how many units of a key a node needs to be lent at a time so that it asks the
	// store for one request in 20.
	leaseUnits = 20
	// maxBesides bounds how many pairs of rules of a domain are compared by leases.
	maxBesides = 1_000_000
)

// leases warns of leases in a domain that save little or nothing.
func (l *linter) leases(rules []*rule.Rule) {
	var leased, exact []*rule.Rule
	for _, r := range rules {
		switch w := leasedWindows(r); {
		case len(w) > 0 && l.options.NoLeases != "":
			l.warn(UnusedLease, r, r.Pos, "", "consistency: its lease has no effect: %s", l.options.NoLeases)
		case len(w) > 0:
			leased = append(leased, r)
			l.leaseSizes(r, w)
			l.leaseKind(r, w)
		case len(r.Windows) > 0:
			exact = append(exact, r)
		}
	}
	left := maxBesides
	for _, r := range leased {
		if left -= len(exact); left < 0 {
			return
		}
		if k := slices.IndexFunc(exact, func(b *rule.Rule) bool { return beside(b, r, rules) }); k >= 0 {
			l.warn(warnLeaseKind, r, r.Pos, "lease that one too, or neither",
				"consistency: each request that meets it meets %s as well, which is decided exactly, so that the store is asked all the same", exact[k].Name)
		}
	}
}

// leasedWindows returns the windows of r that are leased; overrides' windows only where r has no
// others.
func leasedWindows(r *rule.Rule) []*rule.Window {
	if r.Lent {
		return nil // nobody has asked for it
	}
	all := slices.Clone(r.Windows)
	for i := range r.Overrides {
		if len(r.Windows) == 0 {
			all = append(all, r.Overrides[i].Windows...)
		}
	}
	return slices.DeleteFunc(all, func(w *rule.Window) bool { return w.Limit == nil || w.Limit.Config().Lease == 0 })
}

// lendable is how many units of a limit of r may be out at a time to nodes of a region.
func (l *linter) lendable(r *rule.Rule, c algo.Config) int64 {
	return l.ceiling(r, message.SoftBase(c)) * int64(c.Lease) / 100
}

// share describes the part of a limit of r that is lent.
func (l *linter) share(r *rule.Rule, c algo.Config) string {
	if base := l.ceiling(r, message.SoftBase(c)); base < message.SoftBase(c) {
		return fmt.Sprintf("%d%% of %d, the part that this region has of %s %d,", c.Lease, base, message.SoftWhat(c),
			message.SoftBase(c))
	}
	return fmt.Sprintf("%d%% of %s %d", c.Lease, message.SoftWhat(c), message.SoftBase(c))
}

// leaseSizes warns of leases by their numbers.
func (l *linter) leaseSizes(r *rule.Rule, windows []*rule.Window) {
	nodes := int64(max(1, l.options.Nodes))
	for _, w := range windows {
		for _, p := range w.Parts() {
			c := p.Config()
			base, units := l.ceiling(r, message.SoftBase(c)), l.lendable(r, c)
			share := l.share(r, c)
			switch {
			case base == 0:
			case units < leastLease:
				l.warnOf(warnLeaseNever, w.Name, r, r.Pos, largerLease(leastLease, base, "leave consistency out"),
					"a lease of %s has %s, too few to save anything", share, message.Count(int(units), "unit", "units"))
			case units < leaseUnits*nodes:
				among := ""
				if nodes > 1 {
					among = " for " + message.Count(int(nodes), "node", "nodes")
				}
				l.warnOf(warnLeaseSmall, w.Name, r, r.Pos,
					largerLease(leaseUnits*nodes, base, "it helps keys whose requests come to few of the nodes"),
					"a lease of %s has %d units%s: a node that a key comes to often needs %d to ask the store for one request in 20", share, units, among, leaseUnits)
			}
			if late := lateShare(c, p); late > int64(c.Lease) {
				l.warnOf(warnLeaseLate, w.Name, r, r.Pos,
					"take token_bucket or fixed_window, a longer window, or a larger lease",
					"units of its lease may count for up to %s longer than the window, %d%% of it, so that with the %d%% that may be out up to %d%% of the limit may be missing",
					message.DaysOrMinutes(2*p.Lease().Config().Timeout), late, c.Lease, min(100, late+int64(c.Lease)))
			}
		}
	}
}

// largerLease is the hint for a lease that should have so many units of base; otherwise if no lease
// can.
func largerLease(units, base int64, otherwise string) string {
	percent := (units*100 + base - 1) / base
	if percent > algo.MaxLease {
		return otherwise
	}
	return fmt.Sprintf("from %d%% on it has %d", percent, units)
}

// lateShare is how long after the window a unit of p still counts at most, since it was reported
// late, in percent of the window; 0 where that matters to nobody.
func lateShare(c algo.Config, p *algo.Limit) int64 {
	if !c.Algorithm.Slides() {
		return 0
	}
	return int64(200 * p.Lease().Config().Timeout / c.Window)
}

// leaseKind warns of rules whose requests the store is asked for all the same.
func (l *linter) leaseKind(r *rule.Rule, windows []*rule.Window) {
	if r.CostAfter != "" {
		l.warn(warnLeaseKind, r, r.Pos, "leave consistency out",
			"consistency: a cost that is known afterwards is reserved in the store, so that this rule is decided exactly")
		return
	}
	for _, w := range windows {
		if c := w.Limit.Config(); r.CostExpr == "" && r.Cost > l.lendable(r, c) && l.lendable(r, c) >= leastLease {
			l.warn(warnLeaseKind, r, r.Pos, "",
				"consistency: a request costs %d, and no more than %d units may be out, so that this rule is decided exactly", r.Cost, l.lendable(r, c))
			return
		}
	}
}

// beside reports whether each request that meets r surely meets b as well. rules are the rules of
// the domain.
func beside(b, r *rule.Rule, rules []*rule.Rule) bool {
	if b.Lyft != nil || r.Lyft != nil || b.If != "" || b.File.First || len(b.Schedule) > 0 {
		return false
	}
	if slices.ContainsFunc(rules, func(o *rule.Rule) bool { return slices.Contains(o.Replaces, b.Name) }) {
		return false
	}
	return !slices.ContainsFunc(cases(r.When), func(c []rule.Condition) bool {
		return !implied(b.When, c) || !keyed(b.Per, r.Per, c)
	})
}
