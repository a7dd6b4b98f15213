package ruledb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule/file"
)

// TestWriteFolder: a version replaces what was pushed, and spares what was not.
func TestWriteFolder(t *testing.T) {
	dir := t.TempDir()
	write := func(force bool, v *Version) error {
		had, err := rulesource.ReadFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		return v.WriteFolder(dir, "shop", had, force)
	}
	one := &Version{Number: 1, Files: []file.Source{{Name: "a.yaml", Data: []byte("one\n")},
		{Name: "sub/b.yaml", Data: []byte("b\n")}}}
	two := &Version{Number: 2, Files: []file.Source{{Name: "a.yaml", Data: []byte("two\n")}}}
	for _, v := range []*Version{one, two} {
		if err := write(false, v); err != nil {
			t.Fatal(err)
		}
		had, err := rulesource.ReadFolder(dir)
		base, markErr := ReadMarker(dir)
		if err != nil || !rulesource.Equal(had, v.Files) || markErr != nil || base == nil || base.Space != "shop" ||
			base.Version != v.Number {
			t.Fatalf("version %d: %v, %v, %+v, %v", v.Number, had, err, base, markErr)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := write(false, one); err == nil || !strings.Contains(err.Error(), "were not pushed") {
		t.Errorf("changes that were not pushed: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a.yaml")); err != nil || string(got) != "mine\n" {
		t.Errorf("a refused pull left %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, Marker), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := write(false, one); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a damaged marker: %v", err)
	}
	if err := write(true, one); err != nil {
		t.Error(err)
	}
}

func TestDiff(t *testing.T) {
	a := Side{"version 1", []file.Source{{Name: "a.yaml", Data: []byte("one\x1b\n")},
		{Name: "old.yaml", Data: []byte("x\n")}}}
	b := Side{"version 2", []file.Source{{Name: "a.yaml", Data: []byte("two\n")},
		{Name: "new.yaml", Data: []byte("y\n")}}}
	got := Diff(a, b)
	for _, want := range []string{"--- a.yaml (version 1)\n+++ a.yaml (version 2)\n", "\"-one\\x1b\"\n+two\n",
		"--- /dev/null\n+++ new.yaml (version 2)\n", "--- old.yaml (version 1)\n+++ /dev/null\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if same := Diff(a, a); same != "" {
		t.Errorf("of the same files: %s", same)
	}
}
