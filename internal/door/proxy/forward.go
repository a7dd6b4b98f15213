package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// rewrite makes the request to the upstream. Hop-by-hop headers, and the client's Forwarded,
// X-Forwarded-For, -Host and -Proto are gone from pr.Out already.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	e := exchangeOf(in.Context())
	path := e.path
	if p.o.PathAsIs {
		path = asWritten(in.URL)
	}
	p.setTarget(out.URL, in.URL, path)
	out.URL.Scheme, out.URL.Host = p.scheme, p.host
	if carriesHTTP(out.Header["Upgrade"]) {
		delete(out.Header, "Upgrade")
		delete(out.Header, "Connection")
	}
	if out.Host = e.host; p.o.UpstreamHost {
		out.Host = ""
	}
	if e.pass != nil { // these are ours to set, on deferred requests
		delete(out.Header, hdrTicket)
		delete(out.Header, hdrAttempt)
	}
	if name := p.named; name != "" && !p.o.ClientIP.TrustedPeer(in) {
		delete(out.Header, name)
	}
	for name := range out.Header {
		if p.o.Fields.DropsForged(p.o.ClientIP, name, ownFields...) {
			delete(out.Header, name)
		}
	}
	out.Trailer = in.Trailer // filled in while the body is read
	p.setForwarded(in, e.host, out.Header)
}

// setTarget sets path and query of a request to the upstream: in is the client's target, and path
// the one that the rules matched.
func (p *Proxy) setTarget(out, in *url.URL, path string) {
	if path == "*" {
		// it takes no query
		out.Path, out.RawPath, out.RawQuery, out.ForceQuery = "*", "", "", false
		return
	}
	bare := path
	if strings.IndexByte(path, '%') >= 0 {
		bare, _ = url.PathUnescape(path) // it was valid when the server read it
	}
	out.Path, out.RawPath = p.bare+bare, p.base+path
	out.RawQuery, out.ForceQuery = safeQuery.Replace(in.RawQuery), in.ForceQuery
}

// safeQuery escapes characters that may not stand in a query and would end it: HTTP/2 lets a space
// through, which in a request line of HTTP/1 is followed by the version, and some servers cut a
// query at a
// #, so that they read another value than the rules.
var safeQuery = strings.NewReplacer(" ", "%20", "#", "%23")

// carriesHTTP reports whether an Upgrade header offers a protocol in which requests would pass the
// limits unseen: h2c, HTTP/2.0, TLS/1.3. An offer may be left unanswered (RFC 9110 7.8), so the
// proxy does not pass it on.
func carriesHTTP(upgrade []string) bool {
	for _, line := range upgrade {
		for protocol := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(strings.ToLower(strings.Trim(protocol, " \t")), "/")
			switch name {
			case "h2c", "h2", "http", "tls":
				return true
			}
		}
	}
	return false
}

// forwarded holds the fields that tell the upstream about the client. Those from a trusted proxy
// are kept and continued, all others are dropped.
type forwarded struct {
	// lines of X-Forwarded-For: those that are believed, which are of another field if the client
	// is named there
	prior  []string
	peer   string   // goes behind them; "" if it is no address
	hosts  []string // lines of X-Forwarded-Host; if there are none, host
	host   string
	protos []string // and of X-Forwarded-Proto
	proto  string
}

func (p *Proxy) forwardedOf(in *http.Request, host string) forwarded {
	f := forwarded{peer: in.RemoteAddr, host: host, proto: "http"}
	if address, _, err := net.SplitHostPort(f.peer); err == nil {
		f.peer, _, _ = strings.Cut(address, "%")
	} else {
		f.peer = "" // a unix socket
	}
	if in.TLS != nil {
		f.proto = "https"
	}
	if p.o.ClientIP.TrustedPeer(in) {
		f.prior, f.hosts, f.protos = p.o.ClientIP.Chain(in), in.Header["X-Forwarded-Host"],
			in.Header["X-Forwarded-Proto"]
	}
	return f
}

func (p *Proxy) setForwarded(in *http.Request, host string, h http.Header) {
	f := p.forwardedOf(in, host)
	switch {
	case len(f.prior) > 0 && f.peer != "":
		h["X-Forwarded-For"] = []string{strings.Join(f.prior, ", ") + ", " + f.peer}
	case len(f.prior) > 0:
		h["X-Forwarded-For"] = slices.Clone(f.prior)
	case f.peer != "":
		h["X-Forwarded-For"] = []string{f.peer}
	}
	setLines(h, "X-Forwarded-Host", f.hosts, f.host)
	setLines(h, "X-Forwarded-Proto", f.protos, f.proto)
}

// setLines sets a field to copies of lines, since the transport may still be writing a header when
// the door uses the client's again; or to value if there are none.
func setLines(h http.Header, name string, lines []string, value string) {
	if len(lines) == 0 {
		h[name] = []string{value}
		return
	}
	h[name] = slices.Clone(lines)
}

