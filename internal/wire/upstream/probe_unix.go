//go:build unix

package upstream

import "syscall"

// Works reports whether this system can tell if an idle connection may be used. Where it is false a
// Client keeps no connections, and another client serves better.
const Works = true

// prepare makes a connection ready for alive.
func (c *conn) prepare() {
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
	c.take = func(fd uintptr) bool {
		c.taken, _ = syscall.Read(int(fd), c.into)
		return true
	}
}

// readNow reads the bytes that have come already; 0 if there are none, or if only Read can find
// out.
func (c *conn) readNow(p []byte) int {
	if c.raw == nil || len(p) == 0 {
		return 0
	}
	c.into, c.taken = p, 0
	err := c.raw.Read(c.take)
	if c.into = nil; err != nil {
		return 0 // a deadline is over, say: Read can handle it
	}
	return max(0, c.taken)
}

// alive reports whether an idle connection may be used: it is open, and the server has sent nothing
// since its last answer. Such bytes would be taken for the answer to the next request.
func (c *conn) alive() bool {
	return c.in.Buffered() == 0 && c.raw.Control(c.probe) == nil && c.quiet
}
