package cassandratest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testproc"
)

// version is that of the Cassandra that is started; WEIR_CASSANDRA in the environment sets another.
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
		cmd.Env = environ()
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

// jars returns the folder of Cassandra's jars, below .cache/tools of this module. If it is not
// there, Maven brings them where WEIR_INSTALL is set, as scripts/test does; elsewhere the test is
// skipped.
func jars(t testing.TB) string {
	t.Helper()
	tools := testproc.Tools(t)
	dir := filepath.Join(tools, "cassandra-"+version)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if os.Getenv("WEIR_INSTALL") == "" {
		t.Skip("Cassandra " + version + " is not in .cache/tools; scripts/test installs it, and so does WEIR_INSTALL=1 go test")
	}
	maven, err := exec.LookPath("mvn")
	if err != nil {
		t.Skip("Maven is not installed, which brings Cassandra; on Debian: apt-get install maven")
	}
	// One process at a time: Maven's own folder is no place for two of them. The others find what
	// the first has brought, and remove what one that was killed has left.
	held, err := os.OpenFile(filepath.Join(tools, "cassandra.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := lock(held); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	left, _ := filepath.Glob(filepath.Join(tools, "cassandra.part*"))
	for _, each := range left {
		_ = os.RemoveAll(each)
	}
	fresh, err := os.MkdirTemp(tools, "cassandra.part")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	if err := os.WriteFile(filepath.Join(fresh, "pom.xml"), []byte(pom), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(maven, "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars")
	cmd.Dir, cmd.Env = fresh, environ("JAVA_HOME", "MAVEN_OPTS")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("Maven cannot bring Cassandra %s: %v\n%s", version, err, out)
	}
	if err := os.Rename(filepath.Join(fresh, "jars"), dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // no process was quicker for which there is no lock
			t.Fatal(err)
		}
	}
	return dir
}

// environ is the environment for Java, Maven and Cassandra: without what configures Weir or one of
// them, but for the named ones.
func environ(but ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		if slices.Contains(but, name) {
			return false
		}
		return slices.ContainsFunc([]string{"WEIR_", "JAVA_", "_JAVA_", "JDK_JAVA_", "CASSANDRA_", "CLASSPATH", "MAVEN_"}, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		})
	})
}
