package page

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// get asks for a path and unpacks what comes. packed is how many bytes came.
func get(t *testing.T, h http.Handler, target string, header ...string) (r *http.Response, body string, packed int) {
	t.Helper()
	req := httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	r = w.Result()
	data := w.Body.Bytes()
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		return r, string(plain), len(data)
	}
	return r, string(data), len(data)
}

const figuresJSON = `{"requests":2410000,"refused":43400,"clients":48300,"per_second":112.4,"near":418,"p99":0.00021,` +
	`"sentences":["About <b>1.8 %</b> were refused."],"good_refused":{"requests":640,"of":3100}}`

// jsonText is JSON as it stands.
type jsonText string

func (j jsonText) MarshalJSON() ([]byte, error) { return []byte(j), nil }

func withFigures(*http.Request) (Session, func() Snapshot, bool) {
	return Session{Name: "ada", Role: "operator",
		Tokens: true}, func() Snapshot { return Snapshot{Insight: jsonText(figuresJSON)} }, true
}

// The figures of the overview are in the HTML, so that they are there before a script runs; what
// comes with them is text, and cannot end the element that it stands in.
func TestFiguresBeforeScripts(t *testing.T) {
	h := Handler(Options{First: withFigures, Version: "v1.2.3"})
	r, body, _ := get(t, h, "/?over=6h")
	for _, want := range []string{"112 /s", "2,410,000", "1.8 %", "20.6 %", "418", "210 µs", "&lt;b&gt;1.8 %",
		`\u003cb\u003e`, "v1.2.3", `"role":"operator"`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page has no %q:\n%s", want, body)
		}
	}
	if strings.Contains(body, "<b>") {
		t.Error("a sentence became HTML")
	}
	if got := r.Header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("figures may be kept: %q", got)
	}
	if _, body, _ = get(t, h, "/rules"); strings.Contains(body, `class="big"`) {
		t.Error("the figures of the overview stand in another view")
	}
}

// What the first paint needs is sent before the figures are there: other nodes may have to be asked
// for them, and one of them may be silent.
func TestFrameBeforeFigures(t *testing.T) {
	asked, answer := make(chan bool), make(chan bool)
	s := httptest.NewServer(Handler(Options{First: func(*http.Request) (Session, func() Snapshot, bool) {
		session, snapshot, ok := withFigures(nil)
		return session, func() Snapshot { close(asked); <-answer; return snapshot() }, ok
	}}))
	defer s.Close()
	r, err := http.Get(s.URL) // asks for gzip, and unpacks it
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body := bufio.NewReader(r.Body)
	for want := range strings.SplitSeq("</style>|Overview</a>|</header>", "|") {
		for line := ""; !strings.Contains(line, want); {
			if line, err = body.ReadString('\n'); err != nil && !strings.Contains(line, want) {
				t.Fatalf("%q does not come before the figures: %v", want, err)
			}
		}
	}
	<-asked
	close(answer)
	rest, err := io.ReadAll(body)
	if err != nil || !strings.Contains(string(rest), "2,410,000") {
		t.Errorf("the figures do not come: %v\n%s", err, rest)
	}
}

// Somebody who has to log in gets the page and no figures.
func TestNothingBeforeLogin(t *testing.T) {
	h := Handler(Options{First: func(*http.Request) (Session, func() Snapshot, bool) {
		s, snapshot, _ := withFigures(nil)
		return s, snapshot, false
	}})
	for _, target := range []string{"/", "/rules/shop/search", "/login"} {
		_, body, _ := get(t, h, target)
		if strings.Contains(body, "2,410,000") || strings.Contains(body, "2410000") || strings.Contains(body, "ada") {
			t.Errorf("%s: tells figures without a login", target)
		}
		if !strings.Contains(body, `{"session":null}`) {
			t.Errorf("%s: does not say that one has to log in", target)
		}
	}
}

// The bar has the view Regions where there are several, and only there.
func TestRegionsInTheBar(t *testing.T) {
	for _, there := range []bool{true, false} {
		_, body, _ := get(t, Handler(Options{Regions: there}), "/rules")
		if strings.Contains(body, `href="/regions"`) != there {
			t.Errorf("with regions %v: %s", there, body)
		}
	}
}

