// Package traffic finds real access logs and traces for tests. Its testdata folder holds excerpts.
// Where the environment variable WEIR_DATA names a folder with the full data, those are used.
// testdata/README.md describes both.
package traffic

import (
	"os"
	"path/filepath"
	"testing"
)

// Full reports whether the full data are in use. Tests that state figures need it, because the
// figures of an excerpt differ.
func Full() bool { return os.Getenv("WEIR_DATA") != "" }

// File returns the path of a file, such as nasa_19950801/trace.tsv.gz.
func File(t testing.TB, name string) string {
	t.Helper()
	folder := os.Getenv("WEIR_DATA")
	if folder == "" {
		folder = excerpts(t)
	}
	path := filepath.Join(folder, filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// excerpts returns the folder of the excerpts. Tests run in the folder of their package, so that
// the root of the module is one of the folders above.
func excerpts(t testing.TB) string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		folder := filepath.Join(root, "internal", "testkit", "traffic", "testdata")
		if _, err := os.Stat(folder); err == nil {
			return folder
		}
		above := filepath.Dir(root)
		if above == root {
			t.Fatal("the excerpts are not in any folder above this one")
		}
		root = above
	}
}
