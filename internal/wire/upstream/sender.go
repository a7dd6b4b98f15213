package upstream

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// sender sends the rest of a large body, in a goroutine of its own, since the server may answer
// before it has all, and may take more only once its answer is read. It holds one buffer, and reads
// a part only when the one before is written: so a slow server slows the client.
type sender struct {
	conn *conn
	ctx  context.Context
	body io.Reader
	left int64
	// stays says that the request may go on when its context has ended: then the connection is
	// closed if it does not.
	stays bool

	began time.Time
	// owed is since when the server owes something, to take a part of the body or to answer, in
	// nanoseconds since began. It is below 0 while the client owes a part.
	owed   atomic.Int64
	failed atomic.Pointer[error] // of the body
	done   chan struct{}         // closed when the sender touches the connection no more
	whole  bool                  // all was sent; to be read after done
}

// sendBuffer is how much is read of a body at most before it is sent: with 32 KiB in place of 64 a
// body of 100 KiB costs a twentieth more.
const sendBuffer = 64 << 10

var sendBuffers = sync.Pool{New: func() any { return new([sendBuffer]byte) }}

func newSender(c *conn, q *Request) *sender {
	s := &sender{conn: c, ctx: c.ctx, body: q.rest, left: q.length - int64(q.first()), stays: q.leaver != nil,
		began: time.Now(), done: make(chan struct{})}
	s.owed.Store(-1)
	return s
}

func (s *sender) run() {
	defer close(s.done)
	buf := sendBuffers.Get().(*[sendBuffer]byte)
	defer sendBuffers.Put(buf)
	var err error
	for s.left > 0 && err == nil {
		var n int
		n, err = s.body.Read(buf[:min(s.left, sendBuffer)])
		s.left -= int64(n)
		s.owed.Store(int64(time.Since(s.began)))
		if n > 0 && s.write(buf[:n]) != nil {
			return // the server may have answered, which conn.ask looks for
		}
		if s.left > 0 && err == nil {
			s.owed.Store(-1)
		}
	}
	if s.left == 0 && err == nil { // is that its end?
		var n int
		if n, err = s.body.Read(buf[:1]); n > 0 {
			err = errBody
		}
	}
	switch {
	case err == io.EOF && s.left == 0:
		s.whole = true
		return
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	s.failed.Store(&err)
	_ = s.conn.SetReadDeadline(time.Unix(1, 0)) // wakes who waits for an answer
}

// write writes p however long the server takes: conn.late bounds that.
func (s *sender) write(p []byte) error {
	for {
		n, err := s.conn.Conn.Write(p)
		if p = p[n:]; !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		_ = s.conn.SetWriteDeadline(time.Time{}) // it was one of before
		if s.ctx.Err() != nil && !s.stays {
			return s.ctx.Err() // conn.abort set the deadline
		}
		if len(p) == 0 {
			return nil
		}
	}
}

// by is when the server must have taken a part of the body or answered, as owed says. While it
// owes nothing, it is a time at which to ask again.
func (s *sender) by(now time.Time, most time.Duration) time.Time {
	if owed := s.owed.Load(); owed >= 0 {
		return s.began.Add(time.Duration(owed) + most)
	}
	return now.Add(most)
}

// failure is what went wrong with the body; nil if nothing has.
func (s *sender) failure() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// ended reports whether all of the body was sent, when the response has ended.
func (s *sender) ended() bool {
	if s.owed.Load() < 0 {
		return false // it waits for the client
	}
	// The server has said all, so that the sender is most likely at its end, but may not know yet.
	// http.Transport waits as long.
	return s.wait(watchAfter) && s.whole
}

// wait waits until the sender is done, but not for longer than most.
func (s *sender) wait(most time.Duration) bool {
	select {
	case <-s.done:
		return true
	default:
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-s.done:
		return true
	case <-timer.C:
		return false
	}
}
