package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// keptState is a state that a snapshot has to keep.
type keptState struct {
	limit *algo.Limit
	st    algo.State
}

// keptStates returns all that a snapshot of a store has to keep, by counter and key.
func keptStates(s *Store) map[string]keptState {
	all := map[string]keptState{}
	for i := range s.shards {
		s.shards[i].visit(visitBatch, func(sh *shard, p int) {
			var st algo.State
			limits := s.limits.load()
			if e := &limits[sh.load(p, &st)]; lasts(e.limit) {
				all[fmt.Sprintf("%d %q", e.id, sh.keyOf(p))] = keptState{e.limit, clone(&st)}
			}
		})
	}
	return all
}

// still returns as text those that are not fresh.
func still(all map[string]keptState, now int64) map[string]string {
	text := map[string]string{}
	for id, k := range all {
		if !k.limit.Fresh(&k.st, now) {
			text[id] = fmt.Sprint(k.st.A, k.st.B, k.st.C, k.st.Ext)
		}
	}
	return text
}

func stillOf(s *Store) map[string]string { return still(keptStates(s), s.now()) }

// TestSnapshotCutAnywhere changes a store and takes snapshots in any order, breaks the file off
// anywhere, and perhaps writes something else where it broke. What is read from it is what the last
// snapshot had that is whole.
func TestSnapshotCutAnywhere(t *testing.T) {
	folder := t.TempDir()
	var counters []*rule.Counter
	for _, cfg := range snapshotConfigs[1:3] { // few, so that their keys are met again
		counters = append(counters, counter(t, cfg))
	}
	rapid.Check(t, func(rt *rapid.T) {
		path := filepath.Join(folder, "weir.snapshot")
		os.Remove(path)
		clock := newClock()
		s, err := New(Options{Clock: clock.read, Snapshot: path, SnapshotEvery: 1000 * time.Hour,
			MaxKeys: rapid.SampledFrom([]int{20, 100_000}).Draw(rt, "max keys")})
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		type shot struct {
			size int64
			want map[string]keptState
		}
		var shots []shot
		results := make([]algo.Result, 1)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			c := rapid.SampledFrom(counters).Draw(rt, "counter")
			key := []byte(rapid.SampledFrom([]string{"a", strings.Repeat("k", 300)}).Draw(rt, "key"))
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1, 2, 3, 4:
				cost := int64(rapid.IntRange(-3, 5).Draw(rt, "cost"))
				if _, err := s.Take(context.Background(), []store.Charge{{Counter: c, Limit: c.Limit, Key: key, Ask: algo.Ask{Cost: cost}}}, results); err != nil {
					rt.Fatal(err)
				}
			case 5:
				if _, err := s.Reset(context.Background(), c, key); err != nil {
					rt.Fatal(err)
				}
			case 6:
				clock.advance(time.Duration(rapid.IntRange(0, 600).Draw(rt, "seconds")) * time.Second)
			default:
				if err := s.writeSnapshot(); err != nil {
					rt.Fatal(err)
				}
				info, err := os.Stat(path)
				if err != nil {
					rt.Fatal(err)
				}
				if len(shots) > 0 && info.Size() < shots[len(shots)-1].size {
					shots = nil // a whole one
				}
				shots = append(shots, shot{info.Size(), keptStates(s)})
			}
		}
		if len(shots) == 0 {
			return
		}
		data, err := os.ReadFile(path)
		if err != nil {
			rt.Fatal(err)
		}
		// from the end of the first snapshot that is known on; before it the file was another one
		cut := rapid.IntRange(int(shots[0].size), len(data)).Draw(rt, "cut")
		broken := append(bytes.Clone(data[:cut]), rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(rt, "behind")...)
		at := len(shots) - 1
		for shots[at].size > int64(cut) {
			at--
		}
		again, err := New(Options{Clock: clock.read})
		if err != nil {
			rt.Fatal(err)
		}
		defer again.Close()
		if err := read(again, broken); err != nil {
			rt.Fatal(err)
		}
		audit(t, again)
		if got, want := stillOf(again), still(shots[at].want, again.now()); !maps.Equal(got, want) {
			rt.Errorf("%v, want %v", got, want)
		}
	})
}

