package h1

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// A handler may also send an answer in parts, with informational headers before its head and
// trailers behind its body.

// FlushError is for http.ResponseController: it sends all that has been written.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.flushBuffer()
	if !w.committed {
		w.commit(nil, false)
	}
	w.send()
	return w.err
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// SetReadDeadline is for http.ResponseController: it bounds the reading of the request's body. The
// zero time is no bound.
func (w *response) SetReadDeadline(t time.Time) error { return w.q.body.setDeadline(t) }

// SetWriteDeadline is for http.ResponseController: it bounds the sending of the answer. When it has
// passed, the connection ends with the request. The zero time is the bound of the server.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.hasDeadline.Store(true)
	return w.c.nc.SetWriteDeadline(t)
}

// EnableFullDuplex is for http.ResponseController: the unread rest of the body is left to the
// handler when the answer begins.
func (w *response) EnableFullDuplex() error {
	w.duplex = true
	return nil
}

// inform sends an informational answer (1xx).
func (w *response) inform(status int) {
	w.statusLine(status)
	w.sortKeys()
	for _, key := range w.keys {
		if key != "Content-Length" && key != "Transfer-Encoding" {
			w.lines(key, w.answer[key])
		}
	}
	w.out = append(w.out, "\r\n"...)
	w.send()
}

// declare notes the trailers that the field Trailer announces.
func (w *response) declare(values []string) {
	for _, v := range values {
		w.hasTrailers = true
		for name := range strings.SplitSeq(v, ",") {
			name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
			if name != "" && httpguts.ValidTrailerHeader(name) {
				w.trailers = append(w.trailers, name)
			}
		}
	}
}

// end ends a body in chunks, with the trailers: those that were announced, and those that carry
// http.TrailerPrefix.
func (w *response) end() {
	w.out = append(w.out, "0\r\n"...)
	var trailers http.Header
	add := func(name string, values []string) {
		if trailers == nil {
			trailers = http.Header{}
		}
		trailers[name] = append(trailers[name], values...)
	}
	for key, values := range w.answer {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	for _, name := range w.trailers {
		add(name, w.answer[name])
	}
	for _, name := range slices.Sorted(maps.Keys(trailers)) {
		w.lines(name, trailers[name])
	}
	w.out = append(w.out, "\r\n"...)
}

// abort sends the part of an answer that breaks off. Without an end of its head it is none.
func (w *response) abort() {
	if w.committed {
		w.send()
	}
}
