package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestWrite: a file is the old one until the new one is whole, and no other file is left.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	want := func(text string) {
		t.Helper()
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(path)
		if string(have) != text || len(all) != 1 {
			t.Errorf("it holds %q (%v), among %v; want %q", have, err, all, text)
		}
	}
	text := func(s string) func(*os.File) error {
		return func(f *os.File) error { _, err := f.WriteString(s); return err }
	}
	if err := os.WriteFile(path+".tmp", []byte("of a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, text("old")); err != nil {
		t.Fatal(err)
	}
	want("old")
	full := errors.New("full")
	err := Write(path, func(f *os.File) error { return errors.Join(text("half")(f), full) })
	if !errors.Is(err, full) {
		t.Error(err)
	}
	want("old")
	err = Write(path, func(f *os.File) error {
		return errors.Join(text("mine")(f), Write(path, text("another's")))
	})
	if err == nil {
		t.Error("it has replaced what another process wrote meanwhile")
	}
	want("another's")
}
