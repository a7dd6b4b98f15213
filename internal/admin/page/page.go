// Package page serves the operator's page: its files, embedded as they are written. Begin with
// Handler (page.go); format.go formats the figures in the first HTML, and link.go puts the modules
// into one script.
//
// The page is plain HTML, CSS and ES modules: there is no build step. As it is loaded, comments are
// left out and the modules are linked. It reads the admin API of the port that serves it, and
// nothing else. The package imports nothing that knows the limiter, so that the page can be served
// without it.
package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"

	better "github.com/klauspost/compress/gzip" // and slower: for files, which are packed once

	"github.com/weir-rl/weir/internal/wire/accept"
)

//go:embed assets/index.html assets/app.css assets/icon.svg assets/vendor/uplot.js
//go:embed assets/*.js assets/views assets/parts
var embedded embed.FS

// policy is the Content-Security-Policy of the page. Scripts come only from its own port, none is
// in the HTML, and no text becomes HTML or a script (trusted types). The one style sheet is in the
// HTML, so that the first paint needs no further request. The policy names it by its hash, and
// blocks any other style in the HTML. The first snapshot is in a script element of type
// application/json, which is data: no policy applies to it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-%s'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Session says who uses the page.
type Session struct {
	Name string `json:"name"` // "" where there are no names
	Role string `json:"role"` // viewer, support, operator, editor or admin
	// Tokens says whether a login is needed; without tokens everybody is admin.
	Tokens bool `json:"tokens"`
}

// Snapshot is the data that the page can show before its script has asked for any.
type Snapshot struct {
	// Domains are the domains of the rules in force.
	Domains []string `json:"domains,omitempty"`
	// Insight and Rules are the answers to GET /api/v1/insight and /api/v1/insight/rules?n=12, for
	// the domain and the time in the request; nil if they are not known.
	Insight any `json:"insight,omitempty"`
	Rules   any `json:"rules,omitempty"`
	// Outages are the newest outages of GET /api/v1/outages; nil if there were none.
	Outages any `json:"outages,omitempty"`
}

// Options tune Handler.
type Options struct {
	// First says who asks for the page, without delay. snapshot makes the first snapshot, which may
	// take a while: meanwhile the browser paints the page without figures. ok is false if the
	// client must log in first. First is called for each load of the page, by many goroutines. A
	// nil First is an open page without a snapshot.
	First func(r *http.Request) (s Session, snapshot func() Snapshot, ok bool)
	// Version is the version of the program, which the page shows.
	Version string
	// Regions says that there are several regions, so that the page has a view of them.
	Regions bool
}

// Paths returns the paths of the page's views and files. A path that ends with "/" includes
// everything below it.
func Paths() []string {
	return []string{"/", "/rules", "/rules/", "/keys", "/keys/", "/decisions", "/decisions/", "/try", "/bans", "/nodes",
		"/regions", "/history", "/login", filesPath}
}

// filesPath is where the files are, below a hash of all of them. A script names others by relative
// paths, so it never gets one of another version.
const filesPath = "/assets/"

// file is one file of the page. It is compressed at the first request for it: a server whose page
// nobody opens does not pay for that at its start.
type file struct {
	plain  []byte
	packed func() []byte
	kind   string
}

func newFile(name string, data []byte) file {
	packed := sync.OnceValue(func() []byte { return packed(data, better.BestCompression) })
	return file{plain: data, packed: packed, kind: kindOf(name)}
}

// page has the files, and the parts made from them at the first request.
type page struct {
	o      Options
	hash   string
	files  map[string]file // by path below the hash
	html   *template.Template
	style  template.CSS
	policy string
}

