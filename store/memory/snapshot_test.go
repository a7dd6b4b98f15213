package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// notes collects what a store tells its operator.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) logger() *slog.Logger {
	return slog.New(logFunc(func(line string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.lines = append(n.lines, line)
	}))
}

// logFunc is a slog.Handler that gets the messages.
type logFunc func(line string)

func (f logFunc) Enabled(context.Context, slog.Level) bool      { return true }
func (f logFunc) Handle(_ context.Context, r slog.Record) error { f(r.Message); return nil }
func (f logFunc) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f logFunc) WithGroup(string) slog.Handler                 { return f }

func (n *notes) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.lines, "\n")
}

// snapshotConfigs are limits with every option that a snapshot has to keep.
var snapshotConfigs = []algo.Config{
	{Algorithm: algo.TokenBucket, N: 7, Window: time.Minute, Burst: 5},
	{Algorithm: algo.TokenBucket, N: 7, Window: time.Hour, RefillInterval: true},
	{Algorithm: algo.LeakyBucket, N: 7, Window: time.Hour},
	{Algorithm: algo.LeakyBucket, N: 7, Window: time.Hour, Burst: algo.NoBurst},
	{Algorithm: algo.FixedWindow, N: 7, Window: time.Hour, CountDenied: true},
	{Algorithm: algo.FixedWindow, N: 7, Window: time.Hour, FirstRequest: true, Soft: 50},
	{Algorithm: algo.FixedWindow, N: 7, Window: 30 * 24 * time.Hour, Calendar: algo.Month, Location: time.FixedZone("UTC", 0)},
	{Algorithm: algo.SlidingWindow, N: 7, Window: time.Hour},
	{Algorithm: algo.SlidingWindow, N: 7, Window: time.Hour, Buckets: 60},
	{Algorithm: algo.SlidingLog, N: 7, Window: time.Hour},
}

func TestSnapshotRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path})
	twin := newTest(t, Options{Clock: clock.read})
	var counters []*rule.Counter
	for _, cfg := range snapshotConfigs {
		counters = append(counters, counter(t, cfg))
	}
	for round := range 40 {
		for k := range 100 {
			c := counters[(round+k)%len(counters)]
			take(t, s, c, fmt.Sprint("key ", k), int64(k%3))
			take(t, twin, c, fmt.Sprint("key ", k), int64(k%3))
		}
		clock.advance(10 * time.Second)
	}
	slots := counter(t, algo.Config{Algorithm: algo.Concurrency, N: 1, Timeout: time.Hour})
	take(t, s, slots, "k", 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("the second Close: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: a snapshot holds addresses and user names, it is for its owner alone", info.Mode(), err)
	}
	clock.advance(10 * time.Second)
	var n notes
	again := newTest(t, Options{Clock: clock.read, Snapshot: path, Logger: n.logger()})
	audit(t, again)
	if n.text() != "" {
		t.Errorf("a good snapshot was remarked on: %s", n.text())
	}
	if !take(t, again, slots, "k", 1).Allowed {
		t.Error("the slots of a limit on concurrency were kept")
	}
	// A reload during the outage: the same identities, but new pointers, and K changed for one of
	// them.
	for i, c := range counters {
		cfg := snapshotConfigs[i]
		if cfg.Buckets == 60 {
			cfg.Buckets = 30
		}
		next := counter(t, cfg)
		*next = rule.Counter{ID: c.ID, Domain: c.Domain, Rule: c.Rule, Window: c.Window, Limit: next.Limit}
		for k := range 100 {
			key := fmt.Sprint("key ", k)
			if got, want := take(t, again, next, key, 1), take(t, twin, next, key, 1); got != want {
				t.Fatalf("%+v, key %d after the restart:\n got %+v\nwant %+v", cfg, k, got, want)
			}
		}
	}
	if files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}

// image returns a whole snapshot file of a store.
func image(t testing.TB, s *Store) []byte {
	t.Helper()
	var body bytes.Buffer
	head, err := s.dump(&body, true)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(s.appendFileHead(nil), head, body.Bytes())
}

// nowhere is the path of files that are in memory alone.
const nowhere = "/no such folder/weir.snapshot"

// read loads a snapshot file into an empty store.
func read(s *Store, data []byte) error {
	l, err := s.readFile(bytes.NewReader(data), int64(len(data)), nowhere)
	if err == nil {
		l.end = func() error { return nil }
		l.begin(math.MaxInt64)
		err = l.err
	}
	return err
}

