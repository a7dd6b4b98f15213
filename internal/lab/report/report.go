// Package report shows the result of a replay: as text for a terminal (text.go), as JSON, and as a
// self-contained page (html.go, chart.go). Begin with Text (text.go) and Page (html.go); report.go
// has the sentences that both share.
package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/util/human"
)

// percent writes part of whole as a percentage with as many digits as are meaningful. It writes "0
// %" only for zero, and "100 %" only for all.
func percent(part, whole int64) string {
	if whole == 0 || part == 0 {
		return "0 %"
	}
	p := 100 * float64(part) / float64(whole)
	switch {
	case part == whole:
		return "100 %"
	case p < 0.01:
		return "< 0.01 %"
	case p < 1:
		return fmt.Sprintf("%.2f %%", p)
	case p < 99.95:
		return fmt.Sprintf("%.1f %%", p)
	}
	return "> 99.9 %"
}

// span writes a duration with its two largest units.
func span(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}}
	var parts []string
	for _, u := range units {
		if n := d / u.size; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, u.name))
			d -= n * u.size
		} else if len(parts) == 1 {
			break
		}
		if len(parts) == 2 {
			break
		}
	}
	if len(parts) == 0 {
		return "an instant"
	}
	return strings.Join(parts, " ")
}

// bucketName names the width of a bucket: "minute", "2 min", "day".
func bucketName(seconds int64) string {
	switch seconds {
	case 1:
		return "second"
	case 60:
		return "minute"
	case 3600:
		return "hour"
	case 86400:
		return "day"
	}
	return span(time.Duration(seconds) * time.Second)
}

// when writes an instant to the minute.
func when(t time.Time) string { return t.Format("2 Jan 2006 15:04") }

// period writes from and to in UTC.
func period(r *sim.Report) string {
	if r.Requests == 0 {
		return "no requests"
	}
	to := r.To.Format("15:04")
	if r.From.Format(time.DateOnly) != r.To.Format(time.DateOnly) {
		to = when(r.To)
	}
	return fmt.Sprintf("%s to %s UTC", when(r.From), to)
}

// allowance writes how much a limit allows a key.
func allowance(l *sim.Limit) string {
	switch a, _ := algo.ParseAlgorithm(l.Algorithm); {
	case a.HasSlots():
		return human.Number(l.Limit) + " in flight"
	case a.HasBurst():
		return fmt.Sprintf("%s / %s, %s at once", human.Number(l.Rate), l.Period, human.Number(l.Limit))
	}
	return fmt.Sprintf("%s / %s", human.Number(l.Rate), l.Period)
}

// sentences puts the figures into words.
func sentences(r *sim.Report, o *sim.Outcome) []string {
	if r.Requests == 0 {
		return []string{"The log holds no requests."}
	}
	var list []string
	by := ""
	if r.Clients > 0 {
		by = " from " + human.Count(r.Clients, "client")
	}
	within := ""
	if r.To.After(r.From) {
		within = " within " + span(r.To.Sub(r.From))
	}
	head := human.Count(r.Requests, "request") + by + within
	if len(o.Limits) == 0 {
		return append(list, fmt.Sprintf("The log holds %s.", head))
	}
	if o.Denied == 0 {
		list = append(list, fmt.Sprintf("Of %s, these rules would have refused none.", head))
	} else {
		text := fmt.Sprintf("Of %s, these rules would have refused %s (%s)", head, human.Number(o.Denied),
			percent(o.Denied, r.Requests))
		if r.Clients > 0 {
			text += fmt.Sprintf(", of %s (%s of them)", human.Count(o.ClientsDenied, "client"),
				percent(o.ClientsDenied, r.Clients))
		}
		list = append(list, text+".")
	}
	if l := mostRefusing(o); l != nil && len(o.Limits) > 1 {
		list = append(list, fmt.Sprintf("Most were refused by %s: %s, on %s of its %s.", l.Name, human.Number(l.Denied),
			human.Number(l.KeysDenied), human.Count(l.Keys, "key")))
	}
	if len(o.TopDenied) > 0 && o.Denied > 0 {
		if top := o.TopDenied[0]; top.Denied*100 >= o.Denied*20 && o.ClientsDenied > 1 {
			list = append(list, fmt.Sprintf("One client, %s, took %s of all refusals: %s of its %s.", clean(top.Value),
				percent(top.Denied, o.Denied), human.Number(top.Denied), human.Count(top.Requests, "request")))
		}
	}
	if o.Delayed > 0 {
		list = append(list, fmt.Sprintf("%s would have waited for a turn, at most %s.",
			human.Count(o.Delayed, "request"), span(time.Duration(o.MaxDelay*float64(time.Second)))))
	}
	if o.Unlimited > 0 {
		list = append(list, fmt.Sprintf("%s (%s) met no limit at all.", human.Count(o.Unlimited, "request"),
			percent(o.Unlimited, r.Requests)))
	}
	if o.Exempt > 0 {
		list = append(list, fmt.Sprintf("%s came from exempt clients.", human.Count(o.Exempt, "request")))
	}
	return list
}

