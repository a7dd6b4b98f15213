package proxy

import (
	"context"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/httplimit"
)

// The direct way is for the requests that are most: to an http:// upstream, with no body or a small one, and nothing that
// needs more than an answer. They take it in the goroutine that serves them, over connections of our own (upstream), where
// httputil.ReverseProxy and http.Transport copy the headers twice, and hand request and response from goroutine to goroutine. What is
// unusual in a request goes through ReverseProxy, and what is unusual in a response through http.ReadResponse, so that there is
// no second opinion on it.

// maxDirectBody bounds the body of a request that goes the direct way. It is read as a whole before the upstream is asked.
const maxDirectBody = 32 << 10

// requestBuffer holds a request to the upstream, its body included.
type requestBuffer struct{ b []byte }

var requestBuffers = sync.Pool{New: func() any { return &requestBuffer{b: make([]byte, 0, 2<<10)} }}

// maxKeptBuffer bounds what a requestBuffer keeps.
const maxKeptBuffer = 64 << 10

func (b *requestBuffer) free() {
	if cap(b.b) <= maxKeptBuffer {
		b.b = b.b[:0]
		requestBuffers.Put(b)
	}
}

// takeDirect forwards r the direct way, and reports whether it has. If not, it has touched neither r nor w.
func (p *Proxy) takeDirect(w http.ResponseWriter, r *http.Request, pass *httplimit.Pass) bool {
	hasBody := r.Body != nil && r.Body != http.NoBody
	if p.direct == nil || r.ContentLength < 0 || r.ContentLength > maxDirectBody || r.ContentLength > 0 && (r.ProtoMajor != 1 || !hasBody) || len(r.Trailer) > 0 {
		return false
	}
	request := requestBuffers.Get().(*requestBuffer)
	var ok bool
	if request.b, ok = p.appendHead(request.b, r, pass.Attributes()); !ok {
		request.free()
		return false
	}
	defer pass.Leave()
	p.forwardDirect(pass.Watch(w), r, pass, request)
	pass.Finish()
	return true
}

// forwardDirect sends request and its body, and passes the response on. It frees request.
func (p *Proxy) forwardDirect(w http.ResponseWriter, r *http.Request, pass *httplimit.Pass, request *requestBuffer) {
	var body *clientBody
	hasBody := r.ContentLength > 0
	if hasBody {
		body = &clientBody{body: r.Body, length: r.ContentLength, control: http.NewResponseController(w), pause: max(0, p.o.BodyTimeout)}
	}
	fail := func(err error) {
		e := exchange{Context: r.Context(), pass: pass, path: pass.Attributes().Path(), body: body}
		p.fail(w, r, &e, err)
	}
	if hasBody {
		var err error
		if request.b, err = appendBody(request.b, body); err != nil {
			request.free()
			fail(err)
			return
		}
	}
	c, err := p.direct.send(r.Context(), request.b, !hasBody && replayable(r))
	request.free() // a response may take long
	if err != nil {
		fail(err)
		return
	}
	d := &c.reply
	*d = delivery{w: w, r: r, pass: pass, conn: c, keep: true}
	defer d.end() // also if the client is gone, which panics
	if err := d.head(); err != nil {
		fail(err)
		return
	}
	if err := d.body(); err != nil {
		if d.upstreamFailed && r.Context().Err() == nil {
			p.o.Logf("proxy: %s %q: the upstream's answer broke off: %v", r.Method, pass.Attributes().Path(), err)
		}
		panic(http.ErrAbortHandler) // the client must not take what it has for the whole
	}
}

// appendBody reads all of body. Room is made as it comes: a client that announces much and sends little holds little.
func appendBody(b []byte, body *clientBody) ([]byte, error) {
	end := len(b) + int(body.length)
	for {
		if len(b) == cap(b) {
			b = slices.Grow(b, min(end+1-len(b), max(len(b), 4<<10))) // and one byte, to meet the end in the same read
		}
		n, err := body.Read(b[len(b):min(end+1, cap(b))])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF && len(b) == end:
			return b, nil
		case err == io.EOF || len(b) > end:
			return b, io.ErrUnexpectedEOF // net/http ends a body at its length, so nothing comes here
		case err != nil:
			return b, err
		}
	}
}

