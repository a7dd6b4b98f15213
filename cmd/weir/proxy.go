package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/server"
)

func newProxyCommand(env []string) *cobra.Command {
	var check bool
	var upstream string
	cmd := &cobra.Command{
		Use:   "proxy --upstream URL --rules DIR",
		Short: "A reverse proxy that limits in front of an API",
		Long: `A reverse proxy that limits in front of an API: serve with only the proxy and the admin door.

It takes the same configuration as serve; the other doors open only where their flag is given.`,
		Example: `  weir proxy --upstream http://127.0.0.1:3000 --rules rules/
  weir proxy --upstream http://127.0.0.1:3000 --rules rules/ --listen-proxy :8000 --identity user=header:X-User-Id`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := cmd.Flags()
			if upstream != "" {
				if flags.Changed("proxy-upstream") {
					return usageError(errors.New("--upstream and --proxy-upstream are the same; give one"))
				}
				if err := flags.Set("proxy-upstream", upstream); err != nil {
					return usageError(err)
				}
			}
			c, err := server.Load(flags, env)
			if err != nil {
				return usageError(err)
			}
			c.OnlyProxy(flags)
			return server.Serve(cmd.Context(), c, check, versionText(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&upstream, "upstream", "", "URL of the API behind the proxy; the same as --proxy-upstream")
	cmd.Flags().BoolVar(&check, "check", false,
		"check the configuration, the rules, and whether the store can be used, and exit")
	server.AddFlags(cmd.Flags())
	return cmd
}
