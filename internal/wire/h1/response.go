package h1

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/chars"
)

// response implements http.ResponseWriter and io.StringWriter, and what http.ResponseController
// asks for, but hijacking (stream.go). It makes the bytes that net/http makes, in the same order.
type response struct {
	*work
	q    *request
	c    *conn
	head bool // the request is a HEAD

	status  int   // 0 until WriteHeader
	length  int64 // as the handler gives it; below 0 if it does not, or it is no length
	written int64 // bytes of the body
	close   bool  // the connection ends with this answer
	duplex  bool  // the handler may go on reading the request when the answer begins

	// fields that the handler has set
	hasLength, hasType, hasEncoding, hasDate, hasClose, hasTrailers bool
	connection                                                      span // Connection in out
	trailers                                                        []string

	hasDeadline atomic.Bool // SetWriteDeadline was called

	committed bool // the head is complete
	chunked   bool
	err       error // of sending
}

const (
	// beforeChunking is how much of a body net/http keeps to find out how long it is.
	beforeChunking = 2 << 10
	// maxOut is how much of an answer is kept before it is sent.
	maxOut = 32 << 10
	// large is a piece of a body that is not worth copying.
	large = 8 << 10
)

// begin makes w ready for the answer to q.
func (w *response) begin(q *request, k *work) {
	k.buffer, k.out = k.buffer[:0], k.out[:0]
	*w = response{
		work: k, q: q, c: q.c, head: q.http.Method == http.MethodHead, length: -1, close: q.http.Close,
	}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.answer }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	case w.status != 0:
		w.c.s.logf("http: superfluous response.WriteHeader call")
		return
	case status < 200 && status != http.StatusSwitchingProtocols:
		w.inform(status)
		return
	}
	w.status = status
	w.close = w.close || w.c.draining.Load()
	w.statusLine(status)
	w.sortKeys()
	for _, key := range w.keys {
		w.field(key, w.answer[key])
	}
}

func (w *response) statusLine(status int) {
	w.out = append(w.out, "HTTP/1.1 "...)
	w.out = strconv.AppendInt(w.out, int64(status), 10)
	w.out = append(w.out, ' ')
	if text := http.StatusText(status); text != "" {
		w.out = append(w.out, text...)
	} else {
		w.out = strconv.AppendInt(append(w.out, "status code "...), int64(status), 10)
	}
	w.out = append(w.out, "\r\n"...)
}

// sortKeys makes w.keys the keys of w.answer. Most answers have the fields of the one before, whose
// keys are in order.
func (w *response) sortKeys() {
	if w.hasKeys() {
		return
	}
	w.keys = w.keys[:0]
	for key := range w.answer {
		w.keys = append(w.keys, key)
	}
	slices.Sort(w.keys)
}

// hasKeys reports whether w.keys are the keys of w.answer.
func (w *response) hasKeys() bool {
	for _, key := range w.keys {
		if _, has := w.answer[key]; !has {
			return false
		}
	}
	return len(w.keys) == len(w.answer)
}

// field appends the lines of a field that the handler has set.
func (w *response) field(key string, values []string) {
	first := ""
	if len(values) > 0 {
		first = values[0]
	}
	switch key {
	case "Content-Length":
		w.hasLength = true
		n, err := strconv.ParseInt(first, 10, 64)
		if err == nil && n >= 0 {
			w.length = n
		}
		if w.length < 0 || !w.bodyAllowed() {
			return
		}
	case "Transfer-Encoding":
		return
	case "Trailer":
		w.declare(values)
	case "Content-Type":
		if w.status == http.StatusNotModified {
			return
		}
		w.hasType = true
	case "Content-Encoding":
		w.hasEncoding = first != ""
	case "Date":
		w.hasDate = true // also to have none
	case "Connection":
		w.hasClose = strings.EqualFold(first, "close")
		w.close = w.close || first == "close"
		if w.close && !w.hasClose {
			return
		}
	default:
		if strings.HasPrefix(key, http.TrailerPrefix) {
			w.hasTrailers = true
			return
		}
	}
	from := len(w.out)
	if w.lines(key, values); key == "Connection" {
		w.connection = span{from, len(w.out)}
	}
}

// lines appends a line for each value.
func (w *response) lines(key string, values []string) {
	for i := range len(key) {
		if !token[key[i]] {
			return
		}
	}
	if key == "" {
		return
	}
	for _, v := range values {
		w.out = append(append(w.out, key...), ": "...)
		w.out = append(appendValue(w.out, v), "\r\n"...)
	}
}

// appendValue appends the value of a field. It cannot end the line.
func appendValue(b []byte, v string) []byte {
	v = strings.Trim(v, " \t\r\n")
	start := len(b)
	b = append(b, v...)
	for i := start; i < len(b); i++ {
		if b[i] == '\r' || b[i] == '\n' {
			b[i] = ' '
		}
	}
	return b
}

