package upstream

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// giveUp ends a request that has failed. If its client has left before the body was sent whole, and
// its Leaver wants that, the server is waited for.
func (c *conn) giveUp(client context.Context, q *Request) {
	defer c.close()
	if c.sender == nil || q.leaver == nil || client.Err() == nil ||
		errors.Is(c.sender.failure(), os.ErrDeadlineExceeded) {
		return
	}
	if until := q.leaver.AbandonUnsent(); until != nil {
		if c.stop != nil {
			c.stop()
		}
		linger(until, c.Conn, c.client.HeaderTimeout)
	}
}

// linger ends the sending half of c, so that the server knows that no more of a request comes, and
// waits until the server says something, or closes the connection: until then it may work on the
// request. It waits until a context ends, and for most if that is above 0.
func linger(until context.Context, c net.Conn, most time.Duration) {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	var by time.Time
	if most > 0 {
		by = time.Now().Add(most)
	}
	stop := context.AfterFunc(until, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		_ = c.SetReadDeadline(by)
		if until.Err() != nil {
			return // the deadline may have come after the one that said so
		}
		n, err := c.Read(make([]byte, 1))
		old := errors.Is(err, os.ErrDeadlineExceeded) && (by.IsZero() || time.Now().Before(by))
		if n > 0 || !old {
			return
		}
	}
}
