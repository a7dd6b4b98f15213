// Package proxy is a reverse proxy that limits in front of an API: a request reaches the upstream
// only if the rules admit it. Begin with New, and follow Proxy.ServeHTTP.
//
// It speaks HTTP/1.1 and HTTP/2 to clients (see NewServer) and to the upstream. It passes bodies,
// upgrades (WebSocket) and trailers on in both directions as they come (but see upstream.MaxBody).
// It holds a request that a leaky bucket delays until its turn, and one that another limit with a
// `wait` refuses until it is admitted.
//
// The upstream must understand a request as the rules did. So path and host go on as they were
// matched; a malformed host, a path or fields that servers read in different ways and a second
// Authorization header are refused; and an Upgrade to HTTP itself, in which requests would pass
// unseen, is not passed on.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/line"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/shed"
	"github.com/weir-rl/weir/internal/wire/upstream"
	"github.com/weir-rl/weir/overload"
)

// Options configure New. Upstream is required; the zero value of the rest is right for most.
type Options struct {
	// Upstream is where admitted requests go: http://host:port, https://host (HTTP/2 if it offers
	// that), or h2c://host:port (HTTP/2 without TLS, such as for gRPC). A path is put in front of
	// each request's path.
	Upstream *url.URL
	// Domain of the rules; "" is the only one that the rules hold.
	Domain string
	// Headers are the families to write; the zero value is the default. Where a decision met a
	// limit, our fields replace the upstream's of the same families.
	Headers httplimit.Headers
	// CORS lets pages of other origins read these; by default none.
	CORS httplimit.CORS
	// ClientIP lists the proxies whose word for the client, and whose X-Forwarded-Host and -Proto,
	// are believed and passed on; none by default.
	ClientIP httplimit.ClientIP
	// Identity supplies more attributes; nil for none.
	Identity *httplimit.Identity
	// PathAsIs forwards the path as the client wrote it. By default the upstream gets the normal
	// form that was matched (rule.NormalPath), so that it cannot understand a path in another way
	// than the rules did.
	PathAsIs bool
	// EncodedSlash decides over requests whose path holds %2F, %5C or a backslash; by
	// default they are refused.
	EncodedSlash httplimit.EncodedSlash
	// Fields refuses requests with fields that servers read in different ways; nil is one that
	// refuses all of them.
	Fields *httplimit.FieldGuard
	// UpstreamHost sends the upstream's own name in the Host header, as a public service needs it.
	// By default the upstream gets the client's. X-Forwarded-Host has the client's either way.
	UpstreamHost bool
	// Timeout is the longest wait for the upstream's response header, counted from when the request
	// is sent; past it the answer is 504. While a body of known length is being sent to an http
	// upstream, it is the longest wait until the upstream takes a part of it. 0 means 60 s; below 0
	// none.
	Timeout time.Duration
	// UpstreamIdle is for how long a connection to the upstream is kept that no request uses. It
	// has to be less than the upstream's own time: a request that is sent just when the upstream
	// closes the connection is lost, or sent again. 0 means 1.5 s (upstream.DefaultIdle) for http,
	// and 50 s for https and h2c; below 0 none is kept, and nothing is sent twice.
	UpstreamIdle time.Duration
	// BodyTimeout is the longest pause of a client in the middle of a request body; past it the
	// answer is 408. 0 means 60 s; below 0 none. Over HTTP/2 it holds until the answer has begun.
	BodyTimeout time.Duration
	// BodyRate is how many bytes of a request body must come in a second, on average, until the
	// answer has begun; a client that is slower gets a 408. A client is waited for for 10 s, and a
	// second more for so many bytes that have come, but never for more than a minute without any. 0
	// means 1 KiB; below 0 none.
	BodyRate int64
	// MaxHeld bounds the requests that are held at a time, see httplimit.Options.
	MaxHeld int
	// MaxUpstream bounds the requests that are under way to the upstream, each on a connection of
	// its own, and all connections to it, also idle ones; 0 means that nothing does. A request that
	// finds no place waits for 2 s, and is answered 503 then. Where HTTP/2 leads to the upstream,
	// only the connections count. See upstream.Places for the share of one client.
	MaxUpstream int
	// Overload bounds how many requests are under way to the upstream at the same time; nil does
	// not.
	Overload *overload.Limiter
	// CutAbandoned cuts the request to the upstream at once when its client hangs up, also where
	// the number of requests under way is bounded, by Overload or by a limit on concurrency. By
	// default such a request keeps its place until the header of its answer has come or the
	// upstream has closed the connection, for Timeout at most: see httplimit.Options.KeepAbandoned.
	// If its body has not come whole, the upstream learns that no more comes; over HTTP/2 to the
	// upstream the request is cut.
	CutAbandoned bool
	// Line turns away requests that waited too long before they came here. nil turns none away.
	Line *shed.Door
	// Load measures the requests that go to the upstream; nil for none.
	Load overload.Load
	// Trace returns the trace that a request is part of, see httplimit.Options.
	Trace func(*http.Request) *weir.Trace
	// Stopwatch times decisions, see httplimit.Options; nil means that nobody does.
	Stopwatch weir.Stopwatch
	// Defer puts off requests that rules with on_limit: {defer: …} refuse; nil refuses them.
	// Proxy.Work does the rest.
	Defer *Deferral
	// TLS configures connections to an https upstream; nil means the system's authorities.
	TLS *tls.Config
	// Logf is called when the upstream or the store fails, once a minute for each kind of failure;
	// nil means it is not. Safe for concurrent use.
	Logf func(format string, args ...any)
}

