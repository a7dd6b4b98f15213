package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/words"
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
			return words.Hottest(cmd.OutOrStdout(), domain, args[0], &found)
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
			return words.Keys(cmd.OutOrStdout(), found.Keys)
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
			fmt.Fprintf(cmd.OutOrStdout(), "reset: %s %s\n", human.Printable(args[0]), words.Key(args[1:]))
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
