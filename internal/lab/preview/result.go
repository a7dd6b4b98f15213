package preview

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/changes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// result fills in the counts of the replay.
func (r *replay) result(res *insight.PreviewResult, p *plan) {
	scale := uint64(1) << p.level
	res.From, res.To = time.UnixMicro(p.count).UTC(), time.UnixMicro(r.to).UTC()
	res.Requests, res.Sampled = r.requests*scale, int(scale)
	res.OnlyNow, res.OnlyThen = r.onlyNow*scale, r.onlyThen*scale
	res.Now, res.Then = insight.PreviewSide{Refused: r.now.total * scale},
		insight.PreviewSide{Refused: r.then.total * scale}
	if r.requests > 0 {
		res.Now.Share, res.Then.Share = float64(r.now.total)/float64(r.requests),
			float64(r.then.total)/float64(r.requests)
	}
	r.sumClients(res, scale)
	if p.level > 0 {
		res.Now.PlusMinus = r.plusMinus(res.Now.Share, func(c *client) uint32 { return c.now })
		res.Then.PlusMinus = r.plusMinus(res.Then.Share, func(c *client) uint32 { return c.then })
	}
	res.Rules = r.rules(scale)
	s := &insight.PreviewSeries{Step: int(r.series.step / 1e6), All: scaled(r.series.all, scale),
		Now: scaled(r.series.now, scale), Then: scaled(r.series.then, scale)}
	for i := range r.series.all {
		s.T = append(s.T, r.series.from/1e6+int64(i)*int64(s.Step))
	}
	res.Series = s
}

func scaled(list []uint64, by uint64) []uint64 {
	for i := range list {
		list[i] *= by
	}
	return list
}

// sumClients compares which clients are refused.
func (r *replay) sumClients(res *insight.PreviewResult, scale uint64) {
	good := r.good()
	c := &res.Clients
	for _, one := range r.clients {
		if one.now > 0 {
			res.Now.ClientsRefused += scale
		}
		if one.then > 0 {
			res.Then.ClientsRefused += scale
		}
		switch {
		case one.now == 0 && one.then > 0:
			c.More += scale
			if good(one) {
				c.GoodMore += scale
			}
		case one.now > 0 && one.then == 0:
			c.Fewer += scale
		default:
			continue
		}
		c.Examples = append(c.Examples,
			insight.PreviewKey{Key: one.key, Now: uint64(one.now), Then: uint64(one.then), Good: good(one)})
	}
	slices.SortFunc(c.Examples, func(a, b insight.PreviewKey) int {
		return cmp.Or(cmp.Compare(b.Now+b.Then, a.Now+a.Then), strings.Compare(a.Key, b.Key))
	})
	c.Examples = c.Examples[:min(len(c.Examples), mostExamples)]
}

// plusMinus returns half the width of the 95 % interval of a share of the requests, where each
// client was drawn with the same chance. It is the interval of a ratio estimate over clusters (W.
// Cochran, Sampling Techniques, 1977, chapter 9).
func (r *replay) plusMinus(share float64, of func(*client) uint32) float64 {
	// Integer sums do not depend on the order of the clients, which differs each time.
	var n, refused, both, all uint64
	for _, c := range r.clients {
		x, y := uint64(of(c)), uint64(c.requests)
		n, refused, both, all = n+y, refused+x*x, both+x*y, all+y*y
	}
	if n == 0 {
		return 0
	}
	sum := max(float64(refused)-2*share*float64(both)+share*share*float64(all), 0)
	left := 1 - 1/float64(r.now.scale)
	return 1.96 * math.Sqrt(left*sum) / float64(n)
}

// rules compares the two sides rule by rule, in the order of the new rules, with removed ones last.
func (r *replay) rules(scale uint64) []insight.PreviewRule {
	type id struct{ domain, name string }
	list := []insight.PreviewRule{}
	at := map[id]int{}
	before := map[id]*rule.Rule{}
	for _, old := range r.now.set.Rules() {
		before[id{old.Domain, old.Name}] = old
	}
	add := func(s *side, x *rule.Rule) *insight.PreviewRule {
		key := id{x.Domain, x.Name}
		i, ok := at[key]
		if !ok {
			i = len(list)
			at[key] = i
			change := "added"
			if old := before[key]; s == r.now {
				change = "removed"
			} else if old != nil {
				if change = "changed"; changes.Same(old, x) {
					change = "same"
				}
			}
			list = append(list, insight.PreviewRule{Domain: x.Domain, Rule: x.Name, Change: change})
		}
		list[i].Estimate = list[i].Estimate || scale > 1 && (cutsAcross(x) || r.users > 0 && !perUser(x))
		return &list[i]
	}
	for _, x := range r.then.set.Rules() {
		one := add(r.then, x)
		one.Then += r.then.denied[x.Index] * scale
		one.MetThen += r.then.met[x.Index] * scale
	}
	for _, x := range r.now.set.Rules() {
		one := add(r.now, x)
		one.Now += r.now.denied[x.Index] * scale
		one.MetNow += r.now.met[x.Index] * scale
	}
	return list
}

// perUser reports whether each key belongs to one client, which is known by its user.
func perUser(r *rule.Rule) bool {
	return slices.ContainsFunc(r.Per, func(key rule.Key) bool { return slices.Contains(key, "user") })
}

