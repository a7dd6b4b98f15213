package testproc

import (
	"os"
	"slices"
	"strings"
)

// Environ is the environment for a process that a test starts: this process's environment without
// the variables that configure Weir, Redis' and PostgreSQL's clients, or this test run.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return slices.ContainsFunc([]string{"WEIR_", "REDIS", "PG"}, func(prefix string) bool { return strings.HasPrefix(variable, prefix) })
	})
}
