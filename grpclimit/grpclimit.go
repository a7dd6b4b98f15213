// Package grpclimit limits gRPC servers: unary and stream interceptors over a weir.Limiter.
//
// A call meets the rules with these attributes: path is the full method ("/shop.Orders/Create"), grpc.service and
// grpc.method are its halves, host is the :authority, ip the address of the peer, header.NAME the value of the metadata
// key (several are joined by ", "), and whatever WithIdentity and WithAttributes add.
//
// A refused call ends with RESOURCE_EXHAUSTED, with google.rpc.RetryInfo, google.rpc.QuotaFailure and google.rpc.ErrorInfo (the
// limit, and the id of the decision) as details. A call that passed carries ratelimit-soft ("exceeded") if that was in a soft
// margin, and ratelimit-warning if limits are near to refusing. Each call that met an enforcing limit is answered with the metadata ratelimit-limit, ratelimit-remaining and
// ratelimit-reset (seconds, rounded up) for the limit nearest to refusing: in the header if it passed, and else in the trailer, with
// retry-after and with grpc-retry-pushback-ms, which clients that retry RESOURCE_EXHAUSTED by their service config obey.
//
// What a call cost by a rule's cost_after is settled when it has ended: response.status is the HTTP status of the gRPC code
// (OK is 200, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503), or 499 for a call that failed when its client had hung up or its deadline had passed;
// response.header has the trailer and the header that the handler set, and response.bytes is the size of the messages that were sent.
//
// A leaky bucket really holds: the handler runs when the call's turn has come. A call that another limit with a `wait` refuses is
// held, in the order of arrival, until the limit admits it or the wait is over (docs/waiting.md). A slot of a concurrency
// limit is given back when the handler returns.
package grpclimit

import (
	"context"
	"fmt"
	"math"
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
	"github.com/weir-rl/weir/internal/hold"
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

// WithOnError tells f when the store failed on a call, or when a slot, a turn or a cost could not be given back to it. f must be safe for
// concurrent use. A client that hangs up is no error.
func WithOnError(f func(ctx context.Context, err error)) Option {
	return func(g *guard) { g.onError = f }
}

// WithLines makes calls wait in l. Without it each interceptor has lines of its own, of at most 10,000 calls; give the same to
// the unary and the stream interceptor of a server, so that all calls of a key stand in one line.
func WithLines(l *Lines) Option { return func(g *guard) { g.lines = l.lines } }

// Lines hold the calls that wait. Interceptors that share them must be of one Limiter. Safe for concurrent use.
type Lines struct{ lines *hold.Lines }

// NewLines returns lines that hold at most maxHeld calls at a time, of all keys together; 0 means 10,000, below 0 that nobody is
// held. The waiting calls of one key are at most as many as there is room left, so that none takes more than half.
func NewLines(maxHeld int) *Lines { return &Lines{hold.New(maxHeld)} }

// Stats tells of the calls that are held, or were.
type Stats struct {
	Held    int // now
	Lines   int // now: one for each key of a limit for which somebody waits
	Longest int // calls in the longest line now

	Total      uint64 // were held at all
	Expired    uint64 // of these, were refused since their wait was over, or would have been too short
	HungUp     uint64 // of these, were given up by their clients
	TurnedAway uint64 // were refused since there was no room to wait
}

// Stats returns what is known at this moment.
func (l *Lines) Stats() Stats { return Stats(l.lines.Stats()) }

// Drain ends the holding, for a server that is about to stop: calls that wait for a limit to admit them are refused at once, as are
// those that would have to wait from then on. Those that have a turn in a leaky bucket keep it.
func (l *Lines) Drain() { l.lines.Shut() }

// UnaryServerInterceptor limits unary calls. It is safe for concurrent use.
func UnaryServerInterceptor(l *weir.Limiter, options ...Option) grpc.UnaryServerInterceptor {
	g := newGuard(l, options)
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if g.skip != nil && g.skip(info.FullMethod) {
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
			// It fails only where the handler's own answer fails as well, or after an interceptor before this one has
			// already sent the header.
			_ = grpc.SetHeader(ctx, md)
		}
		answer, err := handler(c.watch(ctx), request)
		c.answer(err)
		c.result(answer, err)
		return answer, err
	}
}

