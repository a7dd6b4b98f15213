package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/weir-rl/weir/httplimit"
)

// takenWriter is the writer of an answer whose request may hold a place until its client has taken
// it. While the client takes nothing, the request dawdles.
type takenWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	proxy   *Proxy
	request *http.Request
	pass    *httplimit.Pass
	begun   bool     // the body has
	parts   parts    // in which it is written
	dawdler *dawdler // nil if the request has no place when the body begins

	mu     sync.Mutex
	since  time.Time // when the write that goes on began; zero for none
	waited time.Duration
	moved  int64
}

func newTakenWriter(p *Proxy, w http.ResponseWriter, r *http.Request, pass *httplimit.Pass) *takenWriter {
	return &takenWriter{ResponseWriter: w, control: http.NewResponseController(w), proxy: p, request: r, pass: pass,
		parts: parts{manyQuick}}
}

// Unwrap is for http.ResponseController.
func (w *takenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *takenWriter) Write(p []byte) (int, error) {
	if !w.begin() {
		return w.ResponseWriter.Write(p)
	}
	n, err := w.writePart(p)
	for n < len(p) && err == nil {
		var m int
		w.start()
		m, err = w.writePart(p[n:])
		n += m
	}
	return n, err
}

// writePart writes p, or as much of it as is written at a time.
func (w *takenWriter) writePart(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.parts.most())])
	w.parts.took(n, w.done(n), w.proxy.dawdleAfter)
	return n, err
}

// parts says how much of a body is read or written at a time, so that the bytes which a slow client
// has sent or taken are soon known. The zero value is for one that may be slow.
type parts struct {
	quick int64 // bytes since the client was slow
}

const (
	smallPart = 4 << 10
	// manyQuick is how much has to go quickly before the parts are no longer small.
	manyQuick = 256 << 10
)

// most returns how much is read or written at a time.
func (p *parts) most() int {
	if p.quick < manyQuick {
		return smallPart
	}
	return bufferSize
}

// took notes that n bytes have taken so long. A client is slow if a large part at that pace would
// not be there when somebody looks.
func (p *parts) took(n int, waited, after time.Duration) {
	if p.quick += int64(n); n > 0 && float64(waited)*bufferSize >= float64(after)*float64(n) {
		p.quick = 0
	}
}

// FlushError is for http.ResponseController.
func (w *takenWriter) FlushError() error {
	if !w.begin() {
		return w.control.Flush()
	}
	err := w.control.Flush()
	w.done(0)
	return err
}

// Flush implements http.Flusher.
func (w *takenWriter) Flush() { _ = w.FlushError() }

// begin notes that something is about to be written; false if nobody needs to know.
func (w *takenWriter) begin() bool {
	if !w.begun {
		w.begun = true
		if w.pass.HoldsPlace() { // a bound that adapts has given it back when the answer began
			w.dawdler = w.proxy.newDawdler(w.request, w.pass, w, true, 0)
		}
	}
	if w.dawdler == nil {
		return false
	}
	w.start()
	return true
}

// start notes that a write begins.
func (w *takenWriter) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Now()
}

// done notes that n bytes are written, and returns how long that took.
func (w *takenWriter) done(n int) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	took := time.Since(w.since)
	w.waited += took
	w.moved += int64(n)
	w.since = time.Time{}
	return took
}

// end ends the use of w.
func (w *takenWriter) end() { w.dawdler.end() }

// spent implements waitedFor.
func (w *takenWriter) spent() (waited time.Duration, moved int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waited = w.waited
	if !w.since.IsZero() {
		waited += time.Since(w.since)
	}
	return waited, w.moved
}

// cut implements waitedFor.
func (w *takenWriter) cut() {
	w.proxy.cuts.unread.Add(1)
	_ = w.control.SetWriteDeadline(time.Unix(1, 0)) // which fails the write that waits
}