// Bounds of the proxy's waits; package upstream bounds the rest, for both ways to the upstream.
const (
	dialTimeout = 10 * time.Second
	defaultWait = 60 * time.Second
	defaultRate = 1 << 10
	// farIdle is Options.UpstreamIdle by default where there is TLS or HTTP/2 on the way: less than
	// the 60 s of AWS's load balancers and the 75 s of nginx, and a connection costs more there.
	farIdle = 50 * time.Second
	// flushAfter is how long a part of a body of known length waits for more of it, so that both go
	// out in one piece, where httputil.ReverseProxy copies it.
	flushAfter = 50 * time.Millisecond
)

// Proxy is an http.Handler. Make one with New. Safe for concurrent use.
type Proxy struct {
	o       Options
	gate    *httplimit.Gate
	defers  *deferrals // nil without Options.Defer
	reverse httputil.ReverseProxy
	direct  *upstream.Client // nil where all requests go through reverse
	scheme  string           // of requests to the upstream: http or https
	host    string
	base    string // path in front, without a final slash
	bare    string // base, unescaped
	named   string // the field of ClientIP.Single

	grace, dawdleAfter time.Duration // bodyGrace and dawdleAfter

	cuts      *bodyCuts
	abandoned *sparselog.Line
	lines     *lines

	places      *upstream.Places      // nil without Options.MaxUpstream
	connections *upstream.Connections // likewise
	placeWait   time.Duration
	transports  []*http.Transport
	repeated    *atomic.Uint64 // by again
	multiplexed *atomic.Bool   // the upstream answers many requests over one connection
}

