package rls

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/wire/h2"
)

// unary returns what answers ShouldRateLimit over the wire.
func (r *Service) unary(authorize Authorizer) h2.Unary {
	return func(ctx context.Context, call *h2.Call, out []byte) ([]byte, h2.Status, h2.Rest) {
		if authorize.check != nil {
			if err := authorize.check(call.RemoteAddr(), call.Header("authorization")); err != nil {
				return out, statusOf(err), nil
			}
		}
		out, rest, err := r.answerWire(ctx, call.Message, out, call)
		switch {
		case rest != nil:
			return out, h2.Status{}, rest
		case err != nil:
			return out, statusOf(err), nil
		}
		return out, h2.Status{}, nil
	}
}

// answerWire answers a RateLimitRequest in its wire format with a RateLimitResponse, which it
// appends to out. Its errors are gRPC statuses. If somebody follows traces, it reads the trace's
// fields from fields. A call that has to wait is returned as rest, for answerRest.
func (r *Service) answerWire(ctx context.Context, request, out []byte,
	fields header) (answer []byte, rest *call, err error) {
	defer r.caught(out, &answer, &err)
	start := door.Begin(r.o.Stopwatch)
	c := r.acquire()
	c.start = start
	c.readWire(string(request)) // one copy, which all strings of the call share
	if r.o.Tracer != nil {
		c.traceparent, c.tracestate = fields.Header("traceparent"), fields.Header("tracestate")
	}
	if ctx, err = r.begin(ctx, c); err == nil {
		if !door.DecideNow(ctx, r.limiter, &c.request, &c.decision) {
			if c.request.Trace != nil {
				c.span = ctx
			}
			return out, c, nil
		}
		err = r.decided(ctx, c, nil)
	}
	answer, err = r.finish(c, out, err)
	return answer, nil, err
}

// Answer implements h2.Rest.
func (c *call) Answer(ctx context.Context, out []byte) ([]byte, h2.Status) {
	out, err := c.answerRest(ctx, out)
	if err != nil {
		return out, statusOf(err)
	}
	return out, h2.Status{}
}

// answerRest is the rest of answerWire for a call that had to wait.
func (c *call) answerRest(ctx context.Context, out []byte) (answer []byte, err error) {
	r := c.service
	defer r.caught(out, &answer, &err)
	if c.span != nil {
		ctx = spanned{ctx, c.span}
	}
	err = r.decided(ctx, c, door.DecideRest(ctx, r.limiter, &c.request, &c.decision))
	return r.finish(c, out, err)
}

// finish appends the answer of c, or returns why there is none, and takes c back.
func (r *Service) finish(c *call, out []byte, err error) ([]byte, error) {
	if err == nil {
		out, err = c.writeWire(out)
		door.End(r.o.Stopwatch, c.start, &c.request, &c.decision)
	} else {
		door.End(r.o.Stopwatch, c.start, nil, nil)
	}
	r.release(c)
	return out, err
}

// caught fails a call in which something has panicked: a defect of ours must not end the process.
// The call is not used again.
func (r *Service) caught(out []byte, answer *[]byte, err *error) {
	if p := recover(); p != nil {
		r.o.Logger.Error(fmt.Sprintf("rls: panic: %v\n%s", p, debug.Stack()))
		*answer, *err = out, status.Error(codes.Internal, "internal error")
	}
}

var errAbandoned = errors.New("the caller has gone before anything was decided")

// Abandon implements h2.Rest.
func (c *call) Abandon() {
	r := c.service
	door.Followed(r.o.Tracer, c.request.Trace, errAbandoned)
	door.End(r.o.Stopwatch, c.start, nil, nil)
	r.release(c)
}

// spanned is a context with a span that was begun under another one.
type spanned struct {
	context.Context
	span context.Context
}

// Value implements context.Context.
func (s spanned) Value(key any) any {
	if v := s.Context.Value(key); v != nil {
		return v
	}
	return s.span.Value(key)
}

func statusOf(err error) h2.Status {
	s := status.Convert(err)
	return h2.Status{Code: uint32(s.Code()), Message: s.Message()}
}
