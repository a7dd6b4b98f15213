package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// run tests a module of some files with the real go test, and returns what that says.
func run(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.test/m\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	out, _ := cmd.CombinedOutput() // what fails here is what the report tells
	return string(out)
}

// told returns the report of a go test run, and whether all is well. More is what is said
// after it.
func told(out string, strict bool, may []*regexp.Regexp, more ...string) (string, bool) {
	var b strings.Builder
	r := newReport(&b)
	for line := range strings.Lines(out + strings.Join(more, "")) {
		r.line(line)
	}
	r.running()
	ok := r.end(strict, may)
	return b.String(), ok
}

const header = "package a\n\nimport \"testing\"\n\n"

// TestReport: each way in which tests end is reported, and only passed tests are left out.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		ok    bool
		want  []string // regular expressions
		quick bool
	}{
		{"passes", map[string]string{"a/a_test.go": header + "func TestA(t *testing.T) { t.Log(\"chatter\") }\n"}, true,
			[]string{`(?m)^ok   example.test/m/a +\S+s +1 tests$`}, false},
		{"fails", map[string]string{"a/a_test.go": header + "func TestA(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Error(\"red\") }) }\nfunc TestB(t *testing.T) {}\n"}, false,
			[]string{`(?m)^FAIL example.test/m/a TestA/x\n +a_test.go:\d+: red$`,
				`(?m)^FAIL example.test/m/a TestA/x\n +a_test.go:5: red\nFAIL example.test/m/a TestA\n\z`}, true},
		{"does not compile", map[string]string{"a/a_test.go": header + "func TestA(t *testing.T) { nonsense() }\n"}, false,
			[]string{`FAIL example.test/m/a\n +# example.test/m/a .*\n +a/a_test.go:5:\d+: undefined: nonsense\n.*\n\z`}, true},
		{"panics", map[string]string{"a/a_test.go": header + "func TestA(t *testing.T) { panic(\"oh\") }\nfunc TestB(t *testing.T) {}\n"}, false,
			[]string{`panic: oh`, `FAIL example.test/m/a TestA\n`}, false},
		{"ends the process", map[string]string{"a/a_test.go": "package a\n\nimport (\n\"os\"\n\"testing\"\n)\n\nfunc TestA(t *testing.T) { os.Exit(3) }\n"}, false,
			[]string{`FAIL example.test/m/a`}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !c.quick {
				effort.Long(t, "compiles a module")
			}
			got, ok := told(run(t, c.files), true, nil)
			if ok != c.ok {
				t.Errorf("well: %v\n%s", ok, got)
			}
			for _, want := range c.want {
				if !regexp.MustCompile(want).MatchString(got) {
					t.Errorf("no %s in\n%s", want, got)
				}
			}
			for _, noise := range []string{"chatter", "=== RUN", "--- PASS", "TestB"} {
				if strings.Contains(got, noise) {
					t.Errorf("%s is in\n%s", noise, got)
				}
			}
		})
	}
}

// TestSkipped: what was skipped is told with its reason, and is a failure where it may not be.
func TestSkipped(t *testing.T) {
	out := run(t, map[string]string{"a/a_test.go": header + "func TestA(t *testing.T) { t.Skip(\"no server\") }\n"})
	line := regexp.MustCompile(`(?m)^SKIP example.test/m/a TestA: a_test.go:\d+: no server$`)
	for _, c := range []struct {
		strict bool
		may    string
		ok     bool
	}{{false, "^$", true}, {true, "^$", false}, {true, "no server", true}, {true, "TestA:", true},
		{true, "TestB:", false}} {
		got, ok := told(out, c.strict, []*regexp.Regexp{regexp.MustCompile(c.may)})
		if ok != c.ok || !line.MatchString(got) {
			t.Errorf("%+v: %v\n%s", c, ok, got)
		}
	}
}

