// Package grpclimit limits gRPC servers: unary and stream interceptors over a weir.Limiter. Begin
// with New, and give Gate.Unary and Gate.Stream to grpc.NewServer.
//
// A call meets the rules with these attributes: path is the full method ("/shop.Orders/Create"),
// grpc.service and grpc.method are its halves, host is the :authority, ip the address of the peer,
// and header.NAME the value of the metadata key (several are joined by ", "). Options.Identity and
// Options.Attributes add more.
//
// A call with metadata that comes twice where a rule in force or Options.Identity reads it, and it
// has one value, ends with INVALID_ARGUMENT: a rule might count by another value than the handler
// acts by. Authorization that servers read in different ways ends with UNAUTHENTICATED there.
//
// A refused call ends with RESOURCE_EXHAUSTED, with google.rpc.RetryInfo, google.rpc.QuotaFailure
// and google.rpc.ErrorInfo (the limit, and the id of the decision) as details. A call that passed
// carries ratelimit-soft ("exceeded") if that was in a soft margin, and ratelimit-warning if limits
// are near to refusing. Each call that met an enforcing limit is answered with the metadata
// ratelimit-limit, ratelimit-remaining and ratelimit-reset (seconds, rounded up) for the limit
// nearest to refusing: in the header if it passed, and else in the trailer, with retry-after and
// with grpc-retry-pushback-ms, which clients that retry RESOURCE_EXHAUSTED by their service config
// obey.
//
// The cost of a call by a rule's cost_after is settled when it has ended: response.status is the
// HTTP status of the gRPC code (OK is 200, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503), or 499 for a
// call that failed when its client had hung up or its deadline had passed; response.header has the
// trailer and the header that the handler set, and response.bytes is the size of the messages that
// were sent.
//
// A leaky bucket really holds: the handler runs when the call's turn has come. A call that another
// limit with a `wait` refuses is held, in the order of arrival, until the limit admits it or the
// wait is over (docs/guides/waiting.md); one that would pass after its deadline is refused at once,
// as far as that is seen. A slot of a concurrency limit is given back when the handler returns.
//
// Calls of grpc.health.v1.Health pass without a decision, and Gate.Stats counts them: see
// Options.Skip.
//
// weir.Hooks.Answered is called for each call that was admitted, when its handler has returned, but
// not for the messages that Options.Messages counts.
package grpclimit

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/line"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/rule"
)

// Gate limits the calls of a server: Unary and Stream are its interceptors. Calls of one key wait
// in one line, through either interceptor. Safe for concurrent use. Make one with New.
type Gate struct {
	limiter  *weir.Limiter
	o        Options
	identity []rule.Pair        // attribute and source
	program  []programAttribute // of Options.Attributes
	lines    *line.Lines
	pool     sync.Pool // of *call

	probes               probes
	repeated, unreadable atomic.Uint64
	refusedLine          sparselog.Line
}

// Unary is a grpc.UnaryServerInterceptor that limits unary calls.
func (g *Gate) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	if g.passes(info.FullMethod) {
		return handler(ctx, request)
	}
	c := g.acquire(ctx, info.FullMethod)
	defer g.finish(c)
	if err := g.admit(c); err != nil {
		if md := g.trailer(c, err); md != nil {
			_ = grpc.SetTrailer(ctx, md)
		}
		return nil, err
	}
	if md := g.header(c); md != nil {
		// It fails only where the handler's own answer fails as well, or after an interceptor
		// before this one has already sent the header.
		_ = grpc.SetHeader(ctx, md)
	}
	answer, err := handler(c.watch(ctx), request)
	c.answer(err)
	c.result(answer, err)
	c.returned(err)
	return answer, err
}

