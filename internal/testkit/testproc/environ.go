package testproc

import (
	"os"
	"slices"
	"strings"
)

// Environ is the environment for a process that a test starts: this process's environment without
// the variables that configure Weir, Redis' and PostgreSQL's clients, or this test run.
func Environ() []string { return without("WEIR_", "REDIS", "PG") }

// JavaEnviron is the environment for Java, Maven and programs that run on Java: it lacks the
// variables that configure Weir or one of them, except the named ones.
func JavaEnviron(but ...string) []string {
	all := without("WEIR_", "JAVA_", "_JAVA_", "JDK_JAVA_", "CASSANDRA_", "CLASSPATH", "MAVEN_")
	for _, name := range but {
		if value, ok := os.LookupEnv(name); ok {
			all = append(all, name+"="+value)
		}
	}
	return all
}

// without is this process's environment without the variables whose names begin so.
func without(prefixes ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(variable, prefix) })
	})
}
