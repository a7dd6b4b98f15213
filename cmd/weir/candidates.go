package main

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/words"
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
			return words.Candidates(cmd.OutOrStdout(), answer.Candidates, time.Now())
		},
	}
	port.flags(cmd, defaultAdmin)
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&domain, "domain", "", "only rules of this domain")
	return cmd
}
