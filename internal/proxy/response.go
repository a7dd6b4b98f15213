package proxy

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

	"github.com/weir-rl/weir/httplimit"
)

// delivery is one response on its way from the upstream to the client, in the manner of ReverseProxy.
type delivery struct {
	w    http.ResponseWriter
	r    *http.Request
	pass *httplimit.Pass
	conn *upstreamConn

	length  int64          // of the body; below 0 if unknown
	chunked bool           // in a plain response
	res     *http.Response // of one that is not plain; else nil

	lengthTold     bool // it may have a Content-Length, also if res shows none: beside chunks ReadResponse hides it
	keep           bool // the connection may be used again, if the body comes to its end
	ended          bool // it has
	upstreamFailed bool // and not the client
	flusher        *http.ResponseController
	unflushed      bool
}

// end gives the connection back, or up.
func (d *delivery) end() {
	c, keep := d.conn, d.keep && d.ended
	c.beforeRead, c.reply = nil, delivery{}
	c.done(keep)
}

// head reads the header of the response and passes it on, informational responses before it included. After an error nothing has been
// written but those.
func (d *delivery) head() error {
	for !d.plainHead() {
		buf, _ := d.conn.in.Peek(d.conn.in.Buffered())
		d.lengthTold = mayTellLength(buf)
		res, err := http.ReadResponse(d.conn.in, &http.Request{Method: d.r.Method})
		if err != nil {
			if failed := d.conn.failed; failed != nil && failed != io.EOF {
				return failed // which textproto takes for the end of a line
			}
			return err
		}
		switch {
		case res.StatusCode == http.StatusSwitchingProtocols || res.StatusCode < 100:
			return fmt.Errorf("it answered with status %03d, which nobody asked for", res.StatusCode)
		case res.StatusCode < 200:
			h := d.w.Header()
			copyHeader(h, res.Header)
			d.w.WriteHeader(res.StatusCode)
			clear(h)
			d.conn.limit = maxRespHeader
			if err := d.r.Context().Err(); err != nil {
				return err // nobody would stop an upstream that goes on so
			}
			continue
		}
		d.res = res
		d.unusualHead(res)
		break
	}
	d.conn.headerRead()
	return nil
}

// plainHead reads and passes on a header that is complete in the read buffer and has nothing unusual. Otherwise it returns false and
// has done nothing, but that keep may be false. What it accepts it understands as http.ReadResponse does.
func (d *delivery) plainHead() bool {
	buf, _ := d.conn.in.Peek(d.conn.in.Buffered())
	status, fields, start, end := scanHead(buf, &d.conn.fields)
	h := d.w.Header()
	if status < 200 || len(h) > 0 {
		return false
	}
	text := string(buf[start:end])
	values := make([]string, len(fields))
	hasLength, hasEncoding, hasConnection, pragma := false, false, false, false
	length := int64(-1)
	for i, f := range fields {
		name := textproto.CanonicalMIMEHeaderKey(text[f.name:f.nameEnd])
		value := text[f.value:f.valueEnd]
		plain := true
		switch name {
		case "Content-Length":
			n, err := strconv.ParseUint(value, 10, 63)
			plain = err == nil && !hasLength
			length, hasLength = int64(n), true
		case "Transfer-Encoding":
			plain = !hasEncoding && strings.EqualFold(value, "chunked")
			hasEncoding = true
		case "Connection":
			closing := strings.EqualFold(value, "close")
			plain = !hasConnection && (closing || strings.EqualFold(value, "keep-alive"))
			hasConnection = true
			d.keep = d.keep && !closing
		case "Trailer":
			plain = false
		case "Pragma":
			pragma = pragma || value == "no-cache" && h["Pragma"] == nil
		}
		if !plain {
			clear(h)
			return false
		}
		switch name {
		case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Transfer-Encoding", "Upgrade":
			continue // of this connection only
		}
		if lines := h[name]; lines != nil {
			h[name] = append(lines, value)
		} else {
			values[i] = value
			h[name] = values[i : i+1 : i+1]
		}
	}
	if hasLength && hasEncoding {
		d.keep = false // where the response ends is a matter of opinion
		clear(h)
		return false
	}
	if pragma && h["Cache-Control"] == nil {
		h["Cache-Control"] = []string{"no-cache"} // RFC 7234 5.4, as http.ReadResponse has it
	}
	_, _ = d.conn.in.Discard(end)
	switch {
	case d.r.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified:
		d.length = 0
	case hasEncoding:
		d.length, d.chunked = -1, true
	case hasLength:
		d.length = length
	default: // ends with the connection
		d.length, d.keep = -1, false
	}
	d.begin(status, h)
	return true
}

