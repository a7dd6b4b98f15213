package spoe

import (
	"bytes"
	"math"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestVarint: the bounds that doc/SPOE.txt, 3.1, gives, and what does not fit.
func TestVarint(t *testing.T) {
	for _, c := range []struct {
		v    uint64
		size int
	}{
		{0, 1}, {239, 1}, {240, 2}, {2287, 2}, {2288, 3}, {264431, 3}, {264432, 4}, {33818863, 4}, {33818864, 5}, {4328786159, 5}, {4328786160, 6}, {math.MaxUint64, 10},
	} {
		b := appendVarint(nil, c.v)
		if v, n := varintAt(string(b)); len(b) != c.size || varintSize(c.v) != c.size || v != c.v || n != c.size ||
			!bytes.Equal(b, number(c.v)) {
			t.Errorf("%d is % x, read as %d of %d bytes", c.v, b, v, n)
		}
		for cut := range b {
			if _, n := varintAt(string(b[:cut])); n != 0 {
				t.Errorf("% x, cut to %d bytes, has a value", b, cut)
			}
		}
	}
	for _, s := range []string{
		"\xf0", "\xf0\x80", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"\xf0\xff\xff\xff\xff\xff\xff\xff\xff\x10", "\xf0\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x0f", // one above the largest number
	} {
		if v, n := varintAt(s); n != 0 {
			t.Errorf("% x is read as %d", s, v)
		}
	}
}

func TestVarintRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Uint64().Draw(t, "v") >> rapid.IntRange(0, 63).Draw(t, "shift")
		b := appendVarint([]byte("x"), want)[1:]
		if v, n := varintAt(string(b) + "rest"); v != want || n != len(b) || n != varintSize(want) ||
			!bytes.Equal(b, number(want)) {
			t.Fatalf("%d: % x is read as %d of %d bytes", want, b, v, n)
		}
	})
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		v    any
		text string
	}{
		{nil, ""}, {true, "true"}, {false, "false"}, {int32(-1), "-1"}, {int32(5), "5"}, {uint32(math.MaxUint32), "4294967295"}, {-7, "-7"},
		{uint64(math.MaxUint64), "18446744073709551615"}, {netip.MustParseAddr("192.0.2.1"), "192.0.2.1"}, {netip.MustParseAddr("2001:db8::1"), "2001:db8::1"},
		{netip.MustParseAddr("::ffff:192.0.2.1"), "192.0.2.1"}, {"", ""}, {"text", "text"}, {[]byte{0, 255}, "\x00\xff"},
	} {
		b := string(typed(c.v))
		v, rest, ok := cutValue(b + "rest")
		if got := string(v.appendTo(nil)); !ok || rest != "rest" || got != c.text {
			t.Errorf("%v is read as %q, with the rest %q", c.v, got, rest)
		}
		for cut := range len(b) {
			if _, _, ok := cutValue(b[:cut]); ok {
				t.Errorf("%v, cut to %d bytes, is read", c.v, cut)
			}
		}
	}
	for _, s := range []string{"\x0a", "\x0fx", "\x08\x05abcd", "\x09\xf0", "\x06abc", "\x07abc", "\x03\xff"} {
		if _, _, ok := cutValue(s); ok {
			t.Errorf("%q is read", s)
		}
	}
	// Flags without a meaning do not matter.
	if v, _, ok := cutValue("\xf1"); !ok || !v.truth {
		t.Error("a boolean with more flags is not true")
	}
}

func FuzzValue(f *testing.F) {
	for _, v := range []any{nil, true, int32(-1), uint32(1), -1, uint64(1), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("::1"), "text", []byte("binary")} {
		f.Add(typed(v))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := string(b)
		v, rest, ok := cutValue(s)
		if !ok {
			return
		}
		used := s[:len(s)-len(rest)]
		if used+rest != s || len(used) == 0 {
			t.Fatalf("%q is cut into %q and %q", s, used, rest)
		}
		if again, _, ok := cutValue(used); !ok || again != v {
			t.Fatalf("%q is read as %+v, and %+v", used, v, again)
		}
		v.appendTo(nil)
		v.integer()
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(helloFrom26()[4:])
	f.Add(notify(1, 2, message("m", "ip", client, "path", "/", "hits", 1, "query", "a=b", "domain", "d"))[4:])
	f.Add(rawFrame(2, 1, 0, 0, pairs("status-code", uint32(2), "message", "a timeout occurred"))[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, ok := parseFrame(string(b))
		if !ok {
			return
		}
		again := beginFrame(nil, frame.kind, frame.stream, frame.id)[4:]
		again[4] = b[4]
		copy(again[1:5], b[1:5])
		if back, ok := parseFrame(string(again) + frame.payload); !ok || back != frame {
			t.Fatalf("%+v, written anew: %+v", frame, back)
		}
		if h, s := parseHello(frame.payload, defaultFrame); s == statusOK &&
			(h.frameSize < minFrameLimit || h.frameSize > defaultFrame) {
			t.Fatalf("frames of %d bytes", h.frameSize)
		}
		parseDisconnect(frame.payload)
		var a attributes
		a.reset()
		if _, ok := a.parse(frame.payload); ok {
			for name, text := range a.All() {
				if got, ok := a.Attribute(name); !ok || got != text {
					t.Fatalf("%q is %q and %q", name, text, got)
				}
			}
		}
	})
}
