// Package admin is the admin API of weir: what the rules do and how well, keys, bans, grants,
// recent decisions, deferred requests, signals, nodes, metrics, the audit log and profiles. Each
// endpoint requires a role.
//
// Begin with Handler.routeAll (admin.go), which has the table of endpoints. The other files hold
// the handlers, by resource: rules.go, keys.go, bans.go, decisions.go, insight.go, and so on.
package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/wire/accept"
)

// RulesSource says where the rules come from, in the admin API.
type RulesSource struct {
	Path     string    `json:"path"`
	Version  string    `json:"version,omitempty"` // of the rules in the source; a folder has none
	Files    []string  `json:"files"`
	Loaded   time.Time `json:"loaded"`
	Loads    uint64    `json:"loads"`
	Failures uint64    `json:"failures"`
	// Errors say why the rules now in the source are not in force, without quoting them; empty if
	// they are in force.
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
	// Audit records each change before it is made. A change whose record cannot be kept is not
	// made.
	Audit *audit.Log
	// Deferred is the queue of deferred requests.
	Deferred  deferred.Queue
	Decisions DecisionLog // the recent ones
	// Insight reports on rules and keys, Nodes on the other nodes, and Preview tries rules.
	Insight insight.Reader
	Nodes   Nodes
	// Regions are the regions of which this node belongs to one; nil if there is only one.
	Regions *Regions
	// StoreNow returns the time by the store's clock, which dates decisions; nil is time.Now.
	StoreNow func() time.Time
	Preview  Preview
	// Versions gives access to the versions of rules in a database; nil if the rules lie in a
	// folder.
	Versions Versions
	// Rollout returns how the files in force change if a rule is enforced on a percentage of its
	// keys, 1 to 100. The error is insight.ErrUnknown for an unknown rule, and a CheckError for one
	// whose text cannot be changed. nil if nothing is known of the files.
	Rollout func(domain, limit string, percent int) (*Rollout, error)
	// Ready returns why the server should get no requests now, or nil. No function is as one that
	// returns nil.
	Ready func() error
	// Remark is one line that /readyz adds after "ok" if the server wants requests, but its
	// operator should know something. "" and no function add nothing.
	Remark func() string
	// Page is the operator's page, at / and at PagePaths; a path that ends with "/" includes
	// everything below it. The page's own First guards it. If Page is nil, the list of endpoints is
	// at /, as it always is at /help.
	Page      http.Handler
	PagePaths []string
	// Tokens guard the API and the profiles; nil leaves them open to every client that reaches the
	// port.
	Tokens *auth.Tokens
	// ClientIP finds the address of a request for the audit log. It believes only the proxies that
	// it lists.
	ClientIP httplimit.ClientIP
	// Hosts are names by which a request may call this server, beside addresses and localhost.
	// Other names are refused, so that no web page reaches the server by pointing its own name
	// here.
	Hosts []string
}

// New returns the handler of the admin port over l.
func New(l *weir.Limiter, o Options) *Handler {
	a := &Handler{limiter: l, o: o}
	if o.StoreNow == nil {
		a.o.StoreNow = time.Now
	}
	a.end, a.cancel = context.WithCancel(context.Background())
	a.routeAll()
	return a
}

// Handler is the admin port. Make one with New. Safe for concurrent use.
type Handler struct {
	limiter *weir.Limiter
	o       Options
	routes  []endpoint // in the order of the list

	end      context.Context // until Close
	cancel   context.CancelFunc
	streams  streams
	previews previews
	names    atomic.Pointer[keyNames]
}

// Close ends streams and the running preview, which would otherwise go on for as long as their
// clients want, and lets no new ones begin. All other requests are still answered. Call it when the
// server begins to shut down: streams that are still open at the end are cut off.
func (a *Handler) Close() { a.cancel() }

