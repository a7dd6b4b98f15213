package grpclimit

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	weir "github.com/weir-rl/weir"
)

// WithMessages makes each message that a client sends on a stream a request of its own, beside the opening of the stream. It meets the
// rules with the attributes of the call and with grpc.message, which is "received": a rule tells messages by `when: {grpc.message: received}`, and openings by
// `when: {grpc.message: "!received"}`; one that says neither counts both. cost is what a message costs, in hits; nil means 1. It must be safe
// for concurrent use.
//
// A message that must wait holds up the stream, and so the client, by the flow control of HTTP/2. One that is refused ends it: the
// handler's RecvMsg fails with RESOURCE_EXHAUSTED, with details as for a call. A slot that a message takes of a concurrency limit is given back when the handler
// asks for the next one. By a rule with cost_after a message is charged the estimate, for good.
func WithMessages(cost func(ctx context.Context, fullMethod string, message any) int64) Option {
	return func(g *guard) { g.messages, g.message = true, cost }
}

// limited is a stream of which each received message is decided.
type limited struct {
	grpc.ServerStream
	call   *call // of the message; only who has begun may touch it
	cancel context.CancelFunc

	mu   sync.Mutex
	busy bool // somebody has begun
	over bool // the handler has returned
}

// messagesOf makes the stream of a call one of which each received message is decided.
func (g *guard) messagesOf(stream grpc.ServerStream, opening *call) *limited {
	c := g.pool.Get().(*call)
	ctx, cancel := context.WithCancel(opening.ctx)
	c.ctx, c.path, c.identity, c.received = ctx, opening.path, opening.identity, true
	c.extra = append(c.extra, opening.extra...)
	return &limited{ServerStream: stream, call: c, cancel: cancel}
}

// begin claims the call; false if the handler has returned.
func (l *limited) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = !l.over
	return l.busy
}

// done ends what begin began.
func (l *limited) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy = false; l.over {
		l.call.guard.finish(l.call)
	}
}

// end gives back what the last message holds. A goroutine of the handler may still be receiving.
func (l *limited) end() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over = true; !l.busy {
		l.call.guard.finish(l.call)
	}
}

var errReturned = status.Error(codes.Canceled, "the handler has returned")

// RecvMsg implements grpc.ServerStream.
func (l *limited) RecvMsg(message any) error {
	if !l.begin() {
		return errReturned
	}
	l.call.visit.Release(l.call.ctx, l.call.guard.limiter, &l.call.decision) // the message before has been dealt with
	l.done()
	if err := l.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if !l.begin() {
		return errReturned
	}
	defer l.done()
	return l.decide(message)
}

// decide returns the error with which a refused message ends the stream.
func (l *limited) decide(message any) error {
	c, d := l.call, &l.call.decision
	g := c.guard
	c.request = weir.Request{Domain: g.domain, Attributes: &c.attributes, Hits: 1, MaxDelay: weir.RuleDelay, Door: "grpc"}
	if g.message != nil {
		c.request.Hits = g.message(c.ctx, c.path, message)
	}
	if err := c.visit.Decide(c.ctx, g.limiter, &c.request, d); err != nil {
		if c.visit.HungUp {
			return status.FromContextError(c.ctx.Err()).Err()
		}
		c.failure(err)
		if d.OpenWithoutStore() {
			return nil
		}
		return status.Error(codes.Unavailable, "the rate limit could not be checked; try again later")
	}
	if d.Allowed {
		return nil
	}
	nearest := d.Nearest()
	if !g.silent {
		md := headers(d, nearest)
		md.Set(pushBackKey, "-1") // a stream of which messages were dealt with is not to be sent again as a whole
		l.SetTrailer(md)
	}
	return refusal(d, nearest)
}
