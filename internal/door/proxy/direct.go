package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// Most requests go to an http:// upstream, have no body or one of a known length, and need no more
// than an answer. These take the direct way, package upstream, which costs far less processor time
// than httputil.ReverseProxy. All others go through ReverseProxy. The client sees no difference.

// directWorks says that requests may go the direct way. Tests turn it off, to have all requests go
// through httputil.ReverseProxy.
var directWorks = upstream.Works

// takeDirect forwards r the direct way, and reports whether it has. If not, it has touched neither
// r nor w.
func (p *Proxy) takeDirect(w http.ResponseWriter, r *http.Request, pass *httplimit.Pass, body *clientBody) bool {
	if p.direct == nil || r.ContentLength < 0 || r.ContentLength > 0 && body == nil || len(r.Trailer) > 0 {
		return false
	}
	q := upstream.NewRequest()
	if !p.writeHead(q, r, pass.Attributes()) {
		q.Free()
		return false
	}
	p.forwardDirect(w, r, pass, q, body)
	body.finish()
	return true
}

// forwardDirect sends q and its body, and passes the response on. It frees q, and takes leave.
func (p *Proxy) forwardDirect(w http.ResponseWriter, r *http.Request, pass *httplimit.Pass, q *upstream.Request,
	body *clientBody) {
	defer pass.Leave()
	if r.ContentLength > upstream.MaxBody {
		body.stream(r)
		p.watchBody(body, r, pass)
		defer body.unwatch()
	}
	p.exchangeDirect(p.watch(w, pass), r, pass, q, body)
	pass.Finish()
}

func (p *Proxy) exchangeDirect(w http.ResponseWriter, r *http.Request, pass *httplimit.Pass, q *upstream.Request,
	body *clientBody) {
	fail := func(err error) {
		e := exchange{Context: r.Context(), client: r.Context(), pass: pass, path: pass.Attributes().Path(), body: body,
			grpc: answer.IsGRPC(r)}
		p.fail(w, r, &e, err)
	}
	if body != nil {
		if err := q.ReadBody(r.Body); err != nil {
			q.Free()
			fail(err)
			return
		}
	}
	if pass.Keeps() {
		q.AskBeforeCut(pass)
	}
	leave, err := p.enter(r, pass)
	if err != nil {
		q.Free()
		fail(err)
		return
	}
	defer leave()
	res, err := p.direct.Send(r.Context(), q)
	q.Free() // a response may take long
	if err != nil {
		fail(err)
		return
	}
	defer res.Close() // also if the client is gone, which panics
	if err := passHead(w, pass, res); err != nil {
		fail(err)
		return
	}
	if body.begun(); pass.Abandoned() {
		p.noteAbandoned(r)
		panic(http.ErrAbortHandler) // nobody wants the rest
	}
	if p.o.BodyRate > 0 && !res.Here() && pass.HoldsPlace() {
		taken := newTakenWriter(p, w, r, pass)
		defer taken.end()
		w = taken
	}
	if err := passBody(w, res); err != nil {
		if res.Failed() && r.Context().Err() == nil && body.failure(false) == nil {
			p.warnOf(&p.lines.brokeOff, r.Method, pass.Attributes().Path(), "the upstream's answer broke off", err)
		}
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// writeHead writes the request line and the header of r as the upstream is to get them: as rewrite
// makes them. It returns false if r has something that is left to ReverseProxy.
func (p *Proxy) writeHead(q *upstream.Request, r *http.Request, a *httplimit.Attributes) (ok bool) {
	host := a.Host()
	p.writeTarget(q, r, a, host)
	forged := ""
	if p.named != "" && !p.o.ClientIP.TrustedPeer(r) {
		forged = p.named
	}
	for name, lines := range r.Header {
		if name == forged || p.o.Fields.DropsForged(p.o.ClientIP, name, ownFields...) {
			continue
		}
		switch name {
		case "Connection":
			if len(lines) != 1 || !strings.EqualFold(lines[0], "keep-alive") && !strings.EqualFold(lines[0], "close") {
				return false
			}
			continue
		case "Host", "Content-Length", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
			"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", hdrTicket, hdrAttempt:
			continue
		case "User-Agent":
			lines = lines[:min(1, len(lines))] // as http.Transport does it
			if len(lines) == 1 && lines[0] == "" {
				continue
			}
		case "Upgrade", "Expect", "Te", "Trailer", "Transfer-Encoding":
			return false
		}
		for _, value := range lines {
			q.Field(name, value)
		}
	}
	f := p.forwardedOf(r, host)
	switch {
	case len(f.prior) == 0 && f.peer != "":
		q.Field("X-Forwarded-For", f.peer)
	case f.peer != "":
		q.Field("X-Forwarded-For", append(append(make([]string, 0, 8), f.prior...), f.peer)...)
	default:
		q.Field("X-Forwarded-For", f.prior...)
	}
	writeLines(q, "X-Forwarded-Host", f.hosts, f.host)
	writeLines(q, "X-Forwarded-Proto", f.protos, f.proto)
	q.End(r.ContentLength)
	return q.OK()
}

// writeTarget begins q.
func (p *Proxy) writeTarget(q *upstream.Request, r *http.Request, a *httplimit.Attributes, host string) {
	if p.o.UpstreamHost || host == "" {
		host = p.host
	}
	path := a.Path()
	if p.o.PathAsIs {
		path = asWritten(r.URL)
	}
	switch {
	case !plainPath(path):
		var u url.URL
		p.setTarget(&u, r.URL, path)
		q.Begin(r.Method, host, u.RequestURI())
	case r.URL.RawQuery != "" || r.URL.ForceQuery:
		q.Begin(r.Method, host, p.base, path, "?", safeQuery.Replace(r.URL.RawQuery))
	default:
		q.Begin(r.Method, host, p.base, path)
	}
}

// writeLines writes a field of each of lines, or one of value if there are none.
func writeLines(q *upstream.Request, name string, lines []string, value string) {
	if len(lines) == 0 {
		q.Field(name, value)
	}
	for _, line := range lines {
		q.Field(name, line)
	}
}

// plainPath reports whether path is one that url.URL leaves as it is in a request line.
func plainPath(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	for i := range len(path) {
		c := path[i]
		if plainByte[c] {
			continue
		}
		if c != '%' || i+2 >= len(path) || !isHex(path[i+1]) || !isHex(path[i+2]) {
			return false
		}
	}
	return true
}

var plainByte = func() (table [256]bool) {
	for _, c := range []byte("/-_.~!$&'()*+,;=:@0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		table[c] = true
	}
	return table
}()

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