// goingAway answers 503 to a request for something long-lived, once Close was called.
func (a *Handler) goingAway(w http.ResponseWriter) bool {
	if a.end.Err() == nil {
		return false
	}
	w.Header().Set("Retry-After", "5")
	answer.Problem(w, http.StatusServiceUnavailable, "the server is going away", "")
	return true
}

// routeAll makes the table of endpoints.
func (a *Handler) routeAll() {
	const (
		open     = auth.Nobody
		viewer   = auth.Viewer
		support  = auth.Support
		operator = auth.Operator
		editor   = auth.Editor
		admin    = auth.Admin
	)
	a.route(endpoint{path: "/", methods: "GET, HEAD", any: true, serve: a.root})
	a.route(endpoint{path: "/help", methods: "GET, HEAD", any: true, about: "this list", serve: a.help})
	a.route(endpoint{path: "/healthz", methods: "GET, HEAD", any: true, about: "200 while the program runs",
		serve: func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }})
	a.route(endpoint{path: "/readyz", methods: "GET, HEAD", any: true, about: "200 while it wants requests, 503 else",
		serve: a.ready})
	if a.o.Metrics != nil {
		a.route(endpoint{path: "/metrics", methods: "GET, HEAD", any: true, about: "Prometheus metrics",
			serve: a.o.Metrics.ServeHTTP})
	}
	a.route(endpoint{path: "/rlconfig", methods: "GET, HEAD", sees: viewer,
		about: "the descriptors in force, as envoyproxy/ratelimit lists them", serve: a.rateLimitConfig})
	a.route(endpoint{path: "/api/v1/openapi.yaml", methods: "GET, HEAD", about: "a description of this API (OpenAPI)",
		serve: serveOpenAPI})
	if a.o.Tokens != nil {
		methods := "POST, DELETE"
		if a.o.Page != nil {
			methods = "GET, HEAD, POST, DELETE"
		}
		a.route(endpoint{path: "/login", methods: methods, any: true, serve: a.login})
	}
	a.route(endpoint{path: "/api/v1/session", methods: "GET, HEAD", sees: viewer,
		about: "who you are here: name and role", serve: a.session})
	if a.o.Insight != nil {
		a.route(endpoint{path: insightPath, methods: "GET, HEAD", sees: viewer, params: "domain over",
			about: "do the rules do their job? In all, and in sentences: ?domain=DOMAIN&over=6h", serve: a.overview})
		a.route(endpoint{path: insightPath + "/rules", methods: "GET, HEAD", sees: viewer, params: "domain over n",
			about: "the same of each rule, with its verdicts; ?n=N of those that refuse most", serve: a.ruleReports})
		a.route(endpoint{path: insightPath + "/keys", methods: "GET, HEAD", sees: viewer,
			params: "by domain limit over n format",
			about:  "the keys that are refused most: ?by=refused|asked|near&limit=NAME&over=1m|12h", serve: a.topKeys})
	}
	a.route(endpoint{path: "/api/v1/rules", methods: "GET, HEAD", sees: viewer,
		about: "the rules in force, their source, and load errors", serve: a.rules})
	if a.o.Files != nil {
		a.route(endpoint{path: "/api/v1/rules/source", methods: "GET, HEAD", sees: operator,
			about: "the files of the rules in force", serve: a.ruleFiles})
	}
	if a.o.Versions != nil {
		a.route(endpoint{path: versionsPath, methods: "GET, HEAD, POST", sees: operator, changes: editor, params: "n",
			about: "the versions of the rules; POST puts a new one in force, POST /api/v1/rules/rollback an earlier one", serve: a.versions})
		a.route(endpoint{path: "/api/v1/rules/diff", methods: "GET, HEAD", sees: operator, params: "from to",
			serve: a.versionDiff})
		a.route(endpoint{path: "/api/v1/rules/rollback", methods: "POST", changes: editor, serve: a.rollback})
	}
	if a.o.Rollout != nil {
		a.route(endpoint{path: rolloutPath, methods: "GET, HEAD, POST", sees: operator, changes: editor,
			params: "domain limit percent", serve: a.rollout})
	}
	a.route(endpoint{path: keysPath, methods: "GET, HEAD, DELETE", sees: viewer, changes: operator,
		params: "limit domain top look key reason",
		about:  "the hottest keys of a limit: ?limit=NAME&domain=DOMAIN&top=N; &key=KEY shows one, DELETE resets it",
		serve:  a.keys})
	if a.o.Signals != nil {
		a.route(endpoint{path: "/api/v1/signals", methods: "GET, HEAD", sees: viewer,
			about: "signals of elastic limits; PUT /api/v1/signals/NAME sets one", serve: a.signals})
	}
	if a.o.Deferred != nil {
		a.route(endpoint{path: "/api/v1/deferred", methods: "GET, HEAD", sees: operator, params: "state n",
			about: "deferred requests: ?state=queued|active|done|failed&n=N", serve: a.deferredJobs})
	}
	if a.o.Decisions != nil {
		a.route(endpoint{path: decisionsPath, methods: "GET, HEAD", sees: viewer,
			params: "domain limit outcome key door after before n nodes node",
			about:  "recent decisions: ?limit=NAME&domain=DOMAIN&outcome=denied&key=user=ada&n=N; one by its id under /api/v1/decisions/", serve: a.decisions})
	}
	if a.o.Insight != nil {
		a.route(endpoint{path: candidatesPath, methods: "GET, HEAD", sees: viewer, params: "domain",
			about: "what rules in shadow, or enforced on a share of their keys, would have done: ?domain=DOMAIN",
			serve: a.candidates})
	}
	if a.o.Nodes != nil {
		a.route(endpoint{path: findPath, methods: "GET, HEAD", sees: support, params: "text domain n",
			about: "what was seen, by a part of a value: ?text=ada or ?text=user=ad&domain=DOMAIN&n=N", serve: a.search})
	}
	a.route(endpoint{path: bansPath, methods: "GET, HEAD, POST, DELETE", sees: viewer, changes: operator,
		params: "domain limit n key reason",
		about:  "bans in force: ?domain=DOMAIN&limit=NAME&n=N; POST sets one, DELETE lifts one", serve: a.bans})
	a.route(endpoint{path: grantsPath, methods: "GET, HEAD, POST, DELETE", sees: viewer, changes: operator,
		params: "domain limit n key reason",
		about:  "grants in force: ?domain=DOMAIN&limit=NAME&n=N; POST makes one, DELETE ends one", serve: a.grants})
	a.route(endpoint{path: streamPath, methods: "GET", sees: viewer,
		params: "views domain limit outcome key door by over n nodes node",
		about:  "what happens now, as events: ?views=overview,keys,decisions", serve: a.stream})
	if a.o.Preview != nil {
		a.route(endpoint{path: previewPath, methods: "POST", changes: operator,
			about: "POST tries rules on recorded requests", serve: a.startPreview})
	}
	if a.o.Nodes != nil {
		a.route(endpoint{path: "/api/v1/nodes", methods: "GET, HEAD", sees: viewer,
			about: "the nodes, with their versions and rules", serve: a.nodes})
		a.route(endpoint{path: "/api/v1/outages", methods: "GET, HEAD", sees: viewer,
			about: "when nodes went without their store, and what they decided alone", serve: a.outages})
	}
	about := ""
	if a.o.Regions != nil { // else it answers that there are none, and is not listed
		about = "the regions, what this one hears of the others, and the limits over all of them: ?domain=DOMAIN"
	}
	a.route(endpoint{path: "/api/v1/regions", methods: "GET, HEAD", sees: viewer, params: "domain", about: about,
		serve: a.regions})
	if a.o.Audit != nil {
		a.route(endpoint{path: "/api/v1/audit", methods: "GET, HEAD", sees: admin, params: "n after before",
			about: "who changed what: ?n=N&after=NUMBER", serve: a.auditRecords})
	}
	a.route(endpoint{path: pprofPrefix, methods: "GET, HEAD, POST", sees: admin, changes: admin, any: true,
		about: "profiles", serve: profile})

	for _, path := range a.o.PagePaths {
		if a.find(path) == nil {
			a.route(endpoint{path: path, methods: "GET, HEAD", any: true, serve: a.o.Page.ServeHTTP})
		}
	}
	// These take a path below them, and are not in the list of endpoints.
	if a.o.Insight != nil {
		a.route(endpoint{path: insightPath + "/rules/", methods: "GET, HEAD", sees: viewer, params: "over",
			serve: a.ruleReport})
		a.route(endpoint{path: insightPath + "/keys/", methods: "GET, HEAD", sees: support, serve: a.keyReport})
	}
	a.route(endpoint{path: keyPrefix, methods: "GET, HEAD, DELETE", sees: support, changes: operator, params: "reason",
		serve: a.key})
	if a.o.Signals != nil {
		a.route(endpoint{path: signalsPrefix, methods: "GET, HEAD, PUT", sees: viewer, changes: operator,
			serve: a.signal})
	}
	if a.o.Decisions != nil {
		a.route(endpoint{path: decisionsPath + "/", methods: "GET, HEAD", sees: support, serve: a.decision})
	}
	if a.o.Deferred != nil {
		a.route(endpoint{path: deferredPrefix, methods: "GET, HEAD, POST, DELETE", sees: operator, changes: operator,
			serve: a.deferredJob})
	}
	if a.o.Preview != nil {
		a.route(endpoint{path: previewPath + "/", methods: "GET, DELETE", sees: operator, changes: operator,
			serve: a.followPreview})
	}
}