// TestEnd: the end has at most 40 lines. It names every failed test for which there is room, and
// tells what each has written, or of a crash how it begins; a failure that is not a test's stands
// there, too.
func TestEnd(t *testing.T) {
	many := header
	for i := range 60 {
		many += fmt.Sprintf("func TestA%02d(t *testing.T) { t.Error(\"red %02[1]d\") }\n", i)
	}
	long := header + `func TestA(t *testing.T) {
	for i := range 100 {
		t.Log("chatter", i)
	}
	t.Error("red")
}
func TestB(t *testing.T) { t.Skip("no server") }
func TestC(t *testing.T) { panic("oh") }
`
	for _, c := range []struct {
		name, text, more string
		want             []string // regular expressions
	}{
		{"many", many, "", []string{`(?m)^FAIL example.test/m/a TestA00\n`, `TestA38\nFAIL ... and 21 more, told above\n\z`}},
		{"long", long, "FAIL GOOS=windows go vet ./...\n", []string{
			`(?m)^SKIP example.test/m/a TestB: .*no server\n`, `(?m)FAIL example.test/m/a TestA\n( +a_test.go:7: chatter \d+\n)+ +a_test.go:9: red\n`,
			`FAIL example.test/m/a TestC\n +panic: oh`, `FAIL GOOS=windows go vet ./...\n\z`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, ok := told(run(t, map[string]string{"a/a_test.go": c.text}), false, nil, c.more)
			_, end, found := strings.Cut(got, "\n...  compiling\n")
			if n := strings.Count(end, "\n"); ok || !found || n > ending || n < ending-1 {
				t.Errorf("well: %v; the end has %d lines:\n%s", ok, n, got)
			}
			for _, want := range c.want {
				if !regexp.MustCompile(want).MatchString(end) {
					t.Errorf("no %s in\n%s", want, end)
				}
			}
		})
	}
}

// TestNothing: where no package was tested nothing is well.
func TestNothing(t *testing.T) {
	var b strings.Builder
	r := newReport(&b)
	r.line("go: no packages to test\n")
	if r.end(false, nil) || !strings.Contains(b.String(), "go: no packages to test\nFAIL nothing") {
		t.Error(b.String())
	}
}

// TestDied: a program of tests that dies is told with its goroutines, also where these stand under
// the name of a test that has ended, and the tests that it has cut off are named. A test that waits
// for others, or for its subtests, is not among those that run.
func TestDied(t *testing.T) {
	var b strings.Builder
	r := newReport(&b)
	events := func(lines ...string) {
		for _, line := range lines {
			action, test, _ := strings.Cut(line, " ")
			test, output, _ := strings.Cut(test, ": ")
			r.line(fmt.Sprintf("{\"Action\":%q,\"Package\":\"p\",\"Test\":%q,\"Output\":%q}\n", action, test, output))
		}
	}
	want := func(wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in\n%s", want, b.String())
			}
		}
		b.Reset()
	}
	events("start", "run TestA", "pause TestA", "run TestB", "run TestB/x", "run TestB/x/y", "run TestB/z")
	r.running()
	want("...  p TestB/x/y\n")
	events("pass TestB/x/y", "pass TestB/x", "fail TestB/z", "fail TestB", "run TestC", "pass TestC", "cont TestA")
	r.running()
	want("...  p TestA\n")
	events("output TestC: panic: oh\n", "output TestC: goroutine 7 [running]:\n", "output TestA: half\n", "fail")
	want(
		"FAIL p                                      0s\n     panic: oh\n     goroutine 7 [running]:\nFAIL p TestA (cut off)\n     half\n")
	// The same package again has nothing of its first turn.
	events("start", "run TestC", "pass TestC", "fail")
	if r.end(false, nil) {
		t.Error("all is well")
	}
	want(
		"FAIL p TestB/z\nFAIL p TestB\nFAIL p\n     panic: oh\n     goroutine 7 [running]:\nFAIL p TestA (cut off)\n     half\nFAIL p\n")
}
