package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/util/hashchain"
)

func open(t *testing.T, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func record(t *testing.T, l *Log, whats ...string) {
	t.Helper()
	for _, what := range whats {
		if err := l.Record(t.Context(), Entry{Who: "ada", Role: "operator", Address: "192.0.2.1", What: what}); err != nil {
			t.Fatalf("%.40s: %v", what, err)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func verify(t *testing.T, data []byte, after string, records uint64) Summary {
	t.Helper()
	s, err := Verify(bytes.NewReader(data), after, "")
	if err != nil || s.Records != records {
		t.Fatalf("%d records, want %d: %v\n%.2000s", s.Records, records, err, data)
	}
	return s
}

// whats lists Entry.What of the newest records, oldest first.
func whats(l *Log) (list []string) {
	for _, e := range l.Recent(0, 0, Remembered) {
		list = append(list, e.What)
	}
	slices.Reverse(list)
	return list
}

// TestChain: records of any size make one chain over restarts, and each change of the file shows at
// the line where it was made.
func TestChain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{Path: path, Node: "n1"})
	large := strings.Repeat("x<&\"\n\x00\xff é", 200_000)
	record(t, l, "one", large, `a "hash":"of`+strings.Repeat("0", 64)+`"}`)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, Options{Path: path, Node: "n1"})
	record(t, l, "four")
	if err := l.Record(t.Context(), Entry{What: "five", Before: map[string]int{"limit": 10}, After: []string{"a"}, Note: "why"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data := read(t, path)
	s := verify(t, data, "", 5)
	if s.Prev != Start || s.First != 1 || s.Last != 5 || s.From.After(s.To) || s.Hash != l.Recent(0, 0, 1)[0].Hash {
		t.Errorf("%+v", s)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))[:5]
	join := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	altered := func(line []byte, old, new string) []byte {
		if !bytes.Contains(line, []byte(old)) {
			t.Fatalf("%q is not in the line", old)
		}
		return bytes.Replace(line, []byte(old), []byte(new), 1)
	}
	resealed := func(line []byte, old, new string) []byte {
		line = altered(line, old, new)
		text := line[:len(line)-1-hashLength]
		sum := sha256.Sum256(text)
		return append(bytes.Clone(text), `,"hash":"`+hex.EncodeToString(sum[:])+"\"}\n"...)
	}
	for name, c := range map[string]struct {
		data []byte
		line uint64
	}{
		"altered":              {join(lines[0], altered(lines[1], "x<&", "y<&"), lines[2], lines[3], lines[4]), 2},
		"altered and resealed": {join(resealed(lines[0], "ada", "bob"), lines[1], lines[2], lines[3], lines[4]), 2},
		"renumbered":           {join(lines[0], resealed(lines[1], `"seq":2`, `"seq":7`), lines[2]), 2},
		"left out":             {join(lines[0], lines[2], lines[3], lines[4]), 2},
		"twice":                {join(lines[0], lines[1], lines[1], lines[2]), 3},
		"swapped":              {join(lines[0], lines[1], lines[3], lines[2], lines[4]), 3},
		"put in":               {join(lines[0], []byte("{}\n"), lines[1]), 2},
		"empty line":           {join(lines[0], []byte("\n"), lines[1]), 2},
		"torn":                 {join(lines[0], lines[2][:20]), 2},
		"no end":               {join(lines[0], lines[1][:len(lines[1])-1]), 2},
		"behind another file":  {join(lines[1:]...), 1},
	} {
		after := ""
		if c.line == 1 {
			after = Start
		}
		_, err := Verify(bytes.NewReader(c.data), after, "")
		if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Line != c.line {
			t.Errorf("%s: %v, want line %d", name, err, c.line)
		}
	}
	// What is cut off at the end shows by the last hash alone.
	if cut := verify(t, join(lines[:4]...), "", 4); cut.Hash == s.Hash {
		t.Error("the hash of a file that was cut is that of the whole")
	}
	verify(t, nil, "", 0)
	if _, err := Verify(io.MultiReader(bytes.NewReader(lines[0]), failing{}), "", ""); !errors.Is(err,
		io.ErrClosedPipe) {
		t.Errorf("an error of reading became %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestFormat: other programs can check a chain by the description of Entry.Hash.
func TestFormat(t *testing.T) {
	e := Entry{Seq: 1, Time: time.Unix(1_800_000_000, 0).UTC(), Who: "ada", What: "ban <set>", Key: "user=ada",
		After: map[string]string{"until": "soon"}, Node: "n1", Prev: Start}
	line, err := e.seal()
	if err != nil {
		t.Fatal(err)
	}
	text := `{"seq":1,"time":"2027-01-15T08:00:00Z","who":"ada","what":"ban <set>","key":"user=ada","after":{"until":"soon"},"node":"n1","prev":"` + Start + `"`
	sum := sha256.Sum256([]byte(text))
	if want := text + `,"hash":"` + hex.EncodeToString(sum[:]) + "\"}\n"; string(line) != want {
		t.Errorf("got\n%swant\n%s", line, want)
	}
}

// TestTorn: wherever a crash cuts the last record, the next start goes on behind the one before.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{Path: path})
	record(t, l, "one", "two", "three")
	_ = l.Close()
	data := read(t, path)
	third := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	for cut := third; cut < len(data); cut += 7 {
		if err := os.WriteFile(path, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, Options{Path: path})
		record(t, l, "four")
		_ = l.Close()
		want := []string{"one", "two", "torn record cut", "four"}
		if cut == third {
			want = []string{"one", "two", "four"}
		}
		if got := whats(l); !slices.Equal(got, want) {
			t.Errorf("cut at %d: %q", cut, got)
		}
		verify(t, read(t, path), Start, uint64(len(want)))
	}
}

// TestAltered: a file that was altered is carried on behind the place, and Verify finds it.
func TestAltered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{Path: path})
	record(t, l, "one", "two", "three")
	_ = l.Close()
	if err := os.WriteFile(path, bytes.Replace(read(t, path), []byte("three"), []byte("THREE"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l = open(t, Options{Path: path, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	record(t, l, "four", "five")
	_ = l.Close()
	if s, err := Verify(bytes.NewReader(read(t, path)), "", ""); s.Records != 2 || err == nil ||
		!strings.Contains(err.Error(), "line 3") {
		t.Errorf("%+v, %v", s, err)
	}
	if !strings.Contains(log.String(), "was altered") {
		t.Errorf("log:\n%s", &log)
	}
}

// TestManyRecords: the last records are found at the end of a large file.
func TestManyRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	var data []byte
	c := hashchain.Chain{Hash: Start}
	for i := range 5000 {
		e := Entry{Seq: c.Number + 1, Who: "ada", What: fmt.Sprint("change ", i), Prev: c.Hash,
			Note: strings.Repeat("n", i%900)}
		line, err := e.seal()
		if err != nil {
			t.Fatal(err)
		}
		data, c.Number, c.Hash = append(data, line...), e.Seq, e.Hash
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, Options{Path: path})
	if got := l.Recent(0, 0, 3); len(got) != 3 || got[0].Seq != 5000 || got[2].Seq != 4998 {
		t.Fatalf("%+v", got)
	}
	record(t, l, "last")
	if got := l.Recent(4999, 0, 10); len(got) != 2 || got[0].What != "last" || got[1].Seq != 5000 {
		t.Errorf("after 4999: %+v", got)
	}
	if got := l.Recent(0, 4999, 2); len(got) != 2 || got[0].Seq != 4998 {
		t.Errorf("before 4999: %+v", got)
	}
	_ = l.Close()
	verify(t, read(t, path), Start, 5001)
}

// faulty is a file on a disk with faults.
type faulty struct {
	*os.File
	mu        sync.Mutex
	room      int // bytes; below 0 is no bound
	syncFails bool
	truncates int           // fail so many times
	hold      chan struct{} // each write waits for one
}

func (f *faulty) Write(p []byte) (int, error) {
	if f.hold != nil {
		<-f.hold
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room >= 0 && len(p) > f.room {
		n, _ := f.File.Write(p[:f.room])
		f.room = 0
		return n, syscall.ENOSPC
	}
	if f.room >= 0 {
		f.room -= len(p)
	}
	return f.File.Write(p)
}

func (f *faulty) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.syncFails {
		return syscall.EIO
	}
	return f.File.Sync()
}

func (f *faulty) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.truncates > 0 {
		f.truncates--
		return syscall.EIO
	}
	return f.File.Truncate(size)
}

func (f *faulty) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// onFaulty is a log whose file lies on a disk with faults.
func onFaulty(t *testing.T, f *faulty) (l *Log, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit.jsonl")
	out, _, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f.File = out.f.(*os.File)
	out.f = f
	l = newLog(Options{Path: path, Logger: slog.New(slog.DiscardHandler)})
	l.file = out
	l.Begin("")
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

// TestFullDisk: a change whose record does not fit is refused, and half a record is cut off. When
// there is room again, records go on, with one about the lost records.
func TestFullDisk(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken func(*faulty)
	}{
		{"full", func(f *faulty) { f.room = 10 }},
		{"full, and cannot be cut", func(f *faulty) { f.room, f.truncates = 10, 3 }},
		{"not synced", func(f *faulty) { f.syncFails = true }},
	} {
		f := &faulty{room: -1}
		l, path := onFaulty(t, f)
		record(t, l, "one")
		f.set(func() { c.broken(f) })
		for range 2 {
			if err := l.Record(t.Context(), Entry{What: "refused"}); !errors.Is(err, ErrNotKept) ||
				!strings.Contains(err.Error(), "cannot be written") {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		l.Tell(Entry{What: "told"})
		if err := l.Record(t.Context(), Entry{What: "refused"}); !errors.Is(err, ErrNotKept) {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := l.Lost(); n != 1 {
			t.Errorf("%s: %d lost", c.name, n)
		}
		f.set(func() { f.room, f.syncFails, f.truncates = -1, false, 0 })
		record(t, l, "two")
		_ = l.Close()
		if got := whats(l); !slices.Equal(got, []string{"one", "records lost", "two"}) || l.Lost() != 0 {
			t.Errorf("%s: %q", c.name, got)
		}
		verify(t, read(t, path), Start, 3)
	}
}

// TestFullDevice: the same with a device of the system that is always full.
func TestFullDevice(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	l := open(t, Options{Path: "/dev/full"})
	if err := l.Record(t.Context(), Entry{What: "refused"}); !errors.Is(err, ErrNotKept) ||
		!errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
}

// TestSlowDisk: while the disk hangs nobody waits but those who change something, and these no
// longer than their context lasts. A change that was given up meanwhile is told as not made.
func TestSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{room: -1, hold: make(chan struct{})}
		l, path := onFaulty(t, f)
		try := func(what string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return l.Record(ctx, Entry{What: what})
		}
		var changes sync.WaitGroup
		for _, what := range []string{"hangs", "waits"} {
			changes.Go(func() {
				if err := try(what); !errors.Is(err, ErrNotKept) || !strings.Contains(err.Error(), "too slow") {
					t.Errorf("%s: %v", what, err)
				}
			})
			synctest.Wait()
		}
		l.Tell(Entry{What: "told"})
		for range 2 * waiting {
			l.Tell(Entry{What: "too many"})
			l.Count(Entry{Who: Weir, What: "bans by denials", Domain: "shop", Limit: "login"})
		}
		if l.Lost() == 0 || len(l.Recent(0, 0, 10)) != 0 {
			t.Errorf("%d lost, %d kept", l.Lost(), len(l.Recent(0, 0, 10)))
		}
		if err := try("finds no place"); !errors.Is(err, ErrNotKept) {
			t.Errorf("got %v", err)
		}
		changes.Wait()
		close(f.hold)
		synctest.Wait()
		_ = l.Close()
		var got []string
		for line := range bytes.Lines(read(t, path)) {
			e, err := unseal(bytes.TrimSuffix(line, []byte("\n")))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.What)
		}
		if !slices.Equal(got[:4], []string{"hangs", "hangs: failed", "records lost", "told"}) {
			t.Errorf("got %q", got[:4])
		}
		if i := slices.Index(got, "waits"); i >= 0 {
			t.Error("a change that was given up before it was written has a record")
		}
		if got[len(got)-1] != "bans by denials" {
			t.Errorf("the last one is %q", got[len(got)-1])
		}
		verify(t, read(t, path), Start, uint64(len(got)))
	})
}

// TestCount: what happens often is told once a minute, a record for each kind, in any number.
func TestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, Options{})
		banned := func(rule string) { l.Count(Entry{Who: Weir, What: "bans by denials", Domain: "shop", Limit: rule}) }
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 100 {
					banned("login")
				}
			})
		}
		all.Wait()
		for i := range 3 {
			l.Count(Entry{Who: "ada", Address: "192.0.2.1", What: "signal pushed", Key: "queue", Before: i,
				After: i + 1})
		}
		time.Sleep(countEvery)
		synctest.Wait()
		got := l.Recent(0, 0, 10)
		if len(got) != 2 || got[1].Limit != "login" || got[1].After != (Times{Times: 400}) || got[1].Who != Weir ||
			got[0].Key != "queue" || got[0].Before != 0 || got[0].After != (Times{3, 3}) ||
			got[0].Address != "192.0.2.1" {
			t.Errorf("%+v", got)
		}
		time.Sleep(countEvery)
		synctest.Wait()
		if n := len(l.Recent(0, 0, 10)); n != 2 {
			t.Errorf("a quiet minute left %d records", n)
		}
		for i := range 2 * mostCounts {
			banned(fmt.Sprint(i))
		}
		time.Sleep(countEvery)
		synctest.Wait()
		if got := l.Recent(2, 0, 5000); len(got) != mostCounts+1 {
			t.Errorf("%d records of %d rules", len(got), 2*mostCounts)
		}
	})
}

