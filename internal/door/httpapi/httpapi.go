// Package httpapi is the HTTP decision API of weir, which openapi.yaml describes.
//
// Begin with New and routesOf. A request goes through codec.go (body or query to question),
// httpapi.go (question to decision) and encode.go (decision to JSON); reserve.go has the calls for
// costs that are known only afterwards.
package httpapi

import (
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/wire/accept"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// Options tune New. The zero value is right for most, but trusts nobody.
type Options struct {
	// Domain applies to requests that name none; "" means the only domain that the rules hold.
	Domain string
	// Headers are the families of rate-limit headers on answers.
	Headers httplimit.Headers
	// Trust decides which clients may refund, release and ask for more than 1,000 hits.
	Trust auth.Trust
	// Pages keeps web pages from all that decides; nil keeps them all, also those whose requests a
	// proxy passes on.
	Pages *auth.Pages
	// JSON serves /json; nil means that there is no such path.
	JSON http.Handler
	// ForwardAuth serves /api/v1/forward-auth and the paths below it; nil means that there is no
	// such path.
	ForwardAuth http.Handler
	// Ready is the answer of /healthcheck; nil means ready.
	Ready func() bool
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch weir.Stopwatch
	// Tracer follows decisions in traces; nil means that nobody does.
	Tracer door.Tracer
	// Line turns away requests that waited too long. nil turns none away.
	Line *shed.Door
}

// Bounds of the HTTP decision API.
const (
	maxBatch     = 1000 // items of a batch
	maxBody      = 1 << 20
	maxBatchBody = 8 << 20
)

//go:embed openapi.yaml
var openAPI []byte

// Paths that answer requests which waited too long in different ways.
const (
	limitPath   = "/api/v1/limit"
	reservePath = "/api/v1/reserve"
	jsonPath    = "/json"
)

// route is a path of the door. The table of them is looked at in order: the path that is asked for
// most comes first. An http.ServeMux would redirect paths that it cleans, and answer 405 in its own
// way.
type route struct {
	path    string
	below   bool     // the route is also for all paths that begin with path
	decides bool     // nobody loses anything if it is turned away
	pages   bool     // web pages may ask, as far as we are concerned
	methods []string // nil for any
	serve   http.HandlerFunc
}

// routesOf returns the routes of h.
func routesOf(h *handler) []route {
	post := []string{http.MethodPost}
	routes := []route{{path: limitPath, methods: []string{http.MethodGet, http.MethodPost}, decides: true,
		serve: h.limit}}
	if h.o.ForwardAuth != nil {
		routes = append(routes, route{path: door.ForwardAuthPath, below: true, pages: true,
			serve: h.o.ForwardAuth.ServeHTTP})
	}
	if h.o.JSON != nil {
		routes = append(routes, route{path: jsonPath, decides: true, serve: h.o.JSON.ServeHTTP})
	}
	return append(routes, []route{
		{path: "/api/v1/limit/batch", methods: post, decides: true, serve: h.batch},
		{path: "/api/v1/release", methods: post, serve: h.release},
		{path: reservePath, methods: post, decides: true, serve: h.reserve},
		{path: "/api/v1/commit", methods: post,
			serve: func(w http.ResponseWriter, r *http.Request) { h.commit(w, r, false) }},
		{path: "/api/v1/cancel", methods: post,
			serve: func(w http.ResponseWriter, r *http.Request) { h.commit(w, r, true) }},
		{path: "/api/v1/openapi.yaml", methods: []string{http.MethodGet, http.MethodHead}, pages: true,
			serve: describe},
		{path: "/healthcheck", pages: true, serve: h.health},
	}...)
}

// New returns the handler of the HTTP decision API over l, described by openapi.yaml.
func New(l *weir.Limiter, o Options) http.Handler {
	h := &handler{limiter: l, o: o}
	h.routes = routesOf(h)
	h.pool.New = func() any { return new(call) }
	return h
}

type handler struct {
	limiter *weir.Limiter
	o       Options
	routes  []route
	pool    sync.Pool // of *call
}

// call is the memory of one request, kept for the next one.
type call struct {
	in       []byte
	out      []byte
	question question
	request  weir.Request
	decision weir.Decision
	names    []string
}

// keepBuffer is up to which size a buffer is kept for the next request.
const keepBuffer = 64 << 10

func (h *handler) call() *call { return h.pool.Get().(*call) }

func (h *handler) done(c *call) {
	if cap(c.in) > keepBuffer {
		c.in = nil
	}
	if cap(c.out) > keepBuffer {
		c.out = nil
	}
	c.question.reset() // holds on to no body
	c.request = weir.Request{}
	c.decision.Domain = "" // which may lie in the body
	h.pool.Put(c)
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	for i := range h.routes {
		to := &h.routes[i]
		if path != to.path && !(to.below && strings.HasPrefix(path, to.path)) {
			continue
		}
		if to.methods != nil && !slices.Contains(to.methods, r.Method) {
			answer.MethodNotAllowed(w, r, strings.Join(to.methods, ", "))
			return
		}
		if !to.pages && !h.o.Pages.Admit(w, r) {
			return
		}
		if to.decides && h.o.Line.Late(1) {
			h.turnAway(w, r, to.path)
			return
		}
		to.serve(w, r)
		return
	}
	answer.Problem(w, http.StatusNotFound,
		"there is nothing at "+answer.Printable(path)+"; /api/v1/openapi.yaml describes what there is", "")
}

// describe answers with the description of the API.
func describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Content-Length", strconv.Itoa(len(openAPI)))
	_, _ = w.Write(openAPI)
}

