package testproc

import (
	"os"
	"path/filepath"
	"testing"
)

// root is the folder of the module, found before any test changes the working folder.
var root = func() string {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			break
		}
		dir = above
	}
	return ""
}()

// Tools returns the folder of the tools that scripts/test installs, .cache/tools of this module.
func Tools(t testing.TB) string {
	t.Helper()
	if root == "" {
		t.Fatal("the tests do not run below the folder of go.mod")
	}
	tools := filepath.Join(root, ".cache", "tools")
	if err := os.MkdirAll(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	return tools
}
