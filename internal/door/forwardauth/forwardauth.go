// Package forwardauth answers proxies that ask whether a request may pass: nginx, Caddy and
// Traefik. Begin with New; ServeHTTP is the walk of one check. repeats.go counts the checks that
// nginx repeats for one request once.
package forwardauth

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// Options tune New. The zero value answers nobody: ClientIP has to name the
// proxies.
type Options struct {
	// Domain applies to checks whose path names none; "" means the only domain that the rules hold.
	Domain string
	// Headers are the families of rate-limit headers on answers.
	Headers httplimit.Headers
	// CORS lets pages of other origins read refusals, and the headers on them, that Caddy and
	// Traefik pass on; by default none.
	CORS httplimit.CORS
	// ClientIP names the proxies that may ask, and whose word for the client is believed.
	ClientIP httplimit.ClientIP
	// Identity supplies more attributes; nil for none.
	Identity *httplimit.Identity
	// Dedupe counts repeated checks of one nginx request once: those with the same X-Request-Id,
	// and the same in all else, within two seconds. It is right only where nginx sets that header
	// itself.
	Dedupe bool
	// EncodedSlash says how to treat checks of requests whose path holds %2F, %5C or a backslash;
	// by default they are refused.
	EncodedSlash httplimit.EncodedSlash
	// Fields refuses checks of requests with fields that servers read in different ways; nil is one
	// that refuses all of them.
	Fields *httplimit.FieldGuard
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch weir.Stopwatch
	// Tracer follows decisions in traces; nil means that nobody does.
	Tracer door.Tracer
	// Line turns away checks that waited too long. nil turns none away.
	Line *shed.Door
	// Logger reports checks that cannot be answered, and how to mend that: each kind of trouble at
	// most once in ten seconds. nil means nobody.
	Logger *slog.Logger
}

// handler answers proxies that ask, before they pass a request on, whether it may: nginx
// (auth_request), Caddy (forward_auth) and Traefik (ForwardAuth). It serves /api/v1/forward-auth
// and the paths below it. Safe for concurrent use. Make one with New.
//
// A request that may pass is answered 200 without a body, since nginx keeps a connection only after
// such an answer. The fields of the header are the same ones on each of them. A request is never
// held: one that would have to wait for its turn in a leaky bucket is refused, as is one that a
// rule defers. The proxy does not report the end of a request, so that a slot of a concurrency
// limit is held until its timeout.
type handler struct {
	limiter *weir.Limiter
	o       Options
	repeats *repeats  // nil without Dedupe
	calls   sync.Pool // of *call

	stranger, malformed, unnamed, noMethod, noClient remark

	lacking struct {
		sync.Mutex
		told map[string]uint64 // by domain: the generation of rules that was looked at
	}
}

// proxyFamily is a family of proxies that describe a request in the same headers. The headers of
// one family say nothing in a check of another, since a client may have sent them.
type proxyFamily struct {
	name        string
	method, uri string // names of headers
	host        string // "" for the Host of the check itself
	hint        string // how to set the uri
}

var (
	forwardedFamily = &proxyFamily{name: "forwarded", method: "X-Forwarded-Method", uri: "X-Forwarded-Uri",
		host: "X-Forwarded-Host",
		hint: "Caddy's forward_auth and Traefik's forwardAuth send it; nginx asks at " + door.ForwardAuthPath +
			"/nginx"}
	nginxFamily = &proxyFamily{name: "nginx", method: "X-Original-Method", uri: "X-Original-Uri",
		hint: "set it in nginx, where it asks: proxy_set_header X-Original-URI $request_uri; Caddy and Traefik ask at " + door.ForwardAuthPath + "/forwarded"}
)

// call is the memory of one check, kept for the next one.
type call struct {
	original
	attributes httplimit.Attributes
	request    weir.Request
	decision   weir.Decision
	print      fingerprint
}

// original is the proxy's description of the request that it asks about.
type original struct{ method, host, uri string }

