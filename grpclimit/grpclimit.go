// Package grpclimit limits gRPC servers: unary and stream interceptors over a weir.Limiter.
//
// A call meets the rules with these attributes: path is the full method ("/shop.Orders/Create"), grpc.service and
// grpc.method are its halves, host is the :authority, ip the address of the peer, header.NAME the value of the metadata
// key (several are joined by ", "), and whatever WithIdentity and WithAttributes add.
//
// A refused call ends with RESOURCE_EXHAUSTED, with google.rpc.RetryInfo and google.rpc.QuotaFailure as details. Each
// call that met an enforcing limit is answered with the metadata ratelimit-limit, ratelimit-remaining and
// ratelimit-reset (seconds, rounded up), and on a refusal retry-after, for the limit nearest to refusing.
//
// A leaky bucket really holds: the handler runs when the call's turn has come. A slot of a concurrency limit is given
// back when the handler returns.
package grpclimit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Option configures an interceptor.
type Option func(*guard)

// WithDomain names the domain of the rules. Without it, it is the only domain that the rules hold.
func WithDomain(domain string) Option { return func(g *guard) { g.domain = domain } }

// WithIdentity takes an attribute, such as "user", from a metadata key, such as "x-user-id". A client can write any
// metadata: take identity only from keys that a proxy in front, or an interceptor before this one, has checked.
func WithIdentity(attribute, key string) Option {
	return func(g *guard) {
		g.identity = append(g.identity, rule.Pair{Name: attribute, Value: strings.ToLower(key)})
	}
}

// WithAttributes adds what f returns to the attributes of a call; it wins over what the interceptor finds by itself. f
// is called once for each call and must be safe for concurrent use.
func WithAttributes(f func(ctx context.Context, fullMethod string) weir.Pairs) Option {
	return func(g *guard) { g.extra = append(g.extra, f) }
}

// WithHits sets what a call costs, in hits; the default is 1 for each call. f must be safe for concurrent use.
func WithHits(f func(ctx context.Context, fullMethod string) int64) Option {
	return func(g *guard) { g.hits = f }
}

// WithSkip exempts the methods for which skip returns true, such as health checks.
func WithSkip(skip func(fullMethod string) bool) Option { return func(g *guard) { g.skip = skip } }

// WithoutHeaders leaves the rate-limit metadata out of answers.
func WithoutHeaders() Option { return func(g *guard) { g.silent = true } }