// StreamServerInterceptor limits the opening of streams: a stream is one call, however many messages it carries, unless WithMessages
// counts those too. It is safe for concurrent use.
func StreamServerInterceptor(l *weir.Limiter, options ...Option) grpc.StreamServerInterceptor {
	g := newGuard(l, options)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if g.skip != nil && g.skip(info.FullMethod) {
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
		if c.entered {
			stream = &answering{ServerStream: stream, call: c}
		}
		stream = c.watchStream(stream)
		if g.messages && info.IsClientStream {
			m := g.messagesOf(stream, c)
			defer m.end()
			stream = m
		}
		err := handler(srv, stream)
		c.answer(err)
		c.ended(err)
		return err
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
	messages bool
	message  func(ctx context.Context, fullMethod string, message any) int64 // nil for 1
	onError  func(ctx context.Context, err error)
	lines    *hold.Lines
	adaptive *Adaptive // nil for none
	load     Load      // nil for none
	pool     sync.Pool // of *call
}

func newGuard(l *weir.Limiter, options []Option) *guard {
	g := &guard{limiter: l}
	for _, o := range options {
		o(g)
	}
	if g.lines == nil {
		g.lines = hold.New(0)
	}
	g.pool.New = func() any {
		c := &call{guard: g, visit: g.lines.NewVisit()}
		c.visit.Held, c.visit.Failed, c.met = c.wait, c.failure, c.meet
		return c
	}
	return g
}

// call is one call under way.
type call struct {
	attributes
	passage
	watched  *watched // of a call that met a rule with cost_after; else nil
	guard    *guard
	visit    *hold.Visit
	met      func(*weir.Decision) error // call.meet
	request  weir.Request
	decision weir.Decision
	// undecided says that the store failed, and the rules let the call through: there is no decision.
	undecided bool
}

// failure tells of an error of the store.
func (c *call) failure(err error) {
	if f := c.guard.onError; f != nil {
		f(c.ctx, err)
	}
}

func (g *guard) acquire(ctx context.Context, fullMethod string) *call {
	c := g.pool.Get().(*call)
	c.ctx, c.path, c.identity = ctx, fullMethod, g.identity
	for _, f := range g.extra {
		c.extra = append(c.extra, f(ctx, fullMethod)...)
	}
	c.request = weir.Request{Domain: g.domain, Attributes: &c.attributes, Hits: 1, MaxDelay: weir.RuleDelay, Door: "grpc"}
	if g.adaptive != nil {
		c.request.Met = c.met
	}
	if g.hits != nil {
		c.request.Hits = g.hits(ctx, fullMethod)
	}
	return c
}

// finish gives back the slots that c holds, and c itself.
func (g *guard) finish(c *call) {
	c.end()
	if c.watched != nil {
		c.settle()
	}
	// A slot that cannot be given back ends with the limit's time-out.
	c.visit.Release(c.ctx, g.limiter, &c.decision)
	clear(c.decision.Limits)
	c.decision.Limits = c.decision.Limits[:0]
	clear(c.extra)
	c.attributes = attributes{extra: c.extra[:0]}
	c.request, c.undecided = weir.Request{}, false
	g.pool.Put(c)
}

// admit decides c, holding it if it must wait, and returns the error with which a refused call ends.
func (g *guard) admit(c *call) error {
	d := &c.decision
	if err := c.visit.Decide(c.ctx, g.limiter, &c.request, d); err != nil {
		if c.visit.HungUp {
			return status.FromContextError(c.ctx.Err()).Err()
		}
		if err == errOverload {
			return overloaded()
		}
		c.failure(err)
		if d.OpenWithoutStore() {
			c.undecided = true
			return c.begin()
		}
		return status.Error(codes.Unavailable, "the rate limit could not be checked; try again later")
	}
	if !d.Allowed {
		return refusal(d, d.Nearest())
	}
	return c.begin()
}

// header is the metadata of the answer to a call that passed; nil for none.
func (g *guard) header(c *call) metadata.MD {
	nearest := c.decision.Nearest()
	if g.silent || c.undecided || nearest == nil {
		return nil
	}
	return headers(&c.decision, nearest)
}

// headers is the metadata of an answer.
func headers(d *weir.Decision, nearest *weir.LimitResult) metadata.MD {
	md := metadata.MD{
		"ratelimit-limit":     {strconv.FormatInt(nearest.Limit, 10)},
		"ratelimit-remaining": {strconv.FormatInt(nearest.Remaining, 10)},
		"ratelimit-reset":     {strconv.FormatInt(seconds(nearest.ResetAfter), 10)},
	}
	if d.SoftExceeded() {
		md["ratelimit-soft"] = []string{"exceeded"}
	}
	if warning := warning(d); warning != "" {
		md["ratelimit-warning"] = []string{warning}
	}
	if !d.Allowed && d.RetryAfter != algo.Never {
		md["retry-after"] = []string{strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10)}
	}
	return md
}

// warning names the limits that are near to refusing: `near_limit; limit="name"` each; "" if there are none.
func warning(d *weir.Decision) string {
	var list []string
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Warns(d) {
			list = append(list, "near_limit; limit="+strconv.QuoteToASCII(l.Window.Name)) // metadata is ASCII
		}
	}
	return strings.Join(list, ", ")
}

// seconds rounds µs up to whole seconds.
func seconds(µs int64) int64 { return (µs + 999_999) / 1_000_000 }

const pushBackKey = "grpc-retry-pushback-ms"

// trailer is the metadata of a call that ends with an error of ours; nil for none. A client retries only calls that are answered by a trailer alone
// (gRFC A6): it is told when to do so, for a refusal when the limit admits it, or never; in other cases in a second.
func (g *guard) trailer(c *call, err error) metadata.MD {
	if g.silent {
		return nil
	}
	d := &c.decision
	switch status.Code(err) {
	case codes.ResourceExhausted:
		md := headers(d, d.Nearest())
		after := int64(-1)
		if d.RetryAfter != algo.Never {
			after = min((d.RetryAfter+999)/1000, math.MaxInt32) // no client waits longer
		}
		md.Set(pushBackKey, strconv.FormatInt(after, 10))
		return md
	case codes.Unavailable:
		return metadata.Pairs(pushBackKey, "1000")
	}
	return nil // it hung up
}

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
		if !d.Refuses(l) {
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
	details = append(details, failure)
	if d.ID != 0 {
		details = append(details, &errdetails.ErrorInfo{
			Reason: "RATE_LIMITED", Domain: "github.com/weir-rl/weir", Metadata: map[string]string{"limit": nearest.Window.Name, "decision": d.ID.String()},
		})
	}
	s, err := status.New(codes.ResourceExhausted, message).WithDetails(details...)
	if err != nil { // a detail that cannot be marshalled: the code and the message are what matters
		return status.Error(codes.ResourceExhausted, message)
	}
	return s.Err()
}
