package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/h2"
)

// NewServer returns a server for h that speaks HTTP/1.1 and HTTP/2, the latter over TLS and, by
// prior knowledge, without, by internal/wire/h2 (see h2.Configure). Its limits let no client hold
// on to much: a request's header must arrive within 10 s and be at most about 64 KiB (else 431), an
// idle connection is closed after 2 min, and one HTTP/2 connection has at most 250 requests at a
// time, and is closed if it answers no ping within 15 s or reads nothing that is written to it for
// a minute. Bodies may take as long as they flow: see Bound. The caller may change any of it before
// serving.
//
// memory reads how much memory HTTP/2 takes.
func NewServer(h http.Handler, o h2.HTTPOptions) (s *http.Server, memory func() h2.MemoryStats) {
	s = &http.Server{
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
	return s, h2.Configure(s, o)
}

// Bound returns a handler that lets no client send h a body of more than body bytes (0 for no
// bound; larger ones are answered 413), and no HTTP/2 client leave the output of h unread for
// longer than stall, which ends the request. In HTTP/1 the connection itself shows that nothing is
// taken; in HTTP/2 it may be well while one stream has no window. Nor does it wait any longer for
// the rest of a body that is too large.
func Bound(h http.Handler, body int64, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body > 0 && r.Body != nil && r.Body != http.NoBody {
			if r.ContentLength > body {
				if stall > 0 {
					boundRest(w, r, stall)
				}
				w.Header().Set("Connection", "close")
				answer.ProblemDetails(answer.ForGRPC(w, r), http.StatusRequestEntityTooLarge, "", "",
					"The request's body is too large.", nil)
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, body)
		}
		if r.ProtoMajor != 2 || stall <= 0 {
			h.ServeHTTP(w, r)
			return
		}
		if b, ok := w.(interface{ SetStall(time.Duration) }); ok { // of internal/wire/h2
			b.SetStall(stall)
			h.ServeHTTP(w, r)
			return
		}
		s := &stallWriter{ResponseWriter: w, control: http.NewResponseController(w), stall: stall}
		h.ServeHTTP(s, r)
		// for the rest that is still to be sent
		_ = s.control.SetWriteDeadline(time.Now().Add(stall))
	})
}

// stallWriter ends a stream of HTTP/2 whose client takes nothing.
type stallWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	timer   *time.Timer // made for the first write

	mu      sync.Mutex
	writing bool
}

// Unwrap is for http.ResponseController.
func (s *stallWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Write implements http.ResponseWriter.
func (s *stallWriter) Write(p []byte) (int, error) {
	s.begin()
	defer s.end()
	return s.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (s *stallWriter) FlushError() error {
	s.begin()
	defer s.end()
	return s.control.Flush()
}

// Flush implements http.Flusher.
func (s *stallWriter) Flush() { _ = s.FlushError() }

func (s *stallWriter) begin() {
	s.mu.Lock()
	s.writing = true
	s.mu.Unlock()
	if s.timer == nil {
		s.timer = time.AfterFunc(s.stall, s.expire)
	} else {
		s.timer.Reset(s.stall)
	}
}

func (s *stallWriter) end() {
	s.timer.Stop()
	s.mu.Lock()
	s.writing = false
	s.mu.Unlock()
}

// expire ends the stream, unless the write has just returned: after the handler the ResponseWriter
// may not be touched.
func (s *stallWriter) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writing {
		_ = s.control.SetWriteDeadline(time.Unix(1, 0))
	}
}