// compared says in words how two rule sets differ.
func compared(r *sim.Report) string {
	c := r.Compare
	text := fmt.Sprintf("Of %s", human.Count(r.Requests, "request"))
	if r.Clients > 0 {
		text += " from " + human.Count(r.Clients, "client")
	}
	if r.To.After(r.From) {
		text += " within " + span(r.To.Sub(r.From))
	}
	text += fmt.Sprintf(", %s would have refused %s (%s), and %s would have refused %s (%s).", r.Rules,
		human.Number(r.Denied), percent(r.Denied, r.Requests),
		c.Rules, human.Number(c.Denied), percent(c.Denied, r.Requests))
	switch differ := c.OnlyFirst + c.OnlySecond; {
	case r.Requests == 0:
		return "The log holds no requests."
	case differ == 0:
		text += " They agree on every request."
	default:
		text += fmt.Sprintf(" They disagree on %s.", human.Count(differ, "request"))
	}
	return text
}

// each writes the width of a bucket after "in": "2 min", "one hour".
func each(seconds int64) string {
	if name := bucketName(seconds); name[0] < '0' || name[0] > '9' {
		return "one " + name
	}
	return bucketName(seconds)
}

// mostRefusing is the enforcing limit with the most refusals; nil if none refused.
func mostRefusing(o *sim.Outcome) *sim.Limit {
	var most *sim.Limit
	for i := range o.Limits {
		if l := &o.Limits[i]; !l.Shadow && l.Denied > 0 && (most == nil || l.Denied > most.Denied) {
			most = l
		}
	}
	return most
}

// provisos are caveats about the reading of the log.
func provisos(r *sim.Report) []string {
	var list []string
	if r.Skipped > 0 {
		were := " did not parse, and were left out"
		if r.Skipped == 1 {
			were = " did not parse, and was left out"
		}
		list = append(list, fmt.Sprintf("%s%s: %.1f %% of all.", human.Count(r.Skipped, "line"), were, r.SkippedShare))
		for _, f := range r.SkippedLines {
			list = append(list, fmt.Sprintf("%s, line %d: %s: %q", f.Log, f.Line, f.Why, f.Text))
		}
	}
	if len(r.MissingFields) > 0 {
		list = append(list, "No line has what --fields names: "+strings.Join(r.MissingFields, ", ")+".")
	}
	if r.Late > 0 {
		list = append(list, lay(r.Late)+" replayed at the newest time seen.")
	}
	if r.Estimated {
		list = append(list,
			"There were so many different clients, keys or paths that their numbers, and who leads the lists, are estimates.")
	}
	list = append(list, r.Notes...)
	for i := range list {
		list[i] = clean(list[i]) // they quote lines, and errors that quote values
	}
	return list
}

func lay(n int64) string {
	const far = " out of order by more than --reorder allows, and "
	if n == 1 {
		return "1 line lay" + far + "was"
	}
	return human.Number(n) + " lines lay" + far + "were"
}
