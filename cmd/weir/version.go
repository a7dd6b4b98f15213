package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the build of a release: -ldflags "-X main.version=v1.2.3".
var version string

// versionInfo is the output of weir version as JSON.
type versionInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return printJSON(cmd.OutOrStdout(), versionInfo{versionText(), runtime.Version(), runtime.GOOS,
					runtime.GOARCH})
			}
			_, err := io.WriteString(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// versionLine is the output of weir version and weir --version.
func versionLine() string {
	return fmt.Sprintf("weir %s (%s %s/%s)\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionText is the version of a release, or the build's information about the source.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if revision != "" && v == "(devel)" {
		v += " " + revision[:min(12, len(revision))] + modified
	}
	return v
}
