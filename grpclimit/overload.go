package grpclimit

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/overload"
)

// passage is the part of a call that deals with overload.
type passage struct {
	place    overload.Place
	answered bool // the answer has begun, or there is none
}

// veto turns a call away before it is charged, if there is no room for it. A message goes with the
// room of its stream.
func (c *call) veto(d *weir.Decision) bool {
	return !c.received && c.place.Refuses(c.gate.o.Overload, d)
}

// wait notes that the call is about to be held.
func (c *call) wait(ctx context.Context) (context.Context, context.CancelFunc) {
	c.place.Wait()
	return ctx, func() {}
}

// begin notes that the call is passed on now; an error if there is no room for it any more.
func (c *call) begin() error {
	if !c.place.Enter(c.gate.o.Overload, c.gate.o.Load, &c.decision) {
		return overloaded()
	}
	return nil
}

// answer notes that the answer has begun, or that the call ended with err.
func (c *call) answer(err error) {
	if !c.place.Entered || c.answered {
		return
	}
	c.answered = true
	failed := isOverload(err)
	gone := c.ctx.Err() != nil
	if l := c.gate.o.Load; l != nil && !failed && !gone {
		l.Answered(time.Since(c.place.Start))
	}
	if !c.place.Permit.Streams() {
		return
	}
	switch {
	case gone:
		c.place.Permit.Cancel()
	case failed:
		c.place.Permit.Drop()
	default:
		c.place.Permit.Done()
	}
}

// isOverload reports whether calls to an overloaded server end with such an error.
func isOverload(err error) bool {
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unavailable,
		codes.DataLoss:
		return true
	}
	return false
}

var errPanicked = status.Error(codes.Internal, "the handler panicked")

// end notes that the call is over.
func (c *call) end() {
	c.answer(errPanicked) // else it has been called
	c.place.Leave(c.gate.o.Load)
	c.passage = passage{}
}

// overloaded is the error of a call that was turned away.
func overloaded() error {
	s := status.New(codes.Unavailable,
		"this service is busier than it can be just now, and has to turn some calls away; try again in a moment")
	if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
		s = detailed
	}
	return s.Err()
}

// answering notes when the answer of a stream begins.
type answering struct {
	grpc.ServerStream
	call  *call
	begun atomic.Bool // a header may be sent beside a message
}

func (a *answering) begin() {
	if a.begun.CompareAndSwap(false, true) {
		a.call.answer(nil)
	}
}

// SendHeader implements grpc.ServerStream.
func (a *answering) SendHeader(md metadata.MD) error {
	a.begin()
	return a.ServerStream.SendHeader(md)
}

// SendMsg implements grpc.ServerStream.
func (a *answering) SendMsg(m any) error {
	a.begin()
	return a.ServerStream.SendMsg(m)
}
