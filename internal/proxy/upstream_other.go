//go:build !unix

package proxy

// directWorks is false where it is not known how to tell if an idle connection is still good: all goes through
// httputil.ReverseProxy there.
var directWorks = false

func (c *upstreamConn) prepare() {}

func (c *upstreamConn) alive() bool { return false }
