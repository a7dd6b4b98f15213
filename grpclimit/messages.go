package grpclimit

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// limited is a stream whose received messages are decided one by one.
type limited struct {
	grpc.ServerStream
	call   *call // of the message; to be used only between begin and done
	cancel context.CancelFunc

	mu   sync.Mutex
	busy bool // between begin and done
	over bool // the handler has returned
}

// messagesOf makes the stream of a call one whose received messages are decided one by one.
func (g *Gate) messagesOf(stream grpc.ServerStream, opening *call) *limited {
	c := g.pool.Get().(*call)
	ctx, cancel := context.WithCancel(opening.ctx)
	c.ctx, c.path, c.received = ctx, opening.path, true
	copy(c.told, opening.told)
	return &limited{ServerStream: stream, call: c, cancel: cancel}
}

// begin claims the call; false if the handler has returned.
func (l *limited) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = !l.over
	return l.busy
}

// done gives back the claim of begin.
func (l *limited) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy = false; l.over {
		l.call.gate.finish(l.call)
	}
}

// end releases the slots of the last message. A goroutine of the handler may still be receiving.
func (l *limited) end() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over = true; !l.busy {
		l.call.gate.finish(l.call)
	}
}

var errReturned = status.Error(codes.Canceled, "the handler has returned")

// RecvMsg implements grpc.ServerStream.
func (l *limited) RecvMsg(message any) error {
	if !l.begin() {
		return errReturned
	}
	// the message before has been dealt with
	l.call.visit.Release(l.call.ctx, l.call.gate.limiter, &l.call.decision)
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
	g := c.gate
	c.ask()
	if g.o.MessageHits != nil {
		c.request.Hits = g.o.MessageHits(c.ctx, c.path, message)
		c.request.Peek = c.request.Hits == 0
	}
	if err := c.visit.Decide(c.ctx, g.limiter, &c.request, d); err != nil {
		if c.visit.HungUp {
			return status.FromContextError(c.ctx.Err()).Err()
		}
		c.failure(err)
		return errStore
	}
	if d.WithoutStore != nil {
		c.failure(d.WithoutStore)
	}
	if d.Allowed {
		return nil
	}
	nearest := d.Nearest()
	if !g.o.NoHeaders {
		md := headers(d, nearest)
		// a stream that has handled messages is not to be sent again as a whole
		md.Set(pushBackKey, "-1")
		l.SetTrailer(md)
	}
	return refusal(d, nearest)
}
