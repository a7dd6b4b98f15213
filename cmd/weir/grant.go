package main

import (
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/util/human"
)

func newGrantCommand() *cobra.Command {
	k := &keyCommands{path: "/api/v1/grants", what: "grant"}
	cmd := &cobra.Command{
		Use:   "grant",
		Short: "Other numbers for single keys of a running server, for a time: list, set, revoke",
		Long: `Other numbers for single keys of a running server, until an instant: a higher limit for an import, a lower one for a guest who
behaves badly. They hold at once, on all servers that share a Redis, and end by themselves.
A grant replaces the one that the key has.`,
		Example: "  weir grant list\n  weir grant set api user=ada --allow \"[100/min, 5000/hour]\" --for 2h --reason import\n  weir grant revoke api user=ada",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	k.admin.flags(cmd, defaultAdmin)
	list := k.listCommand(func(cmd *cobra.Command, domain, limit string, n int) error {
		var answer struct {
			Total  int
			Grants []weir.Grant
		}
		if err := k.list(cmd, domain, limit, n, &answer); err != nil || k.json {
			return err
		}
		out := cmd.OutOrStdout()
		if len(answer.Grants) == 0 {
			fmt.Fprintln(out, "There are no grants.")
			return nil
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "LIMIT\tKEY\tALLOW\tSINCE\tUNTIL\tREASON")
		for _, g := range answer.Grants {
			reason := g.Reason
			if g.Problem != "" {
				reason = strings.TrimSpace(reason + " (without effect: " + g.Problem + ")")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", words.LimitName(g.Domain, g.Rule), words.Key(g.Key),
				human.PrintableLines(g.Allow), words.Instant(g.Since), words.Instant(g.Until), human.Printable(reason))
		}
		return flushList(w, cmd, len(answer.Grants), answer.Total)
	})
	var c keyChange
	set := &cobra.Command{
		Use: "set LIMIT KEY… --allow ALLOW", Short: "Give a key of a limit other numbers, for a time", Args: limitAndKey,
		Example: "  weir grant set api user=ada --allow \"[100/min, 5000/hour]\" --for 2h --reason import",
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Limit, c.Key = args[0], args[1:]
			answer, err := k.change(cmd, http.MethodPost, &c)
			if err != nil || k.json {
				return err
			}
			g := answer.Grant
			fmt.Fprintf(cmd.OutOrStdout(), "granted: %s %s %s until %s\n%s\n",
				words.LimitName(g.Domain, g.Rule), words.Key(g.Key), human.PrintableLines(g.Allow),
				words.Instant(g.Until), answer.replacedText())
			for _, remark := range answer.withoutEffect() {
				fmt.Fprintln(cmd.ErrOrStderr(), "weir: warning:", remark)
			}
			return nil
		},
	}
	k.setFlags(set, &c)
	set.Flags().StringVar(&c.Allow, "allow", "",
		`the numbers, as a rule file has them: 100/min, "[100/min, 5000/hour]", "{rate: 4/min, burst: 20}", unlimited; or in words, as "100 per minute"`)
	end := k.endCommand("revoke", "End a grant before its time", "revoked")
	end.Aliases = []string{"lift"}
	k.addCommands(cmd, list, set, end)
	return cmd
}

// replacedText says which numbers a grant takes the place of.
func (a *changed) replacedText() string {
	if a.Replaced == nil {
		return "in place of " + human.Printable(a.Before)
	}
	text := fmt.Sprintf("in place of the grant of %s until %s", human.Printable(a.Replaced.Allow),
		words.Instant(a.Replaced.Until))
	if a.Replaced.Reason != "" {
		text += " (" + human.Printable(a.Replaced.Reason) + ")"
	}
	return text + "; without a grant: " + human.Printable(a.Without)
}

// withoutEffect says why a grant changes nothing for now; nothing if it does.
func (a *changed) withoutEffect() (remarks []string) {
	if a.Shadow {
		remarks = append(remarks, "the limit is in shadow for this key: it refuses it nothing, with or without a grant")
	}
	if !a.Ban.Until.IsZero() {
		remarks = append(remarks, fmt.Sprintf(
			"the key is banned until %s by %s, whatever is granted; weir ban lift %s %s ends that", words.Instant(a.Ban.Until),
			human.Printable(a.Ban.Rule), words.LimitName(a.Ban.Domain, a.Ban.Rule), words.Key(a.Ban.Key)))
	}
	return remarks
}
