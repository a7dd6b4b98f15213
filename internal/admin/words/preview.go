package words

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// Preview says in words what other rules would have done.
func Preview(out io.Writer, r *insight.PreviewResult) error {
	if len(r.Problems) > 0 {
		for _, p := range r.Problems {
			at := ""
			if p.File != "" {
				at = human.Visible(p.File) + ": "
			}
			if p.Line > 0 {
				at = fmt.Sprintf("%s:%d:%d: ", human.Visible(p.File), p.Line, p.Column)
			}
			fmt.Fprintf(out, "error: %s%s\n", at, human.PrintableLines(p.Message))
		}
		return nil
	}
	share := func(s *insight.PreviewSide) string {
		if s.PlusMinus > 0 {
			return percentText(s.Share) + " ± " + percentText(s.PlusMinus)
		}
		return percentText(s.Share)
	}
	if r.OnlyThen+r.OnlyNow == 0 {
		fmt.Fprintf(out, "nothing changes for any request: refused are %d of %d, %s\n", r.Now.Refused, r.Requests,
			share(&r.Now))
	} else {
		fmt.Fprintf(out, "refused: %d → %d of %d requests, %s → %s: %d more, %d fewer\n", r.Now.Refused, r.Then.Refused,
			r.Requests, share(&r.Now), share(&r.Then), r.OnlyThen, r.OnlyNow)
		fmt.Fprintf(out, "clients refused: %d → %d: %d more, of which %d behave well, %d fewer\n", r.Now.ClientsRefused,
			r.Then.ClientsRefused, r.Clients.More, r.Clients.GoodMore, r.Clients.Fewer)
	}
	of := "all clients"
	if r.Sampled > 1 {
		of = fmt.Sprintf("1 in %d clients", r.Sampled)
	}
	fmt.Fprintf(out, "over %s, from %s, of %s at %d of %d nodes\n", human.Span(r.To.Sub(r.From)), Instant(r.From), of,
		r.Nodes.Answered, r.Nodes.Asked)
	same, head := 0, "\nRULE\tCHANGE\tREFUSED NOW\tREFUSED THEN\tMET NOW\tMET THEN\n"
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, rule := range r.Rules {
		if rule.Change == "same" && rule.Now == rule.Then && rule.MetNow == rule.MetThen {
			same++
			continue
		}
		mark := ""
		if rule.Estimate {
			mark = " (estimate)"
		}
		fmt.Fprintf(w, "%s%s\t%s\t%d\t%d%s\t%d\t%d\n", head, human.Visible(rule.Domain+"/"+rule.Rule),
			human.Visible(rule.Change), rule.Now, rule.Then, mark, rule.MetNow, rule.MetThen)
		head = ""
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if same > 0 {
		fmt.Fprintf(out, "\nas before: %s\n", human.Count(uint64(same), "rule"))
	}
	if len(r.Clients.Examples) > 0 {
		fmt.Fprintln(out)
	}
	for _, k := range r.Clients.Examples {
		well := ""
		if k.Good {
			well = ", behaves well"
		}
		fmt.Fprintf(out, "%s: %d → %d refusals%s\n", human.Visible(k.Key), k.Now, k.Then, well)
	}
	if r.Tests.Passed+r.Tests.Failed > 0 {
		fmt.Fprintf(out, "\ntests: %d passed, %d failed\n", r.Tests.Passed, r.Tests.Failed)
		for _, f := range r.Tests.Failures {
			fmt.Fprintf(out, "  %s\n", human.PrintableLines(f))
		}
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(out, "\nwarning: %s\n", human.PrintableLines(warning))
	}
	return nil
}

// percentText is a share of 1 for people.
func percentText(share float64) string {
	switch p := 100 * share; {
	case p == 0:
		return "0 %"
	case p < 0.1:
		return fmt.Sprintf("%.3f %%", p)
	case p < 10:
		return fmt.Sprintf("%.2f %%", p)
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}
