package testproc

import (
	"os"
	"testing"
)

// SocketDir makes a folder for Unix sockets, which the test's end removes. The path of a socket has
// some 100 bytes at most, and TMPDIR may have more.
func SocketDir(t testing.TB) string {
	t.Helper()
	parent := os.TempDir()
	if _, err := os.Stat("/tmp"); err == nil && len(parent) > 40 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
