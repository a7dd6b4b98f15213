package h2

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// response implements http.ResponseWriter, http.Flusher, and what http.ResponseController asks for.
// Only the deadlines are safe for concurrent use.
type response struct {
	c        *conn
	st       *stream
	header   http.Header
	trailer  []string // names that were announced
	status   int      // 0 until WriteHeader
	sent     bool     // the header is
	length   int64    // of the body, from the header; -1 if unknown
	head     bool     // the request is a HEAD
	given    int64    // bytes of the body that the handler has written
	typed    bool     // the header has the type of the body, or forbids to guess it
	dated    bool     // the header holds the date
	unheard  bool     // the request is malformed, and there is no answer
	returned bool     // the handler has, and did not panic

	*buffers // nil after the end
	stall    time.Duration
}

// buffers belong to a response. They are used again, but the response is not: a handler that
// writes after its end must not hit another one's answer.
type buffers struct {
	// Header fields as they were at WriteHeader, until they are sent. block has the fields whose
	// encoding does not depend on earlier ones.
	block  []byte
	shared []sharedField
	body   []byte // the unsent part of the body
}

var spareBuffers = sync.Pool{New: func() any { return new(buffers) }}

// responseBuffer is how much of a body is sent at once, if the handler does not flush.
const responseBuffer = 4 << 10

// maxSharedKept bounds what buffers keep for the next answer.
const maxSharedKept = 64

func newResponse(c *conn, st *stream) *response {
	w := &response{c: c, st: st, header: make(http.Header, 8), length: -1}
	w.buffers = spareBuffers.Get().(*buffers)
	return w
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Informational statuses are sent at once.
func (w *response) WriteHeader(status int) {
	switch {
	case w.status != 0 || w.buffers == nil:
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("h2: invalid status %d", status)) // as net/http
	case status < 200:
		w.inform(status)
		return
	}
	w.status = status
	for _, list := range w.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); httpguts.ValidTrailerHeader(name) {
				w.trailer = append(w.trailer, name)
			}
		}
	}
	for name, values := range w.header {
		switch name {
		case "Content-Length":
			n, err := strconv.ParseUint(w.header.Get(name), 10, 63)
			if err != nil {
				continue
			}
			w.length, values = int64(n), values[:1]
		case "Content-Type":
			w.typed = true
		case "Content-Encoding":
			w.typed = w.typed || len(values) > 0 && values[0] != ""
		case "Date":
			w.dated = true
		case "Connection":
			if len(values) > 0 && values[0] == "close" { // as net/http has it
				w.c.drain("a handler asked for it")
			}
			continue
		}
		if len(w.trailer) == 0 || !slices.Contains(w.trailer, name) {
			w.fields(name, values)
		}
	}
}

// fields takes the fields of a name as net/http spells it.
func (w *response) fields(name string, values []string) {
	code := fieldCodes[name]
	if code.shared == 0 {
		w.block = appendFields(w.block, code, name, values)
		return
	}
	for _, v := range values {
		if httpguts.ValidHeaderFieldValue(v) {
			w.shared = append(w.shared, sharedField{code, v})
		}
	}
}

// appendFields appends the fields of a name, unless HTTP/2 does not allow it.
func appendFields(b []byte, code fieldCode, name string, values []string) []byte {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
		return b
	}
	for _, v := range values {
		if httpguts.ValidHeaderFieldValue(v) {
			var ok bool
			if b, ok = appendLiteral(b, code, name, v); !ok {
				break
			}
		}
	}
	return b
}

// bodyAllowed reports whether an answer with the status may have a body.
func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	switch {
	case w.buffers == nil:
		return 0, errOver
	case w.status == 0:
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if w.given += int64(len(p)); w.length >= 0 && w.given > w.length {
		return 0, http.ErrContentLength
	}
	if len(w.body)+len(p) <= responseBuffer {
		w.body = append(w.body, p...)
		return len(p), nil
	}
	rest := p
	if n := responseBuffer - len(w.body); len(w.body) > 0 {
		w.body, rest = append(w.body, p[:n]...), p[n:]
		if err := w.send(w.body, true); err != nil {
			return 0, err
		}
		w.body = w.body[:0]
	}
	for ; len(rest) > maxOut; rest = rest[maxOut:] { // so that other streams have their turn
		if err := w.send(rest[:maxOut], false); err != nil {
			return 0, err
		}
	}
	// The last of a body goes out with the end, as the last 4 KiB of others do.
	if err := w.send(rest, w.given == w.length); err != nil {
		return 0, err
	}
	return len(p), nil
}

