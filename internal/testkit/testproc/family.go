package testproc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// children returns the processes whose parent is pid, where there is a /proc.
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

// defunct reports whether a process has ended, and nobody has asked how: it holds nothing any more.
func defunct(pid int) bool {
	f := statOf(fmt.Sprintf("/proc/%d/stat", pid))
	return len(f) > 0 && f[0] == "Z"
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

// spentByEnded returns the time that the children of a process have spent on processors, of those
// that have ended.
func spentByEnded(pid int) (spent time.Duration) {
	const childUser, childSystem, tick = 13, 14, 10 * time.Millisecond
	if f := statOf(fmt.Sprintf("/proc/%d/stat", pid)); len(f) > childSystem {
		user, _ := strconv.Atoi(f[childUser])
		system, _ := strconv.Atoi(f[childSystem])
		spent = time.Duration(user+system) * tick
	}
	return spent
}
