package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/util/human"
)

// keyChange is a request to the admin API to change a key.
type keyChange struct {
	Domain string   `json:"domain,omitempty"`
	Limit  string   `json:"limit"`
	Key    []string `json:"key"`
	For    string   `json:"for,omitempty"`
	Until  string   `json:"until,omitempty"`
	Allow  string   `json:"allow,omitempty"`
	Scope  string   `json:"scope,omitempty"`
	Reason string   `json:"reason,omitempty"`
}

// check returns an error if a change that sets something is incomplete.
func (c *keyChange) check(what string) error {
	switch {
	case (c.For == "") == (c.Until == ""):
		return errors.New("expected one of --for and --until, as in --for 15m")
	case what == "grant" && c.Allow == "":
		return errors.New("--allow is missing: the numbers, such as 100/min or \"100 per minute\"")
	}
	return nil
}

// changed is the answer of the admin API.
type changed struct {
	Warning string
	Ban     weir.Ban // also one that refuses a key whatever its new grant says
	Grant   weir.Grant
	// of a grant: the one that it replaces, and the numbers before it and without any
	Replaced        *weir.Grant
	Before, Without string
	Shadow          bool
}

// keyCommands makes the commands that list and change bans or grants of keys.
type keyCommands struct {
	admin adminClient
	path  string // of the admin API
	what  string // "ban" or "grant"
	json  bool
}

func (k *keyCommands) list(cmd *cobra.Command, domain, limit string, n int, answer any) error {
	if err := k.admin.open(); err != nil {
		return err
	}
	q := url.Values{"n": {strconv.Itoa(n)}}
	if domain != "" {
		q.Set("domain", domain)
	}
	if limit != "" {
		q.Set("limit", limit)
	}
	return k.admin.ask(cmd, k.json, http.MethodGet, k.path+"?"+q.Encode(), nil, answer)
}

func (k *keyCommands) listCommand(run func(cmd *cobra.Command, domain, limit string, n int) error) *cobra.Command {
	var domain, limit string
	var n int
	cmd := &cobra.Command{
		Use: "list", Short: "List the " + k.what + "s in force, those that end last first", Args: cobra.NoArgs,
		Example: "  weir " + k.what + " list\n  weir " + k.what + " list --domain shop --limit login -n 20",
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd, domain, limit, n) },
	}
	cmd.Flags().StringVar(&domain, "domain", "", "only bans of this domain")
	cmd.Flags().StringVar(&limit, "limit", "", "only those of this limit")
	cmd.Flags().IntVarP(&n, "number", "n", 1000, "how many at most")
	return cmd
}

// change sends a change, and prints a warning if it is not in force everywhere yet.
func (k *keyCommands) change(cmd *cobra.Command, method string, c *keyChange) (changed, error) {
	var answer changed
	if method == http.MethodPost {
		if err := c.check(k.what); err != nil {
			return answer, usageError(err)
		}
	}
	if err := k.admin.open(); err != nil {
		return answer, err
	}
	err := k.admin.ask(cmd, k.json, method, k.path, c, &answer)
	if answer.Warning != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "weir: warning:", human.PrintableLines(answer.Warning))
	}
	return answer, err
}

func (k *keyCommands) setFlags(cmd *cobra.Command, c *keyChange) {
	cmd.Flags().StringVar(&c.For, "for", "", "how long it is to hold, such as 15m, 2h or 7d")
	cmd.Flags().StringVar(&c.Until, "until", "", "or until when, such as 2026-01-31T12:00:00Z")
	k.someFlags(cmd, c)
}

func (k *keyCommands) someFlags(cmd *cobra.Command, c *keyChange) {
	cmd.Flags().StringVar(&c.Domain, "domain", "",
		"domain of the limit (default: the only one with a limit of this name)")
	cmd.Flags().StringVar(&c.Reason, "reason", "", "why, for the list and the server's log")
}

// endCommand lifts a ban, or revokes a grant.
func (k *keyCommands) endCommand(name, short, done string) *cobra.Command {
	var c keyChange
	cmd := &cobra.Command{
		Use: name + " LIMIT KEY…", Short: short, Args: limitAndKey,
		Example: "  weir " + k.what + " " + name + " login 192.0.2.1\n  weir " + k.what + " " + name + " api user=ada ip=192.0.2.1 --domain shop",
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Limit, c.Key = args[0], args[1:]
			answer, err := k.change(cmd, http.MethodDelete, &c)
			if err != nil || k.json {
				return err
			}
			domain, limit, key := answer.Ban.Domain, answer.Ban.Rule, answer.Ban.Key
			if k.what == "grant" {
				domain, limit, key = answer.Grant.Domain, answer.Grant.Rule, answer.Grant.Key
			}
			then := ""
			if answer.Without != "" {
				then = "; it has " + human.Printable(answer.Without) + " again"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s %s%s\n", done, words.LimitName(domain, limit), words.Key(key), then)
			return nil
		},
	}
	k.someFlags(cmd, &c)
	return cmd
}