func TestPolicy(t *testing.T) {
	r, body, _ := get(t, Handler(Options{}), "/")
	csp := r.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
		"img-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("the policy lacks %s: %s", want, csp)
		}
	}
	if strings.Contains(csp, "unsafe") {
		t.Errorf("the policy is unsafe: %s", csp)
	}
	// What the policy would refuse does not stand in the page. It names the only style by its hash.
	_, rest, _ := strings.Cut(body, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	if hash := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; style == "" ||
		!strings.Contains(csp, hash) {
		t.Errorf("the policy does not name the style by its hash %s: %s", hash, csp)
	}
	body = strings.Replace(body, "<style>"+style+"</style>", "", 1)
	if found := regexp.MustCompile(`<script>|<style|\sstyle=|\son[a-z]+=|https?://[^w]`).FindString(body); found != "" {
		t.Errorf("the page has %q in it", found)
	}
}

// Files have names that change when any of them does, so that they may be kept for ever; and an old
// name does not give a new file.
func TestFilesAreImmutable(t *testing.T) {
	h := Handler(Options{})
	_, body, _ := get(t, h, "/")
	base := regexp.MustCompile(`/assets/[0-9a-f]{16}`).FindString(body)
	for name, kind := range map[string]string{"boot.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
		"app.js": "text/javascript; charset=utf-8", "vendor/uplot.js": "text/javascript; charset=utf-8"} {
		r, plain, _ := get(t, h, base+"/"+name)
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != kind ||
			!strings.Contains(r.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", name, r.StatusCode, r.Header)
		}
		r, unpacked, _ := get(t, h, base+"/"+name, "Accept-Encoding", "br, gzip;q=0.5")
		if r.Header.Get("Content-Encoding") != "gzip" || unpacked != plain {
			t.Errorf("%s: the packed file is another one", name)
		}
		if r, _, _ = get(t, h, base+"/"+name, "Accept-Encoding", "gzip; q=0"); r.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: packed for somebody who refuses that", name)
		}
		want, err := os.ReadFile(path.Join("assets", name))
		if err != nil || !strings.Contains(plain, string(bare(name, want))) && name != "app.js" {
			t.Errorf("%s: not served as it is written", name)
		}
	}
	for _, target := range []string{base + "/no.js", base + "/index.html", base + "/",
		"/assets/0123456789abcdef/app.js", base + "/../../page.go"} {
		if r, _, _ := get(t, h, target); r.StatusCode != 404 ||
			strings.Contains(r.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d", target, r.StatusCode)
		}
	}
}

// The bounds of the page: all files together, and what must come before the first paint.
func TestBytes(t *testing.T) {
	h := Handler(Options{First: withFigures})
	_, body, all := get(t, h, "/", "Accept-Encoding", "gzip")
	base := regexp.MustCompile(`/assets/[0-9a-f]{16}`).FindString(body)
	first := all
	for name := range load().files {
		_, _, n := get(t, h, base+"/"+name, "Accept-Encoding", "gzip")
		all += n
	}
	t.Logf("%d bytes in all, %d before the first paint", all, first)
	if all > 85_000 {
		t.Errorf("all files have %d bytes, at most 85,000 are allowed", all)
	}
	if first > 12_000 {
		t.Errorf("%d bytes come before the first paint, at most 12,000 are allowed", first)
	}
}

// uPlot is the file of its package, with one line more that makes a module of it.
func TestVendoredFile(t *testing.T) {
	data, err := os.ReadFile("assets/vendor/uplot.js")
	if err != nil {
		t.Fatal(err)
	}
	data, ok := bytes.CutSuffix(data, []byte("\nexport default uPlot;\n"))
	if !ok {
		t.Fatal("the last line is not the one that exports uPlot")
	}
	sum := sha256.Sum256(data)
	// npm: uplot 1.6.32, dist/uPlot.iife.min.js
	if got := hex.EncodeToString(sum[:]); got != "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f" {
		t.Errorf("uplot.js is not that of uplot 1.6.32: %s", got)
	}
	licence, err := os.ReadFile("assets/vendor/uplot.LICENSE")
	if err != nil || !strings.Contains(string(licence), "Leon Sorokin") {
		t.Errorf("its licence is missing: %v", err)
	}
}

