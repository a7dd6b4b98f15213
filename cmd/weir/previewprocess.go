package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/lab/preview"
)

func newPreviewProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use:    preview.Command,
		Hidden: true,
		Short:  "Replay requests for a server that previews rules; it starts this itself",
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return preview.Replay(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}