// New returns the proxy. Its errors say which option to change. Closing idle connections is left to
// their time-out.
func New(l *weir.Limiter, o Options) (*Proxy, error) {
	p := &Proxy{o: o, named: o.ClientIP.Single(), cuts: new(bodyCuts), abandoned: new(sparselog.Line),
		lines: new(lines), multiplexed: new(atomic.Bool), repeated: new(atomic.Uint64)}
	p.grace, p.dawdleAfter = bodyGrace, dawdleAfter
	if err := p.setUpstream(o.Upstream); err != nil {
		return nil, err
	}
	if p.o.Logf == nil {
		p.o.Logf = func(string, ...any) {}
	}
	if p.o.Fields == nil {
		p.o.Fields = &httplimit.FieldGuard{Logger: slog.New(slog.DiscardHandler)}
	}
	if p.o.Timeout == 0 {
		p.o.Timeout = defaultWait
	}
	if p.o.BodyTimeout == 0 {
		p.o.BodyTimeout = defaultWait
	}
	if p.o.BodyRate == 0 {
		p.o.BodyRate = defaultRate
	}
	if o.MaxUpstream > 0 {
		p.places, p.placeWait = upstream.NewPlaces(o.MaxUpstream), placeWait
		p.connections = &upstream.Connections{Max: o.MaxUpstream, DropIdle: p.dropIdle}
	}
	if p.o.UpstreamIdle == 0 {
		if p.o.UpstreamIdle = farIdle; o.Upstream.Scheme == "http" {
			p.o.UpstreamIdle = upstream.DefaultIdle
		}
	}
	if p.direct != nil {
		p.direct.IdleTimeout = p.o.UpstreamIdle
		p.direct.Connections = p.connections
		p.direct.HeaderTimeout = max(0, p.o.Timeout)
	}
	options := httplimit.Options{
		Door: "proxy", Domain: o.Domain, Headers: o.Headers, CORS: o.CORS, ClientIP: o.ClientIP,
		Identity: o.Identity, EncodedSlash: o.EncodedSlash, Fields: p.o.Fields, MaxHeld: o.MaxHeld,
		Overload: o.Overload, Load: o.Load, Ready: p.ready, KeepAbandoned: !o.CutAbandoned, KeptWhile: keptWhile,
		Refused: p.refused, Trace: o.Trace, Stopwatch: o.Stopwatch,
		// The program warns of rules that lack an attribute, after each change of the rules.
		Logger: slog.New(slog.DiscardHandler),
		// No OnError: a store that fails is logged when it goes and when it comes back, and
		// counted, but not logged for each request.
	}
	if o.Defer != nil {
		var err error
		if p.defers, err = newDeferrals(p, l, o.Defer); err != nil {
			return nil, err
		}
	}
	gate, err := httplimit.NewGate(l, options)
	if err != nil {
		return nil, fmt.Errorf("default_domain: %w", err)
	}
	p.gate = gate
	p.reverse = httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		ModifyResponse: p.modifyResponse,
		ErrorHandler:   p.handleError,
		Transport:      p.transport(o.Upstream.Scheme),
		// Bodies of unknown length and event streams are flushed at once all the same.
		FlushInterval: flushAfter,
		BufferPool:    buffers,
		ErrorLog:      log.New(logWriter{p}, "", 0),
	}
	return p, nil
}

func (p *Proxy) setUpstream(u *url.URL) error {
	if u == nil {
		return errors.New("proxy.upstream: missing; write for example http://127.0.0.1:3000")
	}
	switch u.Scheme {
	case "http", "https":
		p.scheme = u.Scheme
	case "h2c":
		p.scheme = "http"
	default:
		return fmt.Errorf(
			"proxy.upstream: %q is no URL of an upstream; write http://, https:// or h2c:// and a host, such as http://127.0.0.1:3000", u.Redacted())
	}
	switch {
	case u.Hostname() == "" || u.Opaque != "":
		return fmt.Errorf("proxy.upstream: %q names no host; write for example http://127.0.0.1:3000", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("proxy.upstream: %q holds a user or password, which is not supported; remove it",
			u.Redacted())
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("proxy.upstream: %q has a query or a fragment; only a path may follow the host", u.Redacted())
	}
	p.host = u.Host
	if u.Scheme == "http" && directWorks && door.ValidHost(u.Host) &&
		(u.EscapedPath() == "" || plainPath(u.EscapedPath())) {
		port := u.Port()
		if port == "" {
			port = "80"
		}
		p.direct = &upstream.Client{Address: net.JoinHostPort(u.Hostname(), port), Dial: newDialer().DialContext}
	}
	p.base = strings.TrimRight(u.EscapedPath(), "/")
	p.bare = strings.TrimRight(u.Path, "/")
	return nil
}

// transport makes the round tripper to the upstream, with a pool of its own.
func (p *Proxy) transport(scheme string) http.RoundTripper {
	if scheme != "h2c" {
		t := p.newTransport(!p.o.CutAbandoned)
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(true)
		return p.sendAgain(t, !p.o.CutAbandoned)
	}
	p.multiplexed.Store(true)
	upgrades := p.newTransport(false)
	upgrades.MaxIdleConnsPerHost = -1
	upgrades.Protocols.SetHTTP1(true) // HTTP/2 knows no Upgrade
	t := &h2cTransport{h2: p.newTransport(false), upgrades: upgrades}
	t.h2.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// sendAgain returns what sends requests by kept, and some of them again.
func (p *Proxy) sendAgain(kept *http.Transport, half bool) http.RoundTripper {
	fresh := p.newTransport(half)
	fresh.Protocols = kept.Protocols
	fresh.MaxIdleConnsPerHost = -1
	return &again{kept: kept, fresh: fresh, multiplexed: p.multiplexed, repeated: p.repeated}
}

func newDialer() *net.Dialer { return &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second} }

// newTransport makes a transport. half says that its connections may be half closed: see halfConn.
func (p *Proxy) newTransport(half bool) *http.Transport {
	dial := p.connections.Dialer(newDialer().DialContext)
	if half {
		dial = dialHalf(dial)
	}
	t := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        p.o.TLS.Clone(),
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConnsPerHost:    upstream.MaxIdle,
		IdleConnTimeout:        max(0, p.o.UpstreamIdle),
		ResponseHeaderTimeout:  max(0, p.o.Timeout),
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: upstream.MaxHeader,
		DisableCompression:     true, // bodies go through as they are
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	t.DisableKeepAlives = p.o.UpstreamIdle < 0
	p.transports = append(p.transports, t)
	return t
}

type h2cTransport struct{ h2, upgrades *http.Transport }

// RoundTrip implements http.RoundTripper.
func (t *h2cTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return t.upgrades.RoundTrip(r)
	}
	return t.h2.RoundTrip(r)
}