// TestSnapshotForgets: a key that is forgotten does not come back, though the file has it.
func TestSnapshotForgets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path, SnapshotEvery: 1000 * time.Hour})
	c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour})
	for i := range 4 {
		take(t, s, c, fmt.Sprint("key ", i), 5)
	}
	check := func(want int) {
		t.Helper()
		if err := s.writeSnapshot(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		again := newTest(t, Options{Clock: clock.read})
		if err := read(again, data); err != nil {
			t.Fatal(err)
		}
		if got := stillOf(again); len(got) != want || !maps.Equal(got, stillOf(s)) {
			t.Errorf("%v, want %d: %v", got, want, stillOf(s))
		}
	}
	check(4)
	reset(s, c, "key 0")
	check(3)
	take(t, s, c, "key 1", -5) // fresh, though what the file has is not
	check(2)
	take(t, s, c, "key 2", -5)
	reset(s, c, "key 2")
	take(t, s, c, "key 2", 1)
	check(2)
	clock.advance(time.Hour)
	check(0)
}

// TestSnapshotWritesChanges counts the bytes that a snapshot writes: none if nothing changed, else
// the bytes of the records that changed and of the frame of a block.
func TestSnapshotWritesChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path, SnapshotEvery: 1000 * time.Hour})
	c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour})
	const keys = 20_000
	name := func(i int) string { return fmt.Sprintf("key-%012d", i) }
	for i := range keys {
		take(t, s, c, name(i), 1)
	}
	size := func() int {
		t.Helper()
		if err := s.writeSnapshot(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return int(info.Size())
	}
	before := size()
	if after := size(); after != before {
		t.Errorf("%d bytes written though nothing changed", after-before)
	}
	limits := s.limits.load()
	for _, changed := range []int{1, 10, 1000} {
		clock.advance(time.Second)
		perPart := map[uint64]int{}
		for i := range changed {
			take(t, s, c, name(i), 1)
		}
		for i := range changed {
			key := []byte(name(i))
			h := s.hash(key)
			sh := &s.shards[h>>s.shift].shard
			var st algo.State
			sh.load(sh.find(limits, tagOf(h, c.ID), c.ID, key), &st)
			n := 3 + len(key) + len(binary.AppendVarint(nil, st.A)) + len(binary.AppendUvarint(nil, st.B)) +
				len(binary.AppendUvarint(nil, uint64(st.C))) + 1
			perPart[h>>s.shift] += n
		}
		want := blockHead + 1 + len(appendLimit(nil, &limits[0])) + 1 +
			len(binary.AppendUvarint(nil, uint64(len(s.shards))))
		for i := range s.shards {
			n := perPart[uint64(i)]
			want += n + len(binary.AppendUvarint(nil, uint64(n))) + 1
		}
		after := size()
		if got := after - before; got != want {
			t.Errorf("%d of %d keys changed: %d bytes written, want %d", changed, keys, got, want)
		}
		before = after
	}
	// When as much has been appended as the first block has, a whole one follows.
	for round := 0; ; round++ {
		clock.advance(time.Second)
		for i := range keys {
			take(t, s, c, name(i), 1)
		}
		after := size()
		if after < before {
			break
		}
		if round == 3 {
			t.Fatal("the file grows without bound")
		}
		before = after
	}
}

// TestSnapshotOthersWrite: a store appends to no file but its own.
func TestSnapshotOthersWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path, SnapshotEvery: 1000 * time.Hour})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 5, Window: time.Hour})
	check := func() {
		t.Helper()
		take(t, s, c, "a", 1)
		if err := s.writeSnapshot(); err != nil {
			t.Fatal(err)
		}
		again := newTest(t, Options{Clock: clock.read})
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := read(again, data); err != nil {
			t.Fatal(err)
		}
		if got, want := stillOf(again), stillOf(s); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	check()
	check()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := path + ".other"
	if err := os.WriteFile(other, data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, disturb := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.Rename(other, path) },
		func() error { return os.Truncate(path, 20) },
	} {
		if err := disturb(); err != nil {
			t.Fatal(err)
		}
		check()
		check()
	}
}

// TestSnapshotReplacedMeanwhile replaces the file between the look at it and the writing: nothing
// is written into the other one, and the next snapshot has everything again.
func TestSnapshotReplacedMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path, SnapshotEvery: 1000 * time.Hour})
	other := newTest(t, Options{Clock: clock.read})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 5, Window: time.Hour})
	for i := range 10 {
		take(t, s, c, fmt.Sprint(i), 1)
		take(t, other, c, fmt.Sprint("of the other ", i), 1)
	}
	if err := s.writeSnapshot(); err != nil {
		t.Fatal(err)
	}
	take(t, s, c, "another", 1)
	f := s.snapshot.open()
	if f == nil {
		t.Fatal("a block is not appended")
	}
	data := image(t, other)
	if err := os.WriteFile(path+".other", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".other", path); err != nil {
		t.Fatal(err)
	}
	if err := s.writeChanges(f); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, data) {
		t.Errorf("the other file is changed: %v", err)
	}
	take(t, s, c, "yet another", 1)
	if err := s.writeSnapshot(); err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again := newTest(t, Options{Clock: clock.read})
	if err := read(again, now); err != nil {
		t.Fatal(err)
	}
	if got, want := stillOf(again), stillOf(s); len(want) != 12 || !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestSnapshotLoadsMeanwhile asks for keys while a snapshot is being loaded: none is new, whatever