// Nothing that a client sent can become HTML: the sources use no way to make HTML of text. Each
// file is one to read in a sitting, and is checked for its types.
func TestSources(t *testing.T) {
	sinks := regexp.MustCompile(
		`innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\(|new Function|srcdoc`)
	list := sources(t)
	for name, data := range list {
		if found := sinks.Find(data); found != nil {
			t.Errorf("%s uses %s", name, found)
		}
		if n := bytes.Count(data, []byte("\n")); n >= 400 {
			t.Errorf("%s has %d lines", name, n)
		}
		if !bytes.HasPrefix(data, []byte("// @ts-check\n")) {
			t.Errorf("%s is not checked for its types", name)
		}
	}
	if len(list) < 15 {
		t.Errorf("%d files were looked at", len(list))
	}
}

// sources are our own scripts as they are written, by path.
func sources(t *testing.T) map[string][]byte {
	t.Helper()
	list := map[string][]byte{}
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".js" || strings.Contains(name, "vendor") {
			return err
		}
		list[strings.TrimPrefix(name, "assets/")], err = embedded.ReadFile(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Figures in the HTML are written as parts/text.js writes them, which internal/admin/page/browser
// checks in a browser.
func TestFormats(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{count(0), "0"}, {count(999), "999"}, {count(2410000), "2,410,000"},
		{share(0, 0), "0 %"}, {share(43400, 2410000), "1.8 %"}, {share(640, 2410000), "0.027 %"}, {share(1, 1), "100 %"}, {share(99999, 100000), "99.9 %"}, {share(1, 2), "50 %"},
		{seconds(0), "–"}, {seconds(0.00021), "210 µs"}, {seconds(0.0123), "12.3 ms"}, {seconds(2), "2 s"},
		{rate(0), "0"}, {rate(0.25), "0.25"}, {rate(9.96), "10"}, {rate(12.4), "12"}, {rate(112.4), "112"}, {rate(1234.5), "1,235"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestBare: scripts and the style are served without comments, and without what begins lines. No
// template literal goes over the end of its line, which would lose its spaces, and no text holds
// the begin of a comment.
func TestBare(t *testing.T) {
	for in, want := range map[string]string{
		"// a\n/**\n * b\n */\nf( // c\n\n  1);\n":                         "f(\n1);\n",
		"/* a */\nx\n  /** @type {X} */ (y);\n":                            "x\n(y);\n",
		"x(/** @type {*} */ (y), /** @param {Z} z */ (z) => z); // as (1)": "x((y), (z) => z);\n",
		"x('https://a // b');\ny(`//`, '//');\n":                           "x('https://a // b');\ny(`//`, '//');\n",
		"x\n/** a\nb":                                                      "x\n",
	} {
		if got := bare("a.js", []byte(in)); string(got) != want {
			t.Errorf("%q is served as %q, want %q", in, got, want)
		}
		if got := bare("vendor/a.js", []byte(in)); string(got) != in {
			t.Errorf("%q of others is served as %q", in, got)
		}
	}
	const style = "/* a\n b */\n.x > a, .y { content: \" ↓\"; margin: calc(1px - 2px); }\n"
	if got := bare("a.css", []byte(style)); string(got) != ".x > a,.y{content: \" ↓\";margin: calc(1px - 2px);}\n" {
		t.Errorf("%q is served as %q", style, got)
	}
	for name, source := range sources(t) {
		for i, line := range strings.Split(string(source), "\n") {
			if strings.Count(line, "`")%2 > 0 {
				t.Errorf("%s:%d: a template literal goes over the end of the line", name, i+1)
			}
			before, _, begins := strings.Cut(line, "/*")
			if begins && strings.Count(before, "'")%2 > 0 {
				t.Errorf("%s:%d: a text holds the begin of a comment", name, i+1)
			}
		}
	}
}