// unusualHead passes the header of res on.
func (d *delivery) unusualHead(res *http.Response) {
	removeHopByHop(res.Header)
	d.length = res.ContentLength
	d.keep = d.keep && !res.Close && !(d.lengthTold && len(res.TransferEncoding) > 0)
	h := d.w.Header()
	d.pass.WriteHeaders(res.Header)
	copyHeader(h, res.Header)
	if len(res.Trailer) > 0 {
		names := make([]string, 0, len(res.Trailer))
		for name := range res.Trailer {
			names = append(names, name)
		}
		h.Add("Trailer", strings.Join(names, ", "))
	}
	d.begin(res.StatusCode, nil)
}

// begin writes the header. If h is not nil, it still lacks the rate-limit headers.
func (d *delivery) begin(status int, h http.Header) {
	if h != nil {
		d.pass.WriteHeaders(h)
	}
	if h := d.w.Header(); d.length != 0 && len(h["Content-Type"]) == 0 {
		noSniffing(h)
	}
	if d.length < 0 || isEventStream(d.w.Header()) {
		// What has come goes out before more is waited for.
		d.flusher, d.unflushed = http.NewResponseController(d.w), true
		d.conn.beforeRead = d.flush
	}
	d.w.WriteHeader(status)
}

// noSniffing keeps net/http's server from guessing the type of a body whose type the upstream does not tell.
func noSniffing(h http.Header) { h["Content-Type"] = nil }

func (d *delivery) flush() {
	if d.unflushed {
		d.unflushed = false
		_ = d.flusher.Flush() // a client that is gone is met by the next write
	}
}

func isEventStream(h http.Header) bool {
	values := h["Content-Type"]
	if len(values) == 0 {
		return false
	}
	base, _, _ := strings.Cut(values[0], ";")
	return strings.EqualFold(strings.TrimSpace(base), "text/event-stream")
}

// body passes the body of the response on, and its trailers.
func (d *delivery) body() error {
	if d.res != nil {
		return d.unusualBody()
	}
	if d.chunked {
		if err := d.copy(httputil.NewChunkedReader(d.conn.in)); err != nil {
			return err
		}
		return d.trailers()
	}
	// What is in the read buffer already goes out from there: of a small response, all.
	for {
		n := d.conn.in.Buffered()
		if d.length >= 0 {
			n = int(min(int64(n), d.length))
		}
		if n == 0 {
			break
		}
		part, _ := d.conn.in.Peek(n)
		if err := d.write(part); err != nil {
			return err
		}
		_, _ = d.conn.in.Discard(n)
		if d.length >= 0 {
			d.length -= int64(n)
		}
	}
	if d.length < 0 {
		err := d.copy(d.conn.in)
		d.ended = err == nil
		return err
	}
	if d.length > 0 {
		rest := io.LimitedReader{R: d.conn.in, N: d.length}
		if err := d.copy(&rest); err != nil {
			return err
		}
		if rest.N > 0 {
			d.upstreamFailed = true
			return io.ErrUnexpectedEOF
		}
	}
	d.ended = true
	return nil
}

func (d *delivery) unusualBody() error {
	announced := len(d.res.Trailer)
	if err := d.copy(d.res.Body); err != nil {
		return err
	}
	d.ended = true
	if len(d.res.Trailer) > 0 {
		_ = http.NewResponseController(d.w).Flush() // so that it is in chunks, which alone can have trailers
	}
	prefix := http.TrailerPrefix
	if len(d.res.Trailer) == announced {
		prefix = ""
	}
	addTrailers(d.w.Header(), d.res.Trailer, prefix)
	return nil
}

// copy passes on all that src has.
func (d *delivery) copy(src io.Reader) error {
	buf := buffers.Get()
	defer buffers.Put(buf)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if err := d.write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			d.upstreamFailed = true
			return err
		}
	}
}

func (d *delivery) write(p []byte) error {
	d.unflushed = true
	n, err := d.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// trailers reads what follows the last chunk. All of it must fit the read buffer.
func (d *delivery) trailers() error {
	in := d.conn.in
	first, err := in.Peek(2)
	if err != nil {
		d.upstreamFailed = true
		return err
	}
	if string(first) == "\r\n" {
		_, _ = in.Discard(2)
		d.ended = true
		return nil
	}
	d.upstreamFailed = true
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
	d.upstreamFailed, d.ended = false, true
	_ = http.NewResponseController(d.w).Flush() // so that it is in chunks, which alone can have trailers
	addTrailers(d.w.Header(), http.Header(fields), http.TrailerPrefix)
	return nil
}

var errTrailers = errors.New("its trailers are larger than 4 KiB, or have no end")