// the number of shards that wrote it.
func TestSnapshotLoadsMeanwhile(t *testing.T) {
	effort.Long(t, "writes and loads six snapshots")
	const keys = 30_000
	clock := newClock()
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	name := func(i int) string { return fmt.Sprintf("key %d", i) }
	for _, wrote := range []int{0, 40_000} {
		s := newTest(t, Options{Clock: clock.read, MaxKeys: wrote})
		for i := range keys {
			take(t, s, c, name(i), 1)
		}
		file := image(t, s)
		for _, reads := range []int{0, 100_000, 40_000} {
			again := newTest(t, Options{Clock: clock.read, MaxKeys: reads})
			l, err := again.readFile(bytes.NewReader(file), int64(len(file)), nowhere)
			if err != nil {
				t.Fatal(err)
			}
			closed := false
			l.end = func() error { closed = true; return nil }
			l.begin(0)
			var all sync.WaitGroup
			for g := range 4 {
				all.Go(func() {
					results := make([]algo.Result, 1)
					for i := keys - 1 - g; i >= 0; i -= 4 {
						if _, err := again.Take(context.Background(), []store.Charge{{Counter: c, Limit: c.Limit, Key: []byte(name(i)), Ask: algo.Ask{Cost: 1}}}, results); err != nil || results[0].Allowed {
							t.Errorf("key %d: %+v, %v", i, results[0], err)
							return
						}
					}
				})
			}
			all.Wait()
			for i := range again.shards {
				again.shards[i].lock()
				again.shards[i].mu.Unlock()
			}
			audit(t, again)
			if l.err != nil || !closed || again.Stats().Keys != keys {
				t.Errorf("%v, closed: %v, %+v", l.err, closed, again.Stats())
			}
			if got, want := stillOf(again), stillOf(s); !maps.Equal(got, want) {
				t.Errorf("%d shards read from %d: other states", len(again.shards), len(s.shards))
			}
		}
	}
}

// blocks returns a file of two blocks, and where the second one begins.
func blocks(t testing.TB) (file []byte, second int) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, MaxKeys: 300})
	var counters []*rule.Counter
	for i, cfg := range snapshotConfigs {
		c := counter(t, cfg)
		counters = append(counters, c)
		for k := range 3 {
			take(t, s, c, fmt.Sprint("key ", k+i), 2)
		}
	}
	if err := s.Hold(t.Context(), "id", []byte("note"), time.Hour); err != nil {
		t.Fatal(err)
	}
	first := image(t, s)
	take(t, s, counters[0], "key 0", 1)
	take(t, s, counters[1], "another", 1)
	if _, err := s.Reset(t.Context(), counters[2], []byte("key 2")); err != nil {
		t.Fatal(err)
	}
	if err := s.Hold(t.Context(), "id 2", []byte("note"), time.Hour); err != nil {
		t.Fatal(err)
	}
	var body bytes.Buffer
	head, err := s.dump(&body, false)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(first, head, body.Bytes()), len(first)
}

// TestSnapshotBlockDamaged changes a bit, and cuts: the blocks before it stand, and without the
// first one the file is set aside.
func TestSnapshotBlockDamaged(t *testing.T) {
	file, second := blocks(t)
	clock := newClock()
	load := func(data []byte) map[string]string {
		s := newTest(t, Options{Clock: clock.read})
		if err := read(s, data); err != nil {
			if !errors.Is(err, errDamaged) || s.Stats() != (Stats{}) {
				t.Fatalf("%v, %+v", err, s.Stats())
			}
			return nil
		}
		audit(t, s)
		return stillOf(s)
	}
	before, after := load(file[:second]), load(file)
	if maps.Equal(before, after) || len(before) == 0 {
		t.Fatalf("%v and %v", before, after)
	}
	for at := 8; at < len(file); at += 7 {
		flipped := bytes.Clone(file)
		flipped[at] ^= 0x10
		want := before
		if at < second {
			want = nil
		}
		if got := load(flipped); !maps.Equal(got, want) {
			t.Errorf("a bit at %d of %d: %v, want %v", at, second, got, want)
		}
		if got := load(file[:at]); !maps.Equal(got, want) {
			t.Errorf("cut at %d of %d: %v, want %v", at, second, got, want)
		}
	}
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	if err := os.WriteFile(path, file[:second-1], 0o600); err != nil {
		t.Fatal(err)
	}
	var n notes
	s := newTest(t, Options{Clock: clock.read, Snapshot: path, Logger: n.logger()})
	if aside, _ := filepath.Glob(path + ".damaged-*"); len(aside) != 1 || !strings.Contains(n.text(), aside[0]) ||
		s.Stats() != (Stats{}) {
		t.Errorf("set aside: %v; the operator reads %s", aside, n.text())
	}
}

