package h2

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	property "pgregory.net/rapid"
)

// answerBlock is the header block of an answer, as response writes it.
func answerBlock(e *encoder, status int, h [][2]string) []byte {
	w := &response{buffers: new(buffers)}
	for _, f := range h {
		w.fields(f[0], []string{f[1]})
	}
	b := append(appendStatus(e.begin(nil), status), w.block...)
	for _, f := range w.shared {
		b = e.appendShared(b, f)
	}
	return b
}

// TestTable: whatever answers a connection has, and whatever falls out of the table meanwhile, a
// client reads the fields that were written. One with a smaller table, or none, does too.
func TestTable(t *testing.T) {
	value := property.OneOf(
		property.SampledFrom([]string{"", "0", "text/plain", "text/html; charset=utf-8", "a", "ÿ~^"}),
		property.StringMatching(`[a-z0-9=;" ]{0,60}`),
		property.Custom(func(t *property.T) string {
			return strings.Repeat(property.SampledFrom([]string{"v", "~", "\xff"}).Draw(t, "of"),
				property.SampledFrom([]int{100, maxSharedValue - 1, maxSharedValue, maxSharedValue + 1, 5000}).Draw(t,
					"times"))
		}))
	names := []string{"Set-Cookie", "Etag", "Content-Length", "X-Secret", "Www-Authenticate", "X-Odd"}
	for _, name := range sharedNames[1:] {
		names = append(names, http.CanonicalHeaderKey(name))
	}
	property.Check(t, func(rt *property.T) {
		var e encoder
		size := property.SampledFrom([]uint32{4096, 4096, 65536, 4095, 1000, 0}).Draw(rt, "table")
		e.tableSize(size)
		decoder := hpack.NewDecoder(4096, nil)
		decoder.SetAllowedMaxDynamicTableSize(size)
		e.unary = property.IntRange(0, 9).Draw(rt, "unary") == 0
		for range property.IntRange(1, 40).Draw(rt, "answers") {
			var h [][2]string
			for range property.IntRange(0, 12).Draw(rt, "fields") {
				h = append(h, [2]string{property.SampledFrom(names).Draw(rt, "name"), value.Draw(rt, "value")})
			}
			got, err := decoder.DecodeFull(answerBlock(&e, 200, h))
			if err != nil {
				rt.Fatal(err)
			}
			var read, written []string
			for _, f := range got[1:] {
				read = append(read, fmt.Sprintf("%s: %q", f.Name, f.Value))
			}
			for _, f := range h {
				written = append(written, fmt.Sprintf("%s: %q", strings.ToLower(f[0]), f[1]))
			}
			slices.Sort(read)
			slices.Sort(written)
			if !slices.Equal(read, written) {
				rt.Fatalf("%q is read of %q", read, written)
			}
		}
	})
}

// TestTableSmall: an answer like those before takes few bytes. What may be a secret takes as many
// each time, as it must: it is in no table. Nor is anybody on its way to put a cookie into one.
func TestTableSmall(t *testing.T) {
	alike := func(n int) [][2]string {
		return [][2]string{{"Content-Type", "text/plain"}, {"Server", "nginx/1.22.1"},
			{"Date", "Sat, 28 Nov 2026 19:05:54 GMT"}, {"Content-Length", "5"},
			{"X-Ratelimit-Limit", "1000000000"}, {"X-Ratelimit-Remaining", fmt.Sprint(999_999_000 - n)}, {"X-Ratelimit-Reset", "1"},
			{"Ratelimit-Policy", `"per-address";q=1000000000;w=60`},
			{"Ratelimit", fmt.Sprintf(`"per-address";r=%d;t=1`, 999_999_000-n)}}
	}
	var e encoder
	var block []byte
	for n := range 10 {
		block = answerBlock(&e, 200, alike(n))
	}
	if len(block) > 50 {
		t.Errorf("the tenth answer of a kind has %d bytes of header", len(block))
	}
	secret := [][2]string{{"Set-Cookie", "session=0123456789abcdef"}, {"X-Token", "0123456789abcdef"},
		{"Authorization", "Bearer 0123456789abcdef"},
		{"Etag", "0123456789abcdef"}, {"Location", "/reset/0123456789abcdef"}}
	before, first := e.inserted, answerBlock(&e, 200, secret)
	if again := answerBlock(&e, 200, secret); !bytes.Equal(first, again) || e.inserted != before {
		t.Errorf("%x, then %x; there are %d fields in the table", first, again, e.inserted)
	}
	fields, err := hpack.NewDecoder(0, nil).DecodeFull(answerBlock(&e, 200, secret[:1]))
	if err != nil || !fields[1].Sensitive {
		t.Errorf("%+v %v", fields, err)
	}
}