// TestReopen: after the file was moved away the chain goes on in a new one; both verify together.
func TestReopen(t *testing.T) {
	folder := t.TempDir()
	path, moved := filepath.Join(folder, "audit.jsonl"), filepath.Join(folder, "audit.1")
	l := open(t, Options{Path: path})
	record(t, l, "one", "two")
	for range 2 { // it was not moved
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	record(t, l, "three")
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	record(t, l, "four") // into the file that was moved
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	record(t, l, "five")
	away := folder + ".away"
	if err := os.Rename(folder, away); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Error("a file in a folder that is gone was opened")
	}
	record(t, l, "six")
	if err := os.Rename(away, folder); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	first := verify(t, read(t, moved), Start, 4)
	verify(t, read(t, path), first.Hash, 2)
	// Another log at the same place is carried on.
	other := filepath.Join(folder, "other")
	o := open(t, Options{Path: other})
	record(t, o, "elsewhere")
	_ = o.Close()
	l = open(t, Options{Path: path})
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	record(t, l, "seven")
	_ = l.Close()
	verify(t, read(t, path), Start, 2)
	if err := l.Reopen(); err == nil {
		t.Error("a closed log was opened")
	}
	if err := l.Record(t.Context(), Entry{What: "late"}); !errors.Is(err, ErrNotKept) {
		t.Errorf("a closed log kept a record: %v", err)
	}
}

