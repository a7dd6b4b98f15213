package rule

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// globRegexp translates a glob for Go's regexp, which matches in linear time too: the glob's
// independent twin.
func globRegexp(glob string, lyft bool) *regexp.Regexp {
	var b strings.Builder
	folder := !lyft && strings.HasSuffix(glob, "/**")
	if folder {
		glob = strings.TrimSuffix(glob, "/**")
	}
	for i := 0; i < len(glob); {
		n := len(glob[i:]) - len(strings.TrimLeft(glob[i:], "*"))
		switch {
		case n == 0:
			// Byte by byte, so that invalid UTF-8 is matched as it is.
			b.WriteString(regexp.QuoteMeta(string(rune(glob[i]))))
			i++
			continue
		case n > 1 || lyft:
			b.WriteString(`(?s:.*)`)
		default:
			b.WriteString(`[^/]*`)
		}
		i += n
	}
	if folder {
		b.WriteString(`(?s:/.*)?`)
	}
	return regexp.MustCompile(`\A` + b.String() + `\z`)
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		glob  string
		match []string
		other []string
	}{
		{"/login", []string{"/login"}, []string{"/login/", "/logi", "/loginx", ""}},
		{"/api/*", []string{"/api/", "/api/x"}, []string{"/api", "/api/x/", "/api/x/y"}},
		{"/api/**", []string{"/api", "/api/", "/api/x", "/api/x/y/"}, []string{"/apix", "/ap", "/x/api"}},
		{"/api**", []string{"/api", "/apix/y"}, []string{"/ap"}},
		{"/**", []string{"/", "/x", "/x/y"}, []string{"x"}},
		{"**", []string{"/", "x", "a/b"}, nil},
		{"*", []string{"x", "a.b"}, []string{"a/b", "/"}},
		{"*.php", []string{"index.php", ".php"}, []string{"a/index.php", "index.php5"}},
		{"**.php", []string{"/a/index.php", ".php"}, []string{"/a/index.phpx"}},
		{"/a/*/c", []string{"/a/b/c", "/a//c"}, []string{"/a/b/b/c", "/a/c", "/a/b/c/"}},
		{"/a/**/c", []string{"/a/b/c", "/a/b/b/c", "/a//c"}, []string{"/a/c", "/a/b/c/d"}},
		{"/a/*/c/**", []string{"/a/b/c", "/a/b/c/", "/a/b/c/d/e"}, []string{"/a/b/cd", "/a/b/b/c/d"}},
		{"/**/c/**", []string{"/a/b/c", "/a/c/d", "//c"}, []string{"/c", "/a/b/cd"}},
		{"a*b*c", []string{"abc", "axbxc", "abbc", "abcbc"}, []string{"ab", "abcd", "a/bc", "ab/c"}},
		{"*/*", []string{"/", "a/b"}, []string{"a", "a/b/c"}},
		{"ab*ba", []string{"abba", "abxba"}, []string{"aba", "ab"}},
		{"***", []string{"a/b", ""}, nil},
	} {
		g, twin := newGlob(c.glob, false), globRegexp(c.glob, false)
		for _, s := range c.match {
			if !g.match(s) || !twin.MatchString(s) {
				t.Errorf("%q should match %q (regexp: %v)", c.glob, s, twin.MatchString(s))
			}
		}
		for _, s := range c.other {
			if g.match(s) || twin.MatchString(s) {
				t.Errorf("%q should not match %q (regexp: %v)", c.glob, s, twin.MatchString(s))
			}
		}
	}
}

func TestGlobAgainstRegexp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lyft := rapid.Bool().Draw(t, "lyft")
		p := rapid.StringMatching(`([ab/]|\*|\*\*|abab){0,12}(/\*\*)?`).Draw(t, "glob")
		if p == "" {
			return
		}
		s := rapid.StringMatching(`([ab/]|abab){0,24}`).Draw(t, "text")
		if got, want := newGlob(p, lyft).match(s), globRegexp(p, lyft).MatchString(s); got != want {
			t.Fatalf("glob %q on %q (lyft %v): %v, regexp says %v", p, s, lyft, got, want)
		}
	})
}

// A glob longer than one and than sixteen machine words must match as a short one does.
func TestLongGlob(t *testing.T) {
	for _, n := range []int{30, 31, 32, 33, 62, 63, 64, 65, 127, 128, 129, 1100} {
		long := strings.Repeat("ab", n)
		g := newGlob("*"+long+"*x/**", false)
		for s, want := range map[string]bool{
			long + "x":                 true,
			long + "x/":                true,
			"ab" + long + "yyx/y/x":    true,
			long + "y":                 false,
			long[1:] + "x":             false,
			long + "/x":                false,
			"a" + long[1:] + "x":       true,
			long[:len(long)-1] + "cx/": false,
		} {
			if g.match(s) != want {
				t.Errorf("%d: match(%.10q… of %d) = %v", n, s, len(s), !want)
			}
		}
	}
}

// The classic traps for backtracking: they end at once or not at all.
func TestGlobIsLinear(t *testing.T) {
	text := strings.Repeat("a", 1<<20)
	for _, p := range []string{
		strings.Repeat("a*", 30) + "b", strings.Repeat("**a", 20) + "b*c", "**a*a*a*a*a*b",
		strings.Repeat("*a", 200) + "*b", "*a*a*" + strings.Repeat("a", 5000) + "*b",
	} {
		if newGlob(p, false).match(text) {
			t.Errorf("%.20q matches", p)
		}
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("/api/**", "/api/x")
	f.Add("a*b**c", "ab/c")
	f.Fuzz(func(t *testing.T, p, s string) {
		if len(p) > 200 || len(s) > 1000 {
			return
		}
		for i := range len(p) {
			if p[i] >= 0x80 {
				return // the regexp twin reads runes
			}
		}
		for i := range len(s) {
			if s[i] >= 0x80 {
				return
			}
		}
		if got, want := newGlob(p, false).match(s), globRegexp(p, false).MatchString(s); got != want {
			t.Fatalf("glob %q on %q: %v, regexp says %v", p, s, got, want)
		}
	})
}
