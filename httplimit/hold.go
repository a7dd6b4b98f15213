package httplimit

import (
	"context"
	"io"
	"net/http"
)

// held is called when the request is about to be held. It gives the request's room under overload
// to others meanwhile, and returns a context that ends when the client hangs up.
func (p *Pass) held(ctx context.Context) (context.Context, context.CancelFunc) {
	p.place.Wait()
	ctx, cancel := context.WithCancel(ctx)
	startReadAhead(p.attrs.r, cancel)
	return ctx, cancel
}

// readAheadMax bounds the body that is read while its request is held.
const readAheadMax = 64 << 10

// readAhead reads a small HTTP/1 body while its request is held, since net/http notices that a
// client hangs up only once the body is read. It is the body from then on.
type readAhead struct {
	body io.ReadCloser
	done chan struct{} // closed when buf and err are final
	buf  []byte
	err  error
}

// startReadAhead replaces r.Body, and calls hungUp if it cannot be read; it returns false if r's
// body is not to be read ahead.
func startReadAhead(r *http.Request, hungUp func()) bool {
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody || r.ContentLength <= 0 ||
		r.ContentLength > readAheadMax || r.Header.Get("Expect") != "" {
		return false
	}
	a := &readAhead{body: r.Body, done: make(chan struct{})}
	buf := make([]byte, r.ContentLength)
	r.Body = a
	go func() {
		defer close(a.done)
		var n int
		if n, a.err = io.ReadFull(a.body, buf); a.err == nil {
			// The end itself must be read: it is what sets net/http watching the connection.
			var extra [1]byte
			if _, a.err = a.body.Read(extra[:]); a.err == nil {
				a.err = io.ErrUnexpectedEOF
			}
		}
		a.buf = buf[:n]
		if a.err != io.EOF {
			hungUp()
		}
	}()
	return true
}

// Read implements io.Reader.
func (a *readAhead) Read(p []byte) (int, error) {
	<-a.done
	if len(a.buf) == 0 {
		return 0, a.err
	}
	n := copy(p, a.buf)
	a.buf = a.buf[n:]
	return n, nil
}

// Close implements io.Closer.
func (a *readAhead) Close() error { return a.body.Close() }