// UnaryServerInterceptor limits unary calls. It is safe for concurrent use.
func UnaryServerInterceptor(l *weir.Limiter, options ...Option) grpc.UnaryServerInterceptor {
	g := newGuard(l, options)
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if g.skip != nil && g.skip(info.FullMethod) {
			return handler(ctx, request)
		}
		c := g.acquire(ctx, info.FullMethod)
		defer g.finish(c)
		if err := g.admit(c, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

// StreamServerInterceptor limits the opening of streams: a stream is one call, however many messages it carries. It is safe for
// concurrent use.
func StreamServerInterceptor(l *weir.Limiter, options ...Option) grpc.StreamServerInterceptor {
	g := newGuard(l, options)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if g.skip != nil && g.skip(info.FullMethod) {
			return handler(srv, stream)
		}
		c := g.acquire(stream.Context(), info.FullMethod)
		defer g.finish(c)
		if err := g.admit(c, stream.SetHeader); err != nil {
			return err
		}
		return handler(srv, stream)
	}
}

// guard is what both interceptors share.
type guard struct {
	limiter  *weir.Limiter
	domain   string
	identity []rule.Pair // attribute and metadata key
	extra    []func(ctx context.Context, fullMethod string) weir.Pairs
	hits     func(ctx context.Context, fullMethod string) int64
	skip     func(fullMethod string) bool
	silent   bool
	pool     sync.Pool // of *call
}

func newGuard(l *weir.Limiter, options []Option) *guard {
	g := &guard{limiter: l}
	g.pool.New = func() any { return new(call) }
	for _, o := range options {
		o(g)
	}
	return g
}

// call is one call under way.
type call struct {
	attributes
	request  weir.Request
	decision weir.Decision
}

func (g *guard) acquire(ctx context.Context, fullMethod string) *call {
	c := g.pool.Get().(*call)
	c.ctx, c.path, c.identity = ctx, fullMethod, g.identity
	for _, f := range g.extra {
		c.extra = append(c.extra, f(ctx, fullMethod)...)
	}
	c.request = weir.Request{Domain: g.domain, Attributes: &c.attributes, Hits: 1, MaxDelay: weir.RuleDelay}
	if g.hits != nil {
		c.request.Hits = g.hits(ctx, fullMethod)
	}
	return c
}

// finish gives back the slots that c holds, and c itself.
func (g *guard) finish(c *call) {
	for i := range c.decision.Limits {
		if slot := c.decision.Limits[i].Slot; slot != "" {
			// A slot that cannot be given back ends with the limit's time-out.
			ctx, done := afterwards(c.ctx)
			_, _ = g.limiter.Release(ctx, slot)
			done()
		}
	}
	clear(c.decision.Limits)
	c.decision.Limits = c.decision.Limits[:0]
	clear(c.extra)
	c.attributes = attributes{extra: c.extra[:0]}
	c.request = weir.Request{}
	g.pool.Put(c)
}

// admit decides c, waits for its turn, and returns the error with which a refused call ends.
func (g *guard) admit(c *call, setHeader func(metadata.MD) error) error {
	d := &c.decision
	if err := g.limiter.Decide(c.ctx, &c.request, d); err != nil {
		if c.ctx.Err() != nil {
			return status.FromContextError(c.ctx.Err()).Err()
		}
		if d.OpenWithoutStore() {
			return nil
		}
		return status.Error(codes.Unavailable, "the rate limit could not be checked; try again later")
	}
	nearest := d.Nearest()
	if nearest != nil && !g.silent {
		// It fails only where the handler's own answer fails as well, or after an interceptor before this one has
		// already sent the header.
		_ = setHeader(headers(d, nearest))
	}
	if !d.Allowed {
		return refusal(d, nearest)
	}
	if d.Delay > 0 {
		return g.hold(c, time.Duration(d.Delay)*time.Microsecond)
	}
	return nil
}

// afterwards is a context for what must be done for a call even if its client is gone.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// hold waits for the turn of an admitted call. A caller who hangs up gives its turn back.
func (g *guard) hold(c *call, delay time.Duration) error {
	turn := time.NewTimer(delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-c.ctx.Done():
		// A turn that cannot be given back goes unused.
		ctx, done := afterwards(c.ctx)
		defer done()
		_, _ = g.limiter.GiveBack(ctx, &c.decision)
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

// headers is the metadata of an answer.
func headers(d *weir.Decision, nearest *weir.LimitResult) metadata.MD {
	md := metadata.MD{
		"ratelimit-limit":     {strconv.FormatInt(nearest.Limit, 10)},
		"ratelimit-remaining": {strconv.FormatInt(nearest.Remaining, 10)},
		"ratelimit-reset":     {strconv.FormatInt(seconds(nearest.ResetAfter), 10)},
	}
	if !d.Allowed && d.RetryAfter != algo.Never {
		md["retry-after"] = []string{strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10)}
	}
	return md
}

// seconds rounds µs up to whole seconds.
func seconds(µs int64) int64 { return (µs + 999_999) / 1_000_000 }

// refusal is the error of a refused call.
func refusal(d *weir.Decision, nearest *weir.LimitResult) error {
	message := fmt.Sprintf("rate limit %q exceeded", nearest.Window.Name)
	var details []protoadapt.MessageV1
	if d.RetryAfter == algo.Never {
		message += "; this call can never pass it"
	} else {
		retry := time.Duration(d.RetryAfter) * time.Microsecond
		message += "; retry in " + retry.String()
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	failure := &errdetails.QuotaFailure{}
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Allowed || l.Mode == rule.Shadow {
			continue
		}
		description := fmt.Sprintf("at most %d at a time", l.Limit)
		if l.Window.Seconds > 0 {
			description = fmt.Sprintf("at most %d in %d s (%s)", l.Limit, l.Window.Seconds, l.Window.Counter.Limit.Algorithm())
		}
		failure.Violations = append(failure.Violations, &errdetails.QuotaFailure_Violation{
			Subject:     "limit:" + l.Window.Name,
			Description: description,
			QuotaId:     l.Window.Name,
			QuotaValue:  l.Limit,
		})
	}
	s, err := status.New(codes.ResourceExhausted, message).WithDetails(append(details, failure)...)
	if err != nil { // a detail that cannot be marshalled: the code and the message are what matters
		return status.Error(codes.ResourceExhausted, message)
	}
	return s.Err()
}
