package main

import (
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

func newCandidatesCommand() *cobra.Command {
	var port adminClient
	var domain string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "candidates [--server URL]",
		Short: "Tell what rules in shadow, or enforced on a share of their keys, would have done",
		Long: `Tells for each rule that is in shadow (on_limit: shadow), or enforced on a share of its keys (enforce: 10%), what it would have
refused since it came into force, on all nodes together. Keys on which it is enforced are reported separately. Numbers of keys, and
the keys themselves, cover the last 24 to 36 hours.`,
		Example: "  weir candidates\n  weir candidates --server http://127.0.0.1:6070 --domain shop",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := port.open(); err != nil {
				return err
			}
			var answer admin.CandidateList
			if err := port.ask(cmd, asJSON, "GET", "/api/v1/candidates?domain="+url.QueryEscape(domain), nil, &answer); err != nil {
				return err
			}
			if n := answer.Nodes; n.Answered < n.Asked {
				fmt.Fprintf(cmd.ErrOrStderr(), "weir: warning: only %d of %d nodes answered\n", n.Answered, n.Asked)
			}
			if asJSON {
				return nil
			}
			return writeCandidates(cmd.OutOrStdout(), answer.Candidates, time.Now())
		},
	}
	port.flags(cmd, defaultAdmin)
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&domain, "domain", "", "only rules of this domain")
	return cmd
}

// writeCandidates prints the candidates as a table, and below it the effect of enforcing them.
func writeCandidates(out io.Writer, list []insight.Candidate, now time.Time) error {
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n", limitText(c.Domain, c.Limit), mode,
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
		fmt.Fprintf(out, "\n%s would have refused most often:\n", limitText(c.Domain, c.Limit))
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
