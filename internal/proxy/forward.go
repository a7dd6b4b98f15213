package proxy

import (
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"

	"github.com/weir-rl/weir/httplimit"
)

// rewrite makes the request to the upstream. Hop-by-hop headers, and the client's Forwarded, X-Forwarded-For, -Host and
// -Proto are gone from pr.Out already.
func (p *proxy) rewrite(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	e := exchangeOf(in.Context())
	path := e.path
	if p.o.PathAsIs {
		path = asWritten(in.URL)
	}
	if path == "*" {
		out.URL.Path, out.URL.RawPath = "*", ""
	} else {
		bare := path
		if strings.IndexByte(path, '%') >= 0 {
			bare, _ = url.PathUnescape(path) // it was valid when the server read it
		}
		out.URL.Path, out.URL.RawPath = p.bare+bare, p.base+path
	}
	out.URL.Scheme, out.URL.Host = p.scheme, p.host
	out.URL.RawQuery, out.URL.ForceQuery = in.URL.RawQuery, in.URL.ForceQuery
	if p.o.UpstreamHost {
		out.Host = ""
	}
	out.Trailer = in.Trailer // filled in while the body is read
	p.setForwarded(in, out.Header)
}

// setForwarded tells the upstream who asked. What a trusted proxy says of it is kept and continued; what anybody else
// says is not.
func (p *proxy) setForwarded(in *http.Request, h http.Header) {
	peer := in.RemoteAddr
	if host, _, err := net.SplitHostPort(peer); err == nil {
		peer, _, _ = strings.Cut(host, "%")
	} else {
		peer = "" // a unix socket
	}
	trusted := p.o.ClientIP.TrustedPeer(in)
	var prior []string
	if trusted {
		prior = in.Header["X-Forwarded-For"]
	}
	switch {
	case len(prior) > 0 && peer != "":
		h["X-Forwarded-For"] = []string{strings.Join(prior, ", ") + ", " + peer}
	case len(prior) > 0:
		h["X-Forwarded-For"] = prior
	case peer != "":
		h["X-Forwarded-For"] = []string{peer}
	}
	proto := "http"
	if in.TLS != nil {
		proto = "https"
	}
	keepOr(h, in.Header, "X-Forwarded-Host", trusted, in.Host)
	keepOr(h, in.Header, "X-Forwarded-Proto", trusted, proto)
}

func keepOr(out, in http.Header, name string, trusted bool, value string) {
	if v := in[name]; trusted && len(v) > 0 {
		out[name] = v
		return
	}
	out[name] = []string{value}
}

// asWritten is the path as the client wrote it, but that bytes which may not stand in a request line are percent-encoded.
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

// modifyResponse puts the rate-limit headers on the upstream's response, in place of its own of the same families.
func modifyResponse(res *http.Response) error {
	if len(res.Trailer) > 0 {
		res.Header.Del("Content-Length") // HTTP/2 allows it beside trailers; in HTTP/1 they need chunks
		res.ContentLength = -1
	}
	e := exchangeOf(res.Request.Context())
	e.pass.WriteHeaders(res.Header)
	if e.body.mustClose() {
		res.Header.Set("Connection", "close")
	}
	return nil
}

// handleError answers a request that the upstream did not.
func (p *proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	e := exchangeOf(r.Context())
	cancelled := e.Context.Err() != nil
	e.pass.WriteHeaders(w.Header())
	if e.body.mustClose() {
		w.Header().Set("Connection", "close")
	}
	if cause := e.body.failure(cancelled); cause != nil {
		w.Header().Set("Connection", "close")
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(cause, &tooLarge):
			httplimit.Problem(w, http.StatusRequestEntityTooLarge, "", "", "The request's body is too large.", nil)
		case errors.Is(cause, os.ErrDeadlineExceeded):
			httplimit.Problem(w, http.StatusRequestTimeout, "", "", "The request's body did not arrive in time.", nil)
		default:
			httplimit.Problem(w, http.StatusBadRequest, "", "", "The request's body is malformed or incomplete.", nil)
		}
		return
	}
	if cancelled {
		w.WriteHeader(499) // the client is gone; only a log reads this
		return
	}
	p.o.Logf("proxy: %s %q: the upstream failed: %v", r.Method, e.path, err)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		httplimit.Problem(w, http.StatusGatewayTimeout, "", "", "The server behind this proxy did not answer in time.", nil)
		return
	}
	httplimit.Problem(w, http.StatusBadGateway, "", "", "The server behind this proxy could not be reached, or did not answer in HTTP.", nil)
}