// Held counts the requests that are held, or were.
func (p *Proxy) Held() httplimit.Stats { return p.gate.Stats() }

// Abandoned counts the requests whose clients hung up while they had a place.
func (p *Proxy) Abandoned() httplimit.AbandonedStats { return p.gate.Abandoned() }

// Drain ends the holding, see httplimit.Gate: for a program that is about to stop.
func (p *Proxy) Drain() { p.gate.Drain() }

// Refunded is for weir.Hooks.Decided, see httplimit.Gate.
func (p *Proxy) Refunded(r *weir.Request, d *weir.Decision) { p.gate.Refunded(r, d) }

// Stats counts what happened to the clients of a Proxy.
type Stats struct {
	// SlowBodies and StalledBodies are the bodies that were given up: by Options.BodyRate, and by
	// BodyTimeout; CrowdedBodies are bodies that stopped coming while bodies like them had half of
	// the places for their address, and no place was free.
	SlowBodies, StalledBodies, CrowdedBodies uint64
	// UnreadAnswers are the answers that were broken off, since their clients did not read them,
	// likewise.
	UnreadAnswers uint64
	// SentAgain counts the requests that were sent to the upstream a second time: once, on a new
	// connection, since it closed a kept one before any byte of an answer. The method is GET, HEAD,
	// OPTIONS, TRACE, PUT or DELETE, which may arrive twice (RFC 9110 9.2.2), or there is an
	// Idempotency-Key, and it has no body or one of a known length of 64 KiB at most
	// (upstream.MaxRepeat). Options.Timeout counts anew then.
	SentAgain uint64
}

// Stats returns a reading.
func (p *Proxy) Stats() Stats {
	s := Stats{SlowBodies: p.cuts.slow.Load(), StalledBodies: p.cuts.stalled.Load(),
		CrowdedBodies: p.cuts.crowded.Load(), UnreadAnswers: p.cuts.unread.Load()}
	if s.SentAgain = p.repeated.Load(); p.direct != nil {
		s.SentAgain += p.direct.Repeated()
	}
	return s
}

// Work forwards deferred requests until ctx ends, and returns when those under way have ended.
// Without Options.Defer it returns at once.
func (p *Proxy) Work(ctx context.Context) {
	if p.defers != nil {
		p.defers.worker.Run(ctx)
	}
}

// Deferred counts the work of Work so far.
func (p *Proxy) Deferred() deferred.WorkerStats {
	if p.defers == nil {
		return deferred.WorkerStats{}
	}
	return p.defers.worker.Stats()
}

