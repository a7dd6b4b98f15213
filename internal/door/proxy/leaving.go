package proxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/util/sparselog"
)

// leaving decides what happens to a request that goes through httputil.ReverseProxy when its client
// hangs up. What goes the direct way asks its Pass itself: see upstream.Leaver.
type leaving struct {
	client context.Context // ends when the client hangs up
	ctx    context.Context // of the request to the upstream
	cancel context.CancelFunc
	unhook func() bool   // stops to watch the client
	most   time.Duration // how long a request is kept; 0 and below for any

	mu     sync.Mutex
	pass   *httplimit.Pass
	gone   bool        // the client is
	asked  bool        // the upstream is asked
	begun  bool        // the header of the answer is there, or the request is over
	late   *time.Timer // ends a request that is kept too long
	unkeep func() bool // stops to watch for the end of the program, once the request is kept
	conn   *halfConn   // to the upstream; nil before there is one, and over HTTP/2
	// unsent is until when the upstream is waited for that has not got all of the body; else nil.
	unsent context.Context
}

// newLeaving returns what watches the client of a request that keeps its place. upload says that it
// has a body.
func newLeaving(client context.Context, pass *httplimit.Pass, most time.Duration, upload bool) *leaving {
	_, _ = pass.Attributes().Attribute("ip") // which the pass then knows, in whatever goroutine
	l := &leaving{client: client, pass: pass, most: most}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(client))
	if upload {
		l.ctx = httptrace.WithClientTrace(l.ctx, &httptrace.ClientTrace{GotConn: l.gotConn})
	}
	l.unhook = context.AfterFunc(client, l.left)
	return l
}

// entered says that the upstream is about to be asked. A client that leaves sooner ends its
// request.
func (l *leaving) entered() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = true
}

// left is called when the client has hung up.
func (l *leaving) left() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return
	}
	l.gone = true
	if l.asked && !l.begun {
		if until := l.pass.Abandon(); until != nil {
			l.unkeep = context.AfterFunc(until, l.cancel)
			if l.most > 0 {
				l.late = time.AfterFunc(l.most, l.cancel)
			}
			return
		}
		if l.conn != nil {
			if l.unsent = l.pass.AbandonUnsent(); l.unsent != nil {
				l.conn.keep()
			}
		}
	}
	l.cancel()
}

// lost is called when reading the body has failed, which may be since the client has hung up: the
// transport closes its connection for it, whether left was called or not.
func (l *leaving) lost() {
	if l.client.Err() != nil {
		l.left()
	}
}

// gotConn notes the connection that the request goes over.
func (l *leaving) gotConn(info httptrace.GotConnInfo) {
	conn := halfConnOf(info.Conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
}

// linger waits for an upstream that has not got all of the body, since the client has left: until
// it has answered or closed the connection, it may work on.
func (l *leaving) linger() {
	if l == nil {
		return
	}
	l.mu.Lock()
	conn, until := l.conn, l.unsent
	l.unsent = nil
	l.mu.Unlock()
	if until != nil {
		conn.await(until, l.most)
	}
}

// answered notes that the header of the answer is there, or the request is over, and reports
// whether the request was abandoned before and kept, so that nobody wants the rest. From then on a
// client that leaves ends the request.
func (l *leaving) answered() (kept bool) {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
	if l.unsent != nil { // the awaited end has come, perhaps before anybody could see it
		l.unsent = nil
		l.conn.end()
		return true
	}
	return l.unkeep != nil
}

// end ends the use of l.
func (l *leaving) end() {
	if l == nil {
		return
	}
	l.unhook()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
	if l.unkeep != nil {
		l.unkeep()
	}
	if l.late != nil {
		l.late.Stop()
	}
	l.cancel()
}

// errAbandoned says that an answer has begun for which nobody waits.
type errAbandoned struct{}

// Error implements error.
func (errAbandoned) Error() string { return "the client has hung up" }

// noteAbandoned logs once in a while that requests keep their places.
func (p *Proxy) noteAbandoned(r *http.Request) {
	if n := p.abandoned.Due(time.Minute); n > 0 {
		s := p.gate.Abandoned()
		p.o.Logf(
			"proxy: %s %q: its client hung up, and it kept its place until the upstream had answered (proxy.abandoned): %d such requests since the last line, %d now; %d were cut so far, and %d turned away, since their address had half of the places",
			sparselog.Excerpt(r.Method), sparselog.Excerpt(r.URL.Path), n, s.Now, s.Cut, s.Refused)
	}
}
