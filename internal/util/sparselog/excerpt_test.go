package sparselog

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestExcerpt(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"/a", "/a"},
		{strings.Repeat("a", 200), strings.Repeat("a", 200)},
		{strings.Repeat("a", 60_000), strings.Repeat("a", 200) + "… (60000 bytes)"},
		{strings.Repeat("a", 199) + "é", strings.Repeat("a", 199) + "… (201 bytes)"},
		{strings.Repeat("\x80", 300), strings.Repeat("\x80", 196) + "… (300 bytes)"},
	} {
		if got := Excerpt(c.text); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if got := Excerpt(c.text); utf8.ValidString(c.text) && !utf8.ValidString(got) {
			t.Errorf("%q is no text", got)
		}
	}
}
