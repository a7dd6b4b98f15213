package h1

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// body is the body of a request. Bytes that came along with the head are in the connection's
// buffer; the rest is read from the connection when the handler asks for it, and no byte beyond.
type body struct {
	q *request

	mu     sync.Mutex // held while reading, which may take long
	rest   []byte     // has come in, and is not read
	left   int64      // has still to come in
	err    error      // why no more of it can be read
	closed bool       // by the handler, or since the request is over

	// Of the connection's read deadline, which another goroutine may set while one reads.
	clock   sync.Mutex
	by      time.Time // when the awaited bytes have to be there; zero for never
	reading bool      // from the connection
	over    bool      // the request is
}

// maxLeftOver is how much of a body that the handler did not read is read to keep the connection:
// net/http's bound.
const maxLeftOver = 256 << 10

// begin makes b the body of the request whose head the connection has.
func (b *body) begin(q *request, in []byte, length int64, by time.Time) {
	n := min(int64(len(in)), length)
	b.q, b.rest, b.left, b.by = q, in[:n:n], length-n, by
}

// size is how many bytes of it are unread.
func (b *body) size() int64 { return int64(len(b.rest)) + b.left }

// Read implements io.Reader. The last bytes come with io.EOF.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.read(p)
}

func (b *body) read(p []byte) (n int, err error) {
	switch {
	case len(b.rest) > 0:
		n = copy(p, b.rest)
		b.rest = b.rest[n:]
	case b.err != nil:
		return 0, b.err
	case b.left > 0:
		n, err = b.receive(p[:min(int64(len(p)), b.left)])
		if b.left -= int64(n); err != nil && b.left > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			b.err = err
			b.q.hangUp() // nothing more can come, as in net/http
			return n, err
		}
		if b.left == 0 {
			b.q.hasArrived()
		}
	}
	if b.size() == 0 {
		return n, io.EOF
	}
	return n, nil
}

// receive reads from the connection until b.by.
func (b *body) receive(p []byte) (n int, err error) {
	c := b.q.c
	for len(p) > 0 {
		b.clock.Lock()
		c.due = b.by
		c.arm()
		b.reading = true
		b.clock.Unlock()
		n, err = c.nc.Read(p)
		b.clock.Lock()
		b.reading = false
		late := timeout(err) && (b.by.IsZero() || time.Now().Before(b.by)) // it was an old deadline, or Drain's
		if late {
			c.armed = past
		}
		b.clock.Unlock()
		switch {
		case n > 0:
			return n, nil // an error comes again
		case err != nil && !late:
			return 0, err
		}
	}
	return 0, nil
}

// setDeadline bounds the reading from now on; the zero time is no bound.
func (b *body) setDeadline(by time.Time) error {
	b.clock.Lock()
	defer b.clock.Unlock()
	if b.over {
		return errOver
	}
	b.by = by
	if !b.reading {
		return nil // nobody waits: it counts once somebody does
	}
	b.q.c.armed = by
	return b.q.c.nc.SetReadDeadline(by)
}

var errOver = errors.New("h1: the request is over")

// Close implements io.Closer. It reads the rest, if that is little.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close()
}

func (b *body) close() (err error) {
	if !b.closed && b.size() < maxLeftOver {
		err = b.discard()
	}
	b.closed = true
	return err
}

// discard reads all that is left.
func (b *body) discard() error {
	b.rest = nil
	if b.left == 0 || b.err != nil {
		return b.err
	}
	b.clock.Lock()
	if b.by.IsZero() { // else it could take for ever
		b.by = after(time.Now(), b.q.c.s.timeouts.idle)
	}
	b.clock.Unlock()
	buf := make([]byte, min(b.left, 16<<10))
	for err := error(nil); err == nil; {
		_, err = b.read(buf)
	}
	return b.err
}

// beforeAnswer reads the part that the handler has left, before the answer begins: there are
// clients that read no answer before they have sent all. It reports whether the connection can be
// kept.
func (b *body) beforeAnswer() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.closed && b.size() >= maxLeftOver:
		return false
	case b.err == io.ErrUnexpectedEOF:
		return true // the client asks for nothing more anyway
	case !b.closed:
		_ = b.discard() // size shows the result
	}
	return b.size() == 0
}

// end ends the use of b when the answer has been sent. It reads the rest if it may and that is
// little. kept reports whether all of it has been read, cut how many bytes are still on their way.
func (b *body) end(read bool) (kept bool, cut int64) {
	b.clock.Lock()
	b.over = true
	b.clock.Unlock()
	stopped := !b.mu.TryLock()
	if stopped { // somebody reads still, who is not to be waited for
		b.clock.Lock()
		if b.by = past; b.reading {
			b.q.c.armed = past
			_ = b.q.c.nc.SetReadDeadline(past)
		}
		b.clock.Unlock()
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	if read {
		_ = b.close() // size shows the result
	}
	b.closed = true
	if b.err == nil || stopped && timeout(b.err) {
		cut = b.left
	}
	return b.size() == 0, cut
}
