package server

import (
	"cmp"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
)

// ForwardAuthOptions tune NewForwardAuth. The zero value answers nobody: ClientIP has to name the proxies.
type ForwardAuthOptions struct {
	// Domain is that of checks whose path names none; "" means the only domain that the rules hold.
	Domain string
	// Headers are the families of rate-limit headers on answers.
	Headers httplimit.Headers
	// CORS lets pages of other origins read refusals, and the headers on them, that Caddy and Traefik pass on; by default none.
	CORS httplimit.CORS
	// ClientIP names the proxies that may ask, and whose X-Forwarded-For is believed.
	ClientIP httplimit.ClientIP
	// Identity supplies more attributes; nil for none.
	Identity *httplimit.Identity
	// Dedupe counts repeated checks of one nginx request once: those with the same X-Request-Id, and the same in all else, within
	// two seconds. It is right only where nginx sets that header itself.
	Dedupe bool
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch Stopwatch
	// Logf is told of checks that cannot be answered, and how to mend that: of each kind of trouble once in ten seconds at most. nil means
	// nobody. It must be safe for concurrent use.
	Logf func(format string, args ...any)
}

// ForwardAuth answers proxies that ask, before they pass a request on, whether it may: nginx (auth_request), Caddy (forward_auth) and Traefik
// (ForwardAuth). It is an http.Handler for /api/v1/forward-auth and what is below it. Safe for concurrent use. Make one with NewForwardAuth.
//
// A request that may pass is answered 200 without a body, since nginx keeps a connection only after such an answer. The fields of the header are the
// same ones on each of them. A request is never held: one that would have to wait for its turn in a leaky bucket is refused, as is one
// that a rule defers. Nobody tells when a request is over, so that a slot of a concurrency limit is held until its timeout.
type ForwardAuth struct {
	limiter *weir.Limiter
	o       ForwardAuthOptions
	repeats *repeats  // nil without Dedupe
	calls   sync.Pool // of *forwardCall

	stranger, malformed, unnamed, noMethod, noClient sparse
}

// forwardAuthPath begins the path of each check.
const forwardAuthPath = "/api/v1/forward-auth"

// proxyFamily is a family of proxies that tell of a request in the same headers. The one's headers say nothing in a check of the
// other, since a client may have sent them.
type proxyFamily struct {
	name        string
	method, uri string // names of headers
	host        string // "" for the Host of the check itself
	hint        string // how to set the uri
}

var (
	forwardedFamily = &proxyFamily{name: "forwarded", method: "X-Forwarded-Method", uri: "X-Forwarded-Uri", host: "X-Forwarded-Host",
		hint: "Caddy's forward_auth and Traefik's forwardAuth send it; nginx asks at " + forwardAuthPath + "/nginx"}
	nginxFamily = &proxyFamily{name: "nginx", method: "X-Original-Method", uri: "X-Original-Uri",
		hint: "set it in nginx, where it asks: proxy_set_header X-Original-URI $request_uri; Caddy and Traefik ask at " + forwardAuthPath + "/forwarded"}
)

// forwardCall is what one check needs, kept for the next one.
type forwardCall struct {
	original
	attributes httplimit.Attributes
	request    weir.Request
	decision   weir.Decision
	print      fingerprint
}

// original is what a proxy says of the request that it asks about.
type original struct{ method, host, uri string }

// NewForwardAuth returns the door over l.
func NewForwardAuth(l *weir.Limiter, o ForwardAuthOptions) *ForwardAuth {
	f := &ForwardAuth{limiter: l, o: o}
	if f.o.Logf == nil {
		f.o.Logf = func(string, ...any) {}
	}
	if o.Dedupe {
		f.repeats = newRepeats()
	}
	f.calls.New = func() any { return new(forwardCall) }
	return f
}

func (f *ForwardAuth) done(c *forwardCall) {
	c.original = original{}
	c.attributes.Reset(nil, httplimit.ClientIP{}, nil)
	c.request = weir.Request{}
	if cap(c.decision.Limits) > 256 { // do not keep what a rare request made large
		c.decision = weir.Decision{}
	}
	f.calls.Put(c)
}

// splitForwardAuth reads the path of a check; family is nil if there is nothing at that path.
func splitForwardAuth(path string) (family *proxyFamily, domain string) {
	rest, ok := strings.CutPrefix(path, forwardAuthPath)
	if !ok || rest != "" && rest[0] != '/' {
		return nil, ""
	}
	word, domain, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	switch word {
	case nginxFamily.name:
		return nginxFamily, domain
	case forwardedFamily.name:
		return forwardedFamily, domain
	case "":
		if domain == "" {
			return forwardedFamily, ""
		}
	}
	return nil, ""
}

