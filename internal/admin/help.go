package admin

import (
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"github.com/weir-rl/weir/internal/wire/accept"
)

var helpPage = template.Must(template.New("help").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>weir</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}dt{font-family:ui-monospace,monospace;margin-top:.7rem}dd{margin:0;color:#555}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}dd{color:#999}a{color:#8cf}}</style>
<h1>weir</h1>
<p>{{.Rules}} rules in force, generation {{.Generation}}.{{if .Errors}} <strong>The rules that lie in the source now are not in force: see the errors under /api/v1/rules.</strong>{{end}}</p>
<dl>
{{range .Links}}<dt><a href="{{.Path}}">{{.Path}}</a></dt><dd>{{.About}}</dd>
{{end}}</dl>
`))

// helpText is the content of the list of endpoints.
type helpText struct {
	Rules      int
	Generation uint64
	Errors     bool
	Links      []struct{ Path, About string }
}

func (a *Handler) helpText() helpText {
	var t helpText
	set, generation := a.limiter.Rules()
	if set != nil {
		t.Rules = len(set.Rules())
	}
	t.Generation = generation
	t.Errors = a.o.Source != nil && len(a.o.Source().Errors) > 0
	for _, e := range a.routes {
		if e.about != "" {
			t.Links = append(t.Links, struct{ Path, About string }{e.path, e.about})
		}
	}
	return t
}

// root serves the page. It serves the list of endpoints to clients that prefer plain text, or if
// there is no page.
func (a *Handler) root(w http.ResponseWriter, r *http.Request) {
	if a.o.Page == nil || prefersText(r) {
		a.help(w, r)
		return
	}
	a.o.Page.ServeHTTP(w, r)
}

// prefersText reports whether the client of r asked for plain text. curl does not: it accepts
// anything.
func prefersText(r *http.Request) bool {
	accepted := r.Header.Get("Accept")
	text, detail := accept.Quality(accepted, "text/plain")
	html, _ := accept.Quality(accepted, "text/html")
	return detail == 3 && text > 0 && text >= html
}

// help serves the list of endpoints.
func (a *Handler) help(w http.ResponseWriter, r *http.Request) {
	t := a.helpText()
	w.Header().Add("Vary", "Accept")
	if !prefersText(r) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_ = helpPage.Execute(w, t) // the client hung up
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "weir: %d rules in force, generation %d\n", t.Rules, t.Generation)
	if t.Errors {
		b.WriteString("The rules that lie in the source now are not in force: see the errors under /api/v1/rules.\n")
	}
	b.WriteString("\n")
	for _, l := range t.Links {
		fmt.Fprintf(&b, "%-28s %s\n", l.Path, l.About)
	}
	writeText(w, http.StatusOK, b.String())
}
