package servertest

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// ProcStatus is a figure of /proc/PID/status, in bytes.
func ProcStatus(t *testing.T, pid int, name string) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
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
