package testproc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Parts returns a folder that a package manager fills for tests, below .cache/tools of this module.
// If it is not there, it is filled where WEIR_INSTALL is set, as scripts/test does; elsewhere the
// test is skipped. The name of the folder holds the version of its packages, or a sum of all
// versions. bring returns a command that puts all of them into a new folder.
func Parts(t testing.TB, name string, bring func(dir string) *exec.Cmd) string {
	t.Helper()
	tools := Tools(t)
	dir := filepath.Join(tools, name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if os.Getenv("WEIR_INSTALL") == "" {
		t.Skipf("%s is not in .cache/tools; scripts/test --all installs it, and so does WEIR_INSTALL=1 go test", name)
	}
	// One process at a time: Maven's own folder is no place for two of them. The others find the
	// files that the first has brought, and remove the rests of one that was killed.
	held, err := os.OpenFile(filepath.Join(tools, "parts.lock"), os.O_CREATE|os.O_RDWR, 0o666)
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
	left, _ := filepath.Glob(filepath.Join(tools, name+".part*"))
	for _, each := range left {
		_ = os.RemoveAll(each)
	}
	fresh, err := os.MkdirTemp(tools, name+".part")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	cmd := bring(fresh)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("%s cannot be brought: %s: %v\n%s", name, strings.Join(cmd.Args, " "), err, out)
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // no process was quicker for which there is no lock
			t.Fatal(err)
		}
	}
	return dir
}

// Jars returns a folder with the jars that a project of Maven needs to run, as Parts does.
func Jars(t testing.TB, name, pom string) string {
	t.Helper()
	return Parts(t, name, func(dir string) *exec.Cmd {
		maven, err := exec.LookPath("mvn")
		if err != nil {
			t.Skipf("Maven is not installed, which brings %s; on Debian: apt-get install maven", name)
		}
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(pom), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(maven, "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DincludeScope=runtime",
			"-DoutputDirectory=.")
		cmd.Dir, cmd.Env = dir, JavaEnviron("JAVA_HOME", "MAVEN_OPTS")
		return cmd
	})
}