// Stream is a grpc.StreamServerInterceptor that limits the opening of streams: a stream is one
// call, however many messages it carries, unless Options.Messages counts those too.
func (g *Gate) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	if g.passes(info.FullMethod) {
		return handler(srv, stream)
	}
	c := g.acquire(stream.Context(), info.FullMethod)
	defer g.finish(c)
	if err := g.admit(c); err != nil {
		if md := g.trailer(c, err); md != nil {
			stream.SetTrailer(md)
		}
		return err
	}
	if md := g.header(c); md != nil {
		_ = stream.SetHeader(md) // as above
	}
	if c.place.Entered {
		stream = &answering{ServerStream: stream, call: c}
	}
	stream = c.watchStream(stream)
	if g.o.Messages && info.IsClientStream {
		m := g.messagesOf(stream, c)
		defer m.end()
		stream = m
	}
	err := handler(srv, stream)
	c.answer(err)
	c.ended(err)
	c.returned(err)
	return err
}

// call is one call under way.
type call struct {
	attributes
	passage
	watched  *watched // of a call that met a rule with cost_after; else nil
	visit    *line.Visit
	request  weir.Request
	decision weir.Decision
	outcome  outcome
}

// failure reports an error of the store to Options.OnError.
func (c *call) failure(err error) {
	if f := c.gate.o.OnError; f != nil {
		f(c.ctx, err)
	}
}

func (g *Gate) acquire(ctx context.Context, fullMethod string) *call {
	c := g.pool.Get().(*call)
	c.ctx, c.path = ctx, fullMethod
	if g.o.Skip == nil && isProbe(fullMethod) { // a rule names it
		c.visit.Ready = onlyNamed
	}
	c.ask()
	if g.o.Hits != nil {
		c.request.Hits = g.o.Hits(ctx, fullMethod)
		c.request.Peek = c.request.Hits == 0
	}
	return c
}

// ask makes the request that is decided: of the call, or of a message on its stream.
func (c *call) ask() {
	o := &c.gate.o
	c.request = weir.Request{Domain: o.Domain, Attributes: &c.attributes, Hits: 1, MaxDelay: weir.RuleDelay,
		Door: "grpc"}
	if o.Trace != nil {
		c.request.Trace = o.Trace(c.ctx, c.path)
	}
}

// finish gives back the slots that c holds, and c itself.
func (g *Gate) finish(c *call) {
	c.end()
	c.tell()
	if c.watched != nil {
		c.settle()
	}
	// A slot that cannot be given back ends with the limit's time-out.
	c.visit.Release(c.ctx, g.limiter, &c.decision)
	c.visit.Ready = nil
	clear(c.decision.Limits)
	c.decision.Limits = c.decision.Limits[:0]
	clear(c.told)
	clear(c.fields)
	c.attributes = attributes{gate: g, told: c.told, fields: c.fields[:0], scratch: c.scratch[:0]}
	c.request = weir.Request{}
	g.pool.Put(c)
}

var errStore = status.Error(codes.Unavailable, "the rate limit could not be checked; try again later")

// admit decides c, holding it if it must wait, and returns the error with which a refused call
// ends.
func (g *Gate) admit(c *call) error {
	if err := c.checkFields(); err != nil {
		return err
	}
	d := &c.decision
	start := door.Begin(g.o.Stopwatch)
	err := c.visit.Decide(c.ctx, g.limiter, &c.request, d)
	switch {
	case c.visit.WasHeld(): // it took as long as it had to wait
	case err != nil:
		door.End(g.o.Stopwatch, start, nil, nil)
	default:
		door.End(g.o.Stopwatch, start, &c.request, d)
	}
	if err != nil {
		if c.visit.HungUp {
			return status.FromContextError(c.ctx.Err()).Err()
		}
		c.failure(err)
		return errStore
	}
	if c.visit.Vetoed {
		return overloaded()
	}
	if d.WithoutStore != nil {
		c.failure(d.WithoutStore)
	}
	if !d.Allowed {
		return refusal(d, d.Nearest())
	}
	if err := c.begin(); err != nil {
		return err
	}
	if c.outcome.hears = g.limiter.Phases().HearsAnswers(); c.outcome.hears {
		c.outcome.status = http.StatusInternalServerError
	}
	return nil
}
