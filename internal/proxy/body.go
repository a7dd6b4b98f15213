package proxy

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// clientBody is the body that a client sends. It bounds the client's pauses, and remembers what
// went wrong with it, which is the client's fault and not the upstream's.
type clientBody struct {
	control *http.ResponseController
	duplex  bool          // the response may begin before the request has ended (HTTP/1)
	length  int64         // below 0 if unknown
	pause   time.Duration // the longest; 0 for any

	over atomic.Bool // finish was called
	read atomic.Int64
	err  atomic.Pointer[error] // sticky; io.EOF at the end

	mu    sync.Mutex // held while reading, which may take long
	body  io.ReadCloser
	until time.Time // the read deadline that is set
}

// newBody returns the body of r, to be read before the response begins.
func newBody(w http.ResponseWriter, r *http.Request, pause time.Duration) *clientBody {
	b := &clientBody{body: r.Body, length: r.ContentLength, control: http.NewResponseController(w)}
	if r.ProtoMajor == 1 {
		// A deadline would break an HTTP/2 stream that is not being read; there, pings find dead
		// clients.
		b.pause = max(0, pause)
	}
	return b
}

// watchBody replaces the body of r.
func watchBody(w http.ResponseWriter, r *http.Request, pause time.Duration) *clientBody {
	b := newBody(w, r, pause)
	if r.ProtoMajor == 1 {
		// By default an HTTP/1 server discards the rest of the request when the response
		// begins. A client that waits to be asked for its body, and one that leaves HTTP, need the
		// default.
		if r.Header.Get("Expect") == "" && r.Header.Get("Upgrade") == "" {
			b.duplex = b.control.EnableFullDuplex() == nil
		}
	}
	r.Body = b
	return b
}

// Read implements io.Reader.
func (b *clientBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err.Load(); err != nil {
		return 0, *err
	}
	if b.pause > 0 {
		// Setting a deadline costs more than reading the clock: move it only when a tenth of it is
		// over.
		if now := time.Now(); b.until.Sub(now) < b.pause-b.pause/10 {
			b.until = now.Add(b.pause)
			_ = b.control.SetReadDeadline(b.until) // a writer that is not net/http's may have none
		}
	}
	n, err := b.body.Read(p)
	b.read.Add(int64(n))
	if err != nil {
		b.err.Store(&err)
	}
	if err == io.EOF && b.pause > 0 && !b.over.Load() {
		// The connection is read on, to notice a hang-up, for as long as the response takes.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// Close implements io.Closer.
func (b *clientBody) Close() error { return b.body.Close() }

// failure returns the error of the client's body; nil if there is no error, or no body.
// cancelled says that the request's context is done: it is so by the very read that fails, a moment
// before that returns.
func (b *clientBody) failure(cancelled bool) error {
	if b == nil {
		return nil
	}
	if cancelled {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	if err := b.err.Load(); err != nil && *err != io.EOF {
		return *err
	}
	return nil
}

// mustClose reports whether the connection cannot be kept if the response begins now: in full
// duplex net/http reads the rest of the request after the handler, and panics if it meets the end
// of it there. Where the length is known, finish sees to it.
func (b *clientBody) mustClose() bool {
	return b != nil && b.duplex && b.length < 0 && !b.ended()
}

func (b *clientBody) ended() bool {
	err := b.err.Load()
	return err != nil && *err == io.EOF
}

// maxLeftOver is how much of a body that the upstream did not want is read to keep the connection.
// It is net/http's own bound.
const maxLeftOver = 256 << 10

// finish reads the rest of the body when the response has ended, so that net/http need not.
func (b *clientBody) finish() {
	if b == nil {
		return
	}
	if b.over.Store(true); !b.duplex {
		return
	}
	switch {
	case b.ended():
		b.mu.Lock() // a Read may be about to return
		defer b.mu.Unlock()
	case b.length < 0:
		// The connection is to be closed (see mustClose), once net/http has given the client time
		// to take the answer.
		if b.pause > 0 {
			_ = b.control.SetReadDeadline(time.Now().Add(b.pause))
		}
	case b.length-b.read.Load() <= maxLeftOver: // else net/http closes the connection
		// the client may be waiting for the answer before it sends more; if it is gone, so be it
		_ = b.control.Flush()
		if _, err := io.Copy(io.Discard, b); err != nil {
			// closes the connection, or else the rest of the body would be taken for a request
			panic(http.ErrAbortHandler)
		}
	}
}
