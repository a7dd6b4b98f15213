package accesslog

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

type stamped struct {
	time int64
	id   int
}

// sorted is the definition of the order, done simply.
func sorted(in []stamped, window int64) (out []stamped, late int64) {
	newest := int64(0)
	for i, s := range in {
		if i == 0 || s.time > newest {
			newest = s.time
		} else if s.time < newest-window {
			late++
			s.time = newest
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b stamped) int { return cmp.Compare(a.time, b.time) })
	return out, late
}

func asCSV(in []stamped, padding string) string {
	var b strings.Builder
	for _, s := range in {
		fmt.Fprintf(&b, "%d,%d,%s\n", s.time, s.id, padding)
	}
	return b.String()
}

func drain(t interface{ Fatal(...any) }, next func(*Entry) error) []stamped {
	var e Entry
	var out []stamped
	for {
		err := next(&e)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		id, err := strconv.Atoi(string(e.Get("id")))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, stamped{e.Time / second, id})
	}
}

var idColumns = Options{Format: CSV, Fields: []string{"time", "id", "padding"}}

func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.Int64Range(0, 20).Draw(t, "window")
		var in []stamped
		for i, d := range rapid.SliceOf(rapid.Int64Range(-30, 30)).Draw(t, "steps") {
			last := int64(1_700_000_000)
			if i > 0 {
				last = in[i-1].time
			}
			in = append(in, stamped{last + d, i})
		}
		want, late := sorted(in, window)
		r, err := NewReader(strings.NewReader(asCSV(in, "")), idColumns)
		if err != nil {
			t.Fatal(err)
		}
		o := ordered{r: r, window: window * second}
		defer o.close()
		if got := drain(t, o.next); !slices.Equal(got, want) {
			t.Fatalf("order of %v within %d:\n%v, want\n%v", in, window, got, want)
		}
		if o.late != late {
			t.Fatalf("late %d, want %d", o.late, late)
		}
	})
}

// Many lines that wait at once go through the temporary file, and come out in order all the same.
func TestOrderSpills(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var in []stamped
	for i := range 300_000 {
		at := int64(1_700_000_000 + i/1000)
		if i%10 == 0 {
			at -= rng.Int64N(400)
		}
		in = append(in, stamped{at, i})
	}
	want, late := sorted(in, 200)
	r, err := NewReader(strings.NewReader(asCSV(in, strings.Repeat("x", 60))), idColumns)
	if err != nil {
		t.Fatal(err)
	}
	o := ordered{r: r, window: 200 * second}
	defer o.close()
	spilled := false
	got := drain(t, func(e *Entry) error {
		spilled = spilled || len(o.queue.spill) > 0
		return o.next(e)
	})
	if !spilled {
		t.Error("nothing went to the temporary file: the test is too small")
	}
	if !slices.Equal(got, want) {
		t.Error("the order is not that of a stable sort")
	}
	if o.late != late || late == 0 {
		t.Errorf("late %d, want %d, and some", o.late, late)
	}
	file := o.queue.file.Name()
	o.close()
	if _, err := os.Stat(file); err == nil {
		t.Errorf("the temporary file %s is left behind", file)
	}
}

