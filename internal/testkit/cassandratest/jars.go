package cassandratest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// version is the Cassandra version to start; WEIR_CASSANDRA in the environment sets another.
var version = cmp.Or(os.Getenv("WEIR_CASSANDRA"), "5.0.6")

// java returns the path of a Java on which Cassandra runs; where there is none, the test is
// skipped.
func java(t testing.TB) string {
	t.Helper()
	candidates, _ := filepath.Glob("/usr/lib/jvm/*17*/bin/java")
	for _, name := range append([]string{"java"}, candidates...) {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		cmd := exec.Command(path, "-version")
		cmd.Env = testproc.JavaEnviron()
		out, err := cmd.CombinedOutput()
		if err == nil && regexp.MustCompile(`version "17[."]`).Match(out) {
			return path
		}
	}
	t.Skip("Java 17 is not installed, on which Cassandra runs; on Debian: apt-get install openjdk-17-jre-headless")
	return ""
}

// pom asks Maven for Cassandra and all that it needs.
var pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weir</groupId><artifactId>cassandratest</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>` + version + `</version></dependency>
  </dependencies>
</project>
`

// jars returns the folder of Cassandra's jars, which Maven brings (testproc.Jars).
func jars(t testing.TB) string {
	t.Helper()
	return testproc.Jars(t, "cassandra-"+version, pom)
}
