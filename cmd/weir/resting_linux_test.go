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
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no peak of memory in\n%s", status)
	}
	peak, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	if peak<<10 >= ballastSize {
		t.Errorf("%d kB, which is more than a ballast that is never touched leaves", peak)
	}
	t.Logf("%d kB", peak)
}
