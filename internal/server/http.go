// Package server holds the doors of weir, one file a protocol: the HTTP decision API, Envoy's RLS, and the admin API.
package server

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
)

// Stopwatch times a sample of the decisions, from reading the question to writing the answer.
type Stopwatch interface {
	// Begin returns 0 for a decision that is not in the sample.
	Begin() (start int64)
	// End is given what Begin returned, unless that was 0.
	End(start int64)
}

// HTTPOptions tune NewHTTP. The zero value is right for most, but trusts nobody.
type HTTPOptions struct {
	// Domain is that of requests that name none; "" means the only domain that the rules hold.
	Domain string
	// Headers are the families of rate-limit headers on answers.
	Headers httplimit.Headers
	// Trust tells who may refund, release and ask for more than 1,000 hits.
	Trust Trust
	// JSON serves /json; nil means that there is no such path.
	JSON http.Handler
	// ForwardAuth serves /api/v1/forward-auth and what is below it; nil means that there is no such path.
	ForwardAuth *ForwardAuth
	// Ready is what /healthcheck tells; nil means ready.
	Ready func() bool
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch Stopwatch
}

// Bounds of the HTTP decision API.
const (
	freeHits     = 1000 // hits that anybody may ask for at once
	maxBatch     = 1000 // items of a batch
	maxBody      = 1 << 20
	maxBatchBody = 8 << 20
)

//go:embed openapi.yaml
var openAPI []byte

// httpPaths are the paths of the decision API with their methods ("" is any), as Allow lists them.
var httpPaths = map[string]string{
	"/api/v1/limit":        "GET, POST",
	"/api/v1/limit/batch":  "POST",
	"/api/v1/release":      "POST",
	"/api/v1/reserve":      "POST",
	"/api/v1/commit":       "POST",
	"/api/v1/cancel":       "POST",
	"/api/v1/openapi.yaml": "GET, HEAD",
	"/json":                "",

	forwardAuthPath:                "",
	forwardAuthPath + "/nginx":     "",
	forwardAuthPath + "/forwarded": "",

	"/healthcheck": "",
}

// NewHTTP returns the handler of the HTTP decision API over l, described by openapi.yaml.
func NewHTTP(l *weir.Limiter, o HTTPOptions) http.Handler {
	h := &httpDoor{limiter: l, o: o}
	h.pool.New = func() any { return new(httpCall) }
	return h
}

type httpDoor struct {
	limiter *weir.Limiter
	o       HTTPOptions
	pool    sync.Pool // of *httpCall
}

// httpCall is what one request needs, kept for the next one.
type httpCall struct {
	in       []byte
	out      []byte
	question question
	request  weir.Request
	decision weir.Decision
	names    []string
}

// keepBuffer is up to which size a buffer is kept for the next request.
const keepBuffer = 64 << 10

func (h *httpDoor) call() *httpCall { return h.pool.Get().(*httpCall) }