// ServeHTTP implements http.Handler.
func (f *ForwardAuth) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	family, domain := splitForwardAuth(r.URL.Path)
	if family == nil {
		problem(w, http.StatusNotFound, "there is nothing at "+printable(r.URL.Path)+"; proxies ask at "+forwardAuthPath+"/forwarded (Caddy, Traefik) or "+forwardAuthPath+"/nginx, with /DOMAIN behind it where the rules hold several", "")
		return
	}
	if !f.admits(w, r) {
		return
	}
	var start int64
	if f.o.Stopwatch != nil {
		start = f.o.Stopwatch.Begin()
	}
	c := f.calls.Get().(*forwardCall)
	defer f.done(c)
	if err := c.read(r, family); err != nil {
		f.malformed.do(func() { f.o.Logf("forward auth: a check of %s by %s is malformed: %v", family.name, r.RemoteAddr, err) })
		problem(w, http.StatusBadRequest, err.message, err.field)
		return
	}
	f.remark(r, family)
	if domain == "" {
		if domain = cmp.Or(f.o.Domain, f.limiter.SoleDomain()); domain == "" {
			const message = "the rules hold several domains: name one behind the path of the check, as in " + forwardAuthPath + "/nginx/DOMAIN, or set forward_auth.domain in the configuration"
			f.unnamed.do(func() { f.o.Logf("forward auth: a check by %s names no domain, and %s", r.RemoteAddr, message) })
			problem(w, http.StatusBadRequest, "domain: is missing, and "+message, "domain")
			return
		}
	}
	c.attributes.Reset(r, f.o.ClientIP, f.o.Identity)
	c.attributes.SetTarget(c.method, c.host, c.uri)
	// No delay: a proxy that waited would stop waiting at some time, and some let the request pass then.
	c.request = weir.Request{Door: "forward-auth", Domain: domain, Attributes: &c.attributes, Hits: 1}
	if family == nginxFamily {
		f.answerNginx(w, r, c)
	} else {
		f.answerForwarded(w, r, c)
	}
	if start != 0 {
		f.o.Stopwatch.End(start)
	}
}

// admits answers whoever must not ask, and reports whether r may.
func (f *ForwardAuth) admits(w http.ResponseWriter, r *http.Request) bool {
	if f.o.ClientIP.TrustedPeer(r) {
		return true
	}
	f.stranger.do(func() {
		peer, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			f.o.Logf("forward auth: a check came over a unix socket, whose peers are no trusted proxies; if it is yours, set client_ip: {trusted_proxies: [unix]}")
			return
		}
		f.o.Logf("forward auth: a check came from %s, which is no trusted proxy; if it is yours, set client_ip: {trusted_proxies: [%q]}", peer, peer)
	})
	problem(w, http.StatusForbidden, "only proxies that are listed in client_ip.trusted_proxies may ask here; the log of this server says who asked", "")
	return false
}

// remark logs what makes rules see less than they should.
func (f *ForwardAuth) remark(r *http.Request, family *proxyFamily) {
	if len(r.Header[family.method]) == 0 {
		f.noMethod.do(func() {
			f.o.Logf("forward auth: a check of %s by %s has no %s header; its request is taken for a %s", family.name, r.RemoteAddr, family.method, printable(r.Method))
		})
	}
	if len(r.Header["X-Forwarded-For"]) == 0 {
		f.noClient.do(func() {
			f.o.Logf("forward auth: a check of %s by %s has no X-Forwarded-For header; its client is taken to be the proxy itself", family.name, r.RemoteAddr)
		})
	}
}

// read reads what r tells of another request. The fields of what is wrong are the names of headers.
func (c *forwardCall) read(r *http.Request, family *proxyFamily) *fieldError {
	uri, err := oneLine(r, family.uri)
	if err != nil {
		return err
	}
	if uri == "" {
		return &fieldError{field: family.uri, message: "is missing: it has the path and the query of the request; " + family.hint}
	}
	if c.method, err = oneLine(r, family.method); err != nil {
		return err
	}
	if c.method == "" {
		c.method = r.Method
	}
	if !isMethod(c.method) {
		return &fieldError{field: family.method, message: "is no method of a request: " + printable(c.method)}
	}
	c.host = r.Host
	hostOf := "Host"
	if family.host != "" {
		hostOf = family.host
		if c.host, err = oneLine(r, family.host); err != nil {
			return err
		}
	}
	if !httplimit.ValidHost(c.host) {
		return &fieldError{field: hostOf, message: "is no host that all servers read alike: " + printable(c.host)}
	}
	host, uri, ok := originForm(uri)
	if !ok {
		return &fieldError{field: family.uri, message: "is no target of a request, such as /path?query: " + printable(uri)}
	}
	if c.uri = uri; host != "" {
		c.host = host
	}
	if len(r.Header["Authorization"]) > 1 { // the server behind the proxy might believe another one than the rules
		return &fieldError{field: "Authorization", message: "is there more than once"}
	}
	return nil
}

