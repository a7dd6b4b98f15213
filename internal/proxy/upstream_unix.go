//go:build unix

package proxy

import "syscall"

// directWorks says that alive can tell. Tests turn it off, to have all requests go through httputil.ReverseProxy.
var directWorks = true

// prepare makes a connection ready for alive.
func (c *upstreamConn) prepare() {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		c.raw, _ = conn.SyscallConn() // fails only on a closed connection
	}
	c.probe = func(fd uintptr) {
		var b [1]byte
		for {
			_, err := syscall.Read(int(fd), b[:])
			if err == syscall.EINTR {
				continue
			}
			c.quiet = err == syscall.EAGAIN
			return
		}
	}
}

// alive reports whether an idle connection may be used: it is open, and the upstream has said nothing that nobody asked for, which would
// be taken for the answer to the next request.
func (c *upstreamConn) alive() bool {
	return c.in.Buffered() == 0 && c.raw.Control(c.probe) == nil && c.quiet
}
