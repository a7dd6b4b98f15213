package proofs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// needSpin skips a test where the checker is not installed.
func needSpin(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed; on Debian: apt-get install gcc libc6-dev spin")
		}
	}
}

// verdict is what the verifier of a model says.
type verdict struct {
	errors, states int
	memory         string
	output         string
}

var (
	errorsFound  = regexp.MustCompile(`, errors: (\d+)\n`)
	statesStored = regexp.MustCompile(`(?m)^ *(\d+) states, stored`)
	memoryUsed   = regexp.MustCompile(`(?m)^ *(\S+)\ttotal actual memory usage`)
)

// verify makes the verifier of a model with macros defined, and runs it to its end or to the first
// error.
func verify(t *testing.T, name, optimize string, defines ...string) verdict {
	t.Helper()
	model, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	args := make([]string, 0, len(defines)+2)
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	run("spin", append(args, "-a", model)...)
	// -w: what Spin writes is its own affair. SAFETY: there are claims about states alone.
	// NOREDUCE: each order of the steps is walked through. MEMLIM is in megabytes.
	run("gcc", "-w", optimize, "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=2048", "-o", "pan", "pan.c")
	v := verdict{output: run(filepath.Join(dir, "pan"), "-m2000000", "-w20")}
	for _, bound := range []string{"max search depth too small", "memory limit"} {
		if strings.Contains(v.output, bound) {
			t.Fatalf("not all states were walked through:\n%s", v.output)
		}
	}
	number := func(re *regexp.Regexp) int {
		found := re.FindStringSubmatch(v.output)
		if found == nil {
			t.Fatalf("there is no %v in what the verifier says:\n%s", re, v.output)
		}
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	v.errors, v.states = number(errorsFound), number(statesStored)
	if found := memoryUsed.FindStringSubmatch(v.output); found != nil {
		v.memory = found[1] + " MB"
	}
	return v
}
