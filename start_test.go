package weir_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A program that imports the limiter pays at its start only for parts that it uses: tables for
// expressions, templates and error messages are made when the first of them comes. This very test
// program, started to run no test, reports its allocations before main.
func TestStart(t *testing.T) {
	const most = 60 // allocations of one package; each sync.OnceValue is up to three
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	trace := regexp.MustCompile(`^init (\S+) .* (\d+) allocs$`)
	packages := 0
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		m := trace.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		packages++
		ours := strings.HasSuffix(m[1], "/weir/rule") || strings.HasSuffix(m[1], "/weir/algo") ||
			strings.HasSuffix(m[1], "/weir/store/memory")
		if n, _ := strconv.Atoi(m[2]); ours && n > most {
			t.Errorf("%s allocates %d times before main, at most %d are expected: make it when it is first used", m[1],
				n, most)
		}
	}
	if packages == 0 {
		t.Error("no trace of what starts")
	}
}