// replayable reports whether a request without a body may be sent again if its connection turns out to be closed: net/http's rule.
func replayable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// appendHead appends the request line and the header of r as the upstream is to get them: as rewrite makes them. It is not ok if r has
// something that is left to ReverseProxy.
func (p *Proxy) appendHead(b []byte, r *http.Request, a *httplimit.Attributes) (_ []byte, ok bool) {
	path := a.Path()
	if p.o.PathAsIs {
		path = asWritten(r.URL)
	}
	if !validName(r.Method) {
		return b, false // over HTTP/2 it may hold spaces, and so a request line of its own
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	if plainPath(path) {
		b = append(append(b, p.base...), path...)
		if query := r.URL.RawQuery; query != "" || r.URL.ForceQuery {
			b = append(append(b, '?'), safeQuery.Replace(query)...)
		}
	} else {
		var u url.URL
		p.setTarget(&u, r.URL, path)
		b = append(b, u.RequestURI()...)
	}
	for _, c := range b {
		if c < ' ' || c == 0x7f {
			return b, false
		}
	}
	b = append(b, " HTTP/1.1\r\nHost: "...)
	host := a.Host()
	if p.o.UpstreamHost || host == "" {
		b = append(b, p.host...)
	} else {
		b = append(b, host...)
	}
	b = append(b, "\r\n"...)
	for name, lines := range r.Header {
		switch name {
		case "Connection":
			if len(lines) != 1 || !strings.EqualFold(lines[0], "keep-alive") && !strings.EqualFold(lines[0], "close") {
				return b, false
			}
			continue
		case "Upgrade", "Expect", "Te", "Trailer", "Transfer-Encoding":
			return b, false
		case "Host", "Content-Length", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
			"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", hdrTicket, hdrAttempt:
			continue
		case "User-Agent":
			lines = lines[:min(1, len(lines))] // as http.Transport does it
			if len(lines) == 1 && lines[0] == "" {
				continue
			}
		}
		if !validName(name) {
			return b, false
		}
		for _, value := range lines {
			if !validValue(value) {
				return b, false
			}
			b = appendField(b, name, textproto.TrimString(value))
		}
	}
	f := p.forwardedOf(r, host)
	for i, address := range f.prior {
		if !validValue(address) {
			return b, false
		}
		if i == 0 {
			b = append(b, "X-Forwarded-For: "...)
		} else {
			b = append(b, ", "...)
		}
		b = append(b, address...)
	}
	if f.peer != "" {
		if len(f.prior) == 0 {
			b = append(b, "X-Forwarded-For: "...)
		} else {
			b = append(b, ", "...)
		}
		b = append(b, f.peer...)
	}
	if len(f.prior) > 0 || f.peer != "" {
		b = append(b, "\r\n"...)
	}
	if b, ok = appendFields(b, "X-Forwarded-Host", f.hosts, f.host); !ok {
		return b, false
	}
	if b, ok = appendFields(b, "X-Forwarded-Proto", f.protos, f.proto); !ok {
		return b, false
	}
	switch {
	case r.ContentLength > 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.ContentLength, 10)
		b = append(b, "\r\n"...)
	case r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = append(b, "Content-Length: 0\r\n"...)
	}
	return append(b, "\r\n"...), true
}

func appendField(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	return append(append(b, value...), "\r\n"...)
}

// appendFields appends a line for each of lines, or one of value if there are none.
func appendFields(b []byte, name string, lines []string, value string) (_ []byte, ok bool) {
	if len(lines) == 0 {
		return appendField(b, name, value), validValue(value)
	}
	for _, line := range lines {
		if !validValue(line) {
			return b, false
		}
		b = appendField(b, name, textproto.TrimString(line))
	}
	return b, true
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

// send sends a request, on an idle connection if there is one, and returns the connection when the first byte of the response has come.
// A request that meets a connection which the upstream has closed meanwhile is sent once more, on a new one, if
// that cannot make it two.
func (u *upstream) send(ctx context.Context, request []byte, replayable bool) (*upstreamConn, error) {
	if c := u.idle(); c != nil {
		sent, err := c.ask(ctx, time.Now(), request)
		if err == nil {
			return c, nil
		}
		c.close()
		if _, late := err.(timeoutError); late || ctx.Err() != nil || sent && !replayable {
			return nil, err
		}
	}
	c, err := u.dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := c.ask(ctx, time.Now(), request); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}
