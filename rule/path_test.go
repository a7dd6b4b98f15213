package rule

import (
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNormalPath(t *testing.T) {
	for path, want := range map[string]string{
		"":                      "/",
		"/":                     "/",
		"*":                     "*",
		"/login":                "/login",
		"/login/":               "/login/",
		"login":                 "/login",
		"//login":               "/login",
		"///login//":            "/login/",
		"/%6cogin":              "/login",
		"/%6Cogin":              "/login",
		"/./login":              "/login",
		"/a/../login":           "/login",
		"/%2e/login":            "/login",
		"/a/%2E%2e/login":       "/login",
		"/a/.%2e/login":         "/login",
		"/../../login":          "/login",
		"/a//../login":          "/login",
		"/login/.":              "/login/",
		"/login/..":             "/",
		"/a/b/..":               "/a/",
		"/a/b/../":              "/a/",
		"/login?x=/../y":        "/login",
		"/login#frag":           "/login",
		"?x":                    "/",
		"/a%2fb":                "/a%2Fb",
		"/a%2Fb":                "/a%2Fb",
		"/a%2f..%2fb":           "/a%2F..%2Fb",
		"/a%3f":                 "/a%3F",
		"/a%25":                 "/a%25",
		"/%252e%252e/x":         "/%252e%252e/x",
		"/a%zz":                 "/a%zz",
		"/a%":                   "/a%",
		"/a%4":                  "/a%4",
		"/%%36cogin":            "/%%36cogin",
		"/%6%63ogin":            "/%6%63ogin",
		"/%%67":                 "/%g",
		"/%a/%36":               "/%a/6",
		"/...":                  "/...",
		"/.../":                 "/.../",
		"/.a/..b":               "/.a/..b",
		"/a b":                  "/a%20b",
		"/café":                 "/caf%C3%A9",
		"/caf%c3%a9":            "/caf%C3%A9",
		"/a\x00b":               "/a%00b",
		"/a;b=c,d:e@f!$&'()*+~": "/a;b=c,d:e@f!$&'()*+~",
		`/a\..\b`:               "/a%5C..%5Cb",
		"/%7Euser":              "/~user",
	} {
		if got := NormalPath(path); got != want {
			t.Errorf("NormalPath(%q) = %q, want %q", path, got, want)
		}
	}
}

func checkNormal(t interface{ Fatalf(string, ...any) }, path string) {
	got := NormalPath(path)
	if again := NormalPath(got); again != got {
		t.Fatalf("NormalPath(%q) = %q, and of that %q", path, got, again)
	}
	if got != "*" && (got[0] != '/' || strings.Contains(got, "//") || strings.ContainsAny(got, "?# ")) {
		t.Fatalf("NormalPath(%q) = %q", path, got)
	}
	for _, s := range strings.Split(got, "/") {
		if s == "." || s == ".." {
			t.Fatalf("NormalPath(%q) = %q keeps a dot segment", path, got)
		}
	}
	if string(appendNormalPath([]byte("x/y"), path)) != "x/y"+got {
		t.Fatalf("appended, the normal form of %q differs", path)
	}
	// What a server decodes from the normal form is what it would have decoded from the path
	// itself, dot segments and repeated slashes aside.
	if len(path) > 1 && path[0] == '/' && !strings.ContainsAny(path, "?#.") && !strings.Contains(path, "//") &&
		!strings.Contains(strings.ToLower(path), "%2e") {
		if a, err := url.PathUnescape(path); err == nil {
			if b, err := url.PathUnescape(got); err != nil || a != b {
				t.Fatalf("%q decodes to %q, its normal form %q to %q (%v)", path, a, got, b, err)
			}
		}
	}
}

func TestNormalPathProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkNormal(t, rapid.StringMatching(`/?([a./%]|%[0-9a-fA-F]{2}|%2[eEfF]|%3|%%|\.\.|[ é?]){0,20}`).Draw(t,
			"path"))
	})
}

// Whatever a client does to the spelling of /login, a rule for it holds.
func TestNoSpellingEvades(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 3).Draw(t, "prefixes") {
			b.WriteString(rapid.SampledFrom([]string{"/", "/.", "/a/..", "/%2e", "/x/%2E.", "//"}).Draw(t, "prefix"))
		}
		b.WriteString("/")
		for _, c := range []byte("login") {
			switch rapid.IntRange(0, 2).Draw(t, "spelling") {
			case 0:
				b.WriteByte(c)
			case 1:
				b.WriteString("%" + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]))
			default:
				b.WriteString("%" + string("0123456789ABCDEF"[c>>4]) + string("0123456789ABCDEF"[c&15]))
			}
		}
		b.WriteString(rapid.SampledFrom([]string{"", "?x=1", "#y", "?/../"}).Draw(t, "tail"))
		if got := NormalPath(b.String()); got != "/login" {
			t.Fatalf("NormalPath(%q) = %q", b.String(), got)
		}
	})
}

func TestNormalPathAllocates(t *testing.T) {
	for _, path := range []string{"/", "/api/v1/users/17", "/a%2Fb", "/a%", "/%%36c"} {
		if n := testing.AllocsPerRun(100, func() { NormalPath(path) }); n != 0 {
			t.Errorf("NormalPath(%q), which is normal, allocates %v times", path, n)
		}
	}
}

func FuzzNormalPath(f *testing.F) {
	for _, s := range []string{"", "/", "//login", "/%6cogin", "/./login", "/a/../login", "/%2e/login", "/%%36c",
		"/%6%63", "/a%2f..", "*", "/é", "/a?b", "/%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) { checkNormal(t, path) })
}

func BenchmarkNormalPath(b *testing.B) {
	b.Run("normal", func(b *testing.B) {
		for b.Loop() {
			NormalPath("/api/v1/users/12345")
		}
	})
	b.Run("other", func(b *testing.B) {
		buf := make([]byte, 0, 64)
		for b.Loop() {
			buf = appendNormalPath(buf[:0], "/api//v1/%75sers/../users/12345")
		}
	})
}
