package proofs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// leaseLimits are the limits that lease.pml is checked with, and how many states there are at
// least: far fewer would mean that something can happen no more.
var leaseLimits = map[string]struct {
	defines []string
	states  int
}{
	"fixed_window":   {[]string{"ALGORITHM=FIXED"}, 170_000},
	"sliding_log":    {[]string{"ALGORITHM=LOG"}, 530_000},
	"token_bucket":   {[]string{"ALGORITHM=BUCKET", "N=2", "B=3"}, 600_000},
	"sliding_window": {[]string{"ALGORITHM=SLIDING", "N=2", "W=2"}, 220_000},
}

// leaseMutants break one rule of the protocol each, with some algorithms. The rules of nodes and of
// messages are the same for all of them, so one is enough there. A fixed window bears the first
// mutant and the last one, since leases end with the window.
var leaseMutants = []struct {
	name       string
	algorithms string
}{
	{"CHARGE_AT_GRANT", "LOG BUCKET SLIDING"},
	{"FORGET_AT_END", "FIXED LOG BUCKET SLIDING"},
	{"TELL_TWICE", "LOG"},
	{"USE_AFTER_RETURN", "LOG"},
	{"LATE", "FIXED LOG BUCKET"},
	{"FROM_ARRIVAL", "LOG"},
	{"NO_FENCE", "LOG"},
	{"OUT_IGNORED", "FIXED LOG BUCKET"},
	{"LEND_BEYOND", "LOG"},
	{"TOLD_IS_RETURNED", "FIXED LOG BUCKET"},
	{"HEAR_TWICE", "LOG"},
	{"STAMP_EARLY", "LOG BUCKET SLIDING"},
}

// TestLease lets Spin walk through all states of lease.pml, and then find what is wrong with each
// mutant of it.
func TestLease(t *testing.T) {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed; on Debian: apt-get install gcc libc6-dev spin")
		}
	}
	for name, l := range leaseLimits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := verify(t, "-O2", l.defines...)
			if v.errors > 0 {
				t.Fatalf("it does not hold (README.md says how to see the steps):\n%s", v.output)
			}
			if v.states < l.states {
				t.Errorf("%d states were reached, at least %d are there", v.states, l.states)
			}
			t.Logf("%d states, %s", v.states, v.memory)
		})
	}
	for _, m := range leaseMutants {
		for algorithm := range strings.FieldsSeq(m.algorithms) {
			t.Run(m.name+" "+algorithm, func(t *testing.T) {
				t.Parallel()
				// It ends soon, and compiles five times as fast.
				v := verify(t, "-O0", "ALGORITHM="+algorithm, "MUTANT="+m.name)
				if v.errors == 0 || !strings.Contains(v.output, "assertion violated") {
					t.Errorf("nothing is found in %d states", v.states)
				}
			})
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

// verify makes the verifier of lease.pml with macros defined, and runs it to its end or to the
// first error.
func verify(t *testing.T, optimize string, defines ...string) verdict {
	t.Helper()
	model, err := filepath.Abs("lease.pml")
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