// bodyAllowed reports whether an answer with that status may have a body.
func (w *response) bodyAllowed() bool {
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified && w.status >= 200
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if err := w.mayWrite(len(p)); err != nil || len(p) == 0 {
		return 0, err
	}
	// The same pieces as in a bufio.Writer, since each becomes a chunk.
	for rest := p; len(rest) > 0; {
		if len(w.buffer) == 0 && len(rest) > beforeChunking {
			w.piece(rest, false)
			break
		}
		rest = rest[w.fill(chars.View(rest)):]
	}
	return len(p), w.err
}

// WriteString implements io.StringWriter.
func (w *response) WriteString(p string) (int, error) {
	if err := w.mayWrite(len(p)); err != nil || len(p) == 0 {
		return 0, err
	}
	for rest := p; len(rest) > 0; {
		rest = rest[w.fill(rest):]
	}
	return len(p), w.err
}

// mayWrite counts n bytes of the body that are to be written, unless they may not be.
func (w *response) mayWrite(n int) error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case n == 0:
		return nil
	case !w.bodyAllowed():
		return http.ErrBodyNotAllowed
	case w.err != nil:
		return w.err
	}
	w.written += int64(n)
	if w.length >= 0 && w.written > w.length {
		return http.ErrContentLength
	}
	return nil
}

// fill copies as much of p as there is room for in the buffer, and returns how much that is. It
// makes a piece of a buffer that would run over.
func (w *response) fill(p string) int {
	n := min(len(p), beforeChunking-len(w.buffer))
	w.buffer = append(w.buffer, p[:n]...)
	if n < len(p) {
		w.flushBuffer()
	}
	return n
}

func (w *response) flushBuffer() {
	if len(w.buffer) > 0 {
		w.piece(w.buffer, false)
		w.buffer = w.buffer[:0]
	}
}

// piece appends a piece of the body, and before the first one the rest of the head. last says that
// nothing follows.
func (w *response) piece(p []byte, last bool) {
	if !w.committed {
		w.commit(p, last)
	}
	if w.head {
		return
	}
	if w.chunked {
		w.out = append(strconv.AppendInt(w.out, int64(len(p)), 16), "\r\n"...)
	}
	if len(p) >= large && len(w.out)+len(p) > maxOut {
		w.send()
		w.sendNow(p)
	} else {
		w.out = append(w.out, p...)
	}
	if w.chunked {
		w.out = append(w.out, "\r\n"...)
	}
	if len(w.out) > maxOut {
		w.send()
	}
}

// commit ends the head. The body begins with p, and ends with it as well if it is the last piece.
func (w *response) commit(p []byte, last bool) {
	w.committed = true
	if w.q.http.ContentLength != 0 && !w.close && !w.duplex && !w.q.body.beforeAnswer() {
		w.close = true
		if w.connection.to > 0 && !w.hasClose {
			w.out = slices.Delete(w.out, w.connection.from, w.connection.to)
		}
	}
	counted := last && !w.hasLength && !w.hasTrailers && w.bodyAllowed()
	w.chunked = w.bodyAllowed() && !w.head && w.length < 0 && !counted
	if !w.hasDate {
		w.out = append(appendDate(append(w.out, "Date: "...), time.Now()), "\r\n"...)
	}
	if counted && (!w.head || len(p) > 0) {
		w.out = append(w.out, "Content-Length: "...)
		w.out = append(strconv.AppendInt(w.out, int64(len(p)), 10), "\r\n"...)
	}
	if !w.hasType && !w.hasEncoding && len(p) > 0 {
		w.out = append(append(append(w.out, "Content-Type: "...), http.DetectContentType(p)...), "\r\n"...)
	}
	if w.close && !w.hasClose {
		w.out = append(w.out, "Connection: close\r\n"...)
	}
	if w.chunked {
		w.out = append(w.out, "Transfer-Encoding: chunked\r\n"...)
	}
	w.out = append(w.out, "\r\n"...)
}

// finish sends the answer, and reports whether the connection can be used further.
func (w *response) finish() bool {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.committed:
		w.flushBuffer()
	case len(w.buffer) > 0:
		w.piece(w.buffer, true)
	default:
		w.commit(nil, true)
	}
	if w.chunked {
		w.end()
	}
	w.send()
	tooShort := w.length >= 0 && w.bodyAllowed() && !w.head && w.length != w.written
	return w.err == nil && !w.close && !tooShort
}

// send sends what there is.
func (w *response) send() {
	if len(w.out) > 0 {
		w.sendNow(w.out)
	}
	w.out = w.out[:0]
}

func (w *response) sendNow(p []byte) {
	if w.err != nil {
		return
	}
	if _, w.err = w.c.nc.Write(p); w.err != nil {
		w.q.hangUp()
	}
}

// dateText is a second as the field Date has it.
type dateText struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dateText]

// appendDate appends t as the field Date has it.
func appendDate(b []byte, t time.Time) []byte {
	d := lastDate.Load()
	if d == nil || d.second != t.Unix() {
		d = &dateText{t.Unix(), t.UTC().Format(http.TimeFormat)}
		lastDate.Store(d)
	}
	return append(b, d.text...)
}

var _ io.StringWriter = (*response)(nil)
