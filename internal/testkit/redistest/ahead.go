package redistest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

//go:embed testdata/ahead.c
var aheadSource []byte

// CanStartAhead returns why StartAhead would skip the test; nil if it would not.
func CanStartAhead() error {
	if runtime.GOOS != "linux" {
		return errors.New("only on Linux a server can have another clock")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		return errors.New("a C compiler is not installed; on Debian: apt-get install gcc libc6-dev")
	}
	return nil
}

// StartAhead is Start with a server clock that is ahead of the machine's, or behind it if ahead is
// negative. Where that is impossible, the test is skipped (CanStartAhead).
//
// It compiles a library of a few lines and loads it before the C library. libfaketime does not work
// here: redis-server asks for the time from within its allocator, which libfaketime itself needs.
func StartAhead(t testing.TB, ahead time.Duration, options ...string) *Server {
	t.Helper()
	if err := CanStartAhead(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "ahead.c"), filepath.Join(dir, "ahead.so")
	if err := os.WriteFile(source, aheadSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, text)
	}
	return start(t, kind{
		config: plain,
		env:    []string{"LD_PRELOAD=" + library, fmt.Sprint("CLOCK_AHEAD_US=", ahead.Microseconds())},
	}, options)
}
