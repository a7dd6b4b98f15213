package main

import (
	"bytes"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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
	if err := run([]string{"-a", weir, "-b", weir, "-lives", "2", "-rounds", "1", "-requests", "50"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2+len(dialers)*len(loads) {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, line := range lines[2:] {
		want := `^\| ` + strings.Split(allDoors, ",")[i/len(loads)] + ` +\| ` + loads[i%len(loads)].name +
			` +(\| \d+\.\d\d +){2}(\| \d+\.\d{3} \(\d+\.\d{3} to \d+\.\d{3}\) +){2}\|$`
		if !regexp.MustCompile(want).MatchString(line) {
			t.Errorf("%s is not %s", line, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "name two programs",
		"-a x":                        "name two programs",
		"-a x -b y -profiles z":       "name one program",
		"-profiles z":                 "name one program",
		"-a x -b y -doors http,spoe":  `"spoe" is none of`,
		"-a x -b y -rounds 0":         "at least",
		"-a x -b y -lives 0":          "at least",
		"-a x -b y -requests 1":       "at least",
		"-a x -b y -most 1ns":         "longer than -most",
		"-a /nowhere/a -b /nowhere/b": "no such file",
	} {
		if err := run(strings.Fields(args), io.Discard, io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	lives := []costs{{10, 13, 10}, {20, 22, 18}, {30, 33, 33}, {40, 36, 40}, {50, 60, 50}, {60, 66, 54}, {70, 77, 77},
		{80, 160, 160}, {90, 45, 45}}
	if err := writeTable(&out, []comparison{{door: "http", load: "admitted", lives: lives}}); err != nil {
		t.Fatal(err)
	}
	want := `| door | load | A µs | B µs | A again ÷ A (96 % interval) | B ÷ A (96 % interval) |
| --- | --- | --- | --- | --- | --- |
| http | admitted | 50.00 | 45.00 | 1.000 (0.900 to 1.100) | 1.100 (0.900 to 1.300) |`
	if got := regexp.MustCompile(" +").ReplaceAllString(strings.TrimSpace(out.String()), " "); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestMedian(t *testing.T) {
	for want, list := range map[float64][]float64{7: {7}, 8: {7, 9}, 2: {1, 2, 9}} {
		if got := median(list); got != want {
			t.Errorf("%v: %v", list, got)
		}
	}
}

// TestOutermost compares with the tables of the sign test.
func TestOutermost(t *testing.T) {
	for n, want := range map[int]struct {
		leave int
		sure  string
	}{1: {0, "0.000"}, 2: {0, "0.500"}, 5: {0, "0.938"}, 6: {0, "0.969"}, 8: {0, "0.992"}, 9: {1, "0.961"},
		12: {2, "0.961"}, 25: {7, "0.957"}} {
		leave, sure := outermost(n)
		if got := strconv.FormatFloat(sure, 'f', 3, 64); leave != want.leave || got != want.sure {
			t.Errorf("%d: %d, %s, want %v", n, leave, got, want)
		}
	}
}

// TestTurn wants each order once, and each second one to be the one before it backwards.
func TestTurn(t *testing.T) {
	seen := map[[3]int]bool{}
	for round := range 6 {
		order := turn(round)
		seen[order] = true
		if back := turn(round ^ 1); back != [3]int{order[2], order[1], order[0]} {
			t.Errorf("%v and %v", order, back)
		}
	}
	if len(seen) != 6 {
		t.Errorf("%v", seen)
	}
}
