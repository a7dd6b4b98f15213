// Package admin is the admin API of weir: rules, keys, bans, grants, recent decisions, deferred
// requests, signals, metrics and profiles. Begin with New, which has the table of its endpoints.
package admin

import (
	"encoding/json"
	"html/template"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/internal/auth"
	"github.com/weir-rl/weir/internal/candidate"
	"github.com/weir-rl/weir/internal/deferred"
	"github.com/weir-rl/weir/internal/insight"
	"github.com/weir-rl/weir/rule"
)

// RulesSource is what the admin API tells of where the rules come from.
type RulesSource struct {
	Path     string    `json:"path"`
	Files    []string  `json:"files"`
	Loaded   time.Time `json:"loaded"`
	Loads    uint64    `json:"loads"`
	Failures uint64    `json:"failures"`
	// Errors say why what lies in the source now is not in force; empty if it is.
	Errors []string `json:"errors"`
}

// Options tune New. A nil field means that there is no such endpoint, or that nothing has
// to be checked.
type Options struct {
	Metrics http.Handler
	Source  func() RulesSource
	// Files returns the files of the rules in force.
	Files   func() RuleFiles
	Signals Signals
	// Audit gets a line for each change to bans and grants, with its author and the reason given.
	Audit *slog.Logger
	// Deferred is the queue of deferred requests.
	Deferred deferred.Queue
	// Decisions are the recent decisions, Candidates what rules that are not enforced on all keys
	// would have done, in the domain of that name or in all ("").
	Decisions  DecisionLog
	Candidates func(domain string) []candidate.Reading
	// Insight tells what was gathered of rules and keys, Nodes of the other nodes, and Preview tries
	// rules.
	Insight insight.Reader
	Nodes   Nodes
	Preview Preview
	// Ready tells why the server should get no requests now; nil for an empty reason and for no
	// function.
	Ready func() error
	// Remark is what /readyz says after "ok" of a server that wants requests, but whose operator
	// should know something; "" and no function say nothing. It is one line.
	Remark func() string
	// Tokens guard the API and the profiles; nil leaves them open to every client that reaches the
	// port.
	Tokens *auth.Tokens
	// Hosts are names that a request may call this server by, beside addresses and localhost;
	// others are refused, so that no web page reaches it through a name of its own that it points
	// here.
	Hosts []string
}

