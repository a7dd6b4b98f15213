package listen

import (
	"log/slog"
	"net/http"
	"time"
)

// HTTPOptions bound NewHTTPServer's server. The zero value is right for most.
type HTTPOptions struct {
	// MaxHeaderBytes bounds a request's line and headers; 0 means 64 KiB. More is answered 431.
	MaxHeaderBytes int
	// ReadTimeout is how long a whole request may take to come in; 0 means 30 s, below 0 for ever.
	ReadTimeout time.Duration
	// WriteTimeout is how long an answer may take from the end of the request's headers on; 0 means
	// 30 s, below 0 for ever.
	WriteTimeout time.Duration
	// Logger logs failed connections; nil means no logging.
	Logger *slog.Logger
}

// NewHTTPServer returns a server for h that speaks HTTP/1.1 and HTTP/2 (without TLS: by prior
// knowledge), within bounds that hostile clients cannot stretch.
func NewHTTPServer(h http.Handler, o HTTPOptions) *http.Server {
	if o.MaxHeaderBytes == 0 {
		o.MaxHeaderBytes = 64 << 10
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         &protocols,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       max(o.ReadTimeout, 0),
		WriteTimeout:      max(o.WriteTimeout, 0),
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    o.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          250,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              30 * time.Second,
		},
	}
}
