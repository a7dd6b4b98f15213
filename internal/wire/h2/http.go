package h2

import (
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// never is a time-out that nobody lives to see.
const never = 100 * 365 * 24 * time.Hour

// HTTPOptions are options that an http.Server lacks. The zero value is right for most.
type HTTPOptions struct {
	MaxMemory int64                          // as in Options
	Client    func(peer net.Addr) netip.Addr // as in Options
	Logger    *slog.Logger                   // as in Options; panics go to s.ErrorLog
}

// Configure has s serve HTTP/2 by this package in place of net/http: over TLS, where ALPN chooses
// it, and by prior knowledge without, if s.Protocols has that. It is to be called before s serves.
// Of s hold Handler, ErrorLog, MaxHeaderBytes, ReadHeaderTimeout, IdleTimeout, BaseContext,
// ConnContext, Shutdown and Close, and of s.HTTP2 MaxConcurrentStreams, SendPingTimeout,
// PingTimeout and WriteByteTimeout, as they are when the first client comes. ReadTimeout and
// WriteTimeout do not, and ConnState sees
// only that a connection begins and ends.
//
// A handler and a client see the same as with net/http, with these differences. Malformed requests
// are reset, also requests with fields of a connection, which net/http answers 400, requests whose
// Content-Length is invalid or not the length of the body, and requests whose :path does not begin
// with /. Host is in Request.Host only. Bodies that come in may be read from any goroutine, and a
// read deadline may be moved when it has passed.
//
// The ResponseWriter has a method SetStall(time.Duration), which bounds how long a Write may wait
// for the client.
//
// It returns what reads the memory that HTTP/2 takes.
func Configure(s *http.Server, o HTTPOptions) (memory func() MemoryStats) {
	var made atomic.Pointer[Server]
	loop := sync.OnceValue(func() *Server {
		made.Store(newHTTP(s, o))
		return made.Load()
	})
	if s.TLSNextProto == nil {
		s.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	s.TLSNextProto["h2"] = func(_ *http.Server, nc *tls.Conn, h http.Handler) {
		state := nc.ConnectionState()
		loop().serveHanded(nc, handed{handler: h, tls: &state})
	}
	// net/http's name for connections that began with the preface, which it has read.
	s.TLSNextProto["unencrypted_http2"] = func(_ *http.Server, nc *tls.Conn, h http.Handler) {
		if plain, ok := nc.NetConn().(interface{ UnencryptedNetConn() net.Conn }); ok {
			loop().serveHanded(plain.UnencryptedNetConn(), handed{handler: h, prefaced: true})
		}
	}
	s.RegisterOnShutdown(func() { loop().sessions.Drain() })
	return func() (m MemoryStats) {
		if s := made.Load(); s != nil {
			m = s.Memory()
		}
		return m
	}
}

// newHTTP returns the server of Configure.
func newHTTP(s *http.Server, more HTTPOptions) *Server {
	var o http.HTTP2Config
	if s.HTTP2 != nil {
		o = *s.HTTP2
	}
	or := func(d, otherwise time.Duration) time.Duration {
		if d <= 0 {
			return otherwise
		}
		return d
	}
	streams := o.MaxConcurrentStreams
	if streams <= 0 {
		streams = 250
	}
	header := s.MaxHeaderBytes
	if header <= 0 {
		header = http.DefaultMaxHeaderBytes
	}
	server := New(Options{
		Window:         256 << 10,
		MaxStreams:     streams,
		MaxHandlers:    streams,
		MaxAllHandlers: math.MaxInt,
		// As net/http counts: what HTTP/1 does not have of ten fields.
		MaxHeaderBytes:   header + 320,
		MaxMemory:        int(more.MaxMemory),
		Client:           more.Client,
		Logger:           more.Logger,
		HandshakeTimeout: s.ReadHeaderTimeout,
		RequestTimeout:   never, // of unary calls
		WriteTimeout:     or(o.WriteByteTimeout, never),
		WindowTimeout:    never, // that is for who knows the handler: see response.SetStall
		IdleTimeout:      or(s.IdleTimeout, or(s.ReadTimeout, never)),
		KeepaliveTime:    or(o.SendPingTimeout, never),
		KeepaliveTimeout: or(o.PingTimeout, 15*time.Second),
		MaxAge:           never,
		MaxAgeGrace:      never,
	})
	server.logf = log.Printf
	if s.ErrorLog != nil {
		server.logf = s.ErrorLog.Printf
	}
	return server
}

// handed describes a connection that an http.Server hands over.
type handed struct {
	handler  http.Handler
	ctx      context.Context
	tls      *tls.ConnectionState // nil without
	prefaced bool                 // the preface has been read
}

// serveHanded serves a connection that an http.Server has accepted, until it ends.
func (s *Server) serveHanded(nc net.Conn, h handed) {
	h.ctx = s.ctx
	// In the same way net/http passes the context to its own HTTP/2 server.
	if of, ok := h.handler.(interface{ BaseContext() context.Context }); ok {
		h.ctx = of.BaseContext()
	}
	p := s.newSession(nc)
	p.handed = &h
	s.sessions.Run(p)
}
