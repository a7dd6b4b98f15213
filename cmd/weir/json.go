package main

import (
	"encoding/json"

	"github.com/spf13/cobra"
)

// jsonFlag adds --json to a command that prints JSON by printJSON, or the server's answer as it is.
func jsonFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "json", false, "print JSON")
}

// printJSON prints a value as the admin API writes its answers.
func printJSON(cmd *cobra.Command, v any) error {
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
