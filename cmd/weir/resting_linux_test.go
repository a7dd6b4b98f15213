package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// A server that nobody has asked for anything takes little memory: what it holds back from the
// garbage collector (see ballast) is memory that was never touched.
func TestRestingMemory(t *testing.T) {
	p := launch(t, buildProgram(t), t.TempDir(), "serve")
	for _, door := range []string{"http", "grpc", "resp", "admin"} {
		p.addr(door)
	}
	_, peak := resident(t, p.cmd.Process.Pid)
	if peak >= ballastSize {
		t.Errorf("%d kB, which is more than a ballast that is never touched leaves", peak>>10)
	}
	t.Logf("%d kB", peak>>10)
}

// resident is the memory of a process, in bytes: what it has now, and the most that it had.
func resident(t *testing.T, pid int) (now, peak int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) int {
		m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(data)
		if m == nil {
			t.Fatalf("no %s in\n%s", name, data)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n << 10
	}
	return read("VmRSS"), read("VmHWM")
}
