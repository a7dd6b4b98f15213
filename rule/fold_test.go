package rule

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFoldPath(t *testing.T) {
	for path, want := range map[string]string{
		"/": "/", "*": "*", "/login": "/login", "/Login": "/login", "/login/": "/login", "/LOGIN/X/": "/login/x", "/a%2FB": "/a%2Fb",
		"/caf%C3%A9/": "/caf%C3%A9", "/%C3%89T%C3%89": "/%C3%89t%C3%89", "/A%": "/a%", "/%A": "/%a", "/a%zZ/": "/a%zz",
	} {
		if got := FoldPath(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
		normal, folded := scanPath(path)
		if folded != (path == want) && normal {
			t.Errorf("%s: scanPath says that it is folded: %v", path, folded)
		}
	}
}

// What scanPath calls folded has nothing to fold, and what FoldPath returns is normal and folded.
func TestScanPathAgainstFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		path := NormalPath("/" + rapid.StringMatching(`[a-cA-C/.%0-9_]{0,12}`).Draw(t, "path"))
		normal, is := scanPath(path)
		if normal && is != (FoldPath(path) == path) {
			t.Fatalf("%s: folded %v, and it is folded to %s", path, is, FoldPath(path))
		}
		if again := NormalPath(FoldPath(path)); again != FoldPath(path) || FoldPath(again) != again {
			t.Fatalf("%s: folded to %s, which is %s in normal form", path, FoldPath(path), again)
		}
	})
}

// A limit is met in each spelling of its path, and by nothing else.
func TestFoldedPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern    string
		met, other []string
	}{
		{"/login", []string{"/login", "/LOGIN", "/login/", "/Login/"}, []string{"/login/x", "/logi", "/login//x"}},
		{"/Login/", []string{"/login", "/LOGIN", "/login/"}, []string{"/login/x"}},
		{"/", []string{"/"}, []string{"/a"}},
		{"/api/**", []string{"/api", "/API", "/api/", "/API/x", "/Api/X/Y/"}, []string{"/apix"}},
		{"/users/*", []string{"/users/aB", "/USERS/aB/", "/users/", "/USERS/"}, []string{"/users", "/USERS", "/users/a/b"}},
		{"/users/*/", []string{"/users/aB", "/USERS/aB/"}, []string{"/users", "/users/a/b"}},
		{"/a/*/B/**", []string{"/a/x/b", "/A/x/B/c", "/a/x/b/"}, []string{"/a/x/c"}},
		{"**/", []string{"/", "/a/", "/A/B/"}, []string{"/a", "/A/B"}},
		{"**.PHP", []string{"/x.php", "/x.PHP", "/X.php/"}, []string{"/x.phpx"}},
		{"~^/login$", []string{"/login", "/LOGIN", "/login/"}, []string{"/login/x"}},
		{"~^/login/$", []string{"/login", "/LOGIN", "/login/"}, []string{"/login/x"}},
		{"~^/login/", []string{"/login", "/LOGIN/", "/login/x"}, []string{"/login-page"}},
		{"~^/(a/|b/)$", []string{"/a", "/B", "/b/"}, []string{"/a/b"}},
		{"~^/[A-F]+$", []string{"/abc", "/ABC", "/AbC/"}, []string{"/abg"}},
		{"~^/[^A-F]+$", []string{"/abc", "/ghi", "/ABC"}, nil},
		{"~(?i)^/LOGIN", []string{"/login", "/LOGIN/x"}, []string{"/x/login"}},
		{"/login", []string{"/login.", "/Login%20", "/login/ . .", "/login./"}, []string{"/log.in", "/login%2520", "/login..a"}},
		{"/login.", []string{"/login.", "/LOGIN./", "/login"}, []string{"/login.x"}},
		{"/*.", []string{"/a.", "/A./", "/a"}, []string{"/a./b"}},
		{"~^/x/[0-9]+/", []string{"/x/5/", "/X/5", "/x/5/y"}, []string{"/x/5y", "/x/"}},
		{"/login", []string{"/log\u0130n", "/log\u0131n/", "/log%c4%b0n"}, []string{"/log\u00ecn", "/log%25C4%25B0n"}},
		{"/**/desk/**", []string{"/a/de\u017f\u212a", "/A/DES\u212a/b"}, nil},
		{"~^/di%C5%BFK$", []string{"/DISK", "/disk/"}, nil},
		{"~%2F", []string{"/a%2Fb", "/A%2Fb/"}, []string{"/a/b"}},
		{"~/$", []string{"/a/", "/A/"}, []string{"/a", "/A"}},
	} {
		s := testSet(t, &File{Rules: []*Rule{testRule(t, "r").when(on(t, "path", c.pattern))}})
		exact := testSet(t,
			&File{Rules: []*Rule{testRule(t, "r").when(on(t, "path", c.pattern)).with(
				func(r *Rule) { r.ExactPaths = true })}})
		var m Matches
		for _, path := range c.met {
			if s.Match(&Query{Domain: "default", Attributes: Pairs{{"path", path}}}, &m); len(m.Hits) != 1 {
				t.Errorf("%s is not met by %s", c.pattern, path)
			}
		}
		for _, path := range c.other {
			if s.Match(&Query{Domain: "default", Attributes: Pairs{{"path", path}}}, &m); len(m.Hits) != 0 {
				t.Errorf("%s is met by %s", c.pattern, path)
			}
		}
		for _, path := range append(c.met, c.other...) {
			exact.Match(&Query{Domain: "default", Attributes: Pairs{{"path", path}}}, &m)
			if p := on(t, "path", c.pattern).Patterns[0]; p.positive(path, netip.Addr{}) != (len(m.Hits) == 1) {
				t.Errorf("%s, exact: met by %s: %v", c.pattern, path, len(m.Hits) == 1)
			}
		}
	}
}