// oneLine returns the value of a header that must not be there twice; "" if it is not there.
func oneLine(r *http.Request, name string) (string, *fieldError) {
	switch lines := r.Header[name]; len(lines) {
	case 0:
		return "", nil
	case 1:
		return lines[0], nil
	}
	return "", &fieldError{field: name, message: "is there more than once; the proxy must set it, not add to what the client sent"}
}

// isMethod reports whether s is a token of RFC 9110.
func isMethod(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

// originForm takes the target of a request as net/http does: a path with or without a query, *, or an absolute URI, whose host goes before any
// other. It returns the path with the query as they were written, but for a fragment. ok is false for what is no target.
func originForm(uri string) (host, target string, ok bool) {
	path := -1 // end of the path
	for i := range len(uri) {
		switch c := uri[i]; {
		case c <= ' ' || c == 0x7f:
			return "", uri, false
		case path >= 0:
		case c == '?' || c == '#':
			path = i
		case c == '%' && (i+2 >= len(uri) || !isHex(uri[i+1]) || !isHex(uri[i+2])):
			return "", uri, false
		}
	}
	switch {
	case uri == "":
		return "", uri, false
	case uri[0] == '/' || uri == "*":
		return "", uri, true
	}
	bare, _, _ := strings.Cut(uri, "#")
	u, err := url.ParseRequestURI(bare)
	if err != nil || u.Host == "" || u.Opaque != "" || !httplimit.ValidHost(u.Host) {
		return "", uri, false
	}
	_, rest, _ := strings.Cut(bare, "://")
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		if target = rest[i:]; target[0] == '?' {
			target = "/" + target
		}
		return u.Host, target, true
	}
	return u.Host, "/", true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// verdict is how a check ends.
type verdict uint8

const (
	passes verdict = iota
	refused
	undecided // the store failed
)

// decide decides c.request, and sets what an answer that passes has in its header.
func (f *ForwardAuth) decide(r *http.Request, c *forwardCall, h http.Header) verdict {
	err := f.limiter.Decide(r.Context(), &c.request, &c.decision)
	switch {
	case err == nil && !c.decision.Allowed:
		return refused
	case err == nil:
		f.o.Headers.Write(h, &c.decision)
	case !c.decision.OpenWithoutStore():
		return undecided
	}
	f.o.Headers.Fill(h)
	h["Cache-Control"] = noStore
	return passes
}

// answerForwarded answers Caddy and Traefik, which pass a refusal on to the client as it is.
func (f *ForwardAuth) answerForwarded(w http.ResponseWriter, r *http.Request, c *forwardCall) {
	switch f.decide(r, c, w.Header()) {
	case passes:
		w.WriteHeader(http.StatusOK)
	case refused:
		f.o.CORS.Allow(w.Header(), r, f.o.Headers)
		f.o.Headers.Refuse(w, r, &c.decision)
	case undecided:
		storeError(w)
	}
}

// answerNginx answers nginx, which knows no refusals but 401 and 403, and throws bodies away, and the connection with them.
func (f *ForwardAuth) answerNginx(w http.ResponseWriter, r *http.Request, c *forwardCall) {
	h := w.Header()
	if id := r.Header["X-Request-Id"]; f.repeats == nil || len(id) != 1 || id[0] == "" {
		w.WriteHeader(f.nginxStatus(r, c, h))
		return
	}
	a := f.repeats.answer(r.Context(), c.print.of(r, c), func() repeatAnswer {
		own := http.Header{}
		status := f.nginxStatus(r, c, own)
		fields := make([]headerField, 0, len(own))
		for name, values := range own {
			fields = append(fields, headerField{name, values[:1:1]})
		}
		return repeatAnswer{status: status, fields: fields, keep: status != http.StatusServiceUnavailable}
	})
	for _, field := range a.fields {
		h[field.name] = field.values
	}
	w.WriteHeader(a.status)
}

// nginxStatus decides, and returns the status of the answer.
func (f *ForwardAuth) nginxStatus(r *http.Request, c *forwardCall, h http.Header) int {
	switch f.decide(r, c, h) {
	case passes:
		return http.StatusOK
	case refused:
		f.o.Headers.Write(h, &c.decision)
		h["Cache-Control"] = noStore
		return http.StatusForbidden
	}
	h["Cache-Control"] = noStore
	h.Set("Retry-After", "1")
	return http.StatusServiceUnavailable
}

// sparse lets something be said once in ten seconds at most. The zero value is ready. Safe for concurrent use.
type sparse struct{ next atomic.Int64 }

const sparseEvery = 10 * time.Second

func (s *sparse) do(say func()) {
	now := time.Now().UnixNano()
	if next := s.next.Load(); now >= next && s.next.CompareAndSwap(next, now+int64(sparseEvery)) {
		say()
	}
}