func (h *httpDoor) done(c *httpCall) {
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

// Values of headers that are the same on every answer.
var (
	jsonType  = []string{"application/json"}
	plainType = []string{"text/plain; charset=utf-8"}
	noStore   = []string{"no-store"}
)

func (h *httpDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch {
	case h.o.ForwardAuth != nil && strings.HasPrefix(path, forwardAuthPath):
		h.o.ForwardAuth.ServeHTTP(w, r)
	case path == "/api/v1/limit" && (r.Method == http.MethodPost || r.Method == http.MethodGet):
		h.limit(w, r)
	case path == "/api/v1/limit/batch" && r.Method == http.MethodPost:
		h.batch(w, r)
	case path == "/api/v1/release" && r.Method == http.MethodPost:
		h.release(w, r)
	case path == "/api/v1/reserve" && r.Method == http.MethodPost:
		h.reserve(w, r)
	case (path == "/api/v1/commit" || path == "/api/v1/cancel") && r.Method == http.MethodPost:
		h.commit(w, r, path == "/api/v1/cancel")
	case path == "/api/v1/openapi.yaml" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		w.Header().Set("Content-Type", "application/yaml")
		w.Header().Set("Content-Length", strconv.Itoa(len(openAPI)))
		_, _ = w.Write(openAPI)
	case path == "/json" && h.o.JSON != nil:
		h.o.JSON.ServeHTTP(w, r)
	case path == "/healthcheck":
		// As envoyproxy/ratelimit answers it.
		if h.o.Ready != nil && !h.o.Ready() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	default:
		if allow := httpPaths[path]; allow != "" {
			methodNotAllowed(w, r, allow)
			return
		}
		problem(w, http.StatusNotFound, "there is nothing at "+printable(path)+"; /api/v1/openapi.yaml describes what there is", "")
	}
}

// problem answers with problem details (RFC 9457); field is the member of the request that is wrong, "" for none.
func problem(w http.ResponseWriter, status int, detail, field string) {
	w.Header()["Cache-Control"] = noStore
	var extra map[string]any
	if field != "" {
		extra = map[string]any{"field": field}
	}
	httplimit.Problem(w, status, "about:blank", http.StatusText(status), detail, extra)
}

func methodNotAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	problem(w, http.StatusMethodNotAllowed, printable(r.Method)+" is not allowed here; allowed: "+allow, "")
}

// badRequest answers a request that could not be read or decoded.
func badRequest(w http.ResponseWriter, err error) {
	if f, ok := errors.AsType[*fieldError](err); ok {
		status := http.StatusBadRequest
		if f.tooMany {
			status = http.StatusRequestEntityTooLarge
		}
		problem(w, status, f.Error(), f.field)
		return
	}
	problem(w, http.StatusBadRequest, err.Error(), "")
}

// read reads the body into c.in, and returns it as a string.
func (c *httpCall) read(r *http.Request, most int64) (string, error) {
	tooLarge := &fieldError{field: "body", message: fmt.Sprintf("is larger than %d bytes", most), tooMany: true}
	if r.ContentLength > most {
		return "", tooLarge
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
			return "", tooLarge
		}
		if err == io.EOF {
			return string(b), nil
		}
		if err != nil {
			return "", &fieldError{field: "body", message: "could not be read to its end"}
		}
	}
}

// ask fills c.request from c.question.
func (h *httpDoor) ask(c *httpCall, item string) error {
	q := &c.question
	domain := q.domain
	if domain == "" {
		if domain = cmp.Or(h.o.Domain, h.limiter.SoleDomain()); domain == "" {
			return &fieldError{field: item + "domain", message: "is missing, and the rules hold several domains: name one, or set http.domain in the configuration"}
		}
	}
	c.request = weir.Request{Domain: domain, Attributes: &q.attrs, Hits: q.hits, MaxDelay: q.maxDelay, Door: "http"}
	return nil
}

// needsTrust reports whether not everybody may ask for so many hits.
func needsTrust(hits int64) bool { return hits < 0 || hits > freeHits }

func forbidden(w http.ResponseWriter, field, what string) {
	problem(w, http.StatusForbidden, field+": "+what+" is for programs at trusted_peers (no browser), or with a bearer token of auth.tokens_file", field)
}

