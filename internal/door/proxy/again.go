package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/weir-rl/weir/internal/wire/upstream"
)

// again is the round tripper of requests that go through httputil.ReverseProxy over HTTP/1.1. It
// sends a request a second time as upstream.Client.Send does: once, on a new connection, if the
// upstream has closed the kept one before any byte of an answer. By itself http.Transport would
// send some requests again on each connection that it keeps, others never, and has no setting for
// that. Over HTTP/2 the upstream says which requests it has not looked at, and http.Transport sees
// to it.
type again struct {
	kept *http.Transport
	// fresh has a new connection for each request, and keeps none.
	fresh *http.Transport
	// multiplexed says that the upstream speaks HTTP/2.
	multiplexed *atomic.Bool
	repeated    *atomic.Uint64
}

// RoundTrip implements http.RoundTripper.
func (t *again) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.multiplexed.Load() || !repeatable(r) {
		return t.kept.RoundTrip(r)
	}
	bare := r.Body == nil || r.Body == http.NoBody
	var held []byte
	switch {
	case bare && !lacksBody(r.Method):
		return t.fresh.RoundTrip(r) // which is rare, and there is no other way to have it sent once
	case bare:
	case r.ContentLength <= 0 || r.ContentLength > upstream.MaxRepeat || r.Header["Expect"] != nil:
		return t.kept.RoundTrip(r) // http.Transport repeats nothing that has a body
	default:
		var err error
		if held, err = holdBody(r); err != nil {
			return nil, err
		}
	}
	var used connUse
	used.GotConn, used.GotFirstResponseByte = used.got, used.answer
	first := r.WithContext(httptrace.WithClientTrace(r.Context(), &used.ClientTrace))
	if bare {
		// http.Transport does not know that it is empty, and so leaves the request alone; it sends
		// nothing of it, and no length.
		first.Body, first.TransferEncoding = io.NopCloser(strings.NewReader("")), identity
	} else {
		first.Body = io.NopCloser(bytes.NewReader(held))
	}
	res, err := t.kept.RoundTrip(first)
	if err == nil || !used.closedIdle() || timedOut(err) || r.Context().Err() != nil {
		return res, err
	}
	t.repeated.Add(1)
	second := r.WithContext(r.Context())
	if second.Body = nil; !bare {
		second.Body = io.NopCloser(bytes.NewReader(held))
	}
	return t.fresh.RoundTrip(second)
}

// repeatable reports whether a request means the same when it arrives twice.
func repeatable(r *http.Request) bool {
	if upstream.Repeatable(r.Method) {
		return true
	}
	for _, name := range upstream.RepeatKeys {
		if r.Header[name] != nil {
			return true
		}
	}
	return false
}

// identity is the transfer encoding of a body that ends with its request.
var identity = []string{"identity"}

// lacksBody reports whether a request without a body needs no length that says so (RFC 9110 8.6).
func lacksBody(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodOptions:
		return true
	}
	return false
}

// holdBody reads the body of r. A client that announces much and sends little holds little.
func holdBody(r *http.Request) ([]byte, error) {
	defer r.Body.Close()
	held, err := io.ReadAll(io.LimitReader(r.Body, r.ContentLength+1))
	switch n := int64(len(held)); {
	case err != nil:
		return nil, err
	case n < r.ContentLength:
		return nil, io.ErrUnexpectedEOF
	case n > r.ContentLength:
		return nil, http.ErrContentLength
	}
	return held, nil
}

// connUse notes how the connection of a request was used.
type connUse struct {
	httptrace.ClientTrace
	reused, answered atomic.Bool
}

func (u *connUse) answer() { u.answered.Store(true) }

func (u *connUse) got(info httptrace.GotConnInfo) {
	c, secure := info.Conn.(*tls.Conn)
	u.reused.Store(info.Reused && !(secure && c.ConnectionState().NegotiatedProtocol == "h2"))
}

// closedIdle reports whether it was a kept one, of HTTP/1, on which nothing was answered.
func (u *connUse) closedIdle() bool { return u.reused.Load() && !u.answered.Load() }

func timedOut(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