// errOver is met by a handler that writes after it has returned.
var errOver = errors.New("h2: the handler has returned")

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is called by http.ResponseController.
func (w *response) FlushError() error {
	switch {
	case w.buffers == nil:
		return errOver
	case w.status == 0:
		w.WriteHeader(http.StatusOK)
	}
	return w.flush()
}

// flush sends the header, unless it is sent, and the buffered bytes.
func (w *response) flush() error {
	err := w.send(w.body, false)
	w.body = w.body[:0]
	return err
}

// send sends the header, if it is not sent, and p, and waits until the windows have let it pass. If
// more follows soon, what fits is only made ready.
func (w *response) send(p []byte, more bool) error {
	c, st := w.c, w.st
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.closed {
		return errStreamClosed
	}
	w.sendHeader(p, false)
	if len(p) > 0 && !w.head {
		st.out = p
		c.send(st)
		c.repaid++
	}
	if !more || len(st.out) > 0 {
		c.flush()
		w.await()
	}
	if st.closed {
		return errStreamClosed
	}
	return nil
}

// await waits until st.out is sent, or the stream is over. mu must be held.
func (w *response) await() {
	c, st := w.c, w.st
	if len(st.out) == 0 || st.closed {
		return
	}
	if w.stall > 0 {
		over := false
		defer time.AfterFunc(w.stall, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !over {
				w.expire()
			}
		}).Stop()
		defer func() { over = true }()
	}
	c.heads += writeCost
	c.settle()
	for len(st.out) > 0 && !st.closed {
		st.cond.Wait()
	}
	c.heads -= writeCost
	c.settle()
}

// sendHeader sends the header once; body is how the body begins. mu must be held.
func (w *response) sendHeader(body []byte, end bool) {
	if w.sent {
		return
	}
	w.sent, w.st.answering = true, true
	c := w.c
	start := len(c.out)
	c.out = append(c.out, frameRoom[:]...)
	c.out = appendStatus(c.enc.begin(c.out), w.status)
	c.out = append(c.out, w.block...)
	for _, f := range w.shared {
		c.out = c.enc.appendShared(c.out, f)
	}
	if !w.typed && len(body) > 0 && bodyAllowed(w.status) {
		c.out = c.enc.appendShared(c.out, sharedField{codeContentType, http.DetectContentType(body)})
	}
	if !w.dated {
		c.out = c.enc.appendShared(c.out, sharedField{codeDate, c.s.date()})
	}
	c.sealBlock(start, w.st.id, end)
	w.block = w.block[:0]
}

// inform sends an informational answer.
func (w *response) inform(status int) {
	var block []byte
	for name, values := range w.header {
		if name != "Content-Length" {
			block = appendFields(block, fieldCodes[name], name, values)
		}
	}
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.sent || w.st.closed {
		return
	}
	start := len(c.out)
	c.out = append(c.out, frameRoom[:]...)
	c.out = appendStatus(c.enc.begin(c.out), status)
	c.out = append(c.out, block...)
	c.sealBlock(start, w.st.id, false)
	c.flush()
}

// informContinue sends a 100 to a client that waits for one before it sends its body.
func (w *response) informContinue() {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.sent || w.st.closed {
		return
	}
	start := len(c.out)
	c.out = append(c.out, frameRoom[:]...)
	c.out = appendStatus(c.enc.begin(c.out), http.StatusContinue)
	c.sealBlock(start, w.st.id, false)
	c.flush()
}