func (h *httpDoor) limit(w http.ResponseWriter, r *http.Request) {
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
	var start int64
	if h.o.Stopwatch != nil {
		start = h.o.Stopwatch.Begin()
	}
	if err == nil {
		err = h.ask(c, "")
	}
	if err != nil {
		badRequest(w, err)
		return
	}
	if needsTrust(c.request.Hits) && !h.o.Trust.Trusted(r) {
		forbidden(w, "hits", "fewer than 0 or more than 1000")
		return
	}
	d := &c.decision
	if err := h.decide(r.Context(), c); err != nil {
		storeError(w)
		return
	}
	header := w.Header()
	header["Cache-Control"] = noStore
	h.o.Headers.Write(header, d)
	if plainText(r) {
		header["Content-Type"] = plainType
		c.out = strconv.AppendBool(c.out[:0], d.Allowed)
	} else {
		header["Content-Type"] = jsonType
		c.names = d.LimitedBy(c.names[:0])
		c.out = append(appendDecision(c.out[:0], d, c.names), '\n')
	}
	if start != 0 {
		h.o.Stopwatch.End(start)
	}
	if !d.Allowed {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(c.out) // a client that hung up misses it
}

// decide decides c.request. When the store fails and every enforcing limit that was met says on_store_error: allow, the
// request is allowed, and no limit is told.
func (h *httpDoor) decide(ctx context.Context, c *httpCall) error {
	err := h.limiter.Decide(ctx, &c.request, &c.decision)
	if err == nil || !c.decision.OpenWithoutStore() {
		return err
	}
	c.decision.Allowed = true
	c.decision.Limits = c.decision.Limits[:0]
	return nil
}

// storeError answers when the store could not decide.
func storeError(w http.ResponseWriter) {
	w.Header()["Cache-Control"] = noStore
	httplimit.RefuseStoreError(w)
}

// plainText reports whether the client wants text/plain rather than JSON.
func plainText(r *http.Request) bool {
	values := r.Header["Accept"]
	if len(values) == 0 {
		return false
	}
	var text, json float64
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			kind, params, _ := strings.Cut(item, ";")
			quality := 1.0
			for p := range strings.SplitSeq(params, ";") {
				if name, value, _ := strings.Cut(p, "="); strings.EqualFold(strings.TrimSpace(name), "q") {
					q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
					if err == nil && q >= 0 && q <= 1 {
						quality = q
					}
				}
			}
			switch kind = strings.TrimSpace(kind); {
			case strings.EqualFold(kind, "text/plain"):
				text = max(text, quality)
			case strings.EqualFold(kind, "application/json"):
				json = max(json, quality)
			}
		}
	}
	return text > json
}

// batch decides the items one after the other, each on its own. Nothing is decided unless all of them can be read.
func (h *httpDoor) batch(w http.ResponseWriter, r *http.Request) {
	c := h.call()
	defer h.done(c)
	body, err := c.read(r, maxBatchBody)
	if err != nil {
		badRequest(w, err)
		return
	}
	trusted, forbiddenItem := -1, ""
	check := decoder{s: body}
	err = check.batch(maxBatch, func() error {
		item := check.item
		if err := check.question(&c.question); err != nil {
			return err
		}
		if needsTrust(c.question.hits) && forbiddenItem == "" {
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
		badRequest(w, err)
		return
	}
	if forbiddenItem != "" {
		forbidden(w, forbiddenItem+"hits", "fewer than 0 or more than 1000")
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
		if failed = h.decide(r.Context(), c); failed != nil {
			return failed
		}
		if !first {
			c.out = append(c.out, ',')
		}
		first = false
		c.names = c.decision.LimitedBy(c.names[:0])
		c.out = appendDecision(c.out, &c.decision, c.names)
		return nil
	})
	switch {
	case failed != nil:
		storeError(w)
		return
	case err != nil: // the rules came to hold several domains in between
		badRequest(w, err)
		return
	}
	c.out = append(c.out, "]}\n"...)
	w.Header()["Cache-Control"] = noStore
	w.Header()["Content-Type"] = jsonType
	_, _ = w.Write(c.out)
}

func (h *httpDoor) release(w http.ResponseWriter, r *http.Request) {
	if !h.o.Trust.Trusted(r) {
		forbidden(w, "slot", "release")
		return
	}
	c := h.call()
	defer h.done(c)
	body, err := c.read(r, maxBody)
	if err != nil {
		badRequest(w, err)
		return
	}
	d := decoder{s: body}
	slot, err := d.slot()
	if err != nil {
		badRequest(w, err)
		return
	}
	ok, err := h.limiter.Release(r.Context(), slot)
	switch {
	case err != nil:
		storeError(w)
	case !ok:
		problem(w, http.StatusNotFound, "slot: is gone (released, timed out), or was never given", "slot")
	default:
		w.Header()["Cache-Control"] = noStore
		w.WriteHeader(http.StatusNoContent)
	}
}
