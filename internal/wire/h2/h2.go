// Package h2 is an HTTP/2 server for small unary gRPC calls. One goroutine per connection reads all
// frames that have come in, answers each complete call, and writes the answers in one go. That
// costs a fraction of a goroutine, a context and several buffers for each call. What of a call has
// to wait (Rest) runs on workers. Every other request (health, reflection, streams) goes to an
// http.Handler, on a goroutine of its own.
//
// It serves HTTP/2 for an http.Server, too (Configure, in http.go), at half the cost of net/http's
// own.
//
// It speaks HTTP/2 over TLS and, without TLS, by prior knowledge (RFC 9113), with bounds on
// everything that a peer can make it hold or do.
//
// Begin with Options and Server (server.go), then conn.readFrames (conn.go), and unary.go or
// handler.go.
package h2

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// Options tune New. The zero value of each field but Methods and Handler is right for most.
type Options struct {
	// Methods are the unary calls by their path (/package.Service/Method).
	Methods map[string]Unary
	// Handler answers everything else, each request on a goroutine of its own; nil answers 404. It
	// works as behind net/http: bodies and answers may stream in both directions at once, there are
	// informational answers, trailers, and http.ResponseController without hijacking.
	Handler http.Handler

	// Line says whether the calls at hand waited too long. Turn answers such a call in place of its
	// method, as Unary does at once; its message is not read. A nil Line turns none away.
	Line *shed.Door
	Turn func(out []byte) (answer []byte, s Status)

	// TLS turns on TLS; nil means plain text, or the TLS of the listener's connections.
	TLS *tls.Config

	// MaxMessage bounds a message, before and after decompression; 0 means 1 MiB.
	MaxMessage int
	// MaxStreams bounds the calls under way on one connection; 0 means 1,024.
	MaxStreams int
	// Window is how many bytes of a body a client may send ahead of its handler; 0 means 16 KiB.
	// All bodies of a connection together are bounded by 1 MiB, and more while there is room: a
	// sixteenth of MaxMemory at most, and an eighth for all connections.
	Window int
	// MaxHandlers bounds the calls of one connection that are in Handler; 0 means 128.
	MaxHandlers int
	// MaxAllHandlers bounds the calls in Handler of all connections together; 0 means 4,096.
	MaxAllHandlers int
	// MaxConnections bounds the connections; 0 means 10,000. Further ones wait to be accepted.
	MaxConnections int
	// MaxHeaderBytes bounds the header of a request, counted as SETTINGS_MAX_HEADER_LIST_SIZE does;
	// 0 means 16 KiB.
	MaxHeaderBytes int
	// MaxMemory bounds what all connections together make the process keep: headers and what their
	// handlers need, bodies, answers, buffers (see memory.go); 0 means 256 MiB. One connection may
	// keep a quarter of it; further requests are refused then. When three quarters are in use,
	// connections of those clients that keep most are ended with ENHANCE_YOUR_CALM.
	MaxMemory int
	// Client returns the client of a connection, by its peer: the connections of one client share
	// one bound on memory. The zero Addr, and a nil function, are for a connection that counts for
	// itself, as of a proxy, which brings the requests of many clients. It must be safe for
	// concurrent use.
	Client func(peer net.Addr) netip.Addr
	// MaxBuffered bounds the part of that which bodies that have not come in whole and answers that
	// cannot be sent yet may take; 0 means all of it. One connection may hold a quarter of it. Past
	// that, calls are answered RESOURCE_EXHAUSTED.
	MaxBuffered int

	// HandshakeTimeout bounds the time until a new connection is set up, TLS included, and the time
	// of each header to come in; 0 means 10 s.
	HandshakeTimeout time.Duration
	// RequestTimeout is how long the message of a unary call may take to come in; 0 means 30 s.
	RequestTimeout time.Duration
	// WriteTimeout is how long a peer may take to read data that is ready for it; 0 means 30 s.
	// After that the connection is closed.
	WriteTimeout time.Duration
	// WindowTimeout is the same for a peer that opens no window for any of its answers; 0 means
	// WriteTimeout.
	WindowTimeout time.Duration
	// IdleTimeout is how long a connection may be without a call before its client is asked to
	// close it; 0 means 30 min.
	IdleTimeout time.Duration
	// KeepaliveTime is after how long a silence the server asks whether the client is there; 0
	// means 1 min.
	KeepaliveTime time.Duration
	// KeepaliveTimeout is how long it waits for an answer; 0 means 20 s.
	KeepaliveTimeout time.Duration
	// MaxAge is the age at which a client is asked to open a new connection; 0 means 24 h. It
	// varies by a tenth, so that clients that connected together do not return together.
	MaxAge time.Duration
	// MaxAgeGrace is how long calls may go on after that; 0 means 1 h.
	MaxAgeGrace time.Duration

	// Logger logs panics, and once in a while that connections were ended; nil means no logging.
	Logger *slog.Logger
}