// TestTableChanges: a client reads answers of many kinds over one connection as they were written.
func TestTableChanges(t *testing.T) {
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			if after, ok := strings.CutPrefix(name, "Give-"); ok {
				w.Header()[after] = values
			}
		}
	}), nil, configure)
	c := plainClient(t)
	want := func(name string, n int) string { return fmt.Sprintf("%s of %d", strings.ToLower(name), n/3*(n%3)) }
	for n := range 300 {
		r, err := http.NewRequest("GET", base, nil)
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"X-Own"}
		for i := 1; i < len(sharedNames); i += 1 + n%4 {
			names = append(names, http.CanonicalHeaderKey(sharedNames[i]))
		}
		for _, name := range names {
			r.Header.Set("Give-"+name, want(name, n))
		}
		answer, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		for _, name := range names {
			if got := answer.Header[name]; len(got) != 1 || got[0] != want(name, n) {
				t.Errorf("%s: %q, want %q", name, got, want(name, n))
			}
		}
	}
}

// TestTableNone: a client that wants no table gets none, also if it says so later.
func TestTableNone(t *testing.T) {
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Server"] = []string{"one of ours"}
	}), nil, configure)
	c := dialRaw(t, strings.TrimPrefix(base, "http://"))
	for id := uint32(1); id < 10; id += 2 {
		if id == 5 {
			c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
			c.f.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(0)
		}
		c.open(id, "/")
		if a := c.answer(id); a.header.Get("server") != "one of ours" {
			t.Errorf("%+v", a)
		}
	}
}

// Blocks of an answer with the rate-limit headers, as this package and as x/net writes them.
func BenchmarkAnswerHeader(b *testing.B) {
	h := http.Header{"Content-Type": {"text/plain"}, "Server": {"nginx/1.22.1"},
		"Date": {"Sat, 28 Nov 2026 19:05:54 GMT"}, "Content-Length": {"5"},
		"X-Ratelimit-Limit": {"1000000000"}, "X-Ratelimit-Reset": {"1"}, "Ratelimit-Policy": {`"per-address";q=1000000000;w=60`}}
	var values [1000][2][]string
	for n := range values {
		values[n] = [2][]string{{fmt.Sprint(999_999_000 - n)}, {fmt.Sprintf(`"per-address";r=%d;t=1`, 999_999_000-n)}}
	}
	next := func(n int) {
		h["X-Ratelimit-Remaining"], h["Ratelimit"] = values[n%1000][0], values[n%1000][1]
	}
	b.Run("h2", func(b *testing.B) {
		b.ReportAllocs()
		var e encoder
		w := &response{buffers: new(buffers)}
		var out []byte
		for n := 0; b.Loop(); n++ {
			next(n)
			for name, v := range h {
				w.fields(name, v)
			}
			out = append(appendStatus(e.begin(out[:0]), 200), w.block...)
			for _, f := range w.shared {
				out = e.appendShared(out, f)
			}
			w.block, w.shared = w.block[:0], w.shared[:0]
		}
		b.ReportMetric(float64(len(out)), "B/answer")
	})
	b.Run("hpack", func(b *testing.B) {
		b.ReportAllocs()
		var out bytes.Buffer
		e := hpack.NewEncoder(&out)
		lower := map[string]string{}
		for name := range h {
			lower[name] = strings.ToLower(name)
		}
		for n := 0; b.Loop(); n++ {
			next(n)
			out.Reset()
			_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			for name, v := range h {
				_ = e.WriteField(hpack.HeaderField{Name: lower[name], Value: v[0]})
			}
		}
		b.ReportMetric(float64(out.Len()), "B/answer")
	})
	b.Run("literals", func(b *testing.B) {
		b.ReportAllocs()
		var out []byte
		for n := 0; b.Loop(); n++ {
			next(n)
			out = appendStatus(out[:0], 200)
			for name, v := range h {
				code := fieldCodes[name]
				if code.static > 0 {
					out = appendInt(append(out, 0), 4, int(code.static))
				} else {
					out = appendInt(append(out, 0, 0), 7, len(name))
					out = append(out, name...)
				}
				out = append(appendInt(append(out, 0), 7, len(v[0])), v[0]...)
			}
		}
		b.ReportMetric(float64(len(out)), "B/answer")
	})
}
