package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/util/human"
)

// rulesStatus is the output of weir rules status as JSON.
type rulesStatus struct {
	Space string          `json:"space"`
	Head  *ruledb.Version `json:"head"` // null for none
	Nodes []ruledb.Node   `json:"nodes"`
}

func newRulesStatusCommand(env []string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which version of the rules is in force, and on which nodes",
		Long: `Shows the version that is to be in force, and what each node says of itself: the version that it has in force, and the one that it
refuses, with the error. Exit status: 0 if all live nodes have it in force, 1 if one does not, 2 if that could not be found out.`,
		Example: "  weir rules status",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, c, err := openRuleDatabase(cmd, env)
			if err != nil {
				return blind(err)
			}
			defer d.Close()
			head, err := headOf(cmd.Context(), d)
			if err != nil {
				return blind(err)
			}
			nodes, err := d.Nodes(cmd.Context())
			if err != nil {
				return blind(err)
			}
			if asJSON {
				s := rulesStatus{Space: c.Database.Space, Nodes: append([]ruledb.Node{}, nodes...)}
				if head.Number > 0 {
					s.Head = head
				}
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(s)
			} else {
				err = writeStatus(cmd.OutOrStdout(), c.Database, head, nodes)
			}
			if err != nil {
				return blind(err)
			}
			if slices.ContainsFunc(nodes, func(n ruledb.Node) bool { return n.Live && n.Version != head.Number }) {
				return &exitError{code: exitFound}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func writeStatus(out io.Writer, a *ruledb.Address, head *ruledb.Version, nodes []ruledb.Node) error {
	if head.Number == 0 {
		fmt.Fprintf(out, "%s holds no rules\n", a)
	} else {
		fmt.Fprintf(out, "%s: version %d, by %s at %s%s\n", a, head.Number, human.Printable(head.Author),
			words.Instant(head.Made), noteText(head.Note))
	}
	if len(nodes) == 0 {
		_, err := fmt.Fprintln(out, "no node follows these rules")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tVERSION\tSTATE\tHEARD")
	var errors []string
	for _, n := range nodes {
		state := "in force"
		switch {
		case !n.Live:
			state = "gone"
		case n.Refused != 0:
			state = fmt.Sprintf("refuses %d", n.Refused)
			errors = append(errors, fmt.Sprintf("%s: %s", human.Printable(n.Name), human.PrintableLines(n.Error)))
		case n.Version != head.Number:
			state = "behind"
		}
		if n.Live && n.Silent {
			state += ", by looking alone"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", human.Visible(n.Name), n.Version, state, words.Instant(n.At))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, e := range errors {
		if _, err := fmt.Fprintln(out, e); err != nil {
			return err
		}
	}
	return nil
}

func writeHistory(out io.Writer, records []ruledb.Record) error {
	if len(records) == 0 {
		_, err := fmt.Fprintln(out, "No rules were pushed yet.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "VERSION\tTIME\tWHO\tLOGIN\tWHAT\tBEFORE\tNOTE")
	for _, r := range records {
		before, note := "-", "-"
		if r.Before > 0 {
			before = fmt.Sprint(r.Before)
		}
		if r.Note != "" {
			note = human.Visible(r.Note)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.After, words.Instant(r.At), human.Visible(r.Who),
			human.Visible(r.Login), human.Visible(r.What), before, note)
	}
	return w.Flush()
}