// A folded expression matches a folded path wherever the expression matches the path in some
// spelling.
func TestFoldRegexp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source := rapid.StringMatching(`\^?/(a|B|\[A-C\]|\[\^A\]|\(a/\|B\)|\.|%2F|/){1,5}/?\$?`).Draw(t, "expression")
		re, err := regexp.Compile(source)
		if err != nil {
			t.Skip(err)
		}
		path := "/" + rapid.StringMatching(`[aAbBcC/]{0,5}`).Draw(t, "path")
		if strings.Contains(path, "//") {
			t.Skip("not normal")
		}
		folded := foldRegexp(re)
		lower := LowerPath(path)
		if re.MatchString(path) && !folded.MatchString(lower) && !folded.MatchString(FoldPath(path)) {
			t.Fatalf("%s matches %s, and %s matches neither %s nor %s", source, path, folded, lower, FoldPath(path))
		}
		if again := foldRegexp(folded); again.String() != folded.String() &&
			folded.MatchString(lower) != again.MatchString(lower) {
			t.Fatalf("%s is folded to %s, and that to %s", source, folded, again)
		}
	})
}

// In keys all spellings of a path are one, but what a wildcard stands for keeps its case.
func TestFoldedKeys(t *testing.T) {
	for _, c := range []struct{ pattern, path, want string }{
		{"", "/Orders/aB3/", "/orders/ab3"},
		{"/orders", "/Orders/", "/orders"},
		{"/orders/*", "/Orders/aB3/", "/orders/aB3"},
		{"/orders/*/items/*", "/Orders/aB/Items/cD", "/orders/aB/items/cD"},
		{"/api/**", "/API/Users/aB", "/api/Users/aB"},
		{"/api/**", "/API/", "/api"},
		{"/api/**/edit/*", "/API/A/B/EDIT/cD/", "/api/A/B/edit/cD"},
		{"**/report-*.PDF", "/X/Report-aB.Pdf", "/X/report-aB.pdf"},
		{"/r-*-X-*.pdf", "/R-a-x-b.PDF", "/r-a-x-b.pdf"},
		{"~^/orders/[^/]+$", "/Orders/aB3", "/orders/ab3"},
		{"!/x", "/Orders/aB3", "/orders/ab3"},
		{"/a**b/c", "/AxByB/C", "/axByb/c"},
		{"/**", "/AxB/", "/AxB"},
		{"**/", "/AxB/", "/AxB"},
		{"/t/**/login/**", "/T/Ab/LOGIN/cD", "/t/ab/login/cd"}, // where login stands is not known
		{"/t/**/login/**/edit-*", "/T/Ab/LOGIN/cD/EDIT-x/Edit-Y", "/t/ab/login/cd/edit-x/edit-Y"},
		{"/*-report-*", "/X-REPORT-yZ", "/x-report-yz"},
		{"/s/*-report-*/*", "/S/X-REPORT-yZ/aB", "/s/x-report-yz/aB"},
		{"/%C4%B0/*", "/\u0130/A\u212a", "/i/ak"},
		{"/disk/*", "/di\u017f\u212a/aB", "/disk/ab"},
	} {
		r := testRule(t, "r", "path")
		if c.pattern != "" {
			r.when(on(t, "path", c.pattern))
		}
		s := testSet(t, &File{Rules: []*Rule{r}})
		var m Matches
		if s.Match(&Query{Domain: "default", Attributes: Pairs{{"path", c.path}}}, &m); len(m.Hits) != 1 {
			t.Errorf("%s: not met by %s", c.pattern, c.path)
			continue
		}
		w := m.Hits[0].Window
		if got := w.KeyParts(m.Hits[0].Key); len(got) != 1 || got[0] != "path="+c.want {
			t.Errorf("%s: %s is counted under %q, want %s", c.pattern, c.path, got, c.want)
		}
		if key, err := w.AppendKey(nil, []string{"path=" + c.path}); err != nil ||
			string(key) != string(m.Hits[0].Key) {
			t.Errorf("%s: AppendKey makes %q of %s (%v), Match %q", c.pattern, key, c.path, err, m.Hits[0].Key)
		}
		if key, err := w.AppendWrittenKey(nil, []string{"path=" + c.path}); err != nil ||
			string(key) != string(m.WrittenKey(0)) {
			t.Errorf("%s: AppendWrittenKey makes %q of %s (%v), Match %q", c.pattern, key, c.path, err, m.WrittenKey(0))
		}
	}
}

// HEAD meets what GET meets, and is counted with it; what it names or excludes itself holds.
func TestHeadIsGet(t *testing.T) {
	s := testSet(t, &File{Exempt: []Condition{on(t, "user", "robot")}, Rules: []*Rule{
		testRule(t, "reads", "method").when(on(t, "method", "GET")),
		testRule(t, "gets").when(on(t, "method", "GET", "!HEAD")),
		testRule(t, "heads").when(on(t, "method", "HEAD")),
		testRule(t, "writes").when(on(t, "method", "!GET")),
	}})
	for method, want := range map[string]string{
		"GET": "reads[method=GET], gets", "HEAD": "reads[method=GET], heads, writes", "head": "reads[method=GET], heads, writes", "POST": "writes",
	} {
		var m Matches
		s.Match(&Query{Domain: "default", Attributes: Pairs{{"method", method}}}, &m)
		if got := met(&m); got != want {
			t.Errorf("%s meets %q, want %q", method, got, want)
		}
	}
}