// New returns the handler of the admin port over l.
func New(l *weir.Limiter, o Options) http.Handler {
	a := &handler{limiter: l, o: o}
	a.route("/", "GET, HEAD", false, "this list", a.index)
	a.route("/healthz", "GET, HEAD", false, "200 while the program runs", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	a.route("/readyz", "GET, HEAD", false, "200 while it wants requests, 503 else", a.ready)
	if o.Metrics != nil {
		a.route("/metrics", "GET, HEAD", false, "Prometheus metrics", o.Metrics.ServeHTTP)
	}
	a.route("/api/v1/rules", "GET, HEAD", true, "the rules in force, their source, and load errors", a.rules)
	if o.Files != nil {
		a.route("/api/v1/rules/source", "GET, HEAD", true, "the files of the rules in force, as text", a.ruleFiles)
	}
	a.route("/api/v1/keys", "GET, HEAD, DELETE", true, "the hottest keys of a limit: ?limit=NAME&domain=DOMAIN&top=N; &key=KEY shows one, DELETE resets it", a.keys)
	if o.Signals != nil {
		a.route("/api/v1/signals", "GET, HEAD", true, "signals of elastic limits; PUT /api/v1/signals/NAME sets one", a.signals)
	}
	if o.Deferred != nil {
		a.route("/api/v1/deferred", "GET, HEAD", true, "deferred requests: ?state=queued|active|done|failed&n=N", a.deferredJobs)
	}
	if o.Decisions != nil {
		a.route("/api/v1/decisions", "GET, HEAD", true, "recent decisions: ?limit=NAME&domain=DOMAIN&outcome=denied&n=N; one by its id under /api/v1/decisions/", a.decisions)
	}
	if o.Candidates != nil {
		a.route("/api/v1/candidates", "GET, HEAD", true, "what rules in shadow, or enforced on a share of their keys, would have done: ?domain=DOMAIN", a.candidates)
	}
	a.routeBans()
	a.route("/debug/pprof/", "GET, HEAD, POST", true, "profiles", profile)
	// Of what lies below a path: these are not in the list.
	a.route(keyPrefix, "GET, HEAD, DELETE", true, "", a.key)
	if o.Signals != nil {
		a.route(signalsPrefix, "GET, HEAD, PUT", true, "", a.signal)
	}
	if o.Decisions != nil {
		a.route(decisionsPrefix, "GET, HEAD", true, "", a.decision)
	}
	if o.Deferred != nil {
		a.route(deferredPrefix, "GET, HEAD, POST, DELETE", true, "", a.deferredJob)
	}
	return a
}

type handler struct {
	limiter *weir.Limiter
	o       Options
	routes  []endpoint // in the order of the list
}

// endpoint is a path, or all paths that begin with one that ends with "/".
type endpoint struct {
	path    string
	methods string // as Allow lists them
	secret  bool   // needs a token if there are any
	about   string // for the list; "" is not listed
	serve   http.HandlerFunc
}

func (a *handler) route(path, methods string, secret bool, about string, serve http.HandlerFunc) {
	a.routes = append(a.routes, endpoint{path, methods, secret, about, serve})
}

// find returns what is at a path; nil if there is nothing.
func (a *handler) find(path string) *endpoint {
	for i := range a.routes {
		e := &a.routes[i]
		if path == e.path || e.path != "/" && strings.HasSuffix(e.path, "/") && strings.HasPrefix(path, e.path) {
			return e
		}
	}
	return nil
}

const (
	keyPrefix   = "/api/v1/keys/"
	pprofPrefix = "/debug/pprof/"
)

func (a *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	probe := path == "/healthz" || path == "/readyz"
	if !probe && !a.knownHost(r.Host) {
		answer.Problem(w, http.StatusForbidden, "the Host "+answer.Printable(r.Host)+" is not known here; use an address, or add it to admin.hosts", "")
		return
	}
	if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) {
		answer.Problem(w, http.StatusForbidden, "web pages of other origins have no access", "")
		return
	}
	// What other sites' pages load as images, scripts or frames has no Origin. Links to here are
	// welcome.
	if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Dest") != "document" {
		answer.Problem(w, http.StatusForbidden, "web pages of other origins have no access", "")
		return
	}
	route := a.find(path)
	if route == nil {
		answer.Problem(w, http.StatusNotFound, "there is nothing at "+answer.Printable(path)+"; / lists what there is", "")
		return
	}
	if !slices.Contains(strings.Split(route.methods, ", "), r.Method) {
		answer.MethodNotAllowed(w, r, route.methods)
		return
	}
	changes := r.Method != http.MethodGet && r.Method != http.MethodHead
	verdict := auth.NoToken
	if route.secret || changes { // what else a scraper sends along is no guess
		verdict = a.o.Tokens.CheckRequest(r)
	}
	if route.secret && a.o.Tokens != nil && verdict != auth.Right {
		auth.Refuse(w, verdict, "weir admin")
		return
	}
	if changes && verdict != auth.Right && !isJSON(r.Header.Get("Content-Type")) {
		answer.Problem(w, http.StatusUnsupportedMediaType, "what changes something needs Content-Type: application/json, or a bearer token", "")
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Frame-Options", "DENY")
	w.Header()["Cache-Control"] = answer.NoStore
	route.serve(w, r)
}

// knownHost reports whether this server may be called by host. A page of another site that got its
// own name pointed here (DNS rebinding) shows by that name; an address cannot be rebound.
func (a *handler) knownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	return slices.ContainsFunc(a.o.Hosts, func(h string) bool { return strings.EqualFold(h, name) })
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "application/json"
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header()["Content-Type"] = answer.PlainType
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header()["Content-Type"] = answer.JSONType
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // the client hung up
}

func profile(w http.ResponseWriter, r *http.Request) {
	switch strings.TrimPrefix(r.URL.Path, pprofPrefix) {
	case "cmdline":
		commandLine(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r) // knows all other profiles by the path
	}
}

// commandLine is pprof.Cmdline without the credentials of URLs.
func commandLine(w http.ResponseWriter, _ *http.Request) {
	args := slices.Clone(os.Args)
	for i, arg := range args {
		if scheme, rest, ok := strings.Cut(arg, "://"); ok {
			rest, _, _ = strings.Cut(rest[strings.LastIndexByte(rest, '@')+1:], "?")
			args[i] = scheme + "://" + rest
		}
	}
	writeText(w, http.StatusOK, strings.Join(args, "\x00"))
}

