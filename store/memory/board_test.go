package memory_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/storetest"
)

func TestBoard(t *testing.T) {
	storetest.Board(t, func(t *testing.T, clock func() int64) store.Board {
		s, err := memory.New(memory.Options{Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	})
}

// A board that is full forgets what ends first.
func TestBoardIsBounded(t *testing.T) {
	now := int64(1e15)
	s, err := memory.New(memory.Options{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const bound = 100_000
	facts := make([]store.Fact, bound+7)
	for i := range facts {
		facts[i] = store.Fact{ID: fmt.Sprint(i), TTL: time.Duration(1+(i*7919)%len(facts)) * time.Second}
	}
	if err := s.Post(t.Context(), "ban", facts); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context(), "ban")
	if err != nil || len(list) != bound {
		t.Fatalf("%d facts, %v", len(list), err)
	}
	for _, f := range list {
		if f.TTL <= 7*time.Second {
			t.Errorf("one that ends in %v was kept", f.TTL)
		}
	}
}

func TestBoardFile(t *testing.T) {
	dir := t.TempDir()
	var logged []string
	now := int64(1e15)
	o := memory.Options{
		Snapshot: filepath.Join(dir, "snapshot"), Clock: func() int64 { return now },
		Logger: slog.New(logFunc(func(line string) { logged = append(logged, line) })),
	}
	file := o.Snapshot + ".board"
	open := func() *memory.Store {
		t.Helper()
		s, err := memory.New(o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	list := func(s *memory.Store) int {
		t.Helper()
		facts, err := s.List(t.Context(), "ban")
		if err != nil {
			t.Fatal(err)
		}
		return len(facts)
	}
	s := open()
	if err := s.Post(t.Context(), "ban", []store.Fact{{ID: "a", Data: []byte("x"), TTL: time.Minute}, {ID: "b\xff", TTL: time.Hour}, {ID: "c", TTL: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "ban", []string{"c"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	s = open()
	if n := list(s); n != 2 {
		t.Errorf("%d facts after a restart", n)
	}
	_ = s.Close()
	now += 60e6
	s = open()
	if n := list(s); n != 1 {
		t.Errorf("%d facts after a restart and a minute", n)
	}
	_ = s.Close()
	for _, bad := range []string{"", "{", `{"version": 2, "facts": []}`, "\x00"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		logged = nil
		s = open()
		if n := list(s); n != 0 || len(logged) != 1 || !strings.Contains(logged[0], "set aside") {
			t.Errorf("%q: %d facts, logged %q", bad, n, logged)
		}
		_ = s.Close()
	}
	aside, err := filepath.Glob(file + ".damaged-*")
	if err != nil || len(aside) != 4 {
		t.Errorf("set aside: %q, %v", aside, err)
	}
}

// logFunc is a slog.Handler that gets the messages.
type logFunc func(line string)

func (f logFunc) Enabled(context.Context, slog.Level) bool      { return true }
func (f logFunc) Handle(_ context.Context, r slog.Record) error { f(r.Message); return nil }
func (f logFunc) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f logFunc) WithGroup(string) slog.Handler                 { return f }