// health answers as envoyproxy/ratelimit does.
func (h *handler) health(w http.ResponseWriter, _ *http.Request) {
	if h.o.Ready != nil && !h.o.Ready() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK")
}

func tooLarge(most int64) error {
	return &answer.FieldError{Field: "body", Message: fmt.Sprintf("is larger than %d bytes", most), TooMany: true}
}

// read reads the body into c.in, and returns it as a string.
func (c *call) read(r *http.Request, most int64) (string, error) {
	if r.ContentLength > most {
		return "", tooLarge(most)
	}
	b := c.in[:0]
	for {
		if len(b) == cap(b) {
			b = append(b, make([]byte, max(len(b), 512))...)[:len(b)]
		}
		n, err := r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		c.in = b
		if int64(len(b)) > most {
			return "", tooLarge(most)
		}
		if err == io.EOF {
			return string(b), nil
		}
		if err != nil {
			return "", &answer.FieldError{Field: "body", Message: "could not be read to its end"}
		}
	}
}

// ask fills c.request from c.question.
func (h *handler) ask(c *call, item string) error {
	q := &c.question
	domain := door.Domain(q.domain, h.o.Domain, h.limiter)
	if domain == "" {
		return &answer.FieldError{Field: item + "domain",
			Message: "is missing, and the rules hold several domains: name one, or set default_domain in the configuration"}
	}
	c.request = weir.Request{Domain: domain, Attributes: &q.attrs, Hits: q.hits, Peek: q.hits == 0,
		MaxDelay: q.maxDelay, Door: "http"}
	return nil
}

// manyHits is what door.NeedsTrust is about.
const manyHits = "fewer than 0 or more than 1000"

func forbidden(w http.ResponseWriter, field, what string) {
	answer.Problem(w, http.StatusForbidden,
		field+": "+what+" is for programs at trusted_peers (no browser), or with a bearer token of auth.tokens_file",
		field)
}

func (h *handler) limit(w http.ResponseWriter, r *http.Request) {
	c := h.call()
	defer h.done(c)
	var err error
	if r.Method == http.MethodGet {
		err = questionOfQuery(r.URL.RawQuery, &c.question)
	} else {
		var body string
		if body, err = c.read(r, maxBody); err == nil {
			d := decoder{s: body}
			if err = d.question(&c.question); err == nil {
				err = d.end()
			}
		}
	}
	start := door.Begin(h.o.Stopwatch)
	if err == nil {
		err = h.ask(c, "")
	}
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	if door.NeedsTrust(c.request.Hits) && !h.o.Trust.Trusted(r) {
		forbidden(w, "hits", manyHits)
		return
	}
	d := &c.decision
	err = h.decide(r, c)
	header := w.Header()
	header["Cache-Control"] = answer.NoStore
	switch {
	case err == nil:
	case plainText(r): // a client that asks for true or false gets one of them
		header["Content-Type"] = answer.PlainType
		header.Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "false")
		return
	default:
		answer.StoreError(w)
		return
	}
	h.o.Headers.Write(header, d)
	if plainText(r) {
		header["Content-Type"] = answer.PlainType
		c.out = strconv.AppendBool(c.out[:0], d.Allowed)
	} else {
		header["Content-Type"] = answer.JSONType
		c.names = d.LimitedBy(c.names[:0])
		c.out = append(appendDecision(c.out[:0], d, c.names, h.margins(r.Context(), c)), '\n')
	}
	door.End(h.o.Stopwatch, start, &c.request, d)
	if !d.Allowed {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(c.out) // a client that hung up misses it
}