var indexPage = template.Must(template.New("index").Parse(`<!doctype html>
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

func (a *handler) index(w http.ResponseWriter, _ *http.Request) {
	type link struct{ Path, About string }
	var page struct {
		Rules      int
		Generation uint64
		Errors     bool
		Links      []link
	}
	set, generation := a.limiter.Rules()
	if set != nil {
		page.Rules = len(set.Rules())
	}
	page.Generation = generation
	page.Errors = a.o.Source != nil && len(a.o.Source().Errors) > 0
	for _, e := range a.routes[1:] {
		if e.about != "" {
			page.Links = append(page.Links, link{e.path, e.about})
		}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_ = indexPage.Execute(w, page) // the client hung up
}

func (a *handler) ready(w http.ResponseWriter, _ *http.Request) {
	if a.o.Ready != nil {
		if err := a.o.Ready(); err != nil {
			writeText(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
	}
	text := "ok"
	if a.o.Remark != nil {
		if remark := a.o.Remark(); remark != "" {
			text += ", " + remark
		}
	}
	writeText(w, http.StatusOK, text+"\n")
}

// windowInfo is one limit of a rule in GET /api/v1/rules.
type windowInfo struct {
	Name      string  `json:"name"`
	Algorithm string  `json:"algorithm,omitempty"`
	Limit     int64   `json:"limit"`
	Burst     int64   `json:"burst,omitempty"`
	Window    float64 `json:"window"` // s
	Soft      int     `json:"soft_percent,omitempty"`
	Unlimited bool    `json:"unlimited,omitempty"`
}

type ruleInfo struct {
	Domain    string              `json:"domain"`
	Name      string              `json:"name"`
	Form      string              `json:"form"` // native or lyft
	File      string              `json:"file"`
	Line      int                 `json:"line"`
	When      map[string][]string `json:"when,omitempty"`
	If        string              `json:"if,omitempty"`
	Per       []string            `json:"per,omitempty"`
	Windows   []windowInfo        `json:"limits"`
	Unlimited bool                `json:"unlimited,omitempty"`
	Shadow    bool                `json:"shadow,omitempty"`
	Enforce   int                 `json:"enforce_percent,omitempty"` // left out at 100
	Replaces  []string            `json:"replaces,omitempty"`
	Overrides int                 `json:"overrides,omitempty"`
	ruleKinds
}

func (a *handler) rules(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Generation uint64       `json:"generation"`
		Source     *RulesSource `json:"source,omitempty"`
		Domains    []string     `json:"domains"`
		Rules      []ruleInfo   `json:"rules"`
	}{Domains: []string{}, Rules: []ruleInfo{}}
	set, generation := a.limiter.Rules()
	answer.Generation = generation
	if a.o.Source != nil {
		s := a.o.Source()
		if s.Errors == nil {
			s.Errors = []string{}
		}
		if s.Files == nil {
			s.Files = []string{}
		}
		answer.Source = &s
	}
	if set != nil {
		answer.Domains = append(answer.Domains, set.Domains()...)
		for _, r := range set.Rules() {
			answer.Rules = append(answer.Rules, describe(r))
		}
	}
	writeJSON(w, answer)
}

func describe(r *rule.Rule) ruleInfo {
	info := ruleInfo{
		Domain: r.Domain, Name: r.Name, Form: "native", File: r.Pos.File, Line: r.Pos.Line, If: r.If,
		Windows: []windowInfo{}, Unlimited: r.Unlimited, Shadow: r.Shadow, Replaces: r.Replaces, Overrides: len(r.Overrides),
		ruleKinds: kindsOf(r),
	}
	if r.Lyft != nil {
		info.Form = "lyft"
	}
	if r.EnforcePercent != 100 {
		info.Enforce = r.EnforcePercent
	}
	for _, c := range r.When {
		if info.When == nil {
			info.When = map[string][]string{}
		}
		for _, p := range c.Patterns {
			info.When[c.Attribute] = append(info.When[c.Attribute], p.Source)
		}
	}
	for _, k := range r.Per {
		info.Per = append(info.Per, strings.Join(k, "|"))
	}
	for _, win := range r.Windows {
		i := windowInfo{Name: win.Name, Unlimited: win.Limit == nil}
		if win.Limit != nil {
			c := win.Limit.Config()
			i.Algorithm, i.Limit, i.Window, i.Soft = c.Algorithm.String(), c.N, c.Window.Seconds(), c.Soft
			if c.Algorithm == algo.TokenBucket || c.Algorithm == algo.LeakyBucket {
				i.Burst = max(c.Burst, 0)
			}
		}
		info.Windows = append(info.Windows, i)
	}
	return info
}
