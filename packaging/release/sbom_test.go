package main

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"debug/buildinfo"
)

// The list of a binary, such as this test's, has Go's version and its modules.
func TestDescribe(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	info.Deps = append(info.Deps, &debug.Module{Path: "example.com/old", Version: "v1.0.0",
		Replace: &debug.Module{Path: "example.com/new", Version: "v2.0.0"}})
	d := describe(info)
	if c := d.Components[0]; c.Name != "std" || !strings.HasPrefix(c.Version, "go1.") {
		t.Errorf("the standard library is %+v", c)
	}
	if c := d.Components[len(d.Components)-1]; c.PURL != "pkg:golang/example.com/new@v2.0.0" {
		t.Errorf("a replaced module is %+v", c)
	}
	if len(d.Components) != len(info.Deps)+1 || d.Metadata.Component.Name != "weir" {
		t.Errorf("%+v", d)
	}
}
