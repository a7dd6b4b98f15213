// Package pipenet has connections within the process, which a bubble of testing/synctest can wait
// for.
package pipenet

import (
	"net"
	"sync"
)

// Listener is a net.Listener whose connections are ends of pipes. Safe for concurrent use.
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen returns an open listener.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener: it is an address of TCP that says nothing.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{} }

// Dial returns the client's end of a connection that was accepted.
func (l *Listener) Dial() net.Conn {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	return ours
}
