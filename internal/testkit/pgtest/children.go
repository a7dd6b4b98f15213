package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// children returns the processes whose parent is pid, where there is a /proc. Each connection has
// one, in a session of its own, so that no signal reaches them all.
func children(pid int) (all []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range found {
		if f := statOf(file); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			if n, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && f[0] != "Z" {
				all = append(all, n)
			}
		}
	}
	return all
}

// statOf returns the fields of a stat behind the name of the program, which may hold blanks: state,
// parent, and so on.
func statOf(file string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil // it has ended
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

// spentOf returns the time that a process has spent on processors, and its children that ended.
func spentOf(pid int) time.Duration {
	spent, err := testproc.CPU(pid)
	if err != nil {
		return 0
	}
	const childUser, childSystem, tick = 13, 14, 10 * time.Millisecond
	if f := statOf(fmt.Sprintf("/proc/%d/stat", pid)); len(f) > childSystem {
		user, _ := strconv.Atoi(f[childUser])
		system, _ := strconv.Atoi(f[childSystem])
		spent += time.Duration(user+system) * tick
	}
	return spent
}
