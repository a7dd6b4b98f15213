// Package listen makes what the doors accept connections from: TCP ports and unix sockets, with TLS, PROXY protocol headers
// and bounds on connections. A connection that it hands out is ready: its header has been read, and its handshake is done.
package listen

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// unixScheme begins the addresses of unix sockets.
const unixScheme = "unix:"

// CheckAddress tells what is wrong with an address that Open is to take: host:port, or unix: and a path.
func CheckAddress(s string) error {
	if path, ok := strings.CutPrefix(s, unixScheme); ok {
		switch {
		case path == "":
			return fmt.Errorf("%q is no address: the path of the socket is missing, as in unix:/run/weir/http.sock", s)
		case path[0] == '@':
			return fmt.Errorf("%q is no address: an abstract socket has no permissions; name a file", s)
		case len(path) > maxUnixPath || strings.IndexByte(path, 0) >= 0:
			return fmt.Errorf("%q is no address: the path of a socket has at most %d bytes", s, maxUnixPath)
		}
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is no address; write host:port such as 127.0.0.1:8080, :8080 for all addresses, unix:/path for a unix socket, or off", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q is no address: the port must be a number from 0 to 65535", s)
	}
	return nil
}

// Open opens host:port, or a unix socket. A socket's file has the mode 0660. One that is left over from a server that has
// died is replaced; any other file, and a socket that somebody listens on, is an error. Closing the listener removes it.
func Open(ctx context.Context, address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, unixScheme); ok {
		return openUnix(ctx, path)
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}

// Text is how a is written in a configuration: host:port or unix:/path.
func Text(a net.Addr) string {
	if a.Network() == "unix" {
		return unixScheme + a.String()
	}
	return a.String()
}

// UnixPeer is the address of all peers of a unix socket. Their own is not to be believed: a client chooses the path that
// its end is bound to, and that can read like the address of somebody else.
var UnixPeer net.Addr = &net.UnixAddr{Name: "@", Net: "unix"}

// Options tune New. The zero value is right for most.
type Options struct {
	// MaxConnections bounds the connections that are open at a time, those that are not ready yet included; 0 means 10,000.
	// Further ones are closed at once: a client that hears no can turn to another server, one that hears nothing cannot.
	MaxConnections int
	// MaxPerAddress bounds those from one address, or one IPv6 /64; 0 means that nothing does. Peers of a unix socket, and
	// those in Exempt, are not bounded.
	MaxPerAddress int
	// Exempt are addresses that many clients come from, as proxies of our own.
	Exempt []netip.Prefix
	// MaxPending bounds the connections whose header or handshake is under way; 0 means 1,024. When there are as many, or
	// no connection is free, the one that has taken longest is closed for each new one.
	MaxPending int
	// SetupTimeout bounds the time that header and handshake take together; 0 means 10 s.
	SetupTimeout time.Duration
	// TLS returns the configuration for the next connection; nil means plain text.
	TLS func() *tls.Config
	// Proxy makes every connection begin with a PROXY protocol header; nil means that none does.
	Proxy *ProxyPeers
	// Stall bounds how long a peer may take for what one Write sends, unless a deadline is set; 0 means that nothing does.
	Stall time.Duration
	// Logger is told of what an operator should know, at most once a minute each; nil means nobody.
	Logger *slog.Logger
}

// ProxyPeers are the peers that send PROXY protocol headers. Connections from others are closed.
type ProxyPeers struct {
	Peers []netip.Prefix
	Unix  bool // whoever comes over a unix socket
}

// Reason is why a connection was closed before a door saw it.
type Reason uint8

// The reasons. Their texts are labels of a metric.
const (
	Full       Reason = iota // MaxConnections
	PerAddress               // MaxPerAddress
	Crowded                  // it took longest of MaxPending
	Stranger                 // it is none of Options.Proxy
	BadHeader                // no PROXY protocol header, or a malformed or slow one
	Handshake                // the TLS handshake failed, or was slow
	Reasons                  // how many there are
)

var reasonNames = [Reasons]string{"connections", "connections_per_address", "pending", "proxy_peer", "proxy_header", "tls_handshake"}

// String returns the reason as in metrics.
func (r Reason) String() string { return reasonNames[r] }

// Listener wraps a listener. Make one with New. Safe for concurrent use.
type Listener struct {
	raw net.Listener
	o   Options

	start   sync.Once
	ready   chan net.Conn
	failed  chan error    // what ended the accepting
	closing chan struct{} // closed by Close
	close   func() error

	accepted atomic.Uint64
	refused  [Reasons]atomic.Uint64
	told     [Reasons]sparingly

	mu struct {
		sync.Mutex
		open, pending int
		oldest        *slot // of those that are pending, in order of their age
		newest        *slot
		addresses     map[netip.Addr]int
		closed        bool
	}
}

