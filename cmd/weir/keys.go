package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/util/human"
)

const keysPath = "/api/v1/keys"

func newKeysCommand() *cobra.Command {
	var port adminClient
	var domain string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "What a running server has counted of single keys: list the hottest, show, reset",
		Long: `What a running server has counted of single keys: the hottest of a limit, one key under all windows of a limit, and a fresh
start for one. With Redis these are the counters of all servers that share it.

A key is named by its parts in the order of the rule's per, each as name=value or as the value alone (an address is of ip,
where per leaves a choice); so do weir ban and weir grant, and what one of them lists can be pasted into another.`,
		Example: "  weir keys list login\n  weir keys show login 192.0.2.1\n  weir keys reset login 192.0.2.1",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	port.flags(cmd, defaultAdmin)
	cmd.PersistentFlags().StringVar(&domain, "domain", "",
		"domain of the limit (default: the only one with a limit of this name)")
	get := func(cmd *cobra.Command, q url.Values) (list admin.KeyList, err error) {
		if err := port.open(); err != nil {
			return list, err
		}
		if port.Patience(keysTimeout); domain != "" {
			q.Set("domain", domain)
		}
		var raw json.RawMessage
		if err := port.Do(cmd.Context(), http.MethodGet, keysPath+"?"+q.Encode(), nil, &raw); err != nil {
			return list, err
		}
		if asJSON {
			_, err := cmd.OutOrStdout().Write(raw)
			return list, err
		}
		return list, json.Unmarshal(raw, &list)
	}

	var n int
	var look string
	list := &cobra.Command{
		Use: "list LIMIT", Short: "List the keys that have used most of a limit", Args: oneLimit,
		Example: "  weir keys list login\n  weir keys list api --domain shop -n 100 --look all",
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{"limit": {args[0]}, "top": {strconv.Itoa(n)}}
			if look != "" {
				q.Set("look", look)
			}
			found, err := get(cmd, q)
			if err != nil || asJSON {
				return err
			}
			return writeHottest(cmd.OutOrStdout(), domain, args[0], &found)
		},
	}
	list.Flags().IntVarP(&n, "number", "n", 20, "how many at most")
	list.Flags().StringVar(&look, "look", "",
		"how many keys of the store to look at, or all (default 50000: the next call goes on where this one ended)")
	show := &cobra.Command{
		Use: "show LIMIT KEY…", Short: "Show what is counted of a key, and whether it is refused or banned", Args: limitAndKey,
		Example: "  weir keys show login 192.0.2.1\n  weir keys show api user=ada ip=192.0.2.1 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := get(cmd, url.Values{"limit": {args[0]}, "key": args[1:]})
			if err != nil || asJSON {
				return err
			}
			return writeKeys(cmd.OutOrStdout(), found.Keys)
		},
	}
	for _, c := range []*cobra.Command{list, show} {
		c.Flags().BoolVar(&asJSON, "json", false, "print the server's answer as it is")
	}
	var reason string
	reset := &cobra.Command{
		Use: "reset LIMIT KEY…", Short: "Forget what is counted of a key, under all windows of a limit", Args: limitAndKey,
		Example: "  weir keys reset login 192.0.2.1\n  weir keys reset api:60s user=ada ip=192.0.2.1 --reason \"load test\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := port.open(); err != nil {
				return err
			}
			c := keyChange{Domain: domain, Limit: args[0], Key: args[1:], Reason: reason}
			if err := port.Do(cmd.Context(), http.MethodDelete, keysPath, &c, nil); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "reset: %s %s\n", human.Printable(args[0]), keyText(args[1:]))
			return nil
		},
	}
	reset.Flags().StringVar(&reason, "reason", "", "why, for the server's log")
	cmd.AddCommand(list, show, reset)
	return cmd
}

// keysTimeout is for a look at all keys of a store.
const keysTimeout = 70 * time.Second

// oneLimit checks the arguments of a command for a limit.
func oneLimit(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError(errors.New("expected the name of one limit, as in: weir keys list login"))
	}
	return nil
}

// writeKeys prints a table of keys.
func writeKeys(out io.Writer, keys []admin.KeyInfo) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LIMIT\tKEY\tUSED\tLEFT\tRESET IN\tSTATE")
	for i := range keys {
		k := &keys[i]
		used, left, reset := usedText(k), strconv.FormatInt(k.Remaining, 10), "-"
		if k.Unlimited {
			used, left = "-", "-"
		}
		if k.ResetAfter > 0 {
			reset = span(k.ResetAfter)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", limitText(k.Domain, k.Limit), keyText(k.Parts), used, left, reset,
			keyVerdict(k)+leasedText(k, ", ")+regionsText(k, ", "))
	}
	return w.Flush()
}