// decide decides c.request, which r brought.
func (h *handler) decide(r *http.Request, c *call) error {
	ctx, trace := door.Follow(r.Context(), h.o.Tracer, r.Header)
	c.request.Trace = trace
	err := h.limiter.Decide(ctx, &c.request, &c.decision)
	door.Followed(h.o.Tracer, trace, err)
	return err
}

// plainText reports whether the client wants text/plain rather than JSON.
func plainText(r *http.Request) bool {
	values := r.Header["Accept"]
	return len(values) > 0 && accept.Preferred(strings.Join(values, ","), "application/json", "text/plain") == 1
}

// batch decides the items one after the other, each on its own. Nothing is decided unless all of
// them can be read.
func (h *handler) batch(w http.ResponseWriter, r *http.Request) {
	c := h.call()
	defer h.done(c)
	body, err := c.read(r, maxBatchBody)
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	trusted, forbiddenItem := -1, ""
	check := decoder{s: body}
	err = check.batch(maxBatch, func() error {
		item := check.item
		if err := check.question(&c.question); err != nil {
			return err
		}
		if door.NeedsTrust(c.question.hits) && forbiddenItem == "" {
			if trusted < 0 {
				trusted = 0
				if h.o.Trust.Trusted(r) {
					trusted = 1
				}
			}
			if trusted == 0 {
				forbiddenItem = item
			}
		}
		return h.ask(c, item)
	})
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	if forbiddenItem != "" {
		forbidden(w, forbiddenItem+"hits", manyHits)
		return
	}
	c.out = append(c.out[:0], `{"responses":[`...)
	failed, first := error(nil), true
	decide := decoder{s: body}
	err = decide.batch(maxBatch, func() error {
		item := decide.item
		if err := decide.question(&c.question); err != nil {
			return err
		}
		if err := h.ask(c, item); err != nil {
			return err
		}
		if failed = h.decide(r, c); failed != nil {
			return failed
		}
		if !first {
			c.out = append(c.out, ',')
		}
		first = false
		c.names = c.decision.LimitedBy(c.names[:0])
		c.out = appendDecision(c.out, &c.decision, c.names, h.margins(r.Context(), c))
		return nil
	})
	switch {
	case failed != nil:
		answer.StoreError(w)
		return
	case err != nil: // the rules came to hold several domains in between
		answer.BadBody(w, r, err)
		return
	}
	c.out = append(c.out, "]}\n"...)
	w.Header()["Cache-Control"] = answer.NoStore
	w.Header()["Content-Type"] = answer.JSONType
	_, _ = w.Write(c.out)
}

func (h *handler) release(w http.ResponseWriter, r *http.Request) {
	if !h.o.Trust.Trusted(r) {
		forbidden(w, "slot", "release")
		return
	}
	c := h.call()
	defer h.done(c)
	body, err := c.read(r, maxBody)
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	d := decoder{s: body}
	slot, err := d.slot()
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	ctx, trace := door.Begun(r.Context(), h.o.Tracer, door.Release, r.Header)
	ok, err := h.limiter.Release(ctx, slot)
	door.Found(h.o.Tracer, trace, "http", ok, err)
	switch {
	case err != nil:
		answer.StoreError(w)
	case !ok:
		answer.Problem(w, http.StatusNotFound, "slot: is gone (released, timed out), or was never given", "slot")
	default:
		w.Header()["Cache-Control"] = answer.NoStore
		w.WriteHeader(http.StatusNoContent)
	}
}
