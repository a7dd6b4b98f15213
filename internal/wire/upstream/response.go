package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
)

// Response is an answer on its way from the server. Call Header until it returns a final status,
// then Copy, and Close in any case. Not safe for concurrent use, and not to be used after Close.
type Response struct {
	conn   *conn
	method string // of the request

	length  int64          // of the body; below 0 if unknown
	chunked bool           // in a plain response
	res     *http.Response // of one that is not plain; else nil
	trailer http.Header
	// announced says that a Trailer field named the trailers.
	announced bool

	// lengthTold says that there may be a Content-Length, also if res shows none: beside chunks
	// http.ReadResponse hides it.
	lengthTold bool
	informed   bool // an informational response came before
	keep       bool // the connection may be used again, if the body comes to its end
	ended      bool // it has
	failed     bool // the server failed in the middle of the body
}

// Close ends the use of r. Its connection is kept if nothing speaks against that, and else closed.
func (r *Response) Close() { r.conn.done(r.keep && r.ended) }

// Header reads the next header into h, which must be empty, and returns its status: from 100 to 199
// for an informational response, after which another header comes, else the final status. A final
// header goes without the fields that are meant for the connection only; Trailer has the names of
// announced trailers. After an error h is empty.
func (r *Response) Header(h http.Header) (status int, err error) {
	if r.informed {
		if !r.conn.wanted() {
			return 0, r.conn.ctx.Err() // else nobody would stop a server that goes on so
		}
	}
	if status, ok := r.plainHeader(h); ok {
		r.conn.headerRead()
		return status, nil
	}
	buf, _ := r.conn.in.Peek(r.conn.in.Buffered())
	r.lengthTold = mayTellLength(buf)
	res, err := http.ReadResponse(r.conn.in, &http.Request{Method: r.method})
	if err != nil {
		if failed := r.conn.failed; failed != nil && failed != io.EOF {
			return 0, failed // which textproto takes for the end of a line
		}
		return 0, err
	}
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols || res.StatusCode < 100:
		return 0, fmt.Errorf("it answered with status %03d, which nobody asked for", res.StatusCode)
	case res.StatusCode < 200:
		r.informed, r.conn.limit = true, MaxHeader
		addAll(h, res.Header)
		return res.StatusCode, nil
	}
	r.res, r.length = res, res.ContentLength
	r.keep = r.keep && !res.Close && !(r.lengthTold && len(res.TransferEncoding) > 0)
	removeHopByHop(res.Header)
	addAll(h, res.Header)
	if len(res.Trailer) > 0 {
		names := make([]string, 0, len(res.Trailer))
		for name := range res.Trailer {
			names = append(names, name)
		}
		h.Add("Trailer", strings.Join(names, ", "))
	}
	r.conn.headerRead()
	return res.StatusCode, nil
}

func addAll(h, more http.Header) {
	for name, lines := range more {
		for _, line := range lines {
			h.Add(name, line)
		}
	}
}

// plainHeader reads a header that is complete in the read buffer and has nothing unusual. Otherwise
// it returns false and has done nothing, except that keep may be false. It understands headers that
// it accepts as http.ReadResponse does.
func (r *Response) plainHeader(h http.Header) (status int, ok bool) {
	buf, _ := r.conn.in.Peek(r.conn.in.Buffered())
	status, fields, start, end := scanHead(buf, &r.conn.fields)
	if status < 200 {
		return 0, false
	}
	var f framed
	if f, ok = r.plainFields(h, string(buf[start:end]), fields); !ok {
		clear(h)
		return 0, false
	}
	_, _ = r.conn.in.Discard(end)
	switch {
	case r.method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified:
		r.length = 0
	case f.chunked:
		r.length, r.chunked = -1, true
	case f.hasLength:
		r.length = f.length
	default: // ends with the connection
		r.length, r.keep = -1, false
	}
	return status, true
}

// framed holds the facts in a plain header about where the body ends.
type framed struct {
	length             int64
	hasLength, chunked bool
}