// An endless run of late lines, as when a log is read twice over, waits in the temporary file, not
// in memory.
func TestOrderLateFlood(t *testing.T) {
	const lines = 400_000
	line := 0
	padding := strings.Repeat("x", 80)
	r, err := NewReader(readerFunc(func(p []byte) (int, error) {
		var b []byte
		for line < lines && len(b)+120 < len(p) {
			at := 1_700_000_000
			if line > 0 {
				at -= 5000
			}
			b = fmt.Appendf(b, "%d,%d,%s\n", at, line, padding)
			line++
		}
		if len(b) == 0 {
			return 0, io.EOF
		}
		return copy(p, b), nil
	}), idColumns)
	if err != nil {
		t.Fatal(err)
	}
	o := ordered{r: r, window: 900 * second}
	defer o.close()
	var e Entry
	for i := range lines {
		if err := o.next(&e); err != nil {
			t.Fatal(err)
		}
		if id := string(e.Get("id")); id != strconv.Itoa(i) {
			t.Fatalf("entry %d has id %s", i, id)
		}
		if held := len(o.queue.ready) * chunkSize; held > memoryChunks*chunkSize {
			t.Fatalf("%d bytes of waiting lines in memory", held)
		}
	}
	if o.late != lines-1 {
		t.Errorf("late %d, want %d", o.late, lines-1)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func compress(t *testing.T, how string, text string) []byte {
	var b bytes.Buffer
	var w io.WriteCloser
	switch how {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	default:
		return []byte(text)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Rotated parts in any packing, given in any order, and one of them on standard input, come out as
// one log.
func TestLogMergesFiles(t *testing.T) {
	dir := t.TempDir()
	parts := [][]stamped{
		{{1_700_000_200, 4}, {1_700_000_190, 3}, {1_700_000_201, 5}},
		{{1_700_000_000, 0}, {1_700_000_050, 1}},
		{{1_700_000_100, 2}, {1_700_000_201, 6}},
		nil,
	}
	var paths []string
	for i, how := range []string{"gzip", "zstd", "plain", "gzip"} {
		path := filepath.Join(dir, fmt.Sprint("log", i))
		if err := os.WriteFile(path, compress(t, how, asCSV(parts[i], "")), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	paths = append(paths, "-")
	stdin := bytes.NewReader(compress(t, "gzip",
		asCSV([]stamped{{1_700_000_201, 7}, {1_700_000_300, 8}}, "")+"damaged\n"))
	o := idColumns
	o.Reorder = 60 * second
	l, err := Open(paths, stdin, o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var ids []string
	for {
		e, err := l.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, string(e.Get("id")))
	}
	if got := strings.Join(ids, " "); got != "0 1 2 3 4 5 6 7 8" {
		t.Errorf("order %s", got)
	}
	if s := l.Stats(); s.Entries != 9 || s.Skipped != 1 || s.Late != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestLogErrors(t *testing.T) {
	dir := t.TempDir()
	whole := compress(t, "gzip", strings.Repeat("1700000000,1,x\n", 1000))
	cut := filepath.Join(dir, "cut.gz")
	if err := os.WriteFile(cut, whole[:len(whole)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		paths []string
		want  string
	}{
		{[]string{filepath.Join(dir, "none")}, "no such file"},
		{[]string{dir}, "is a folder"},
		{[]string{"-", "-"}, "given twice"},
		{[]string{cut}, " lines: unexpected EOF"},
	} {
		l, err := Open(tt.paths, strings.NewReader(""), idColumns)
		for err == nil {
			if _, err = l.Next(); err == io.EOF {
				err = nil
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: error %v, want one with %q", tt.paths, err, tt.want)
		}
	}
}

func BenchmarkReader(b *testing.B) {
	for name, line := range map[string]string{
		"combined": `192.0.2.1 - - [25/Oct/2015:04:11:25 +0100] "GET /linux/doing-pxe-without-dhcp-control HTTP/1.1" 200 24323 "http://howto.example/" "Mozilla/5.0 (Windows NT 5.1; rv:35.0) Gecko/20100101 Firefox/35.0"`,
		"json":     `{"ts":1646861401.5,"request":{"remote_ip":"10.0.0.1","method":"GET","uri":"/linux/doing-pxe"},"status":200,"agent":"Mozilla/5.0 (Windows NT 5.1; rv:35.0)"}`,
		"tsv":      "807249601000\tin24.inetnebr.com\tGET\t/shuttle/missions/sts-68/news/sts-68-mcc-05.txt\t200\t1839",
	} {
		b.Run(name, func(b *testing.B) {
			block := strings.Repeat(line+"\n", 1000)
			n := 0
			r, err := NewReader(readerFunc(func(p []byte) (int, error) {
				n = copy(p, block)
				return n - n%(len(line)+1), nil
			}), Options{})
			if err != nil {
				b.Fatal(err)
			}
			o := ordered{r: r} // all lines have one time: with a window they would all wait
			var e Entry
			b.SetBytes(int64(len(line) + 1))
			b.ReportAllocs()
			for b.Loop() {
				if err := o.next(&e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
