package listen

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/wire/quickio"
)

// wrap returns raw as a connection that gives its slot back when it is closed.
func wrap(raw net.Conn, s *slot, stall time.Duration) net.Conn {
	switch raw := raw.(type) {
	case *net.TCPConn:
		if stall <= 0 {
			return &tcpConn{raw, quickio.New(raw), s}
		}
	case *net.UnixConn:
		return &conn{Conn: raw, io: quickio.New(raw), slot: s, remote: UnixPeer, stall: stall}
	}
	return &conn{Conn: raw, io: quickio.New(raw), slot: s, remote: raw.RemoteAddr(), stall: stall}
}

// tcpConn is a TCP connection that keeps all that *net.TCPConn can do.
type tcpConn struct {
	*net.TCPConn
	io   *quickio.Conn
	slot *slot
}

// Read implements net.Conn.
func (c *tcpConn) Read(p []byte) (int, error) { return c.io.Read(p) }

// Write implements net.Conn.
func (c *tcpConn) Write(p []byte) (int, error) { return c.io.Write(p) }

// Close implements net.Conn.
func (c *tcpConn) Close() error {
	err := c.TCPConn.Close()
	c.slot.release()
	return err
}

// conn is any other connection.
type conn struct {
	net.Conn
	io     io.ReadWriter
	slot   *slot
	remote net.Addr
	rest   []byte // read along with the header, and before all else by Read
	stall  time.Duration

	bound atomic.Int64 // the write deadline that somebody set, in nanoseconds; 0 for none
	until atomic.Int64 // the one that Write has set, in nanoseconds
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.slot.release()
	return err
}

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		if c.rest = c.rest[n:]; len(c.rest) == 0 {
			c.rest = nil
		}
		return n, nil
	}
	return c.io.Read(p)
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	if c.stall > 0 && c.bound.Load() == 0 {
		// Setting a deadline costs more than reading the clock: move it only when a good part of it
		// is over.
		if now := time.Now(); c.until.Load()-now.UnixNano() < int64(c.stall-c.stall/4) {
			until := now.Add(c.stall)
			c.until.Store(until.UnixNano())
			_ = c.Conn.SetWriteDeadline(until)
			c.rebound()
		}
	}
	return c.io.Write(p)
}

// rebound puts the write deadline that somebody set in force again, if that was meanwhile.
func (c *conn) rebound() {
	for last := int64(0); ; {
		bound := c.bound.Load()
		if bound == last {
			return
		}
		last = bound
		until := time.Unix(0, bound)
		if bound == 0 {
			until = time.Now().Add(c.stall)
		}
		_ = c.Conn.SetWriteDeadline(until)
	}
}

// setBound notes the write deadline that somebody sets.
func (c *conn) setBound(t time.Time) {
	bound := int64(0)
	if !t.IsZero() {
		bound = cmp.Or(t.UnixNano(), 1)
	}
	c.bound.Store(bound)
	c.until.Store(0)
}

// SetWriteDeadline implements net.Conn. The zero time puts Options.Stall in force again.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.setBound(t)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.setBound(t)
	return c.Conn.SetDeadline(t)
}

// CloseWrite tells the peer that no more data will come, as net/http does before it closes a
// connection whose request it did not read to the end: otherwise the peer could lose the answer.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// prepare makes c ready and hands it over. It owns c.
func (l *Listener) prepare(c net.Conn) {
	var s *slot
	switch c := c.(type) {
	case *tcpConn:
		s = c.slot
	case *conn:
		s = c.slot
	}
	deadline := time.Now().Add(l.o.SetupTimeout)
	_ = c.SetDeadline(deadline)
	fail := func(r Reason, err error) {
		s.l.mu.Lock()
		crowded := s.gone // reported already
		s.l.mu.Unlock()
		select {
		case <-l.closing:
		default:
			if !crowded {
				l.refuse(r, c.RemoteAddr(), err)
			}
		}
		_ = c.Close()
	}
	if l.o.Proxy != nil {
		h, rest, err := readHeader(c)
		if err != nil {
			fail(BadHeader, err)
			return
		}
		p := &conn{Conn: c, io: c, slot: s, remote: c.RemoteAddr(), rest: rest}
		if h.source.IsValid() {
			p.remote = net.TCPAddrFromAddrPort(h.source)
			if !s.settle(h.source.Addr()) {
				c = p
				fail(PerAddress, nil)
				return
			}
		}
		c = p
	}
	if l.o.TLS != nil {
		t := tls.Server(c, l.o.TLS())
		if err := t.Handshake(); err != nil {
			if e, ok := errors.AsType[tls.RecordHeaderError](err); ok && e.Conn != nil &&
				looksLikeHTTP(e.RecordHeader) {
				_, _ = io.WriteString(e.Conn,
					"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nThis door speaks TLS: ask with https.\n")
			}
			fail(Handshake, err)
			return
		}
		c = t
	}
	_ = c.SetDeadline(time.Time{})
	if !s.done() {
		_ = c.Close()
		return
	}
	l.accepted.Add(1)
	select {
	case l.ready <- c:
	case <-l.closing:
		_ = c.Close()
	}
}

// looksLikeHTTP reports whether the bytes read in place of a TLS record begin an HTTP request.
func looksLikeHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH", "CONNE", "PRI *":
		return true
	}
	return strings.HasPrefix(string(header[:]), "HTTP")
}