// asWritten is the path as the client wrote it, but that bytes which may not stand in a request
// line are percent-encoded.
func asWritten(u *url.URL) string {
	raw := u.RawPath
	if raw == "" {
		raw = u.EscapedPath()
	}
	if raw == "" {
		return "/"
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(raw) {
		if c := raw[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"#<>?\\^`{|}", c) >= 0 {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// modifyResponse puts the rate-limit headers on the upstream's response, in place of its own of the
// same families.
func (p *Proxy) modifyResponse(res *http.Response) error {
	if res.StatusCode < 100 {
		// net/http's server would panic
		return fmt.Errorf("it answered with status %03d", res.StatusCode)
	}
	if len(res.Trailer) > 0 {
		// HTTP/2 allows it beside trailers; in HTTP/1 they need chunks
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		dropInvalid(res.Trailer)
		res.Body = trailerBody{res.Body, res}
	}
	if p.scheme == "https" && res.Request.Header["Upgrade"] == nil { // which HTTP/1.1 alone knows
		if h2 := res.ProtoMajor == 2; p.multiplexed.Load() != h2 {
			p.multiplexed.Store(h2)
		}
	}
	e := exchangeOf(res.Request.Context())
	if e.pass == nil {
		return nil
	}
	kept := e.leaving.answered()
	if res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
		e.pass.Answered(res.StatusCode)
	}
	if kept {
		return errAbandoned{}
	}
	e.body.begun()
	e.pass.WriteHeaders(res.Header)
	if e.body.mustClose() {
		res.Header.Set("Connection", "close")
	}
	return nil
}

// handleError answers a request that the upstream did not.
func (p *Proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	p.fail(w, r, exchangeOf(r.Context()), err)
}

// fail answers a request whose exchange failed.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, e *exchange, err error) {
	if e.pass == nil {
		e.err = err
		return
	}
	if e.leaving.linger(); e.grpc {
		w = answer.AsGRPC(w)
	}
	if e.leaving.answered(); e.pass.Abandoned() {
		p.noteAbandoned(r)
	}
	cancelled := e.client.Err() != nil
	problem := func(status int, detail string) {
		e.pass.Answered(status)
		answer.ProblemDetails(w, status, "", "", detail, nil)
	}
	e.pass.WriteHeaders(w.Header())
	if e.body.mustClose() {
		w.Header().Set("Connection", "close")
	}
	if cause := e.body.failure(cancelled); cause != nil {
		status, detail := p.blame(w, r, cause)
		e.pass.AnsweredHere(status)
		answer.ProblemDetails(w, status, "", "", detail, nil)
		return
	}
	if cancelled {
		e.pass.Answered(499)
		w.WriteHeader(499) // the client is gone; only a log reads this
		return
	}
	if errors.Is(err, upstream.ErrNoPlace) {
		p.warn(&p.lines.full,
			"proxy: requests are answered 503, since as many are under way to the upstream as may be (weir_upstream_places)")
		w.Header().Set("Retry-After", "1")
		e.pass.AnsweredHere(http.StatusServiceUnavailable)
		answer.ProblemDetails(w, http.StatusServiceUnavailable, answer.TypeReducedCapacity, "",
			"As many requests are under way to the server behind this proxy as may be. Try again in a moment.", nil)
		return
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		p.warnOf(&p.lines.late, r.Method, e.path, "the upstream failed", err)
		problem(http.StatusGatewayTimeout, "The server behind this proxy did not answer in time.")
		return
	}
	p.warnOf(&p.lines.failed, r.Method, e.path, "the upstream failed", err)
	problem(http.StatusBadGateway, "The server behind this proxy could not be reached, or did not answer in HTTP.")
}

// blame returns the answer to a request whose body failed for cause.
func (p *Proxy) blame(w http.ResponseWriter, r *http.Request, cause error) (status int, detail string) {
	if r.ProtoMajor == 1 { // over HTTP/2 the other requests of the connection go on
		w.Header().Set("Connection", "close")
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(cause, &tooLarge):
		return http.StatusRequestEntityTooLarge, "The request's body is too large."
	case errors.Is(cause, os.ErrDeadlineExceeded):
		if n := p.cuts.line.Due(time.Minute); n > 0 {
			p.o.Logf(
				"proxy: %s %q: the body came more slowly than proxy.body_rate, not for as long as proxy.body_timeout, or not at once while such bodies had half of the places for its address, and was given up: %d such requests since the last line", sparselog.Excerpt(r.Method), sparselog.Excerpt(r.URL.Path), n)
		}
		return http.StatusRequestTimeout, "The request's body did not arrive in time."
	}
	return http.StatusBadRequest, "The request's body is malformed or incomplete."
}

// ready waits for the first part of a body whose length is known, before its request takes a place
// at the upstream, which is not asked sooner. It answers a request whose body fails, and returns
// false. It does not wait for a client that waits to be asked for its body, which the upstream
// does, nor for a body without a length: that may be a call in both directions, which waits for an
// answer before it goes on.
func (p *Proxy) ready(w http.ResponseWriter, r *http.Request) bool {
	b, ok := r.Body.(*clientBody)
	if !ok || b.length < 0 || r.Header.Get("Expect") != "" {
		return true
	}
	err := b.fetch(int(min(b.length, upstream.MaxBody)))
	if err == nil {
		return true
	}
	status, detail := p.blame(w, r, err)
	answer.ProblemDetails(answer.ForGRPC(w, r), status, "", "", detail, nil)
	return false
}
