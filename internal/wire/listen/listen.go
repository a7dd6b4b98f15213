// Package listen provides everything between a port and a door. Open and New make listeners on TCP
// ports and unix sockets, with TLS, PROXY protocol headers and bounds on connections. A connection
// that they hand out is ready: its header has been read, and its handshake is done. A Group
// accepts, drains and cuts off the connections of a door with its own protocol, and NewHTTPServer
// makes a bounded server for the other doors.
//
// Begin with Open and Options (listen.go).
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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-rl/weir/internal/util/sparselog"
)

// unixScheme begins the addresses of unix sockets.
const unixScheme = "unix:"

// CheckAddress returns an error that describes a fault of an address for Open: host:port, or unix:
// and a path.
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
		return fmt.Errorf(
			"%q is no address; write host:port such as 127.0.0.1:8080, :8080 for all addresses, unix:/path for a unix socket, or off", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q is no address: the port must be a number from 0 to 65535", s)
	}
	return nil
}

// Clash reports whether two addresses that CheckAddress finds no fault in, or "", surely exclude
// each other: one port of one host or of all, or one file. Port 0 is a free one each time.
func Clash(a, b string) bool {
	pathA, socketA := strings.CutPrefix(a, unixScheme)
	pathB, socketB := strings.CutPrefix(b, unixScheme)
	if a == "" || b == "" || socketA || socketB {
		return socketA && socketB && filepath.Clean(pathA) == filepath.Clean(pathB)
	}
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	numberA, errA := strconv.Atoi(portA)
	numberB, errB := strconv.Atoi(portB)
	all := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return errA == nil && errB == nil && numberA == numberB && numberA != 0 &&
		(hostA == hostB || all(hostA) || all(hostB))
}

// Open opens host:port, or a unix socket. A socket's file has the mode 0660. One that is left over
// from a server that has died is replaced; any other file, and a socket that somebody listens on,
// is an error. Closing the listener removes it.
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

// UnixPeer is the address of all peers of a unix socket. Their own is not to be believed: a client
// chooses the path that its end is bound to, and that can read like the address of somebody else.
var UnixPeer net.Addr = &net.UnixAddr{Name: "@", Net: "unix"}

// Options tune New. The zero value is right for most.
type Options struct {
	// MaxConnections bounds the open connections, including those that are not ready yet; 0 means
	// 10,000. Further ones are closed at once: a client that is turned away can try another server,
	// but one that gets no answer cannot.
	MaxConnections int
	// MaxPerAddress bounds those from one address, or one IPv6 /64; 0 means that nothing does.
	// Peers of a unix socket, and those in Exempt, are not bounded.
	MaxPerAddress int
	// Exempt are addresses that many clients come from, as proxies of our own.
	Exempt []netip.Prefix
	// MaxPending bounds the connections whose header or handshake is under way; 0 means 1,024. When
	// this bound is reached, or no connection is free, each new connection replaces a pending one,
	// which is closed: of the address, or IPv6 /64, that has most of them, the one that has taken
	// longest.
	MaxPending int
	// SetupTimeout bounds the time that header and handshake take together; 0 means 10 s.
	SetupTimeout time.Duration
	// TLS returns the configuration for the next connection; nil means plain text.
	TLS func() *tls.Config
	// Proxy requires every connection to begin with a PROXY protocol header; nil means that none
	// does.
	Proxy *ProxyPeers
	// Stall bounds how long a peer may take to accept one Write, unless a deadline is set; 0 means
	// no bound.
	Stall time.Duration
	// Logger logs messages for an operator, each at most once a minute; nil means no logging.
	Logger *slog.Logger
}

// ProxyPeers are the peers that send PROXY protocol headers. Connections from others are closed.
type ProxyPeers struct {
	Peers []netip.Prefix
	Unix  bool // peers of a unix socket
}

// Reason is why a connection was closed before a door saw it.
type Reason uint8

// The reasons. Their texts are labels of a metric.
const (
	Full       Reason = iota // MaxConnections
	PerAddress               // MaxPerAddress
	Crowded                  // MaxPending
	Stranger                 // it is not in Options.Proxy
	BadHeader                // no PROXY protocol header, or a malformed or slow one
	Handshake                // the TLS handshake failed, or was slow
	Reasons                  // how many there are
)

var reasonNames = [Reasons]string{"connections", "connections_per_address", "pending", "proxy_peer", "proxy_header",
	"tls_handshake"}

// String returns the reason as in metrics.
func (r Reason) String() string { return reasonNames[r] }

// Listener wraps a listener. Make one with New. Safe for concurrent use.
type Listener struct {
	raw net.Listener
	o   Options

	start   sync.Once
	ready   chan net.Conn
	failed  chan error    // the error that ended the accepting
	closing chan struct{} // closed by Close
	close   func() error

	accepted atomic.Uint64
	refused  [Reasons]atomic.Uint64
	told     [Reasons]sparselog.Line

	mu struct {
		sync.Mutex
		open      int
		pending   crowd
		addresses map[netip.Addr]int
		closed    bool
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
	l := &Listener{raw: raw, o: o, ready: make(chan net.Conn), failed: make(chan error, 1),
		closing: make(chan struct{})}
	l.mu.addresses = map[netip.Addr]int{}
	l.mu.pending = newCrowd()
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
	pending := l.mu.pending.all()
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

// run accepts connections, and makes each ready in its own goroutine, so that none waits for
// another.
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

// next returns the next connection that there is room for. It is counted, and pending if there is
// more to do.
func (l *Listener) next() (net.Conn, error) {
	var wait backOff
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
			if !l.pause(wait.next()) {
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
	for _, passing := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// pause waits for d; it returns false if the listener is closed first.
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

// refuse counts and logs a connection that no door will see.
func (l *Listener) refuse(r Reason, peer net.Addr, err error) {
	l.refused[r].Add(1)
	if r == Handshake || r == BadHeader { // as every port that the internet reaches gets them
		l.o.Logger.Debug("connection not set up", "door_address", Text(l.Addr()), "reason", r.String(),
			"peer", peer.String(), "error", err)
		return
	}
	if n := l.told[r].Due(time.Minute); n > 0 {
		l.o.Logger.Warn(refusals[r], "door_address", Text(l.Addr()), "peer", peer.String(), "connections", n)
	}
}

var refusals = [Reasons]string{
	Full:       "connections are closed, since as many are open as max_connections allows",
	PerAddress: "connections are closed, since their address has as many as limits.connections_per_address allows",
	Crowded:    "connections are closed before their handshake is done, since too many are waiting for one",
	Stranger:   "connections are closed, since their peer is not in proxy_protocol.peers",
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
	s.Open, s.Pending = l.mu.open, l.mu.pending.n
	return s
}