// New returns a listener that hands out the connections of raw as o wants them.
func New(raw net.Listener, o Options) *Listener {
	o.MaxConnections = cmp.Or(o.MaxConnections, 10_000)
	o.MaxPending = min(cmp.Or(o.MaxPending, 1024), o.MaxConnections)
	o.SetupTimeout = cmp.Or(o.SetupTimeout, 10*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Listener{raw: raw, o: o, ready: make(chan net.Conn), failed: make(chan error, 1), closing: make(chan struct{})}
	l.mu.addresses = map[netip.Addr]int{}
	l.close = sync.OnceValue(l.shut)
	return l
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.raw.Addr() }

// Close implements net.Listener. It closes the connections that are not ready, too.
func (l *Listener) Close() error { return l.close() }

func (l *Listener) shut() error {
	close(l.closing)
	err := l.raw.Close()
	l.mu.Lock()
	l.mu.closed = true
	var pending []*slot
	for s := l.mu.oldest; s != nil; s = s.next {
		pending = append(pending, s)
	}
	l.mu.Unlock()
	for _, s := range pending {
		_ = s.conn.Close()
	}
	return err
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	if l.o.TLS == nil && l.o.Proxy == nil {
		return l.next()
	}
	l.start.Do(func() { go l.run() })
	select {
	case c := <-l.ready:
		return c, nil
	case err := <-l.failed:
		l.failed <- err // for the next call
		return nil, err
	}
}

// run accepts, and makes ready what it accepted in goroutines of their own, so that none waits for another.
func (l *Listener) run() {
	for {
		c, err := l.next()
		if err != nil {
			l.failed <- err
			return
		}
		go l.prepare(c)
	}
}

// next returns the next connection that there is room for. It is counted, and pending if there is more to do.
func (l *Listener) next() (net.Conn, error) {
	var wait time.Duration
	for {
		raw, err := l.raw.Accept()
		if err != nil {
			if !l.passes(err) {
				return nil, err
			}
			if errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EINTR) {
				continue // that one is gone, and nothing is short
			}
			// As a rule there are no file descriptors left.
			l.crowdOut()
			if wait = min(max(2*wait, 5*time.Millisecond), time.Second); !l.pause(wait) {
				return nil, net.ErrClosed
			}
			continue
		}
		wait = 0
		if c := l.admit(raw); c != nil {
			return c, nil
		}
	}
}

// passes reports whether accepting may work again.
func (l *Listener) passes(err error) bool {
	select {
	case <-l.closing:
		return false
	default:
	}
	for _, passing := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// pause waits; it returns false if the listener is closed meanwhile.
func (l *Listener) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.closing:
		return false
	}
}

// refuse counts and tells of a connection that a door will not see.
func (l *Listener) refuse(r Reason, peer net.Addr, err error) {
	l.refused[r].Add(1)
	if r == Handshake || r == BadHeader { // as every port that the internet reaches gets them
		l.o.Logger.Debug("connection not set up", "door_address", Text(l.Addr()), "reason", r.String(), "peer", peer.String(), "error", err)
		return
	}
	if n := l.told[r].now(); n > 0 {
		l.o.Logger.Warn(refusals[r], "door_address", Text(l.Addr()), "peer", peer.String(), "connections", n)
	}
}

var refusals = [Reasons]string{
	Full:       "connections are closed, since as many are open as max_connections allows",
	PerAddress: "connections are closed, since their address has as many as limits.connections_per_address allows",
	Crowded:    "connections are closed before their handshake is done, since too many are waiting for one",
	Stranger:   "connections are closed, since their peer is not in proxy_protocol.peers",
}

// sparingly lets one event a minute through.
type sparingly struct {
	mu    sync.Mutex
	last  time.Time
	count int
}

// now returns 0 for an event that is to be kept quiet, and else how many there were since the last one that was not.
func (s *sparingly) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	now := time.Now()
	if !s.last.IsZero() && now.Sub(s.last) < time.Minute {
		return 0
	}
	n := s.count
	s.last, s.count = now, 0
	return n
}

// Stats is a reading of a Listener: Open and Pending now, counts since it was made.
type Stats struct {
	Open, Pending int
	Accepted      uint64
	Refused       [Reasons]uint64
}

// Stats reads the counters.
func (l *Listener) Stats() Stats {
	s := Stats{Accepted: l.accepted.Load()}
	for r := range Reasons {
		s.Refused[r] = l.refused[r].Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Open, s.Pending = l.mu.open, l.mu.pending
	return s
}
