//go:build unix

package leasecheck_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/testkit/leasecheck"
)

// findings are what a run came to.
type findings struct {
	Admitted   [bys]int // units, by who admitted them
	Answers    int      // of Redis
	Known      time.Duration
	Violations []string
	// violations by no more than what was refunded then: what was charged for it is admitted anew;
	// and a refund takes the latest units back, not those that were charged in vain, so that these
	// are forgotten too early
	Excused int
	// how full each limit and key certainly was at its fullest, in percent of the limit
	Fill   []int
	Faults int
	Void   bool // the clock was set, so that nothing is known
	// Redis stood still in the middle of a call for as long as a window. It decides by the instant
	// at which the call began, but forgets by the time of day, so that it may have forgotten too
	// early.
	StoodStill bool
}

// recorded is an admission and what is known of it.
type recorded struct {
	leasecheck.Admission
	entry  entry
	worker int // number of the record
}

// check reads all records and looks for violations.
func (c *conductor) check() *findings {
	f := &findings{Faults: len(c.diary)}
	var o offsets
	var all []recorded
	for i, name := range c.records {
		list, err := readRecord(name)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, e := range list {
			if e.By == sample {
				o.add(&e)
				continue
			}
			f.Admitted[e.By] += int(e.Cost)
			if e.By == refund {
				c.refunds = append(c.refunds, e)
				continue
			}
			all = append(all, recorded{entry: e, worker: i})
		}
	}
	f.Answers, f.Known = o.n, time.Duration(o.most-o.least)
	if o.n == 0 || o.least > o.most {
		f.Void = true
		return f
	}
	places := map[place][]recorded{}
	for _, r := range all {
		if r.entry.By == local {
			continue // that is on the node's share, and beside the limit
		}
		r.Lo, r.Hi, r.Cost, r.Ends = r.entry.Now, r.entry.Now, int64(r.entry.Cost), r.entry.Ends
		if r.entry.Now == 0 {
			r.Lo, r.Hi = o.bounds(r.entry.Asked, r.entry.Answered)
		}
		at := place{int(r.entry.Limit), int(r.entry.Key)}
		places[at] = append(places[at], r)
	}
	f.StoodStill = c.stoodStill()
	for at, list := range places {
		fill := 0
		for _, part := range c.parts(at, list, &o) {
			fill = max(fill, c.checkPart(f, at, part, &o))
		}
		f.Fill = append(f.Fill, fill)
	}
	return f
}

// stoodStill reports whether a call took Redis as long as the shortest window.
func (c *conductor) stoodStill() bool {
	if c.server == nil {
		return false
	}
	shortest := c.plan.Limits[0].Config.Window
	for i := range c.plan.Limits {
		shortest = min(shortest, c.plan.Limits[i].Config.Window)
	}
	calls, _ := c.server.Do("SLOWLOG", "GET", "-1").([]any)
	return slices.ContainsFunc(calls, func(call any) bool {
		fields, _ := call.([]any) // number, when, µs, …
		if len(fields) < 3 {
			c.t.Fatalf("SLOWLOG: %v", call)
		}
		took, _ := fields[2].(int64)
		return took >= shortest.Microseconds()
	})
}

// part is what was admitted between two cuts.
type part struct {
	list  []recorded
	extra int64 // what is known of no more, and may be used beyond the limit
}

// parts cuts the admissions at places where counting began anew. At a reset, nobody knows on which
// side of it an admission was whose bounds hold it: it is left out. Redis that forgets does not
// decide meanwhile; nodes that decide then have earlier units. Those count against the limit
// before, and once against the limit after, as far as units may be out.
func (c *conductor) parts(at place, list []recorded, o *offsets) []part {
	config := c.plan.Limits[at.limit].Config
	cuts := c.cuts[at]
	out := make([]part, len(cuts)+1)
	for i := range out {
		if i > 0 && slices.ContainsFunc(cuts[:i], func(c cut) bool { return c.forgot }) && c.plan.Mode.lends() {
			out[i].extra = max(config.N, config.Burst) * int64(config.Lease) / 100
		}
		for _, r := range list {
			in := true
			if i > 0 {
				least, most := o.bounds(cuts[i-1].from, cuts[i-1].to)
				in = r.Lo > most || cuts[i-1].forgot && r.entry.By == leased && r.Lo > least
			}
			if i < len(cuts) {
				least, most := o.bounds(cuts[i].from, cuts[i].to)
				in = in && (r.Hi < least || cuts[i].forgot && r.Hi < most)
			}
			if in {
				out[i].list = append(out[i].list, r)
			}
		}
	}
	return out
}

