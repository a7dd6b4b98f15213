package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/lab/preview"
)

// previewProcess names the command with which a server starts a process that replays requests.
const previewProcess = "preview-process"

func newPreviewProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use:    previewProcess,
		Hidden: true,
		Short:  "Replay requests for a server that previews rules; it starts this itself",
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return preview.Replay(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}