func TestSnapshotDamaged(t *testing.T) {
	file, second := blocks(t)
	good := file[:second]
	head := good[:fileHead]
	// block returns a file with one block, which has no parts.
	block := func(body ...byte) []byte {
		b := append(append(bytes.Clone(head), make([]byte, blockHead)...), body...)
		binary.LittleEndian.PutUint64(b[fileHead:], uint64(len(body)))
		return resealed(b)
	}
	// of no names, with nothing beside its states; each append copies it
	definition := append([]byte{1, kindLimit}, make([]byte, 8+3+8)...)
	definition = definition[:len(definition):len(definition)]
	type test struct {
		name, says string
		data       []byte
	}
	tests := []test{
		{"empty", "0 bytes", nil},
		{"something else", "not a snapshot", []byte("a text file, which is longer than the header of a snapshot")},
		{"nothing after the header", "too soon", head},
		{"no definition", "kind", block(1, 9)},
		{"a long name", "left", block(append(append([]byte{1, kindLimit}, make([]byte, 8)...), 0xff, 0xff, 0xff, 0xff, 0x7f)...)},
		{"an endless number", "damaged", block(bytes.Repeat([]byte{0xff}, 20)...)},
		{"a limit of an unknown form", "form", block(append(definition, 7)...)},
		{"a schedule in a schedule", "form", block(append(definition, formSchedule, 0, formSchedule)...)},
		{"a schedule without end", "phases", block(append(definition, formSchedule, 0, formNone, 0xff, 0xff, 0x7f)...)},
		{"reservations or not", "reservations", block(0, 2)},
		{"three parts", "3 parts", block(0, 0, 3)},
		{"records without bytes", "5 records", block(0, 0, 1, 0, 5)},
		{"after the end", "belong to no part", block(0, 0, 1, 0, 0, 1, 2, 3)},
	}
	for _, version := range []byte{0, 1, 2, 3, 5} {
		b := bytes.Clone(good)
		b[len(snapshotMagic)] = version
		tests = append(tests, test{fmt.Sprint("version ", version),
			fmt.Sprintf("its version is %d, and this program reads version 4 alone", version), b})
	}
	for at := 8; at < len(good); at += 29 {
		b := bytes.Clone(good)
		b[at] ^= 0x10
		tests = append(tests, test{fmt.Sprint("a bit at ", at), "damaged", b},
			test{fmt.Sprint("cut at ", at), "damaged", good[:at]})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "weir.snapshot")
			if err := os.WriteFile(path, test.data, 0o600); err != nil {
				t.Fatal(err)
			}
			var n notes
			clock := newClock()
			s := newTest(t, Options{Clock: clock.read, Snapshot: path, Logger: n.logger()})
			audit(t, s)
			if st := s.Stats(); st != (Stats{}) {
				t.Errorf("%+v from a damaged snapshot", st)
			}
			aside, _ := filepath.Glob(path + ".damaged-*")
			if len(aside) != 1 {
				t.Fatalf("set aside: %v", aside)
			}
			if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, test.data) {
				t.Errorf("what was set aside is not what was there: %v", err)
			}
			if !strings.Contains(n.text(), test.says) || !strings.Contains(n.text(), aside[0]) {
				t.Errorf("the operator reads: %s", n.text())
			}
			c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
			take(t, s, c, "k", 1)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if again := newTest(t, Options{Clock: clock.read, Snapshot: path}); take(t, again, c, "k", 1).Allowed {
				t.Error("the next snapshot does not hold")
			}
		})
	}
}

func TestSnapshotUnreadable(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "weir.snapshot")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Snapshot: path}); err == nil {
		t.Error("a folder was read as a snapshot")
	}
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Snapshot: filepath.Join(file, "weir.snapshot")}); err == nil {
		t.Error("a snapshot inside a file")
	}
}

func TestSnapshotExpires(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path})
	short := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Minute})
	long := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: 24 * time.Hour})
	for i := range 100 {
		take(t, s, short, fmt.Sprint(i), 1)
		take(t, s, long, fmt.Sprint(i), 1)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour)
	s = newTest(t, Options{Clock: clock.read, Snapshot: path})
	if st := s.Stats(); st.Keys != 100 {
		t.Errorf("%d keys, want the 100 that have not expired", st.Keys)
	}
	// Nobody claims them: they go when their time has come.
	clock.advance(48 * time.Hour)
	other := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: 24 * time.Hour})
	for i := range 2000 {
		take(t, s, other, fmt.Sprint("other ", i), 1)
	}
	if st := s.Stats(); st.Keys > 2050 {
		t.Errorf("%d keys, of which 2000 are alive", st.Keys)
	}
}

func TestSnapshotTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	for i := range 1000 {
		take(t, s, c, fmt.Sprint(i), 1)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var n notes
	s = newTest(t, Options{Clock: clock.read, Snapshot: path, MaxKeys: 300, Logger: n.logger()})
	audit(t, s)
	if st := s.Stats(); st.Keys != 300 || !strings.Contains(n.text(), "700 keys") {
		t.Errorf("%+v, and the operator reads: %s", st, n.text())
	}
}

// TestSnapshotPeriodic: a crash loses at most the last interval, and nothing is written while
// nothing happens.
func TestSnapshotPeriodic(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "weir.snapshot")
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newTest(t, Options{Snapshot: path, Logger: n.logger()})
		c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: 24 * time.Hour})
		left := func() int64 {
			t.Helper()
			crashed, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			other := filepath.Join(folder, "copy")
			if err := os.WriteFile(other, crashed, 0o600); err != nil {
				t.Fatal(err)
			}
			return take(t, newTest(t, Options{Snapshot: other}), c, "k", 0).Remaining
		}
		take(t, s, c, "k", 3)
		time.Sleep(DefaultSnapshotEvery + time.Millisecond)
		synctest.Wait()
		if got := left(); got != 7 {
			t.Errorf("%d left in the snapshot, want 7", got)
		}
		take(t, s, c, "k", 2)
		if got := left(); got != 7 {
			t.Errorf("%d left in the snapshot before its time, want 7", got)
		}
		time.Sleep(DefaultSnapshotEvery)
		synctest.Wait()
		if got := left(); got != 5 {
			t.Errorf("%d left in the next snapshot, want 5", got)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * DefaultSnapshotEvery)
		synctest.Wait()
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("written though nothing happened: %v", err)
		}
		// The snapshot cannot be written: that is logged, and retried even if nothing else happens.
		take(t, s, c, "k", 1)
		if err := os.MkdirAll(path+".tmp/in the way", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		time.Sleep(DefaultSnapshotEvery)
		synctest.Wait()
		if !strings.Contains(n.text(), "not written") {
			t.Errorf("the operator reads: %s", n.text())
		}
		if err := os.RemoveAll(path + ".tmp"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultSnapshotEvery)
		synctest.Wait()
		if got := left(); got != 4 {
			t.Errorf("%d left in the snapshot that was tried again, want 4", got)
		}
	})
}

// TestSnapshotWhileDeciding writes snapshots beside decisions: each is whole, and holds what was
// decided before it.
func TestSnapshotWhileDeciding(t *testing.T) {
	s := newTest(t, Options{})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: algo.MaxN, Window: 366 * 24 * time.Hour})
	const keys = 2000
	for i := range keys {
		take(t, s, c, fmt.Sprint("before ", i), 5)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			results := make([]algo.Result, 1)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Appendf(nil, "new %d %d", g, i%20_000)
				if i%3 == 0 {
					reset(s, c, string(key))
				}
				if _, err := s.Take(context.Background(), []store.Charge{{Counter: c, Limit: c.Limit, Key: key, Ask: algo.Ask{Cost: 1}}}, results); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		again := newTest(t, Options{})
		if err := read(again, image(t, s)); err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			if info, ok := peek(again, c, fmt.Appendf(nil, "before %d", i)); !ok ||
				info.Result.Remaining != algo.MaxN-5 {
				t.Fatalf("key %d: %+v, %v", i, info, ok)
			}
		}
	}
	close(stop)
	wg.Wait()
	audit(t, s)
}

// TestSnapshotDamagedPart: a part with a fault that the checksums do not show is left out.
func TestSnapshotDamagedPart(t *testing.T) {
	for _, test := range []struct {
		name, says string
		part       []byte
	}{
		{"unknown kind", "kind", []byte{9}},
		{"no such definition", "definition", []byte{kindRecord, 5, 0, 0, 0, 0, 0}},
		{"a long key", "too soon", []byte{kindRecord, 0, 0xff, 0xff, 0xff, 0xff, 0x7f}},
	} {
		s := newTest(t, Options{})
		tail := []byte{0, 0, 1, byte(len(test.part)), 0}
		b := append(s.appendFileHead(nil), make([]byte, blockHead)...)
		binary.LittleEndian.PutUint64(b[fileHead:], uint64(len(test.part)+len(tail)))
		binary.LittleEndian.PutUint64(b[fileHead+8:], uint64(len(test.part)))
		err := read(s, resealed(slices.Concat(b, test.part, tail)))
		if !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.name, err)
		}
		audit(t, s)
	}
}
