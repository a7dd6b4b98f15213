// Package quickio reads and writes connections without telling Go's scheduler of each system call.
//
// An ordinary call tells the scheduler before and after, so that other goroutines get the processor
// if the call blocks. Calls on a socket that does not block take a microsecond or two, but telling
// the scheduler costs as much again, and far more on an idle machine: it wakes the thread that
// looks for calls that block, once for each request. Calls that have to wait are parked as always,
// and deadlines and closing are as always.
//
// Where this is not known to work, which is anywhere but on Linux, all is done by ordinary calls.
package quickio

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

const (
	// most is how many bytes are copied without telling the scheduler: 64 KiB take about 10 µs.
	most = 64 << 10
	// tellEvery is how many reads in a row may find data at once before the scheduler is told: its
	// watch, which sleeps while nothing goes on, then sees to it that a connection which never
	// waits leaves room for others.
	tellEvery = 16
)

// Conn reads and writes a connection. Make one with New. Both are safe for concurrent use.
type Conn struct {
	nc      net.Conn
	raw     syscall.RawConn // nil: all is done by ordinary calls
	in, out half
	atOnce  int // reads in a row that found something at once; in.mu guards it
}

// half is one direction. mu guards it, and is held while p is in use.
type half struct {
	mu     sync.Mutex
	p      []byte
	n      int
	errno  syscall.Errno
	waited bool
	try    func(fd uintptr) (done bool) // one system call; made once, since a closure allocates
}

// New returns what reads and writes nc, which stays the caller's.
func New(nc net.Conn) *Conn {
	c := &Conn{nc: nc}
	if !supported {
		return c
	}
	switch nc := nc.(type) {
	case *net.TCPConn:
		c.raw, _ = nc.SyscallConn() // fails only on a connection that is not open
	case *net.UnixConn:
		if nc.LocalAddr().Network() == "unix" { // a stream
			c.raw, _ = nc.SyscallConn()
		}
	}
	c.in.try = func(fd uintptr) bool { return c.in.attempt(read, fd) }
	c.out.try = func(fd uintptr) bool { return c.out.attempt(write, fd) }
	return c
}

// attempt makes one call. It reports whether there is nothing to wait for.
func (h *half) attempt(call func(fd uintptr, p []byte) (int, syscall.Errno), fd uintptr) bool {
	for h.errno = syscall.EINTR; h.errno == syscall.EINTR; {
		h.n, h.errno = call(fd, h.p)
	}
	if h.errno == syscall.EAGAIN {
		h.waited = true
		return false
	}
	return true
}

// Read is as net.Conn has it. It returns at most 64 KiB.
func (c *Conn) Read(p []byte) (int, error) {
	if c.raw == nil || len(p) == 0 {
		return c.nc.Read(p)
	}
	h := &c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.atOnce++; c.atOnce > tellEvery {
		c.atOnce = 0
		return c.nc.Read(p)
	}
	h.p, h.n, h.errno, h.waited = p[:min(len(p), most)], 0, 0, false
	err := c.raw.Read(h.try)
	h.p = nil
	if h.waited {
		c.atOnce = 0
	}
	switch {
	case err != nil:
		return 0, c.failed("read", err)
	case h.errno != 0:
		return 0, c.failed("read", os.NewSyscallError("read", h.errno))
	case h.n == 0:
		return 0, io.EOF
	}
	return h.n, nil
}

// Write is as net.Conn has it.
func (c *Conn) Write(p []byte) (int, error) {
	if c.raw == nil || len(p) == 0 {
		return c.nc.Write(p)
	}
	h := &c.out
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(p) > most { // under mu, so that it does not go between the parts of another write
		return c.nc.Write(p)
	}
	h.p, h.n, h.errno = p, 0, 0
	err := c.raw.Write(h.try)
	h.p = nil
	switch {
	case err != nil:
		return 0, c.failed("write", err)
	case h.errno != 0:
		return 0, c.failed("write", os.NewSyscallError("write", h.errno))
	case h.n < len(p): // the peer is slow: nothing is gained
		n, err := c.nc.Write(p[h.n:])
		return h.n + n, err
	}
	return h.n, nil
}

// failed is err as an ordinary call returns it.
func (c *Conn) failed(op string, err error) error {
	if e, ok := err.(*net.OpError); ok {
		err = e.Err
	}
	local, remote := c.nc.LocalAddr(), c.nc.RemoteAddr()
	return &net.OpError{Op: op, Net: local.Network(), Source: local, Addr: remote, Err: err}
}