// load reads the embedded files once in the life of the program.
var load = sync.OnceValue(func() *page {
	p := &page{files: map[string]file{}}
	all := sha256.New()
	modules := map[string][]byte{}
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "assets/")
		data = bare(name, data)
		fmt.Fprintf(all, "%s %d ", name, len(data))
		all.Write(data)
		switch name {
		case "index.html":
			p.html = template.Must(template.New(name).Funcs(functions).Parse(string(data)))
			return nil
		case "app.css":
			sum := sha256.Sum256(data)
			p.style, p.policy = template.CSS(data), fmt.Sprintf(policy, base64.StdEncoding.EncodeToString(sum[:]))
			return nil
		}
		if path.Ext(name) == ".js" && name != "boot.js" && !strings.HasPrefix(name, "vendor/") {
			modules[name] = data
			return nil
		}
		p.files[name] = newFile(name, data)
		return nil
	})
	script, linked := link(modules, "app.js")
	if err = errors.Join(err, linked); err != nil {
		panic(err) // they are part of the program
	}
	p.files["app.js"] = newFile("app.js", script)
	p.hash = hex.EncodeToString(all.Sum(nil)[:8])
	return p
})

// What bare leaves out of lines: types, and remarks behind code that hold no quotes, so that they
// are no part of a text; and in style sheets the space around braces.
var (
	types   = regexp.MustCompile(`/\*\*.*?\*/ ?`)
	remarks = regexp.MustCompile(" +// [^'\"`]*$")
	braces  = regexp.MustCompile(` *([{};,]) *`)
)

// bare returns a script or style sheet of our own without comments, and without the space that
// begins lines: a tenth of the weight of the page. It relies on each template literal ending in its
// line, and on no text that holds the begin of a comment.
func bare(name string, data []byte) []byte {
	ext := path.Ext(name)
	if ext != ".js" && ext != ".css" || strings.HasPrefix(name, "vendor/") {
		return data
	}
	var out strings.Builder
	comment := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if comment {
			_, line, comment = strings.Cut(line, "*/")
			comment = !comment
		}
		if ext == ".js" {
			line = remarks.ReplaceAllString(types.ReplaceAllString(line, ""), "")
		} else {
			line = braces.ReplaceAllString(line, "$1")
		}
		if before, rest, begins := strings.Cut(line, "/*"); begins && before == "" {
			_, line, begins = strings.Cut(rest, "*/")
			comment = !begins
		}
		if line != "" && !strings.HasPrefix(line, "//") {
			out.WriteString(line + "\n")
		}
	}
	return []byte(out.String())
}

// kindOf returns the media type of a file. The system's own table may differ, or lack it.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(path.Ext(name))
}

func packed(data []byte, level int) []byte {
	var b bytes.Buffer
	w, err := better.NewWriterLevel(&b, level)
	if err != nil {
		panic(err) // the level is one of gzip's constants
	}
	_, _ = w.Write(data) // into memory
	_ = w.Close()
	return b.Bytes()
}

// Handler serves the page under Paths. It answers GET and HEAD, and requires no token: secrets come
// only from First and from the API. Safe for concurrent use.
func Handler(o Options) http.Handler {
	p := *load()
	p.o = o
	return &p
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")
	if rest, ok := strings.CutPrefix(r.URL.Path, filesPath); ok {
		p.serveFile(w, r, rest)
		return
	}
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	// No Cross-Origin-Opener-Policy: with it a browser starts another process for the page, which
	// costs a third of the first paint. A window that opened this one can neither read nor frame
	// it. Without the cookie, which is SameSite=Strict, it gets the login.
	h.Set("Cache-Control", "no-store") // it has figures that need a login
	h.Set("Content-Type", "text/html; charset=utf-8")
	if accept.Gzip(r) {
		h.Set("Content-Encoding", "gzip")
	}
	if r.Method == http.MethodHead {
		return
	}
	p.serveHTML(w, r)
}

// serveHTML sends the page in two parts: first its frame, with everything for the first paint, then
// the figures, which may have to come from other nodes.
func (p *page) serveHTML(w http.ResponseWriter, r *http.Request) {
	var to io.Writer = w
	flush := func() error { return nil }
	if w.Header().Get("Content-Encoding") == "gzip" {
		z, _ := gzip.NewWriterLevel(w, gzip.DefaultCompression) // the level is one of gzip's own
		defer z.Close()
		to, flush = z, z.Flush
	}
	f, snapshot := p.frame(r)
	if p.html.ExecuteTemplate(to, "frame", f) != nil || flush() != nil {
		return // the client hung up
	}
	_ = http.NewResponseController(w).Flush() // if that fails, both parts come at once
	_ = p.html.ExecuteTemplate(to, "rest", restOf(f, snapshot()))
}