// endpoint is a path. One that ends with "/" stands for all paths below it.
type endpoint struct {
	path    string
	methods string    // as Allow lists them
	sees    auth.Role // needed by GET and HEAD, if there are tokens; Nobody is open
	changes auth.Role // needed by all other methods
	params  string    // the known query parameters, separated by spaces
	any     bool      // its query is not looked at
	about   string    // for the list; "" is not listed
	serve   http.HandlerFunc
}

func (a *Handler) route(e endpoint) { a.routes = append(a.routes, e) }

// find returns the endpoint for a path; nil if there is none.
func (a *Handler) find(path string) *endpoint {
	for i := range a.routes {
		e := &a.routes[i]
		if path == e.path || e.path != "/" && strings.HasSuffix(e.path, "/") && strings.HasPrefix(path, e.path) {
			return e
		}
	}
	return nil
}

const (
	keysPath    = "/api/v1/keys"
	keyPrefix   = keysPath + "/"
	pprofPrefix = "/debug/pprof/"
)

func (a *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	probe := path == "/healthz" || path == "/readyz"
	if !probe && !auth.KnownHost(r.Host, a.o.Hosts) {
		answer.Problem(w, http.StatusForbidden,
			"the Host "+answer.Printable(r.Host)+" is not known here; use an address, or add it to admin.hosts", "")
		return
	}
	if why := auth.OtherOrigin(r); why != "" {
		answer.Problem(w, http.StatusForbidden, why, "")
		return
	}
	// Links to this server are allowed.
	if why := auth.OtherSite(r); why != "" && r.Header.Get("Sec-Fetch-Dest") != "document" {
		answer.Problem(w, http.StatusForbidden, why, "")
		return
	}
	route := a.find(path)
	if route == nil {
		answer.Problem(w, http.StatusNotFound, a.missing(path), "")
		return
	}
	if !slices.Contains(strings.Split(route.methods, ", "), r.Method) {
		answer.MethodNotAllowed(w, r, route.methods)
		return
	}
	r, ok := a.admit(w, r, route)
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead && answer.RefuseCoding(w, r) {
		return
	}
	if !route.any {
		if err := onlyParams(r, strings.Fields(route.params)); err != nil {
			answer.BadRequest(w, err)
			return
		}
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Frame-Options", "DENY")
	w.Header()["Cache-Control"] = answer.NoStore
	if accept.Gzip(r) {
		w = packer{w}
	}
	route.serve(w, r)
}

// missing says why there is nothing at a path: a setting may turn off what is there elsewhere.
func (a *Handler) missing(path string) string {
	of := func(prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
	switch {
	case a.o.Insight == nil && (of(insightPath) || of(candidatesPath)):
		return "insight.memory is 0 on this server, so that it gathers nothing of rules and keys"
	case a.o.Preview == nil && of(previewPath):
		return "insight.record is 0 on this server, so that it records no requests, on which rules could be tried"
	}
	return "there is nothing at " + answer.Printable(path) + "; /help lists what there is"
}

// admit finds out who sent r, and whether that role may use the endpoint. If not, it answers, and
// ok is false.
func (a *Handler) admit(w http.ResponseWriter, r *http.Request, e *endpoint) (_ *http.Request, ok bool) {
	changes := r.Method != http.MethodGet && r.Method != http.MethodHead
	needs := e.sees
	if changes {
		needs = e.changes
	}
	id, verdict := auth.Identity{Role: auth.Admin}, auth.NoToken
	// A header that a scraper sends to an open endpoint is no guess at a token.
	if a.o.Tokens != nil && (needs > auth.Nobody || changes) {
		id, verdict = a.o.Tokens.Identify(r)
	}
	if a.o.Tokens != nil && needs > auth.Nobody {
		if verdict != auth.Right {
			auth.Refuse(w, verdict, "weir admin")
			return r, false
		}
		if id.Role < needs {
			answer.Problem(w, http.StatusForbidden,
				"this needs the role "+needs.String()+"; you are "+id.Role.String(), "")
			return r, false
		}
	}
	if changes && (verdict != auth.Right || id.ByCookie) && !isJSON(r.Header.Get("Content-Type")) && !ofProgram(r) {
		answer.Problem(w, http.StatusUnsupportedMediaType,
			"what changes something needs Content-Type: application/json, or a bearer token; a request without signs of a browser needs no type, but must not have the type of a form", "")
		return r, false
	}
	if changes && id.ByCookie {
		if problem := notOwnPage(r); problem != "" {
			answer.Problem(w, http.StatusForbidden,
				"by a login only the page of this port changes something, and "+problem, "")
			return r, false
		}
	}
	return r.WithContext(context.WithValue(r.Context(), identityKey{}, id)), true
}

// identityKey is the context key of the auth.Identity of a request.
type identityKey struct{}

// sender returns who sent r: admin if there are no tokens.
func sender(r *http.Request) auth.Identity {
	id, _ := r.Context().Value(identityKey{}).(auth.Identity)
	return id
}

// stillIs reports whether r would still be let in with the same identity. While a long answer goes
// on, its token may have left the file or changed its role, or its login may have ended.
func (a *Handler) stillIs(r *http.Request) bool {
	if a.o.Tokens == nil {
		return true
	}
	id, ok := a.o.Tokens.Look(r)
	return ok && id == sender(r)
}

// onlyParams returns an error that names query parameters of r that are unknown, or that come twice
// but may come once only.
func onlyParams(r *http.Request, known []string) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return errors.New("the query is not well formed")
	}
	var unknown []string
	for name := range q {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	there := "there are none here"
	if len(known) > 0 {
		there = "there are " + strings.Join(known, ", ")
	}
	if len(unknown) > 0 {
		return &answer.FieldError{Field: unknown[0],
			Message: "unknown query parameter " + answer.Printable(strings.Join(unknown, ", ")) + "; " + there}
	}
	return nil
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

func (a *Handler) ready(w http.ResponseWriter, _ *http.Request) {
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
