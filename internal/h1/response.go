package h1

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// response implements http.ResponseWriter and io.StringWriter. It makes the bytes that net/http
// makes, in the same order.
type response struct {
	c      *conn
	now    time.Time
	header http.Header
	keys   []string // of header, sorted

	status  int   // 0 until WriteHeader
	length  int64 // as the handler gives it; below 0 if it does not, or it is no length
	written int64 // bytes of the body
	close   bool  // the connection ends with this answer

	hasLength, hasType, hasEncoding, hasDate, hasClose bool // fields that the handler has set

	committed bool // the head is complete
	chunked   bool
	buffer    []byte // of the body
	out       []byte // to be sent
	err       error  // of sending
}

const (
	// beforeChunking is how much of a body net/http keeps to find out how long it is.
	beforeChunking = 2 << 10
	// maxOut is how much of an answer is kept before it is sent.
	maxOut = 32 << 10
)

// begin makes w ready for the answer to a request that came in at now.
func (w *response) begin(c *conn, now time.Time, end bool) {
	*w = response{
		c: c, now: now, header: w.header, keys: w.keys[:0], length: -1, close: end,
		buffer: w.buffer[:0], out: w.out[:0],
	}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	case w.status != 0:
		w.c.s.logf("http: superfluous response.WriteHeader call")
		return
	case status < 200:
		return
	}
	w.status = status
	w.close = w.close || w.c.draining.Load()
	w.out = append(w.out, "HTTP/1.1 "...)
	w.out = strconv.AppendInt(w.out, int64(status), 10)
	w.out = append(w.out, ' ')
	if text := http.StatusText(status); text != "" {
		w.out = append(w.out, text...)
	} else {
		w.out = strconv.AppendInt(append(w.out, "status code "...), int64(status), 10)
	}
	w.out = append(w.out, "\r\n"...)
	w.keys = w.keys[:0]
	for key := range w.header {
		w.keys = append(w.keys, key)
	}
	slices.Sort(w.keys)
	for _, key := range w.keys {
		w.field(key, w.header[key])
	}
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
	case "", "Transfer-Encoding", "Trailer":
		return
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
	}
	for i := range len(key) {
		if !token[key[i]] {
			return
		}
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
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) { return write(w, p, true) }

// WriteString implements io.StringWriter.
func (w *response) WriteString(p string) (int, error) { return write(w, p, false) }

// write writes p, as one piece if it is large and large says so.
func write[T []byte | string](w *response, p T, large bool) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case len(p) == 0:
		return 0, nil
	case !w.bodyAllowed():
		return 0, http.ErrBodyNotAllowed
	case w.err != nil:
		return 0, w.err
	}
	w.written += int64(len(p))
	if w.length >= 0 && w.written > w.length {
		return 0, http.ErrContentLength
	}
	// The same pieces as in a bufio.Writer, since each becomes a chunk.
	for rest := p; len(rest) > 0; {
		room := beforeChunking - len(w.buffer)
		switch {
		case len(rest) <= room:
			w.buffer = append(w.buffer, rest...)
			rest = rest[:0]
		case large && len(w.buffer) == 0:
			piece(w, rest, false)
			rest = rest[:0]
		default:
			w.buffer = append(w.buffer, rest[:room]...)
			rest = rest[room:]
			piece(w, w.buffer, false)
			w.buffer = w.buffer[:0]
		}
	}
	return len(p), w.err
}

// piece appends a piece of the body, and before the first one the rest of the head. last says that
// nothing follows.
func piece[T []byte | string](w *response, p T, last bool) {
	if !w.committed {
		w.commit([]byte(p[:min(len(p), 512)]), len(p), last)
	}
	if w.chunked {
		w.out = append(strconv.AppendInt(w.out, int64(len(p)), 16), "\r\n"...)
	}
	w.out = append(w.out, p...)
	if w.chunked {
		w.out = append(w.out, "\r\n"...)
	}
	if len(w.out) > maxOut {
		w.send()
	}
}

// commit ends the head. The body begins with start, and is size bytes long if it is the last piece
// as well.
func (w *response) commit(start []byte, size int, last bool) {
	w.committed = true
	w.chunked = w.bodyAllowed() && w.length < 0 && (w.hasLength || !last)
	if !w.hasDate {
		w.out = append(appendDate(append(w.out, "Date: "...), w.now), "\r\n"...)
	}
	if last && !w.hasLength && w.bodyAllowed() {
		w.out = append(w.out, "Content-Length: "...)
		w.out = append(strconv.AppendInt(w.out, int64(size), 10), "\r\n"...)
	}
	if !w.hasType && !w.hasEncoding && size > 0 {
		w.out = append(append(append(w.out, "Content-Type: "...), http.DetectContentType(start)...), "\r\n"...)
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
	case !w.committed && len(w.buffer) == 0:
		w.commit(nil, 0, true)
	case !w.committed:
		piece(w, w.buffer, true)
	case len(w.buffer) > 0:
		piece(w, w.buffer, false)
	}
	if w.chunked {
		w.out = append(w.out, "0\r\n\r\n"...)
	}
	w.send()
	tooShort := w.length >= 0 && w.bodyAllowed() && w.length != w.written
	return w.err == nil && !w.close && !tooShort
}

// send sends what there is.
func (w *response) send() {
	if w.err == nil && len(w.out) > 0 {
		_, w.err = w.c.nc.Write(w.out)
	}
	w.out = w.out[:0]
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