// New returns the door over l.
func New(l *weir.Limiter, o Options) http.Handler {
	f := &handler{limiter: l, o: o}
	if f.o.Logger == nil {
		f.o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dedupe {
		f.repeats = newRepeats()
	}
	if f.o.Fields == nil {
		f.o.Fields = &httplimit.FieldGuard{Logger: f.o.Logger}
	}
	f.calls.New = func() any { return new(call) }
	return f
}

func (f *handler) done(c *call) {
	c.original = original{}
	c.attributes.Reset(nil, httplimit.ClientIP{}, nil)
	c.request = weir.Request{}
	if cap(c.decision.Limits) > 256 { // do not keep the memory of a rare large request
		c.decision = weir.Decision{}
	}
	f.calls.Put(c)
}

// splitPath reads the path of a check; family is nil if there is nothing at that path.
func splitPath(path string) (family *proxyFamily, domain string) {
	rest, ok := strings.CutPrefix(path, door.ForwardAuthPath)
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
func (f *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	family, domain := splitPath(r.URL.Path)
	if family == nil {
		answer.Problem(w, http.StatusNotFound,
			"there is nothing at "+answer.Printable(r.URL.Path)+"; proxies ask at "+door.ForwardAuthPath+"/forwarded (Caddy, Traefik) or "+door.ForwardAuthPath+"/nginx, with /DOMAIN behind it where the rules hold several", "")
		return
	}
	if !f.admits(w, r) {
		return
	}
	start := door.Begin(f.o.Stopwatch)
	c := f.calls.Get().(*call)
	defer f.done(c)
	if err := c.read(r, family, f.o.EncodedSlash); err != nil {
		f.malformed.do(func() {
			f.warnf("forward auth: a check of %s by %s is malformed: %v", family.name,
				r.RemoteAddr, err)
		})
		answer.Problem(w, http.StatusBadRequest, err.Message, err.Field)
		return
	}
	f.remark(r, family)
	if domain = door.Domain(domain, f.o.Domain, f.limiter); domain == "" {
		const message = "the rules hold several domains: name one behind the path of the check, as in " +
			door.ForwardAuthPath + "/nginx/DOMAIN, or set default_domain in the configuration"
		f.unnamed.do(func() { f.warnf("forward auth: a check by %s names no domain, and %s", r.RemoteAddr, message) })
		answer.Problem(w, http.StatusBadRequest, "domain: is missing, and "+message, "domain")
		return
	}
	c.attributes.Reset(r, f.o.ClientIP, f.o.Identity)
	c.attributes.SetTarget(c.method, c.host, c.uri)
	set, _ := f.limiter.Rules()
	if problem, ok := f.o.Fields.Check(&c.attributes, set.Fields(domain)); !ok {
		problem.Answer(w)
		return
	}
	// No delay: a proxy that waited would stop waiting at some time, and some let the request pass
	// then.
	c.request = weir.Request{Door: "forward-auth", Domain: domain, Attributes: &c.attributes, Also: c.attributes.Also(),
		Hits: 1}
	if family == nginxFamily {
		f.answerNginx(w, r, c)
	} else {
		f.answerForwarded(w, r, c)
	}
	if d := &c.decision; d.Known && !d.Exempt && len(d.Limits) == 0 && len(d.Matches.Hits) == 0 {
		f.metNothing(d)
	}
	door.End(f.o.Stopwatch, start, &c.request, &c.decision)
}

// metNothing logs, once for a domain and its rules, the rules that no check can meet because an
// attribute is missing.
func (f *handler) metNothing(d *weir.Decision) {
	f.lacking.Lock()
	known := f.lacking.told[d.Domain] == d.Generation
	if !known {
		if f.lacking.told == nil {
			f.lacking.told = map[string]uint64{}
		}
		f.lacking.told[d.Domain] = d.Generation
	}
	f.lacking.Unlock()
	if known {
		return
	}
	names := f.o.Identity.Names()
	lacks := d.Rules.Lacking(d.Domain, func(attribute string) bool {
		return httpfield.RequestAttribute(attribute) || slices.Contains(names, attribute)
	})
	if len(lacks) > 0 {
		f.warnf(
			"forward auth: no check in domain %s can meet %s: it knows method, path, host, ip, header.*, query.* and what identity names",
			answer.Printable(d.Domain), door.DescribeLacks(lacks))
	}
}

// admits reports whether r comes from a trusted proxy; if not, it has answered r.
func (f *handler) admits(w http.ResponseWriter, r *http.Request) bool {
	if f.o.ClientIP.TrustedPeer(r) {
		return true
	}
	f.stranger.do(func() {
		peer, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			f.warnf(
				"forward auth: a check came over a unix socket, whose peers are no trusted proxies; if it is yours, set client_ip: {trusted_proxies: [unix]}")
			return
		}
		f.warnf(
			"forward auth: a check came from %s, which is no trusted proxy; if it is yours, set client_ip: {trusted_proxies: [%q]}", peer, peer)
	})
	answer.Problem(w, http.StatusForbidden,
		"only proxies that are listed in client_ip.trusted_proxies may ask here; the log of this server says who asked", "")
	return false
}

// remark logs what makes rules see less than they should.
func (f *handler) remark(r *http.Request, family *proxyFamily) {
	if len(r.Header[family.method]) == 0 {
		f.noMethod.do(func() {
			f.warnf("forward auth: a check of %s by %s has no %s header; its request is taken for a %s", family.name,
				r.RemoteAddr, family.method, answer.Printable(sparselog.Excerpt(r.Method)))
		})
	}
	if !f.o.ClientIP.Told(r) {
		f.noClient.do(func() {
			f.warnf("forward auth: a check of %s by %s has no %s header; its client is taken to be the proxy itself",
				family.name, r.RemoteAddr, f.o.ClientIP.Field())
		})
	}
}

// read takes the description of another request from r. A FieldError names a header of r.
func (c *call) read(r *http.Request, family *proxyFamily, slash httplimit.EncodedSlash) *answer.FieldError {
	uri, err := oneLine(r, family.uri)
	if err != nil {
		return err
	}
	if uri == "" {
		return &answer.FieldError{Field: family.uri,
			Message: "is missing: it has the path and the query of the request; " + family.hint}
	}
	if c.method, err = oneLine(r, family.method); err != nil {
		return err
	}
	if c.method == "" {
		c.method = r.Method
	}
	if !chars.IsToken(c.method) {
		return &answer.FieldError{Field: family.method,
			Message: "is no method of a request: " + answer.Printable(c.method)}
	}
	c.host = r.Host
	hostOf := "Host"
	if family.host != "" {
		hostOf = family.host
		if c.host, err = oneLine(r, family.host); err != nil {
			return err
		}
	}
	if !door.ValidHost(c.host) {
		return &answer.FieldError{Field: hostOf,
			Message: "is no host that all servers read alike: " + answer.Printable(c.host)}
	}
	// Proxies pass a # on as it is, and which server behind cuts the target off there is not known
	// here.
	if strings.IndexByte(uri, '#') >= 0 {
		return &answer.FieldError{Field: family.uri, Message: door.AmbiguousPathDetail("#", "")}
	}
	host, uri, ok := originForm(uri)
	if !ok {
		return &answer.FieldError{Field: family.uri,
			Message: "is no target of a request, such as /path?query: " + answer.Printable(uri)}
	}
	if c.uri = uri; host != "" {
		c.host = host
	}
	path, _, _ := strings.Cut(uri, "?")
	if what := door.AmbiguousPath(path, slash == httplimit.KeepEncodedSlash); what != "" {
		return &answer.FieldError{Field: family.uri,
			Message: door.AmbiguousPathDetail(what, door.KeepSlash)}
	}
	if len(r.Header["Authorization"]) > 1 {
		// the server behind the proxy might believe another one than the rules
		return &answer.FieldError{Field: "Authorization", Message: "is there more than once"}
	}
	return nil
}

// oneLine returns the value of a header that must not be there twice; "" if it is not there.
func oneLine(r *http.Request, name string) (string, *answer.FieldError) {
	switch lines := r.Header[name]; len(lines) {
	case 0:
		return "", nil
	case 1:
		return lines[0], nil
	}
	return "", &answer.FieldError{Field: name,
		Message: "is there more than once; the proxy must set it, not add to what the client sent"}
}

// originForm takes the target of a request as net/http does: a path with or without a query, *, or
// an absolute URI, whose host goes before any other. It returns the path with the query as they
// were written. ok is false if uri is not a request target.
func originForm(uri string) (host, target string, ok bool) {
	path := -1 // end of the path
	for i := range len(uri) {
		switch c := uri[i]; {
		case c <= ' ' || c == 0x7f:
			return "", uri, false
		case path >= 0:
		case c == '?':
			path = i
		case c == '%' && (i+2 >= len(uri) || !chars.IsHex(uri[i+1]) || !chars.IsHex(uri[i+2])):
			return "", uri, false
		}
	}
	switch {
	case uri == "":
		return "", uri, false
	case uri[0] == '/' || uri == "*":
		return "", uri, true
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil || u.Host == "" || u.Opaque != "" || !door.ValidHost(u.Host) {
		return "", uri, false
	}
	_, rest, _ := strings.Cut(uri, "://")
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		if target = rest[i:]; target[0] == '?' {
			target = "/" + target
		}
		return u.Host, target, true
	}
	return u.Host, "/", true
}

// verdict is how a check ends.
type verdict uint8

const (
	passes verdict = iota
	refused
	undecided // the store failed
	turned    // it waited too long, and is to be refused
	late      // likewise, and the answer is that nothing was decided
)

// decide decides c.request, and sets the header of an answer that passes.
func (f *handler) decide(r *http.Request, c *call, h http.Header) verdict {
	if f.o.Line.Late(1) {
		return f.turnAway(c, h)
	}
	ctx, trace := door.Follow(r.Context(), f.o.Tracer, r.Header)
	c.request.Trace = trace
	err := f.limiter.Decide(ctx, &c.request, &c.decision)
	door.Followed(f.o.Tracer, trace, err)
	switch {
	case err != nil:
		return undecided
	case !c.decision.Allowed:
		return refused
	}
	f.pass(c, h)
	return passes
}

// pass sets the header of an answer that passes.
func (f *handler) pass(c *call, h http.Header) {
	f.o.Headers.Write(h, &c.decision)
	f.o.Headers.Fill(h)
	h["Cache-Control"] = answer.NoStore
}

// turnAway is decide for a check that waited too long in line.
func (f *handler) turnAway(c *call, h http.Header) verdict {
	f.o.Line.Turned(1)
	c.decision = weir.Decision{Allowed: true}
	switch f.o.Line.Answer() {
	case shed.Deny:
		return turned
	case shed.Allow:
		f.pass(c, h)
		return passes
	}
	return late
}

// answerForwarded answers Caddy and Traefik, which pass a refusal on to the client as it is.
func (f *handler) answerForwarded(w http.ResponseWriter, r *http.Request, c *call) {
	switch f.decide(r, c, w.Header()) {
	case passes:
		w.WriteHeader(http.StatusOK)
	case refused:
		f.o.CORS.Allow(w.Header(), r, f.o.Headers)
		f.o.Headers.Refuse(w, r, &c.decision)
	case turned:
		f.o.CORS.Allow(w.Header(), r, f.o.Headers)
		answer.Late(w, http.StatusTooManyRequests)
	case late:
		answer.Late(w, http.StatusServiceUnavailable)
	case undecided:
		answer.StoreError(w)
	}
}

// answerNginx answers nginx, which knows no refusals but 401 and 403, and throws bodies away, and
// the connection with them.
func (f *handler) answerNginx(w http.ResponseWriter, r *http.Request, c *call) {
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
func (f *handler) nginxStatus(r *http.Request, c *call, h http.Header) int {
	switch f.decide(r, c, h) {
	case passes:
		return http.StatusOK
	case refused:
		f.o.Headers.Write(h, &c.decision)
		h["Cache-Control"] = answer.NoStore
		return http.StatusForbidden
	case turned:
		h["Cache-Control"] = answer.NoStore
		h.Set("Retry-After", "1")
		return http.StatusForbidden
	}
	h["Cache-Control"] = answer.NoStore
	h.Set("Retry-After", "1")
	return http.StatusServiceUnavailable
}

// remarkEvery is how often a line of the log is written at most.
const remarkEvery = 10 * time.Second

// remark is something to say once in a while.
type remark struct{ sparselog.Line }

func (r *remark) do(say func()) {
	if r.Due(remarkEvery) > 0 {
		say()
	}
}

// warnf logs how an operator can mend something.
func (f *handler) warnf(format string, args ...any) { f.o.Logger.Warn(fmt.Sprintf(format, args...)) }
