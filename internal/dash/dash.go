// Package dash is the operator's page: its files, embedded as they are written, and the handler
// that serves them. Begin with Handler.
//
// The page is plain HTML, CSS and ES modules: there is no build step, and nothing is generated. It
// reads the admin API of the port that serves it, and nothing else. The package imports nothing of
// ours, so that the page can be served without the limiter.
package dash

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed assets/index.html assets/app.css assets/icon.svg assets/*.js assets/views assets/parts assets/vendor/uplot.js
var embedded embed.FS

// Policy is the Content-Security-Policy of the page: scripts and styles come from its own port and
// nowhere else, none stands in the HTML, and no text becomes HTML or a script (trusted types). The
// first snapshot lies in a script element of type application/json, which is data: no policy
// applies to it.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Session says who looks at the page.
type Session struct {
	Name string `json:"name"` // "" where there are no names
	Role string `json:"role"` // viewer, support, operator, editor or admin
	// Tokens says whether one has to log in here; without tokens everybody is admin.
	Tokens bool `json:"tokens"`
}

// First is what the page can show before its script has asked for anything.
type First struct {
	Session Session `json:"session"`
	// Insight and Rules are what GET /api/v1/insight and /api/v1/insight/rules answer for the
	// domain and the time of the request; nil where they are not known.
	Insight any `json:"insight,omitempty"`
	Rules   any `json:"rules,omitempty"`
}

// Options tune Handler.
type Options struct {
	// First returns the first snapshot for a request, in little time; ok is false if the request
	// comes from somebody who has to log in first. It is called for each load of the page, by many
	// goroutines. A nil function is an open page without a snapshot.
	First func(r *http.Request) (first First, ok bool)
	// Version is that of the program, which the page names.
	Version string
}

// Paths are those of the page's views and files: the ones that end with "/" mean all below them.
func Paths() []string {
	return []string{"/", "/rules", "/rules/", "/keys", "/keys/", "/decisions", "/decisions/", "/try", "/bans", "/nodes", "/history", "/login", filesPath}
}

// filesPath is where the files lie, each below a hash of all of them: a module names its neighbours
// by relative paths, and so never gets one of another version.
const filesPath = "/assets/"

// file is one file of the page, compressed once.
type file struct {
	plain, packed []byte
	kind          string
}

// page are the files, and what is made of them when the first request comes.
type page struct {
	o     Options
	hash  string
	files map[string]file // by path below the hash
	html  *template.Template
}

// load reads the embedded files once in the life of the program.
var load = sync.OnceValue(func() *page {
	p := &page{files: map[string]file{}}
	all := sha256.New()
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "assets/")
		fmt.Fprintf(all, "%s %d ", name, len(data))
		all.Write(data)
		if name == "index.html" {
			p.html = template.Must(template.New(name).Funcs(functions).Parse(string(data)))
			return nil
		}
		p.files[name] = file{plain: data, packed: packed(data, gzip.BestCompression), kind: kindOf(name)}
		return nil
	})
	if err != nil {
		panic(err) // they are part of the program
	}
	p.hash = hex.EncodeToString(all.Sum(nil)[:8])
	return p
})

// kindOf is the media type of a file. The system's own table may say something else, or nothing.
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
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		panic(err) // the level is one of gzip's constants
	}
	_, _ = w.Write(data) // into memory
	_ = w.Close()
	return b.Bytes()
}

// Handler serves the page under Paths. It answers GET and HEAD, and asks nobody for a token: what
// is secret comes from First and from the API. Safe for concurrent use.
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
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store") // it has figures that need a login
	h.Set("Content-Type", "text/html; charset=utf-8")
	var b bytes.Buffer
	if err := p.html.Execute(&b, p.shell(r)); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	data := b.Bytes()
	if accepts(r) {
		data = packed(data, gzip.DefaultCompression)
		h.Set("Content-Encoding", "gzip")
	}
	send(w, r, data)
}

// serveFile serves one file, which never changes under its name. An old name, of a page that was
// open while the program was replaced, is gone: the script then loads the page anew.
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
	if accepts(r) {
		data = f.packed
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

// accepts reports whether the client takes gzip. All browsers say so in these words; others get
// the file as it is.
func accepts(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(coding, ";")
		if strings.TrimSpace(name) == "gzip" && strings.ReplaceAll(q, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

// mostSnapshot bounds the snapshot in the HTML, in bytes as they are before they are packed to
// about a fifth: the first paint must not wait for a thousand rules.
const mostSnapshot = 48 << 10

// shell is what index.html is made of.
type shell struct {
	Base    string // where the files lie
	Theme   string // light, dark or ""
	Version string
	View    string // that of the path: the first segment, or overview
	Modules []string
	JSON    template.JS
	Figures *figures // of the overview; nil for other views, and without a snapshot
}

// figures are those of the overview that stand in the HTML.
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
		Clients  uint64 `json:"clients"`
	} `json:"good_refused"`
}

func (p *page) shell(r *http.Request) *shell {
	s := &shell{Base: filesPath + p.hash, Version: p.o.Version, View: viewOf(r.URL.Path)}
	defer func() { s.Modules = modulesOf(s.View) }()
	if c, err := r.Cookie("weir_theme"); err == nil && (c.Value == "light" || c.Value == "dark") {
		s.Theme = c.Value
	}
	first, ok := First{Session: Session{Role: "admin"}}, true
	if p.o.First != nil {
		first, ok = p.o.First(r)
	}
	if !ok {
		s.JSON, s.View = `{"session":null}`, "login"
		return s
	}
	data, err := json.Marshal(first) // escapes what could end the script element
	if err != nil {
		s.JSON = `{}`
		return s
	}
	if len(data) > mostSnapshot {
		first.Rules = nil // the page asks for them
		if data, err = json.Marshal(first); err != nil {
			s.JSON = `{}`
			return s
		}
	}
	s.JSON = template.JS(data)
	if s.View == "overview" && first.Insight != nil {
		var in struct {
			Insight figures `json:"insight"`
		}
		if json.Unmarshal(data, &in) == nil {
			s.Figures = &in.Insight
		}
	}
	return s
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

// modulesOf are the modules that a view needs, so that the browser fetches them at once rather than
// one after the other has said that it imports the next.
func modulesOf(view string) []string {
	modules := []string{"parts/text.js", "parts/time.js", "parts/table.js", "parts/stream.js"}
	if _, ok := load().files["views/"+view+".js"]; ok {
		modules = append(modules, "views/"+view+".js")
	}
	if view == "overview" {
		modules = append(modules, "views/rules.js", "parts/bars.js", "parts/chart.js", "parts/decision.js")
	}
	return modules
}
