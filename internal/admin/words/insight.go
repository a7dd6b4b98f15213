package words

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// Verdicts prints a table of rules, those that need a look first, with sentences. Unless all
// are asked for, a last line counts the rules for which it is too early.
func Verdicts(out io.Writer, rules []insight.RuleReport, all bool, now time.Time) error {
	if len(rules) == 0 {
		_, err := fmt.Fprintln(out, "No rule is in force.")
		return err
	}
	rank := func(r *insight.RuleReport) int {
		if len(r.Verdicts) == 0 {
			return len(insight.Verdicts)
		}
		return slices.Index(insight.Verdicts, r.Verdicts[0].Verdict)
	}
	rules = slices.Clone(rules)
	early := len(rules)
	if !all {
		rules = slices.DeleteFunc(rules, isEarly)
	}
	early -= len(rules)
	slices.SortStableFunc(rules, func(a, b insight.RuleReport) int { return rank(&a) - rank(&b) })
	// The sentences stand below their rows, which a tabwriter would take for the end of its
	// columns.
	var table strings.Builder
	var below [][]string // of each row
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tVERDICT\tCONFIDENCE\tSINCE\tREQUESTS\tREFUSED")
	for i := range rules {
		r := &rules[i]
		name := human.Visible(r.Domain + "/" + r.Name)
		refused := fmt.Sprint(r.Refused)
		if r.Mode == "shadow" {
			refused = fmt.Sprintf("(%d)", r.WouldRefuse)
		}
		if len(r.Verdicts) == 0 {
			fmt.Fprintf(w, "%s\t-\t-\t-\t%d\t%s\n", name, r.Met, refused)
			why := "it limits nothing"
			if len(r.Limits) > 0 {
				why = "it is not judged yet"
			}
			below = append(below, []string{why})
		}
		for j := range r.Verdicts {
			v := &r.Verdicts[j]
			since := "-"
			if !v.Since.IsZero() {
				since = human.Span(now.Sub(v.Since))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", name, human.Verdict(v.Verdict), human.Visible(v.Confidence),
				since, r.Met, refused)
			why := []string{human.Visible(v.Sentence)}
			if v.Proposal != nil && v.Proposal.Sentence != "" {
				why = append(why, "→ "+human.Visible(v.Proposal.Sentence))
			}
			below = append(below, why)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(rules) == 0 { // the heading alone
		table.Reset()
	}
	row := -1 // the heading
	for line := range strings.Lines(table.String()) {
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
		if row >= 0 {
			for _, text := range below[row] {
				if _, err := fmt.Fprintf(out, "    %s\n", text); err != nil {
					return err
				}
			}
		}
		row++
	}
	if early > 0 {
		_, err := fmt.Fprintf(out, "%s: %s; --all says how long\n", human.Verdict(insight.TooEarly),
			human.Plural(early, "rule"))
		return err
	}
	return nil
}

// isEarly reports whether nothing can be said of a rule yet.
func isEarly(r insight.RuleReport) bool {
	return len(r.Verdicts) > 0 && r.Verdicts[0].Verdict == insight.TooEarly
}

// Candidates prints the candidates as a table, and below it the effect of enforcing them.
func Candidates(out io.Writer, list []insight.Candidate, now time.Time) error {
	if len(list) == 0 {
		fmt.Fprintln(out, "No rule in force is in shadow, or enforced on a share of its keys only.")
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table,
		"LIMIT\tMODE\tFOR\tREQUESTS\tWOULD REFUSE\tBOTH REFUSE\tWOULD ADMIT\tIF ENFORCED\tWHERE ENFORCED")
	for i := range list {
		c := &list[i]
		mode, enforced := "shadow", "-"
		if c.Enforce > 0 {
			mode = fmt.Sprintf("enforce %d %%", c.Enforce)
			enforced = fmt.Sprintf("%d of %d refused, %s", c.EnforcedRefused, c.EnforcedRefused+c.EnforcedAdmitted,
				about(c.EnforcedKeysRefused))
		}
		requests := c.WouldRefuse + c.WouldAdmit + c.BothRefuse + c.BothAdmit
		estimate := "nothing seen yet"
		if requests > 0 {
			estimate = fmt.Sprintf("%.2f %% of requests, %s refused", 100*c.Share, about(c.KeysRefused))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n", LimitName(c.Domain, c.Limit), mode,
			age(now.Sub(c.Since)),
			requests, c.WouldRefuse, c.BothRefuse, c.WouldAdmit, estimate, enforced)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		if len(c.Top) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s would have refused most often:\n", LimitName(c.Domain, c.Limit))
		for _, t := range c.Top {
			key, over := t.Key, ""
			if key == "" {
				key = "all together"
			}
			if t.Over > 0 {
				over = fmt.Sprintf(" (%d at least)", t.Count-t.Over)
			}
			fmt.Fprintf(out, "  %8d  %s%s\n", t.Count, human.Printable(key), over)
		}
	}
	return nil
}

// age is a duration for people: to the second below an hour, else to the minute.
func age(d time.Duration) string {
	if d < time.Hour {
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// about is a number of keys, which is an estimate.
func about(keys uint64) string {
	switch {
	case keys == 1:
		return "1 key"
	case keys < 100:
		return fmt.Sprintf("%d keys", keys)
	}
	return fmt.Sprintf("about %d keys", keys)
}
