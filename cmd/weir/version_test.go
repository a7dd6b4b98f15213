package main

import (
	"runtime/debug"
	"strings"
	"testing"
)

// TestAbout: the version is the one that the build set, else the one that Go recorded, and so is
// the commit; a program that knows neither says so.
func TestAbout(t *testing.T) {
	const hash = "8db6bd05340347b60205bae02b478a799d1ea8a4"
	recorded := &debug.BuildInfo{Main: debug.Module{Version: "v0.1.1-0.20260101000000-ffffffffffff"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: strings.Repeat("f", 40)}, {Key: "vcs.modified", Value: "true"},
		}}
	for _, c := range []struct {
		version, commit string
		info            *debug.BuildInfo
		want            versionInfo
		line            string
	}{
		{"v0.1.0", hash, nil, versionInfo{Version: "v0.1.0", Commit: hash}, ", commit 8db6bd053403)"},
		{"v0.1.0", hash + "-dirty", recorded, versionInfo{Version: "v0.1.0", Commit: hash, Dirty: true},
			", commit 8db6bd053403 with changes)"},
		{"", "", recorded, versionInfo{Version: recorded.Main.Version, Commit: strings.Repeat("f", 40), Dirty: true},
			", commit ffffffffffff with changes)"},
		{"", "", nil, versionInfo{Version: "(devel)"}, ")"},
	} {
		got := about(c.version, c.commit, c.info)
		line := got.line()
		if !strings.HasPrefix(line, "weir "+c.want.Version+" (go1.") || !strings.HasSuffix(line, c.line+"\n") ||
			c.line == ")" && strings.Contains(line, "commit") {
			t.Errorf("%s %s: %q", c.version, c.commit, line)
		}
		if got.Go, got.OS, got.Arch = "", "", ""; got != c.want {
			t.Errorf("%s %s: %+v, want %+v", c.version, c.commit, got, c.want)
		}
	}
}
