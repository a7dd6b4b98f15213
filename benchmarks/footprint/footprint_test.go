//go:build linux

package main

import (
	"bytes"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRun measures a small weir once.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds weir")
	}
	weir := filepath.Join(t.TempDir(), "weir")
	if out, err := exec.Command("go", "build", "-o", weir, "github.com/weir-rl/weir/cmd/weir").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := run([]string{"-weir", weir, "-starts", "1", "-keys", "20000", "-snapshot", "1000", "-settle", "0s"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2+4+3+4 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for _, line := range lines[2:] {
		if !regexp.MustCompile(`^\| .+, (ms|MB|B) \| +-?\d+\.\d \|$`).MatchString(line) {
			t.Errorf("unexpected: %s", line)
		}
	}
}

func TestErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                      "name a program",
		"-weir x -keys 1,a":     `"a" is no number`,
		"-weir x -keys 0":       `"0" is no number`,
		"-weir x -starts -1":    "at least",
		"-weir x -lives 0":      "at least",
		"-weir x -snapshot 7":   "at least",
		"-weir /nowhere/a":      "no such file",
		"-weir x -settle nonce": "invalid value",
	} {
		if err := run(strings.Fields(args), io.Discard, io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