// refused sees to it that a client which does not send its body cannot hold up its refusal, and
// defers the request where that is wanted.
func (p *Proxy) refused(w http.ResponseWriter, r *http.Request, d *weir.Decision, a *httplimit.Attributes) bool {
	p.boundRest(w, r)
	return p.defers != nil && p.defers.refused(w, r, d, a)
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.answersAlone(w, r) {
		return
	}
	var body *clientBody
	if r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody {
		body = p.newBody(w, r)
		r = r.WithContext(r.Context()) // net/http looks at the Body of its own when the answer begins
		r.Body = body
	}
	pass := p.gate.Enter(w, r)
	if pass == nil {
		p.boundRest(w, r)
		return
	}
	if p.takeDirect(w, r, pass, body) {
		return
	}
	if body != nil && body.length < 0 && r.ProtoMajor == 2 && !p.holdsPlace(r, pass) {
		body.unbounded() // a call may be silent for long before the server answers
	}
	e := &exchange{Context: r.Context(), pass: pass, path: pass.Attributes().Path(), host: pass.Attributes().Host(),
		body: body, grpc: answer.IsGRPC(r)}
	if body != nil {
		body.stream(r)
		p.watchBody(body, r, pass)
	}
	if e.client = r.Context(); pass.Keeps() {
		e.leaving = newLeaving(e.client, pass, p.o.Timeout, body != nil)
		if e.Context = e.leaving.ctx; body != nil {
			body.lost = e.leaving.lost
		}
	}
	p.forward(w, r.WithContext(e), pass)
	body.finish()
}

// forward passes r on, and takes its leave when the response has ended (or broken off: then
// ReverseProxy panics).
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, pass *httplimit.Pass) {
	defer pass.Leave()
	e := exchangeOf(r.Context())
	defer e.leaving.end()
	defer e.body.unwatch()
	noSniffing(w.Header())
	w = p.watch(w, pass)
	if p.o.BodyRate > 0 && pass.HoldsPlace() {
		taken := newTakenWriter(p, w, r, pass)
		defer taken.end()
		w = taken
	}
	if leave, err := p.enter(r, pass); err != nil {
		p.fail(w, r, e, err)
	} else {
		defer leave()
		defer e.leaving.linger()
		e.leaving.entered()
		p.reverse.ServeHTTP(w, r)
	}
	pass.Finish()
}

// watch returns the writer for the response. The status is known here without a writer that listens
// (see passHead, modifyResponse and fail), so only costs and overload need one.
func (p *Proxy) watch(w http.ResponseWriter, pass *httplimit.Pass) http.ResponseWriter {
	if d := pass.Decision(); p.o.Overload == nil && p.o.Load == nil && (d == nil || !line.CostsAfter(d)) {
		return w
	}
	return pass.Watch(w)
}

// exchange is one request on its way through; it travels as the request's context. It is not
// reused, since the transport may hold on to a context.
type exchange struct {
	context.Context
	pass *httplimit.Pass // only while forward runs; nil for a deferred request
	err  error           // of a deferred request that got no answer
	path string          // in the normal form
	host string          // as it was matched
	body *clientBody     // nil without one
	grpc bool            // it is a call of gRPC

	client  context.Context // ends when the client hangs up
	leaving *leaving        // of a request that keeps its place then; else nil
}

type exchangeKey struct{}

// Value implements context.Context.
func (e *exchange) Value(key any) any {
	if key == (exchangeKey{}) {
		return e
	}
	return e.Context.Value(key)
}

func exchangeOf(ctx context.Context) *exchange {
	e, _ := ctx.Value(exchangeKey{}).(*exchange)
	return e
}

// buffers are for copying bodies.
var buffers = bufferPool{}

const bufferSize = 32 << 10

type bufferPool struct{}

var pooledBuffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Get implements httputil.BufferPool.
func (bufferPool) Get() []byte { return pooledBuffers.Get().(*[bufferSize]byte)[:] }

// Put implements httputil.BufferPool.
func (bufferPool) Put(b []byte) { pooledBuffers.Put((*[bufferSize]byte)(b)) }