// addCommands adds commands, each with --json.
func (k *keyCommands) addCommands(to *cobra.Command, list ...*cobra.Command) {
	for _, cmd := range list {
		jsonFlag(cmd, &k.json)
		to.AddCommand(cmd)
	}
}

// limitAndKey checks the arguments of a command for one key.
func limitAndKey(_ *cobra.Command, args []string) error {
	if len(args) < 2 {
		return usageError(
			errors.New(
				"expected a limit, and the parts of a key of it in the order of its per, as in: login 192.0.2.1, or: api user=ada ip=192.0.2.1"))
	}
	return nil
}

func newBanCommand() *cobra.Command {
	k := &keyCommands{path: "/api/v1/bans", what: "ban"}
	cmd := &cobra.Command{
		Use:   "ban",
		Short: "Keys that a running server refuses outright: list, set, lift",
		Long: `Keys that a running server refuses outright for a time, since a rule with ban was denied too often, or since somebody set it.
What is set or lifted on one server holds on all that share its Redis.`,
		Example: "  weir ban list\n  weir ban set login 192.0.2.1 --for 1h --reason \"password guessing\"\n  weir ban lift login 192.0.2.1",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	k.admin.flags(cmd, defaultAdmin)
	list := k.listCommand(func(cmd *cobra.Command, domain, limit string, n int) error {
		var answer struct {
			Total int
			Bans  []admin.ListedBan
		}
		if err := k.list(cmd, domain, limit, n, &answer); err != nil || k.json {
			return err
		}
		out := cmd.OutOrStdout()
		if len(answer.Bans) == 0 {
			fmt.Fprintln(out, "Nobody is banned.")
			return nil
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "LIMIT\tKEY\tWHERE\tREFUSED\tSINCE\tUNTIL\tREASON")
		for _, b := range answer.Bans {
			where := "limit"
			if b.DomainWide {
				where = "domain"
			}
			if b.NFTables {
				where += ", nftables"
			}
			reason := b.Reason
			if b.Manual {
				reason = strings.TrimSuffix("by hand: "+reason, ": ")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", words.LimitName(b.Domain, b.Rule), words.Key(b.Key), where,
				refusedBy(&b), words.Instant(b.Since), words.Instant(b.Until), human.Printable(reason))
		}
		return flushList(w, cmd, len(answer.Bans), answer.Total)
	})
	var c keyChange
	set := &cobra.Command{
		Use: "set LIMIT KEY…", Short: "Refuse a key of a limit outright, for a time", Args: limitAndKey,
		Example: "  weir ban set login 192.0.2.1 --for 1h --reason \"password guessing\"\n" +
			"  weir ban set login 192.0.2.1 --for 1h --scope domain\n  weir ban set login 192.0.2.0/24 --for 1h",
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Limit, c.Key = args[0], args[1:]
			answer, err := k.change(cmd, http.MethodPost, &c)
			if err != nil || k.json {
				return err
			}
			b := answer.Ban
			where := ""
			if b.DomainWide {
				where = ", everywhere in the domain"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "banned: %s %s until %s%s\n",
				words.LimitName(b.Domain, b.Rule), words.Key(b.Key), words.Instant(b.Until), where)
			return nil
		},
	}
	k.setFlags(set, &c)
	set.Flags().StringVar(&c.Scope, "scope", "",
		"where it holds: rule (where the rule applies) or domain (everywhere in the domain); by default as the rule's own bans")
	k.addCommands(cmd, list, set, k.endCommand("lift",
		"End a ban before its time, and forget the denials that led to it", "lifted"))
	return cmd
}

// refusedBy says how many requests a ban has refused.
func refusedBy(b *admin.ListedBan) string {
	switch {
	case b.Refused == nil: // an older server
		return "-"
	case b.RefusedAtLeast:
		return "at least " + human.Number(*b.Refused)
	}
	return human.Number(*b.Refused)
}

func flushList(w *tabwriter.Writer, cmd *cobra.Command, listed, total int) error {
	if err := w.Flush(); err != nil {
		return err
	}
	if listed < total {
		fmt.Fprintf(cmd.OutOrStdout(), "%d more; --number lists them\n", total-listed)
	}
	return nil
}