// resealed puts the right checksums into a file of blocks, as far as it has the form of one.
func resealed(file []byte) []byte {
	le := binary.LittleEndian
	b := bytes.Clone(file)
	if len(b) < fileHead {
		return b
	}
	copy(b, snapshotMagic)
	le.PutUint32(b[8:], snapshotVersion)
	le.PutUint32(b[fileHead-4:], crc32.Checksum(b[:fileHead-4], castagnoli()))
	for rest := b[fileHead:]; len(rest) >= blockHead; {
		n := min(le.Uint64(rest), uint64(len(rest)-blockHead))
		le.PutUint64(rest, n)
		le.PutUint32(rest[blockHead-8:], crc32.Checksum(rest[blockHead:][:n], castagnoli()))
		le.PutUint32(rest[blockHead-4:], crc32.Checksum(rest[:blockHead-4], castagnoli()))
		rest = rest[blockHead+n:]
	}
	return b
}

// FuzzSnapshotBlocks reads arbitrary blocks under right checksums: they are refused, or read into a
// store that works.
func FuzzSnapshotBlocks(f *testing.F) {
	file, second := blocks(f)
	f.Add(file)
	f.Add(file[:second])
	for at := fileHead; at < len(file); at += 97 {
		b := bytes.Clone(file)
		b[at] ^= 0xff
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		clock := newClock()
		s := newTest(t, Options{Clock: clock.read, MaxKeys: 1000, MaxBytes: 1 << 20})
		data := resealed(content)
		err := read(s, data)
		audit(t, s)
		if err != nil && !errors.Is(err, errDamaged) {
			t.Fatalf("refused for another reason: %v", err)
		}
		if st := s.Stats(); st.Bytes > 1<<20+int64(len(data)) {
			t.Fatalf("%+v of %d bytes", st, len(data))
		}
		again := newTest(t, Options{Clock: clock.read, MaxKeys: 1000, MaxBytes: 8 << 20})
		if err := read(again, image(t, s)); err != nil {
			t.Fatalf("what was read and written again is refused: %v", err)
		}
		if got, want := stillOf(again), stillOf(s); !maps.Equal(got, want) {
			t.Fatalf("what was read and written again is %v, not %v", got, want)
		}
	})
}

// TestSnapshotLoadsIntoFull: keys that come while a snapshot is loaded do not take the room of
// those that are refused.
func TestSnapshotLoadsIntoFull(t *testing.T) {
	const most = 1000
	clock := newClock()
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	wide := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: time.Hour})
	s := newTest(t, Options{Clock: clock.read})
	for i := range most / 2 {
		take(t, s, c, fmt.Sprint("refused ", i), 1)
	}
	file := image(t, s)
	var n notes
	loaded := newTest(t, Options{Clock: clock.read, MaxKeys: most, Logger: n.logger()})
	l, err := loaded.readFile(bytes.NewReader(file), int64(len(file)), nowhere)
	if err != nil {
		t.Fatal(err)
	}
	l.end = func() error { return nil }
	for i := range most {
		take(t, loaded, wide, fmt.Sprint("new ", i), 1)
	}
	l.begin(most)
	audit(t, loaded)
	results := make([]algo.Result, 1)
	for i := range most / 2 {
		charge := []store.Charge{{Counter: c, Limit: c.Limit, Key: fmt.Append(nil, "refused ", i),
			Ask: algo.Ask{Cost: 1}}}
		if _, err := loaded.Take(context.Background(), charge, results); err != nil || results[0].Allowed {
			t.Fatalf("key %d is admitted again, %v; the operator reads: %s", i, err, n.text())
		}
	}
	if st := loaded.Stats(); st.Keys != most {
		t.Errorf("%+v", st)
	}
}

// TestSnapshotDamagedSeed: a file that is not read does not choose how keys are hashed.
func TestSnapshotDamagedSeed(t *testing.T) {
	file, second := blocks(t)
	s := newTest(t, Options{})
	before := s.seed
	if err := read(s, file[:second-1]); err == nil || s.seed != before {
		t.Errorf("%v; the seed is that of the file: %v", err, s.seed != before)
	}
}