// TestTwoPrograms: a file belongs to one program.
func TestTwoPrograms(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	open(t, Options{Path: path})
	if _, err := Open(Options{Path: path}); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("got %v", err)
	}
}

// TestTogether: records that come at once are one chain, and each is kept once.
func TestTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{Path: path})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				record(t, l, fmt.Sprint("change ", i))
			}
		})
	}
	all.Wait()
	_ = l.Close()
	verify(t, read(t, path), Start, 160)
}

// TestNobody: no log keeps nothing, and forbids nothing.
func TestNobody(t *testing.T) {
	var l *Log
	l.Tell(Entry{})
	l.Count(Entry{})
	l.Failed(Entry{}, io.EOF)
	if l.Record(t.Context(), Entry{}) != nil || l.Reopen() != nil || l.Recent(0, 0, 1) != nil || l.Lost() != 0 ||
		l.Close() != nil {
		t.Error("no log did something")
	}
}

// TestPrepare: the file is taken at once; records wait for the name of the node, and are kept by a
// program that ends before it knows it.
func TestPrepare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	prepare := func() *Log {
		l, err := Prepare(Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := prepare()
	if _, err := Open(Options{Path: path}); err == nil {
		t.Error("two programs write to one file")
	}
	l.Tell(Entry{What: "early"})
	l.Begin("n1")
	l.Begin("n2")
	if err := l.Record(t.Context(), Entry{What: "late"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = prepare()
	l.Tell(Entry{What: "nameless"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = prepare()
	defer l.Close()
	var got []string
	for _, e := range l.Recent(0, 0, 9) {
		got = append(got, e.What+" on "+e.Node)
	}
	if want := []string{"nameless on ", "late on n1", "early on n1"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
