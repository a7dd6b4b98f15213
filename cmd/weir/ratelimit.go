package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/server"
)

// rateLimitName is the name of envoyproxy/ratelimit's program. Under it this one is in its place:
// Envoy Gateway and others start /bin/ratelimit of an image that they are told.
const rateLimitName = "ratelimit"

// newRateLimitCommand is the program under that name: weir serve, with the defaults and variables
// of envoyproxy/ratelimit, which reads no arguments.
func newRateLimitCommand(env []string) *cobra.Command {
	return &cobra.Command{
		Use: rateLimitName, DisableFlagParsing: true, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := server.LoadInPlace(args, env)
			if err != nil {
				return usageError(err)
			}
			return server.Serve(cmd.Context(), c, false, versionText(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}