// serveFile serves one file, which never changes under its name. If the program was replaced while
// a page was open, the old name is gone: a chart that is first drawn then shows its figures alone.
func (p *page) serveFile(w http.ResponseWriter, r *http.Request, rest string) {
	hash, name, _ := strings.Cut(rest, "/")
	f, ok := p.files[name]
	if !ok || hash != p.hash {
		w.Header().Set("Cache-Control", "no-store")
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	data := f.plain
	if accept.Gzip(r) {
		data = f.packed()
		h.Set("Content-Encoding", "gzip")
	}
	send(w, r, data)
}

func send(w http.ResponseWriter, r *http.Request, data []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(data) // the client hung up
	}
}

// mostSnapshot bounds the snapshot in the HTML, in bytes before compression to about a fifth: the
// first paint must not wait for a thousand rules.
const mostSnapshot = 48 << 10

// frame is the data for the first part of index.html.
type frame struct {
	Base    string // where the files lie
	Style   template.CSS
	Theme   string // light, dark or ""
	Version string
	View    string   // the first segment of the path, or overview
	Regions bool     // there is a view of them
	session *Session // nil for somebody who has to log in
}

// rest is the data for the second part.
type rest struct {
	Base    string
	View    string
	JSON    template.JS
	Figures *figures // of the overview; nil for other views, and without a snapshot
}

// figures are the figures of the overview that the HTML itself contains.
type figures struct {
	Sentences   []string `json:"sentences"`
	PerSecond   float64  `json:"per_second"`
	Requests    uint64   `json:"requests"`
	Refused     uint64   `json:"refused"`
	Clients     uint64   `json:"clients"`
	Near        uint64   `json:"near"`
	P99         float64  `json:"p99"`
	GoodRefused struct {
		Requests uint64 `json:"requests"`
		Of       uint64 `json:"of"`
	} `json:"good_refused"`
}

func (p *page) frame(r *http.Request) (f *frame, snapshot func() Snapshot) {
	f = &frame{Base: filesPath + p.hash, Style: p.style, Version: p.o.Version, View: viewOf(r.URL.Path),
		Regions: p.o.Regions}
	if c, err := r.Cookie("weir_theme"); err == nil && (c.Value == "light" || c.Value == "dark") {
		f.Theme = c.Value
	}
	s, snapshot, ok := Session{Role: "admin"}, func() Snapshot { return Snapshot{} }, true
	if p.o.First != nil {
		s, snapshot, ok = p.o.First(r)
	}
	if ok {
		f.session = &s
	} else {
		f.View, snapshot = "login", func() Snapshot { return Snapshot{} }
	}
	return f, snapshot
}

func restOf(f *frame, first Snapshot) *rest {
	out := &rest{Base: f.Base, View: f.View}
	encode := func() []byte {
		data, err := json.Marshal(struct {
			Session *Session `json:"session"`
			Snapshot
		}{f.session, first}) // escapes what could end the script element
		if err != nil {
			return nil
		}
		return data
	}
	data := encode()
	if len(data) > mostSnapshot {
		first.Rules = nil // the page asks for them
		data = encode()
	}
	if data == nil {
		first = Snapshot{}
		data = encode()
	}
	out.JSON = template.JS(data)
	if f.View == "overview" && first.Insight != nil {
		var in struct {
			Insight figures `json:"insight"`
		}
		if json.Unmarshal(data, &in) == nil {
			out.Figures = &in.Insight
		}
	}
	return out
}

func viewOf(urlPath string) string {
	first, rest, _ := strings.Cut(strings.TrimPrefix(urlPath, "/"), "/")
	switch {
	case first == "":
		return "overview"
	case first == "rules" && rest != "":
		return "rule"
	case first == "keys" && rest != "":
		return "key"
	}
	return first
}
