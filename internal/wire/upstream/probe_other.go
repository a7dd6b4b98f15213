//go:build !unix

package upstream

// Works reports whether this system can tell if an idle connection may be used. Where it is false a
// Client keeps no connections, and another client serves better.
const Works = false

// prepare leaves the connection without a way to probe it, so that it is not kept.
func (c *conn) prepare() {}

func (c *conn) readNow([]byte) int { return 0 }

func (c *conn) alive() bool { return false }
