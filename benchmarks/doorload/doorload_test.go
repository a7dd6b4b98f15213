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

// TestRun sets a weir beside itself at all doors.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds weir")
	}
	weir := filepath.Join(t.TempDir(), "weir")
	if out, err := exec.Command("go", "build", "-o", weir, "github.com/weir-rl/weir/cmd/weir").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := run([]string{"-a", weir, "-b", weir, "-rounds", "2", "-requests", "50"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2+4*len(loads) {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, line := range lines[2:] {
		want := `^\| ` + []string{"http", "rls", "resp", "proxy"}[i/len(loads)] + ` +\| ` + loads[i%len(loads)].name + ` +\| \d+\.\d\d +\| \d+\.\d\d +\| \d+\.\d{3} +\| \d+\.\d{3} to \d+\.\d{3} +\|$`
		if !regexp.MustCompile(want).MatchString(line) {
			t.Errorf("%s is not %s", line, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "name two programs",
		"-a x":                        "name two programs",
		"-a x -b y -doors http,spoe":  `"spoe" is none of`,
		"-a x -b y -rounds 0":         "at least",
		"-a x -b y -requests 1":       "at least",
		"-a /nowhere/a -b /nowhere/b": "no such file",
	} {
		if err := run(strings.Fields(args), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	err := writeTable(&out, []comparison{{door: "http", load: "admitted", a: []float64{10, 20, 30, 40, 50}, b: []float64{11, 21, 27, 48, 50}}})
	if want := "| http | admitted | 30.00 | 27.00 | 1.050 | 1.000 to 1.100 |"; err != nil || !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
		t.Errorf("%v\n%swant %s", err, out.String(), want)
	}
}