// warn warns of anything that the counts do not cover.
func (t *task) warn(res *insight.PreviewResult, r *replay, plan *plan) {
	say := func(format string, args ...any) { res.Warnings = append(res.Warnings, fmt.Sprintf(format, args...)) }
	lint := res.Warnings
	res.Warnings = nil
	if r.stopped {
		say("After 10 s of the processor the preview ended: it holds the first %d of %d requests.", r.done,
			plan.requests)
	}
	span := func(us int64) string { return human.Lasted(time.Duration(us) * time.Microsecond) }
	if n := res.Nodes; n.Answered < n.Asked || n.Remark != "" {
		say(
			"%s. What came to other nodes is missing: of a client that comes to several of them a part of the requests is replayed, against the whole limit, which refuses too few.",
			heard(n))
	}
	if over := t.Over.Microseconds(); over > plan.to-plan.since {
		why := ""
		if plan.began != "" {
			why = fmt.Sprintf(" (that of %s begins last)", plan.began)
		}
		say("The records reach back %s%s, not %s: the last %s are counted.", span(plan.to-plan.since), why, span(over),
			span(plan.to-plan.count))
	}
	if plan.short {
		say(
			"The longest window is %s, and the records hold %s from before the requests that are counted: windows that began earlier count too little at first.",
			span(plan.window), span(plan.count-plan.since))
	}
	if plan.level > 0 {
		say(
			"One client in %d was recorded, whole; counts are multiplied by that. Rules marked as estimates count requests of several clients together.", 1<<plan.level)
	}
	if plan.gaps > 0 {
		say("Within %s in all, requests came faster than they could be recorded. Of these times a part is missing.",
			span(plan.gaps))
	}
	if plan.changes > 0 {
		say("The rules changed %s in this time; the rules in force now are replayed over all of it.",
			times(plan.changes))
	}
	if r.cut > 0 {
		say("Of %d requests a value was longer than %d bytes, or there were too many attributes: they are cut here.",
			r.cut, record.MaxValue)
	}
	t.warnOfRules(say, r)
	if d := difference(r.now.total, r.happened); d > max(2, r.happened/100) {
		say(
			"Of these requests %d were refused in fact, %d of them by bans; replayed, the rules in force refuse %d. What the record does not hold makes the difference: changes of rules, bans and grants by hand, what other nodes counted, times without the store.",
			r.happened<<plan.level, r.banned<<plan.level, r.now.total<<plan.level)
	}
	res.Warnings = append(res.Warnings, lint...)
	if more := len(res.Warnings) - mostWarnings; more > 0 {
		res.Warnings = append(res.Warnings[:mostWarnings], fmt.Sprintf("%d more warnings are left out.", more))
	}
}

// heard says how many nodes answered.
func heard(n insight.Nodes) string {
	text := fmt.Sprintf("%d of %d nodes answered", n.Answered, n.Asked)
	if n.Remark != "" {
		text += " (" + n.Remark + ")"
	}
	return text
}

func difference(a, b uint64) uint64 { return max(a, b) - min(a, b) }

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// warnOfRules warns of anything in the new rules that a record cannot show.
func (t *task) warnOfRules(say func(string, ...any), r *replay) {
	for _, domain := range r.then.set.Domains() {
		recorded, all := r.now.set.Reads(domain)
		recorded = slices.Concat(recorded, t.Always)
		read, _ := r.then.set.Reads(domain)
		var missing []string
		for _, name := range read {
			if !all && name != rule.RemoteAddress && !slices.Contains(recorded, name) &&
				!anyDescriptors(r.then.set, domain, name) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			say("%s was not recorded, since no rule in force reads it: here no request has it.",
				strings.Join(missing[:min(len(missing), 8)], ", "))
		}
	}
	for _, x := range r.then.set.Rules() {
		for _, c := range x.When {
			if httpfield.HiddenAttribute(t.Hide, c.Attribute) && len(c.Patterns) > 0 {
				say("%s matches on %s, whose values are secret and not recorded: here it matches none of them.", x.Name,
					c.Attribute)
			}
		}
		if x.If != "" && x.Exprs != nil && x.Exprs.If != nil {
			names, _ := x.Exprs.If.Reads()
			for _, name := range names {
				if httpfield.HiddenAttribute(t.Hide, name) {
					say("%s reads %s in its if, whose values are secret and not recorded: here it sees a hash of them.",
						x.Name, name)
				}
			}
		}
		for _, w := range x.Windows {
			if w.Limit != nil && w.Limit.HasSlots() {
				say("%s counts requests under way. When they ended is not recorded, so it refuses nothing here.",
					w.Name)
			}
		}
		if x.Elastic != nil {
			say("%s follows the signal %s, which is not recorded: it was replayed at 100 %% of its numbers.", x.Name,
				x.Elastic.Signal)
		}
		if x.CostAfter != "" {
			say("%s learns costs from responses, which are not recorded: it was replayed with its estimates.", x.Name)
		}
	}
	switch names, many := sim.Regional(r.then.set, ""); {
	case many:
		say(
			"%s hold over several regions: what came to this one was replayed, against all of each limit. What others used has no say here, nor have ceilings.", names)
	case names != "":
		say(
			"%s holds over several regions: what came to this one was replayed, against all of the limit. What others used has no say here, nor has its ceiling.", names)
	}
}

// anyDescriptors reports whether a name is a key of descriptors, which are recorded whole.
func anyDescriptors(s *rule.Set, domain, name string) bool {
	for _, r := range s.Rules() {
		if r.Domain == domain && r.Lyft != nil &&
			slices.ContainsFunc(r.Lyft.Path, func(e rule.Entry) bool { return e.Key == name }) {
			return true
		}
	}
	return false
}