// checkPart adds the violation in a part, if there is one, and returns how full it was, in percent.
func (c *conductor) checkPart(f *findings, at place, p part, o *offsets) int {
	config := c.plan.Limits[at.limit].config()
	admissions := make([]leasecheck.Admission, len(p.list))
	for i := range p.list {
		admissions[i] = p.list[i].Admission
	}
	v, err := leasecheck.Check(config, p.extra, admissions)
	if err != nil {
		c.t.Fatal(err)
	}
	switch {
	case v == nil:
	case v.Admitted-v.Allowed <= c.refunded(at, v, o):
		f.Excused++
	default:
		f.Violations = append(f.Violations, c.explain(at, p, v, o))
	}
	most := cmp.Or(config.Burst, config.N) * int64(100+config.Soft) / 100
	if v, err = leasecheck.Check(config, -most, admissions); err != nil {
		c.t.Fatal(err)
	}
	if v == nil {
		return 0
	}
	return int((v.Admitted - v.Allowed) * 100 / most)
}

// refunded returns how many units may have been taken back in the span of a violation, and in as
// much time before.
func (c *conductor) refunded(at place, v *leasecheck.Violation, o *offsets) (sum int64) {
	for _, e := range c.refunds {
		lo, hi := o.bounds(e.Asked, e.Answered)
		if int(e.Limit) == at.limit && int(e.Key) == at.key && lo <= v.To && hi >= 2*v.From-v.To {
			sum += int64(e.Cost)
		}
	}
	return sum
}

// explain describes a violation, its admissions, and the events around it.
func (c *conductor) explain(at place, p part, v *leasecheck.Violation, o *offsets) string {
	var b strings.Builder
	config := c.plan.Limits[at.limit].Config
	fmt.Fprintf(&b, "limit %d %+v, key %d, %d more for what was forgotten: %v\n", at.limit, config, at.key, p.extra, v)
	origin := v.From
	type line struct {
		at   int64
		text string
	}
	var lines []line
	for _, i := range v.Of {
		r := p.list[i]
		lines = append(lines,
			line{r.Lo, fmt.Sprintf("+%d record %d: %d by %s, within %d µs", r.Lo-origin, r.worker, r.Cost, r.entry.By,
				r.Hi-r.Lo)})
	}
	for _, e := range c.diary {
		lo, _ := o.bounds(e.at, e.at)
		if lo > v.From-2*(v.To-v.From)-100_000 && lo <= v.To {
			lines = append(lines, line{lo, fmt.Sprintf("%+d %s", lo-origin, e.text)})
		}
	}
	for _, e := range c.refunds {
		lo, hi := o.bounds(e.Asked, e.Answered)
		if int(e.Limit) == at.limit && int(e.Key) == at.key && hi > v.From-2*(v.To-v.From) && lo <= v.To {
			lines = append(lines, line{lo, fmt.Sprintf("%+d to %+d: %d are refunded", lo-origin, hi-origin, e.Cost)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	for i, l := range lines {
		if i == 400 {
			fmt.Fprintf(&b, "  and %d more\n", len(lines)-i)
			break
		}
		fmt.Fprintf(&b, "  %s\n", l.text)
	}
	return b.String()
}

func (f *findings) String() string {
	return fmt.Sprintf(
		"%d violations (%d excused); %d units by Redis, %d with leases, %d on shares, %d refunded; %d faults; clocks within %v by %d answers; full to %d %%",
		len(f.Violations), f.Excused, f.Admitted[exact], f.Admitted[leased], f.Admitted[local], f.Admitted[refund],
		f.Faults, f.Known, f.Answers, f.Fill)
}
