package human

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"
)

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Second, "0 s"}, {0, "0 s"}, {1, "1 ms"}, {250 * time.Millisecond, "250 ms"},
		{999*time.Millisecond + 1, "1 s"}, {3140 * time.Millisecond, "3.2 s"}, {9950 * time.Millisecond, "10 s"},
		{36_869_892 * time.Microsecond, "37 s"}, {59*time.Second + 1, "1 min"}, {5*time.Minute + 3*time.Second, "5 min 3 s"},
		{5 * time.Minute, "5 min"}, {time.Hour - 1, "1 h"}, {2*time.Hour + 4*time.Minute + 1, "2 h 5 min"},
		{24*time.Hour - 1, "1 d"}, {76 * time.Hour, "3 d 4 h"}, {366 * 24 * time.Hour, "366 d"},
	} {
		if got := Span(c.d); got != c.want {
			t.Errorf("Span(%v) = %q, want %q", c.d, got, c.want)
		}
	}
}

func TestVisible(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"user=ada", "user=ada"}, {"", ""}, {"größe=5 €", "größe=5 €"}, {"東京", "東京"},
		{"\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`}, {"a\nb\tc", `a\x0ab\x09c`}, {"\u202egnp.exe", `\u202egnp.exe`},
		{"\x00\x7f\u009b1m", `\x00\x7f\x9b1m`}, {"bad\xff\xfe", `bad\xff\xfe`}, {"the mark \ufffd itself", "the mark \ufffd itself"},
		{`C:\x1b`, `C:\\x1b`}, {"zero\u200bwidth\ufeff", `zero\u200bwidth\ufeff`}, {"z\u0301\u0301", `z\u0301\u0301`},
		{"a\u3164b", `a\u3164b`}, {"a\u00a0b\u2028", `a\xa0b\u2028`}, {"\U000e0041", `\U000e0041`},
	} {
		if got := Visible(c.text); got != c.want {
			t.Errorf("Visible(%q) = %q, want %q", c.text, got, c.want)
		}
	}
}

// Whatever comes in, nothing goes out that could steer a terminal.
func TestVisibleIsHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := Visible(string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text"))
		if i := strings.IndexFunc(text, func(r rune) bool {
			return unicode.Is(unicode.C, r) || unicode.Is(unicode.M, r) || unicode.Is(unicode.Z, r) && r != ' '
		}); i >= 0 {
			t.Fatalf("%q", text[i:])
		}
	})
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Number(0), "0"}, {Number(-1234), "-1,234"}, {Number(uint64(1<<64 - 1)), "18,446,744,073,709,551,615"},
		{Number(1_234_567.5), "1,234,568"}, {Number(-0.2), "0"}, {Number(999), "999"},
		{Count(1, "key"), "1 key"}, {Count(0.6, "key"), "1 key"}, {Count(0, "key"), "0 keys"}, {Count(-1, "key"), "-1 keys"}, {Count(2310, "key"), "2,310 keys"},
		{List(nil, "and"), ""}, {List([]string{"a"}, "and"), "a"}, {List([]string{"a", "b", "c"}, "or"), "a, b or c"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