// Unary answers a call on the connection's own goroutine: it appends its message to out, and
// returns that. With a status other than OK the message is not sent. While it runs, its connection
// is not read, so it must not wait: for a call that has to, it returns the rest, and no answer. ctx
// ends with the connection. Neither call nor out may be used after it returns, by the rest either.
type Unary func(ctx context.Context, call *Call, out []byte) (answer []byte, s Status, rest Rest)

// Rest is the rest of a call that has to wait. One of its methods is called, once.
type Rest interface {
	// Answer is the rest of Unary, on a goroutine of its own. ctx ends when the call is cancelled,
	// its deadline passes, or the connection breaks. out may not be used after it returns.
	Answer(ctx context.Context, out []byte) (answer []byte, s Status)
	// Abandon says that nobody waits for the answer any more, or that there is no room to wait.
	Abandon()
}

// Call is a client's call.
type Call struct {
	// Message is the request's message, decompressed.
	Message []byte
	request *request
	conn    *conn
}

// RemoteAddr is the address of the client, as its connection has it.
func (c *Call) RemoteAddr() string { return c.conn.remote }

// Header returns the first value of a header field; "" if it is absent. The name is in lower case.
func (c *Call) Header(name string) string {
	for i := range c.request.fields {
		if c.request.fields[i].Name == name {
			return c.request.fields[i].Value
		}
	}
	return ""
}

// Status is the end of a call: a gRPC code, and a message for the client. The zero value is OK.
type Status struct {
	Code    uint32
	Message string
}

// The codes that the server itself answers with.
const (
	codeOK                = 0
	codeResourceExhausted = 8
	codeUnimplemented     = 12
	codeInternal          = 13
)

// orDefaults returns o with the defaults filled in.
func (o Options) orDefaults() Options {
	number := func(n *int, fallback int) {
		if *n == 0 {
			*n = fallback
		}
	}
	number(&o.MaxMessage, 1<<20)
	number(&o.MaxStreams, 1024)
	number(&o.Window, 16<<10)
	number(&o.MaxHandlers, 128)
	number(&o.MaxAllHandlers, 4096)
	number(&o.MaxConnections, 10_000)
	number(&o.MaxHeaderBytes, 16<<10)
	number(&o.MaxMemory, 256<<20)
	number(&o.MaxBuffered, o.MaxMemory)
	duration := func(d *time.Duration, fallback time.Duration) {
		if *d == 0 {
			*d = fallback
		}
	}
	duration(&o.HandshakeTimeout, 10*time.Second)
	duration(&o.RequestTimeout, 30*time.Second)
	duration(&o.WriteTimeout, 30*time.Second)
	duration(&o.WindowTimeout, o.WriteTimeout)
	duration(&o.IdleTimeout, 30*time.Minute)
	duration(&o.KeepaliveTime, time.Minute)
	duration(&o.KeepaliveTimeout, 20*time.Second)
	duration(&o.MaxAge, 24*time.Hour)
	duration(&o.MaxAgeGrace, time.Hour)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Handler == nil {
		o.Handler = http.NotFoundHandler()
	}
	return o
}

// errorCode is an HTTP/2 error code.
type errorCode uint32

const (
	noError          errorCode = 0x0
	protocolError    errorCode = 0x1
	internalError    errorCode = 0x2
	flowControlError errorCode = 0x3
	streamClosed     errorCode = 0x5
	frameSizeError   errorCode = 0x6
	refusedStream    errorCode = 0x7
	cancelled        errorCode = 0x8
	compressionError errorCode = 0x9
	enhanceYourCalm  errorCode = 0xb
)

// connError ends a connection with a GOAWAY that says why.
type connError struct {
	code   errorCode
	reason string
}

func (e connError) Error() string {
	return "HTTP/2 connection error " + strconv.Itoa(int(e.code)) + ": " + e.reason
}
