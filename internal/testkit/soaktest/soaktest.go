//go:build linux

// Package soaktest has the common parts of several packages' soak tests. They run by scripts of
// their own, on a machine with nothing else to do.
package soaktest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ManyRules is a rule file with 1,000 rules in the domain shop, each for a path of its own: /p0 to
// /p999, 5 a minute and address.
func ManyRules() string {
	var text strings.Builder
	text.WriteString("domain: shop\nlimits:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "  - { name: rule-%03d, when: { path: /p%d }, per: [ip], allow: 5/min }\n", i, i)
	}
	return text.String()
}

// Busy is how long the threads of a process have been on a processor, of those that live still.
func Busy(t testing.TB, pid int) (sum time.Duration) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads of process %d: %v", pid, err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		ns, _, _ := strings.Cut(string(data), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			t.Fatalf("%s: %q", task, data)
		}
		sum += time.Duration(n)
	}
	return sum
}