// over ends the answer when the handler has returned or panicked. It is deferred by handle.
func (w *response) over() {
	p := recover()
	if p != nil && p != http.ErrAbortHandler {
		w.c.s.defect(p)
	}
	c, st := w.c, w.st
	var trailer []byte
	if w.returned && !w.unheard {
		trailer = w.complete()
	}
	st.cancel()
	c.mu.Lock()
	// Before the end of the answer can be sent: a client that has read it may ask again.
	c.leaveHandler(st)
	if st.readTimer != nil {
		st.readTimer.Stop()
	}
	switch {
	case st.closed:
	case w.unheard:
		c.resetLocked(st.id, protocolError)
	case !w.returned:
		c.resetLocked(st.id, internalError)
	default:
		w.end(trailer)
		c.repaid++
	}
	c.flushTogether(c.handlers > 0)
	w.await()
	c.settle()
	if st.writeTimer != nil { // which holds for all that is sent after the handler, too
		st.writeTimer.Stop()
	}
	c.mu.Unlock()
	b := w.buffers
	w.buffers = nil
	clear(b.shared) // which would keep whole headers
	b.block, b.shared, b.body = b.block[:0], b.shared[:0], b.body[:0]
	if cap(b.block) <= responseBuffer && cap(b.shared) <= maxSharedKept {
		spareBuffers.Put(b)
	}
}

// complete adds the missing fields of the header, and returns the fields of the trailer.
func (w *response) complete() (trailer []byte) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	for name, values := range w.header {
		if later, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			if later = http.CanonicalHeaderKey(later); httpguts.ValidTrailerHeader(later) {
				trailer = appendFields(trailer, fieldCodes[later], later, values)
			}
		} else if len(w.trailer) > 0 && slices.Contains(w.trailer, name) {
			trailer = appendFields(trailer, fieldCodes[name], name, values)
		}
	}
	if !w.sent && w.length < 0 && bodyAllowed(w.status) && (!w.head || w.given > 0) {
		w.block, _ = appendLiteral(w.block, codeContentLength, "Content-Length", strconv.FormatInt(w.given, 10))
	}
	return trailer
}

// end sends the rest of the answer. mu must be held.
func (w *response) end(trailer []byte) {
	c, st := w.c, w.st
	body := w.body
	if w.head {
		body = nil
	}
	bare := len(body) == 0 && len(trailer) == 0
	if !w.sent {
		w.sendHeader(w.body, bare)
		if bare {
			c.finish(st)
			return
		}
	}
	st.out, st.last, st.trail = body, true, trailer
	if bare {
		c.out = appendFrameHeader(c.out, 0, frameData, flagEndStream, st.id)
		c.finish(st)
		return
	}
	c.send(st)
}

// The rest is for http.ResponseController.

// EnableFullDuplex does nothing: HTTP/2 is.
func (w *response) EnableFullDuplex() error { return nil }

// SetReadDeadline bounds the reading of the body from now on; the zero time is no bound. As with a
// connection, it applies to reads that wait already, and it may be moved when it has passed. Bytes
// that have come in can be read all the same. Time in which the client may not send, since other
// bodies of its connection have not been read, does not count.
func (w *response) SetReadDeadline(t time.Time) error {
	c, st := w.c, w.st
	c.mu.Lock()
	defer c.mu.Unlock()
	st.readBy, st.late, st.shut = t, !t.IsZero() && time.Until(t) <= 0, c.window.Shut()
	st.cond.Broadcast()
	return nil
}

// SetWriteDeadline bounds the time in which the answer has to go out. Then the stream is reset.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.setDeadline(&w.st.writeTimer, t, w.expire)
	return nil
}

// SetStall bounds the time that each Write may take, and what follows the handler: then the stream
// is reset. It costs less than a deadline for each. 0 means no bound.
func (w *response) SetStall(d time.Duration) { w.stall = d }

// expire resets the stream. mu must be held.
func (w *response) expire() {
	if !w.st.closed {
		w.c.resetLocked(w.st.id, internalError)
		w.c.flushSoon()
	}
}

// setDeadline calls passed, with mu held, at t; the zero time is never.
func (w *response) setDeadline(timer **time.Timer, t time.Time, passed func()) {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.st.closed || *timer != nil && !(*timer).Stop() {
		return // it has passed already
	}
	*timer = nil
	if t.IsZero() {
		return
	}
	if d := time.Until(t); d > 0 {
		*timer = time.AfterFunc(d, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !w.st.closed {
				passed()
			}
		})
		return
	}
	passed()
}
