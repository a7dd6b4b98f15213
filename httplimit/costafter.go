package httplimit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/line"
	"github.com/weir-rl/weir/rule"
)

// Watch returns the writer on which the request is to be answered. It takes note of the response as
// it goes by, without holding it up: Leave settles the cost of the request by a rule with
// cost_after, and an Overload, a Load and a hook for answers (weir.Hooks.Answered) hear of it.
// Where WriteHeaders wrote rate-limit headers and the handler adds more of them, as a reverse proxy
// does for a server that limits too, they are joined as Headers.Write says. It is w itself where
// there is none of this to do. To be called once, after WriteHeaders and before the request is
// handled. Callers of Answered that join the headers they pass on by WriteHeaders do not need it,
// unless the decision met a rule with cost_after.
//
// The writer implements http.Flusher, http.Hijacker and io.ReaderFrom as far as w does, and works
// with http.ResponseController. It is made anew for each request, since a handler may hold on to
// it.
func (p *Pass) Watch(w http.ResponseWriter) http.ResponseWriter {
	costs := line.CostsAfter(&p.decision)
	if !p.watches() && !costs && !p.wrote {
		return w
	}
	p.watch = &watch{ResponseWriter: w, pass: p, noBody: p.attrs.r.Method == http.MethodHead}
	if costs {
		p.watch.start = time.Now()
	}
	_, flusher := w.(http.Flusher)
	_, hijacker := w.(http.Hijacker)
	_, readerFrom := w.(io.ReaderFrom)
	switch {
	case flusher && hijacker && readerFrom:
		return watchAll{watchHijacker{watchFlusher{p.watch}}}
	case flusher && hijacker:
		return watchHijacker{watchFlusher{p.watch}}
	case flusher:
		return watchFlusher{p.watch}
	}
	return p.watch
}

// Finish notes that the request has been handled to its end. Without it Leave takes it that the
// handler panicked, so that an answer which it had not begun is none.
func (p *Pass) Finish() {
	p.finished = true
	if p.watch != nil {
		p.watch.finished = true
		if p.watch.status == 0 { // net/http writes the header now
			p.gather(p.watch.Header())
		}
	}
}

// settle replaces the estimates that the rules with cost_after have charged by the actual cost.
func (p *Pass) settle() {
	seen := p.watch
	p.watch, seen.pass = nil, nil
	if !line.CostsAfter(&p.decision) {
		return
	}
	r := p.attrs.r
	info := rule.ResponseInfo{Status: seen.status, Header: seen.header, Bytes: seen.bytes.Load(),
		Duration: time.Since(seen.start)}
	switch {
	case info.Status != 0:
	case r.Context().Err() != nil:
		info.Status = statusHungUp
	case seen.finished:
		info.Status = http.StatusOK
	default:
		info.Status = http.StatusInternalServerError
	}
	if err := p.gate.lines.Settle(r.Context(), p.gate.limiter, &p.decision, info); err != nil {
		p.failure(err)
	}
}

// watch is a ResponseWriter that takes note of the response as it passes.
type watch struct {
	http.ResponseWriter
	start  time.Time
	status int // 0 until the header is written
	// of the body; whoever took the connection over may write to it from anywhere
	bytes    atomic.Int64
	noBody   bool // to a HEAD
	finished bool
	pass     *Pass // notified when the answer begins; nil after Leave
}

// Unwrap is for http.ResponseController.
func (w *watch) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *watch) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.set(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *watch) Write(p []byte) (int, error) {
	w.began() // before it, since a client may be slow to take it
	n, err := w.ResponseWriter.Write(p)
	w.wrote(int64(n))
	return n, err
}

// WriteString implements io.StringWriter.
func (w *watch) WriteString(s string) (int, error) {
	w.began()
	n, err := io.WriteString(w.ResponseWriter, s)
	w.wrote(int64(n))
	return n, err
}

func (w *watch) wrote(n int64) {
	if !w.noBody {
		w.bytes.Add(n)
	}
}

// began notes that the header is out.
func (w *watch) began() {
	if w.status == 0 {
		w.set(http.StatusOK)
	}
}

func (w *watch) set(status int) {
	w.status = status
	if w.pass == nil {
		return
	}
	w.pass.gather(w.Header())
	w.status = w.pass.final(status) // a client must not get its requests for nothing by leaving them
	w.pass.Answered(status)
}

// header returns a header or a trailer of the response by its name.
func (w *watch) header(name string) string { return answer.ResponseField(w.Header(), name) }

type watchFlusher struct{ *watch }

// Flush implements http.Flusher.
func (w watchFlusher) Flush() { _ = w.FlushError() }

// FlushError is for http.ResponseController.
func (w watchFlusher) FlushError() error {
	w.began()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

type watchHijacker struct{ watchFlusher }

// Hijack implements http.Hijacker. Later writes to the connection count as body.
func (w watchHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return conn, rw, err
	}
	if err := rw.Flush(); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	if w.status == 0 {
		w.set(http.StatusSwitchingProtocols)
	}
	counted := &watchConn{Conn: conn, bytes: &w.bytes}
	rw.Writer.Reset(counted)
	return counted, rw, nil
}

type watchAll struct{ watchHijacker }

// ReadFrom implements io.ReaderFrom.
func (w watchAll) ReadFrom(r io.Reader) (int64, error) {
	w.began()
	n, err := w.ResponseWriter.(io.ReaderFrom).ReadFrom(r)
	w.wrote(n)
	return n, err
}

// watchConn counts the bytes written to a connection that a handler took over.
type watchConn struct {
	net.Conn
	bytes *atomic.Int64
}

// Write implements io.Writer.
func (c *watchConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// CloseWrite closes one direction, as TCP and TLS connections can.
func (c *watchConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
