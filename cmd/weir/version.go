package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// What the build of a release sets: -ldflags "-X main.version=v1.2.3 -X
// main.commit=<hash>[-dirty]".
var version, commit string

// versionInfo is the output of weir version as JSON.
type versionInfo struct {
	Version string `json:"version"`
	// Commit is the whole hash of the commit that was built; empty if the build does not know it.
	Commit string `json:"commit,omitempty"`
	// Dirty is true if files differed from the commit.
	Dirty bool   `json:"dirty"`
	Go    string `json:"go"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go that built it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return printJSON(cmd.OutOrStdout(), aboutThis())
			}
			_, err := io.WriteString(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// versionLine is the output of weir version and weir --version.
func versionLine() string { return aboutThis().line() }

// versionText is the version of a release, or the build's information about the source.
func versionText() string { return aboutThis().Version }

// aboutThis is what this program says of itself.
func aboutThis() versionInfo {
	info, _ := debug.ReadBuildInfo()
	return about(version, commit, info)
}

// about takes the version and the commit that the build set, and else the ones that Go recorded;
// info may be nil.
func about(version, commit string, info *debug.BuildInfo) versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	v.Commit, v.Dirty = strings.CutSuffix(commit, "-dirty")
	if info != nil {
		v.Version = cmp.Or(v.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch {
			case commit != "":
			case s.Key == "vcs.revision":
				v.Commit = s.Value
			case s.Key == "vcs.modified":
				v.Dirty = s.Value == "true"
			}
		}
	}
	v.Version = cmp.Or(v.Version, "(devel)")
	return v
}

// line is one line of text for people.
func (v versionInfo) line() string {
	source := ""
	if v.Commit != "" {
		source = ", commit " + v.Commit[:min(12, len(v.Commit))]
	}
	if v.Dirty {
		source += " with changes"
	}
	return fmt.Sprintf("weir %s (%s %s/%s%s)\n", v.Version, v.Go, v.OS, v.Arch, source)
}
