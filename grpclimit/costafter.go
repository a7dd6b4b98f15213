package grpclimit

import (
	"context"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-rl/weir/internal/door/line"
	"github.com/weir-rl/weir/rule"
)

// watched collects facts of the answer to a call that met a rule with cost_after.
type watched struct {
	start time.Time
	ended bool // the handler has returned, rather than panicked
	err   error

	mu struct {
		sync.Mutex
		bytes           int64
		header, trailer metadata.MD
	}
}

// watch collects facts of a unary handler's answer, if a rule needs them. It returns the context
// for the handler.
func (c *call) watch(ctx context.Context) context.Context {
	if !line.CostsAfter(&c.decision) {
		return ctx
	}
	c.watched = &watched{start: time.Now()}
	if inner := grpc.ServerTransportStreamFromContext(ctx); inner != nil {
		ctx = grpc.NewContextWithServerTransportStream(ctx, &noting{inner, c.watched})
	}
	return ctx
}

// watchStream is watch for a stream.
func (c *call) watchStream(stream grpc.ServerStream) grpc.ServerStream {
	ctx := c.watch(stream.Context())
	if c.watched == nil {
		return stream
	}
	return &notingStream{stream, ctx, c.watched}
}

// result notes how a unary call ended.
func (c *call) result(answer any, err error) {
	if c.watched == nil {
		return
	}
	if err == nil {
		c.watched.sent(answer)
	}
	c.ended(err)
}

// ended notes how a call ended.
func (c *call) ended(err error) {
	if c.watched != nil {
		c.watched.ended, c.watched.err = true, err
	}
}

// settle replaces the estimates that the rules with cost_after have charged by the actual cost.
func (c *call) settle() {
	w := c.watched
	c.watched = nil
	w.mu.Lock()
	info := rule.ResponseInfo{Bytes: w.mu.bytes, Duration: time.Since(w.start), Status: http.StatusOK}
	header, trailer := w.mu.header, w.mu.trailer
	w.mu.Unlock()
	switch {
	case w.ended && w.err == nil:
	case c.ctx.Err() != nil:
		// whatever the handler made of that: a client must not get its calls for nothing by leaving
		// them
		info.Status = statusHungUp
	case w.ended:
		info.Status = httpStatus(codeOf(w.err))
	default:
		info.Status = http.StatusInternalServerError
	}
	info.Header = func(name string) string {
		values := trailer.Get(name)
		if len(values) == 0 {
			values = header.Get(name)
		}
		if len(values) == 0 {
			return ""
		}
		return values[len(values)-1]
	}
	if err := c.gate.lines.Settle(c.ctx, c.gate.limiter, &c.decision, info); err != nil {
		c.failure(err)
	}
}

// codeOf is the code with which a call ends whose handler returns err, as the server has it.
func codeOf(err error) codes.Code {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return s.Code()
}

// statusHungUp is what servers log for a client that hung up before it was answered (nginx's).
const statusHungUp = 499

// httpStatus is the HTTP status that google.rpc.Code gives to a code.
func httpStatus(c codes.Code) int {
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return statusHungUp
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// sent notes a message of the answer.
func (w *watched) sent(message any) {
	m, ok := message.(proto.Message)
	if !ok {
		return
	}
	n := int64(proto.Size(m))
	w.mu.Lock()
	w.mu.bytes += n
	w.mu.Unlock()
}

func (w *watched) setHeader(md metadata.MD) {
	w.mu.Lock()
	w.mu.header = metadata.Join(w.mu.header, md)
	w.mu.Unlock()
}

func (w *watched) setTrailer(md metadata.MD) {
	w.mu.Lock()
	w.mu.trailer = metadata.Join(w.mu.trailer, md)
	w.mu.Unlock()
}

// noting collects the metadata that a handler sets by grpc.SetHeader, SendHeader and SetTrailer.
type noting struct {
	grpc.ServerTransportStream
	watched *watched
}

// SetHeader implements grpc.ServerTransportStream.
func (n *noting) SetHeader(md metadata.MD) error {
	n.watched.setHeader(md)
	return n.ServerTransportStream.SetHeader(md)
}

// SendHeader implements grpc.ServerTransportStream.
func (n *noting) SendHeader(md metadata.MD) error {
	n.watched.setHeader(md)
	return n.ServerTransportStream.SendHeader(md)
}

// SetTrailer implements grpc.ServerTransportStream.
func (n *noting) SetTrailer(md metadata.MD) error {
	n.watched.setTrailer(md)
	return n.ServerTransportStream.SetTrailer(md)
}

// notingStream collects facts of the answer that a handler sends on a stream.
type notingStream struct {
	grpc.ServerStream
	ctx     context.Context
	watched *watched
}

// Context implements grpc.ServerStream.
func (s *notingStream) Context() context.Context { return s.ctx }

// SetHeader implements grpc.ServerStream.
func (s *notingStream) SetHeader(md metadata.MD) error {
	s.watched.setHeader(md)
	return s.ServerStream.SetHeader(md)
}

// SendHeader implements grpc.ServerStream.
func (s *notingStream) SendHeader(md metadata.MD) error {
	s.watched.setHeader(md)
	return s.ServerStream.SendHeader(md)
}

// SetTrailer implements grpc.ServerStream.
func (s *notingStream) SetTrailer(md metadata.MD) {
	s.watched.setTrailer(md)
	s.ServerStream.SetTrailer(md)
}

// SendMsg implements grpc.ServerStream.
func (s *notingStream) SendMsg(m any) error {
	s.watched.sent(m)
	return s.ServerStream.SendMsg(m)
}
