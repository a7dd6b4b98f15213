package proxy

import (
	"net/http"
	"time"
)

// NewServer returns a server for h that speaks HTTP/1.1 and HTTP/2, the latter over TLS and, by prior knowledge, without. Its
// limits let no client hold on to much: a request's header must arrive within 10 s and be at most about 64 KiB (else 431),
// an idle connection is closed after 2 min, and one HTTP/2 connection has at most 250 requests at a time, and is
// closed if it answers no ping within 15 s or takes nothing of what is written to it for a minute. Bodies may take as long as they
// flow. The caller may change any of it before serving.
func NewServer(h http.Handler) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 250,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     time.Minute,
		},
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}