// plainFields copies the fields of a plain header from its text into h. It is not ok if one of them
// is unusual; then h may hold some.
func (r *Response) plainFields(h http.Header, text string, fields []field) (f framed, ok bool) {
	values := make([]string, len(fields))
	hasConnection, pragma := false, false
	for i, at := range fields {
		name := textproto.CanonicalMIMEHeaderKey(text[at.name:at.nameEnd])
		value := text[at.value:at.valueEnd]
		switch name {
		case "Content-Length":
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil || f.hasLength {
				return f, false
			}
			f.length, f.hasLength = int64(n), true
		case "Transfer-Encoding":
			if f.chunked || !strings.EqualFold(value, "chunked") {
				return f, false
			}
			f.chunked = true
			continue
		case "Connection":
			closing := strings.EqualFold(value, "close")
			if hasConnection || !closing && !strings.EqualFold(value, "keep-alive") {
				return f, false
			}
			hasConnection = true
			r.keep = r.keep && !closing
			continue
		case "Trailer":
			return f, false
		case "Pragma":
			pragma = pragma || value == "no-cache" && h["Pragma"] == nil
		case "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Upgrade":
			continue // of this connection only
		}
		if lines := h[name]; lines != nil {
			h[name] = append(lines, value)
		} else {
			values[i] = value
			h[name] = values[i : i+1 : i+1]
		}
	}
	if f.hasLength && f.chunked {
		r.keep = false // where the response ends is a matter of opinion
		return f, false
	}
	if pragma && h["Cache-Control"] == nil {
		h["Cache-Control"] = []string{"no-cache"} // RFC 7234 5.4, as http.ReadResponse has it
	}
	return f, true
}

// Length returns the length of the body, after Header; below 0 if it is not known.
func (r *Response) Length() int64 { return r.length }

// Here reports whether all of the body is in the read buffer, so that Copy waits for nothing.
func (r *Response) Here() bool {
	return r.res == nil && r.length >= 0 && r.length <= int64(r.conn.in.Buffered())
}

// Copy writes the body to w. Before it waits for more of it, it calls waits, unless that is nil.
// After an error Failed says on which side it was.
func (r *Response) Copy(w io.Writer, waits func()) error {
	r.conn.waits = waits
	if r.res != nil {
		return r.copyUnusual(w)
	}
	if r.chunked {
		if err := r.copy(w, httputil.NewChunkedReader(r.conn.in)); err != nil {
			return err
		}
		return r.readTrailer()
	}
	return r.copyPlain(w)
}

// Failed reports whether Copy returned an error of the server, and not of the writer.
func (r *Response) Failed() bool { return r.failed }

// Trailer returns the trailers, after Copy, and whether the header announced them all; nil if there
// are none.
func (r *Response) Trailer() (fields http.Header, announced bool) { return r.trailer, r.announced }

func (r *Response) copyUnusual(w io.Writer) error {
	announced := len(r.res.Trailer)
	if err := r.copy(w, r.res.Body); err != nil {
		return err
	}
	r.ended = true
	r.trailer, r.announced = r.res.Trailer, len(r.res.Trailer) == announced
	return nil
}

// copyPlain copies a body that is as long as its length, or ends with the connection.
func (r *Response) copyPlain(w io.Writer) error {
	in := r.conn.in
	// Bytes in the read buffer already go out from there: of a small response, all.
	for {
		n := in.Buffered()
		if r.length >= 0 {
			n = int(min(int64(n), r.length))
		}
		if n == 0 {
			break
		}
		part, _ := in.Peek(n)
		if err := write(w, part); err != nil {
			return err
		}
		_, _ = in.Discard(n)
		if r.length >= 0 {
			r.length -= int64(n)
		}
	}
	if r.length < 0 {
		err := r.copy(w, in)
		r.ended = err == nil
		return err
	}
	if r.length > 0 {
		rest := io.LimitedReader{R: in, N: r.length}
		if err := r.copy(w, &rest); err != nil {
			return err
		}
		if rest.N > 0 {
			r.failed = true
			return io.ErrUnexpectedEOF
		}
	}
	r.ended = true
	return nil
}

const copyBuffer = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// copy copies all that src has.
func (r *Response) copy(w io.Writer, src io.Reader) error {
	buf := copyBuffers.Get().(*[copyBuffer]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			if err := write(w, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			r.failed = true
			return err
		}
	}
}

func write(w io.Writer, p []byte) error {
	n, err := w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

var errTrailers = errors.New("its trailers are larger than 4 KiB, or have no end")

// readTrailer reads what follows the last chunk. All of it must fit the read buffer.
func (r *Response) readTrailer() error {
	in := r.conn.in
	r.failed = true
	first, err := in.Peek(2)
	if err != nil {
		return err
	}
	if string(first) == "\r\n" {
		_, _ = in.Discard(2)
		r.failed, r.ended = false, true
		return nil
	}
	for size := 4; ; size++ {
		all, err := in.Peek(size)
		if bytes.HasSuffix(all, []byte("\r\n\r\n")) {
			break
		}
		if err != nil {
			return errTrailers
		}
	}
	fields, err := textproto.NewReader(in).ReadMIMEHeader()
	if err != nil {
		return err
	}
	r.failed, r.ended = false, true
	r.trailer = http.Header(fields)
	return nil
}
