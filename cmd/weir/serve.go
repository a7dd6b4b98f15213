package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/server"
)

func newServeCommand(env []string) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the doors that the configuration turns on",
		Long: `Runs the doors that the configuration turns on: the HTTP decision API, Envoy's rate limit service over gRPC,
the Redis protocol, the reverse proxy, and the admin API. Servers with the same Redis as their store enforce one limit together.

Without any configuration all of them but the proxy open on loopback, with the rules of ./rules. Until that folder
is there, built-in starter rules are in force.

Each setting is a key of weir.yaml (listen.http), a flag (--listen-http) and an environment variable
(WEIR_LISTEN_HTTP); a flag goes before the variable, and that before the file. An address of port 0 takes a free
port. SIGHUP reloads the rules; SIGTERM and SIGINT let requests under way finish, write the snapshot, and end the program.
The exit status is 78 if the configuration or the rules are wrong, and 1 if a later start may succeed.`,
		Example: `  weir serve
  weir serve --rules rules/
  weir serve --rules rules/ --store redis://127.0.0.1:6379 --listen-http :8080
  weir serve --config /etc/weir/weir.yaml --check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := server.Load(cmd.Flags(), env)
			if err != nil {
				return usageError(err)
			}
			return server.Serve(cmd.Context(), c, check, versionText(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&check, "check", false,
		"check the configuration, the rules, and whether the store can be used, and exit")
	server.AddFlags(cmd.Flags())
	return cmd
}
