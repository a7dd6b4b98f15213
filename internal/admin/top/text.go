package top

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// text formats a state as tables, with all numbers as the API has them.
func text(s *State) string {
	var b strings.Builder
	o := s.Overview
	fmt.Fprintf(&b, "time %s\n", o.To.UTC().Format(time.RFC3339))
	fmt.Fprintf(&b, "nodes %d of %d\n", o.Nodes.Answered, o.Nodes.Asked)
	fmt.Fprintf(&b, "requests %d, refused %d, banned %d, %s\n", o.Requests, o.Refused, o.Banned, over(s.Over))
	fmt.Fprintf(&b, "clients %d, refused %d, since %s; near a limit %d\n", o.Clients, o.ClientsRefused,
		o.SampledFrom.UTC().Format(time.RFC3339), o.Near)
	fmt.Fprintf(&b, "per second %s, p99 %s\n", decimal(o.PerSecond), short(o.P99))
	if u := o.UnknownDomain; u != nil {
		b.WriteString(u.Sentence() + "\n")
	}
	for i := range s.Outages {
		x := &s.Outages[i]
		if x.To != nil && o.To.Sub(*x.To) > s.Over {
			continue
		}
		times := "since " + x.From.UTC().Format(time.RFC3339)
		if x.To != nil {
			times = "from " + times[len("since "):] + " until " + x.To.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "%s %s: %s\n", human.Visible(x.Title), times, human.Visible(x.Summary))
	}
	for i := range o.NeedsALook {
		v := &o.NeedsALook[i]
		fmt.Fprintf(&b, "needs a look: %s/%s %s: %s\n", human.Visible(v.Domain), human.Visible(v.Rule),
			verdictNamed(v.Verdict).words, human.Visible(v.Sentence))
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w,
		"RULE\tLIMIT\tVERDICT\tREQUESTS\tREFUSED\tBANNED\tWOULD REFUSE\tPER SECOND\tCLIENTS\tGOOD REFUSED\tPEAK")
	for _, r := range s.rules() {
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%d\t%d\t%s\n", human.Visible(r.Domain),
			human.Visible(r.Name), limitText(r), verdictOf(r).words,
			r.Met, r.Refused, r.Banned, r.WouldRefuse, decimal(r.PerSecond), r.Keys, r.Good.Keys, percent(r.MaxFill))
	}
	_ = w.Flush() // a Builder takes it all
	b.WriteString("\n")
	w = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEYS REFUSED, 1 MIN\tLIMIT\tREFUSED\tAT LEAST\tSTATE")
	for _, k := range s.keys() {
		key := human.Visible(k.Key)
		if key == "" {
			key = "all together"
		}
		least := "about" // only some decisions were looked at: it may be more, too
		if !k.Estimated {
			least = strconv.FormatUint(k.Count-min(k.Over, k.Count), 10)
		}
		fmt.Fprintf(w, "%s\t%s/%s\t%d\t%s\t%s\n", key, human.Visible(k.Domain), human.Visible(k.Limit), k.Count, least,
			s.keyState(k))
	}
	_ = w.Flush()
	b.WriteString("\n")
	w = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DECISION\tTIME\tOUTCOME\tREQUEST\tKEY\tLIMIT\tAGAIN IN")
	for _, d := range s.decisions() {
		l := mainLimit(d)
		name, _ := outcome(d)
		again := ""
		if !d.Allowed {
			again = waitText(d.RetryAfter)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(d.ID.String(), "-"),
			d.Time.UTC().Format("2006-01-02T15:04:05.000Z"), name, requestText(d), human.Visible(l.Key),
			human.Visible(l.Name), again)
	}
	_ = w.Flush()
	return b.String()
}

// decimal formats a number with as few digits as it has.
func decimal(n float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") }
