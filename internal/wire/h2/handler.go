package h2

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// startHandler hands a request to the handler.
func (c *conn) startHandler(st *stream) error {
	c.mu.Lock()
	if st.closed { // the connection was ended meanwhile
		c.mu.Unlock()
		return nil
	}
	if c.handlers >= c.s.o.MaxHandlers || !c.s.takeHandler() {
		c.resetLocked(st.id, refusedStream)
		c.mu.Unlock()
		return c.spend(2, "too many requests at once")
	}
	c.handlers++
	st.async = true
	var ctx context.Context
	ctx, st.cancel = context.WithCancel(c.ctx)
	c.mu.Unlock()
	h := handling{c, st, ctx}
	select {
	case c.s.handing <- h: // somebody is idle
	default:
		go c.s.handleAll(h)
	}
	return nil
}

// handling is a request for the handler.
type handling struct {
	c   *conn
	st  *stream
	ctx context.Context
}

// handleAll runs the handler for a request and then, for as long as the server has connections, for
// others that come while it is idle: it keeps the stack that it has grown.
func (s *Server) handleAll(h handling) {
	for {
		h.c.handle(h.ctx, h.st)
		h = handling{}
		if s.idleHandlers.Add(1) > maxIdle {
			s.idleHandlers.Add(-1)
			return
		}
		select {
		case h = <-s.handing:
			s.idleHandlers.Add(-1)
		case <-*s.quiet.Load():
			s.idleHandlers.Add(-1)
			return
		case <-s.ctx.Done():
			s.idleHandlers.Add(-1)
			return
		}
	}
}

// takeHandler counts one more call in Options.Handler, unless there are too many.
func (s *Server) takeHandler() bool {
	if s.handlers.Add(1) > int64(s.o.MaxAllHandlers) {
		s.handlers.Add(-1)
		return false
	}
	return true
}

// leaveHandler notes that the handler of st has ended. mu must be held.
func (c *conn) leaveHandler(st *stream) {
	c.handlers--
	c.s.handlers.Add(-1)
	st.async = false
	if st.closed {
		c.orphans--
		c.dropHead(st)
	}
}

// handle runs the handler for st.
func (c *conn) handle(ctx context.Context, st *stream) {
	w := newResponse(c, st)
	defer w.over()
	r, err := c.httpRequest(ctx, st, w)
	if w.unheard = err != nil; !w.unheard {
		w.head = r.Method == http.MethodHead
		c.handler.ServeHTTP(w, r)
	}
	w.returned = true
}

// blank is what every request is a copy of.
var blank http.Request

// httpRequest is the request of st as net/http has it. An error means that it is malformed.
func (c *conn) httpRequest(ctx context.Context, st *stream, w *response) (*http.Request, error) {
	q := st.request
	r := blank.WithContext(ctx)
	r.Method, r.Proto, r.ProtoMajor, r.Host = q.method, "HTTP/2.0", 2, q.authority
	r.RemoteAddr, r.RequestURI, r.TLS, r.Body = c.remote, q.path, c.tls, http.NoBody
	var err error
	if q.method == http.MethodConnect {
		r.URL, r.RequestURI = &url.URL{Host: q.authority}, q.authority
	} else if r.URL, err = url.ParseRequestURI(q.path); err != nil {
		return nil, err
	}
	r.Header = make(http.Header, len(q.fields))
	values := make([]string, len(q.fields)) // one for all fields
	var crumbs []string                     // of a Cookie that came in several fields
	for i, f := range q.fields {
		name := http.CanonicalHeaderKey(f.Name)
		switch old := r.Header[name]; {
		case len(old) == 0:
			values[i] = f.Value
			r.Header[name] = values[i : i+1 : i+1]
		case name == "Cookie":
			crumbs = append(crumbs, f.Value)
		default:
			r.Header[name] = append(old, f.Value)
		}
	}
	if crumbs != nil {
		cookie := r.Header["Cookie"]
		cookie[0] = strings.Join(append([]string{cookie[0]}, crumbs...), "; ")
	}
	if !q.shared {
		q.fields = nil // nobody reads them any more
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host")
	}
	delete(r.Header, "Host")
	r.Trailer = announced(r.Header)
	expects := httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue")
	if expects {
		delete(r.Header, "Expect")
	}
	if st.hasBody {
		r.ContentLength = q.length
		body := &body{c: c, st: st, w: w, trailer: r.Trailer}
		body.proceed.Store(expects)
		r.Body = body
	}
	return r, nil
}

// announced takes the field Trailer out of h, and returns the trailers that it announces; nil if
// there are none.
func announced(h http.Header) (trailer http.Header) {
	lists, ok := h["Trailer"]
	if !ok {
		return nil
	}
	delete(h, "Trailer")
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
			switch name {
			case "Transfer-Encoding", "Trailer", "Content-Length": // as net/http
				continue
			}
			if trailer == nil {
				trailer = http.Header{}
			}
			trailer[name] = nil
		}
	}
	return trailer
}

// connContext is the context of a connection.
type connContext struct {
	context.Context
	c *conn
}

type connKey struct{}

// Value implements context.Context.
func (x connContext) Value(key any) any {
	if key == (connKey{}) {
		return x.c
	}
	return x.Context.Value(key)
}

// ConnectionOf tells apart the HTTP/2 connections that requests came over, by their contexts; nil
// if a request came over another protocol, or another server of HTTP/2.
func ConnectionOf(ctx context.Context) any { return ctx.Value(connKey{}) }
