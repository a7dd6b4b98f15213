package memory

import (
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// TestSnapshotDiskFull runs out of room in the middle of a block, as a full disk does: the file
// stays as it was, and the next snapshot that there is room for has everything.
func TestSnapshotDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path, SnapshotEvery: 1000 * time.Hour})
	c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour})
	for i := range 10_000 {
		take(t, s, c, fmt.Sprint("key ", i), 1)
	}
	if err := s.writeSnapshot(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5_000 {
		take(t, s, c, fmt.Sprint("key ", i), 2)
	}
	reset(s, c, "key 9999")

	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(len(before)) + 100_000, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	failed := s.writeSnapshot()
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if failed == nil {
		t.Fatal("no error though there was no room")
	}
	check := func(want map[string]string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		again := newTest(t, Options{Clock: clock.read})
		if err := read(again, data); err != nil {
			t.Fatal(err)
		}
		if got := stillOf(again); !maps.Equal(got, want) {
			t.Errorf("%d states that are not the %d that were to be kept", len(got), len(want))
		}
	}
	older := newTest(t, Options{Clock: clock.read})
	if err := read(older, before); err != nil {
		t.Fatal(err)
	}
	check(stillOf(older))
	if err := s.writeSnapshot(); err != nil {
		t.Fatal(err)
	}
	check(stillOf(s))
}
