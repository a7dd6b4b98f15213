package grpclimit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/overload"
)

// AdaptiveOptions configure NewAdaptive. The zero value finds a limit from 1 to 10,000, beginning at 20.
type AdaptiveOptions struct {
	// Fixed is a limit that stays; 0 finds one.
	Fixed int
	// Min and Max bound the limit that is found, and Initial is where it begins. 0 means 1, 10,000 and 20.
	Min, Max, Initial int
}

// Adaptive limits how many calls are under way at the same time, so that what is behind stays quick (docs/overload.md). It finds
// the limit from how long the answers take to begin, or has a fixed one. The rest ends at once with UNAVAILABLE, the least
// important first: a rule's `priority` says what is critical, default or sheddable. Calls that a rule file exempts always pass.
//
// Give the same to the unary and the stream interceptor of a server, with WithAdaptive. Safe for concurrent use; make one with
// NewAdaptive.
type Adaptive struct{ limiter *overload.Limiter }

// NewAdaptive returns an Adaptive. Its errors say which option to change.
func NewAdaptive(o AdaptiveOptions) (*Adaptive, error) {
	l, err := overload.New(overload.Options(o))
	if err != nil {
		return nil, err
	}
	return &Adaptive{l}, nil
}

// AdaptiveStats is a reading of an Adaptive. Arrays are of sheddable, default and critical calls, in this order.
type AdaptiveStats struct {
	Limit    int // in force
	InFlight int
	// Room is how many may be under way for a call of each priority to be admitted.
	Room [3]int
	// Admitted and Refused count calls since it was made.
	Admitted, Refused [3]uint64
	// Baseline is the time to an answer of a server that is not busy, and Latency that of late; 0 if it is not known.
	Baseline, Latency time.Duration
}

// Stats returns a reading.
func (a *Adaptive) Stats() AdaptiveStats { return AdaptiveStats(a.limiter.Stats()) }

// WithAdaptive bounds how many calls are under way at the same time. A call that is turned away is charged to no limit, unless it
// was held before.
func WithAdaptive(a *Adaptive) Option { return func(g *guard) { g.adaptive = a } }

// Load is told of the calls that pass, to know how busy a service is (signals of elastic limits). It must be quick, and safe for
// concurrent use.
type Load interface {
	Enter()                         // a call is passed on
	Answered(latency time.Duration) // its answer has begun, this long after; not for errors of an overloaded server
	Leave()                         // it is over; once for each Enter
}

// WithLoad tells l of the calls that pass.
func WithLoad(l Load) Option { return func(g *guard) { g.load = l } }

// importance is what counts of d under overload.
func importance(d *weir.Decision) overload.Priority {
	if d.Exempt {
		return overload.Always
	}
	return overload.Priority(d.Priority())
}

// errOverload is what passage.meet refuses with.
var errOverload = errors.New("grpclimit: overloaded")

// passage is the part of a call that deals with overload.
type passage struct {
	permit   overload.Permit
	entered  bool // it was passed on
	held     bool // it is, or was, held
	answered bool // the answer has begun, or there is none
	start    time.Time
}

// meet is the request's Met: a call for which there is no room is refused before anything is charged. One that has been held takes no
// place while it waits for its turn to ask again; see begin.
func (c *call) meet(d *weir.Decision) error {
	a := c.guard.adaptive
	c.permit.Return()
	if c.held {
		if !a.limiter.WouldAdmit(importance(d)) {
			return errOverload
		}
		return nil
	}
	var ok bool
	if c.permit, ok = a.limiter.Acquire(importance(d)); !ok {
		return errOverload
	}
	return nil
}

// wait tells that the call is about to be held.
func (c *call) wait(ctx context.Context) (context.Context, context.CancelFunc) {
	c.permit.Return()
	c.held = true
	return ctx, func() {}
}

// begin tells that the call is passed on now; an error if there is no room for it any more.
func (c *call) begin() error {
	g := c.guard
	if g.adaptive == nil && g.load == nil {
		return nil
	}
	if g.adaptive != nil && !c.permit.Held() {
		var ok bool
		if c.permit, ok = g.adaptive.limiter.Acquire(importance(&c.decision)); !ok {
			return overloaded()
		}
	}
	c.entered, c.start = true, time.Now()
	c.permit.Restart()
	if g.load != nil {
		g.load.Enter()
	}
	return nil
}

// answer tells that the answer has begun, or that the call ended with err.
func (c *call) answer(err error) {
	if !c.entered || c.answered {
		return
	}
	c.answered = true
	failed := isOverload(err)
	gone := c.ctx.Err() != nil
	if l := c.guard.load; l != nil && !failed && !gone {
		l.Answered(time.Since(c.start))
	}
	if !c.permit.Streams() {
		return
	}
	switch {
	case gone:
		c.permit.Cancel()
	case failed:
		c.permit.Drop()
	default:
		c.permit.Done()
	}
}

// isOverload reports whether err is what calls to an overloaded server end with.
func isOverload(err error) bool {
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

var errPanicked = status.Error(codes.Internal, "the handler panicked")

// end tells that the call is over.
func (c *call) end() {
	if c.entered {
		c.answer(errPanicked) // else it has been called
		c.permit.Done()       // of a fixed limit
		if l := c.guard.load; l != nil {
			l.Leave()
		}
	}
	c.permit.Return() // of a call that was not passed on
	c.passage = passage{}
}

// overloaded is the error of a call that was turned away.
func overloaded() error {
	s := status.New(codes.Unavailable, "this service is busier than it can be just now, and has to turn some calls away; try again in a moment")
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
