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
	dawdler *dawdler // nil if the request has no place when the body begins

	mu     sync.Mutex
	since  time.Time // when the write that goes on began; zero for none
	waited time.Duration
	moved  int64
}

func newTakenWriter(p *Proxy, w http.ResponseWriter, r *http.Request, pass *httplimit.Pass) *takenWriter {
	return &takenWriter{ResponseWriter: w, control: http.NewResponseController(w), proxy: p, request: r, pass: pass}
}

// Unwrap is for http.ResponseController.
func (w *takenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *takenWriter) Write(p []byte) (int, error) {
	if !w.begin() {
		return w.ResponseWriter.Write(p)
	}
	n, err := w.ResponseWriter.Write(p)
	w.done(n)
	return n, err
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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Now()
	return true
}

// done notes that n bytes are written.
func (w *takenWriter) done(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waited += time.Since(w.since)
	w.moved += int64(n)
	w.since = time.Time{}
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