// writeHottest prints the hottest keys, how many keys were examined, and how many are banned.
func writeHottest(out io.Writer, domain, limit string, found *admin.KeyList) error {
	if len(found.Keys) == 0 {
		fmt.Fprintf(out, "Nothing is counted of %s.\n", limit)
	} else if err := writeKeys(out, found.Keys); err != nil {
		return err
	}
	if !found.Complete {
		fmt.Fprintf(out, "Looked at about %s", count(found.Looked, "key"))
		if found.Of > 0 {
			fmt.Fprintf(out, " of %d", found.Of)
		}
		fmt.Fprintln(out, "; the next call goes on from here, and --look all looks at all.")
	}
	if found.Banned > 0 {
		if len(found.Rules) == 1 { // else the name that means them all
			domain, limit = "", found.Rules[0]
		}
		named := shellWord(limit)
		if domain != "" {
			named += " --domain " + shellWord(domain)
		}
		fmt.Fprintf(out, "%s banned; weir ban list --limit %s lists them.\n", countIs(found.Banned, "key"), named)
	}
	return nil
}

// usedText says how much of a limit is used, and how much there is with a soft margin.
func usedText(k *admin.KeyInfo) string {
	if k.SoftLimit > 0 {
		return fmt.Sprintf("%d of %d (soft %d)", k.Used, k.Capacity, k.SoftLimit)
	}
	return fmt.Sprintf("%d of %d", k.Used, k.Capacity)
}

// keyVerdict says in words how a request with a key would be decided.
func keyVerdict(k *admin.KeyInfo) string {
	var parts []string
	switch {
	case k.Ban != nil:
		parts = append(parts, describeBan(k.Ban))
	case k.Refused && k.RetryAfter < 0:
		parts = append(parts, "refused")
	case k.Refused:
		parts = append(parts, "refused for "+span(k.RetryAfter))
	case k.Unlimited:
		parts = append(parts, "not limited")
	default:
		parts = append(parts, "passes")
	}
	if k.Shadow {
		parts = append(parts, "in shadow")
	}
	if k.Grant != nil {
		parts = append(parts, fmt.Sprintf("granted %s until %s", k.Grant.Allow, instant(k.Grant.Until)))
	}
	return strings.Join(parts, ", ")
}

// leasedText says how many units of a key servers have been lent, behind a separator; "" if none.
func leasedText(k *admin.KeyInfo, separator string) string {
	l := k.Leased
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%sleased: %d (%s), until %s", separator, l.Units, count(l.Generations, "generation"),
		instant(l.Until))
}

// regionsText says how a key stands in this region and in all, behind a separator; "" for a limit
// of one region.
func regionsText(k *admin.KeyInfo, separator string) string {
	r := k.Regions
	if r == nil {
		return ""
	}
	var parts []string
	if own := r.Own; own != nil {
		parts = append(parts, fmt.Sprintf("%s: %d of %d (ceiling)", r.Region, own.Used, own.Limit))
	}
	if all := r.All; all != nil {
		parts = append(parts, fmt.Sprintf("all regions: %d of %d as heard", all.Used, all.Limit))
	}
	return separator + strings.Join(parts, ", ")
}

// describeBan says by whom and until when a key is banned, and why.
func describeBan(b *admin.ListedBan) string {
	text := fmt.Sprintf("banned until %s by %s", instant(b.Until), b.Rule)
	if b.Reason != "" {
		text += " (" + human.Printable(b.Reason) + ")"
	}
	return text
}

// keyText is a key as a shell takes it: parts that can be pasted behind the name of a limit.
func keyText(parts []string) string {
	words := make([]string, len(parts))
	for i, part := range parts {
		words[i] = shellWord(part)
	}
	return strings.Join(words, " ")
}

// shellWord quotes a text for a shell if needed, and escapes characters that are harmful to a
// terminal.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%"
	switch quoted := strconv.QuoteToGraphic(s); {
	case s != "" && strings.Trim(s, plain) == "":
		return s
	case quoted == `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s)+`"`:
		return human.ShellQuote(s)
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= ' ' && c < 0x7f:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}
