package main

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// A link is the way from one region to a server of another: TCP connections whose bytes arrive
// later, in both directions. While it is cut nothing arrives. Bytes sent meanwhile arrive when it
// is healed, as TCP sends lost ones again.
type link struct {
	addr  string // where it begins
	delay time.Duration

	mu   sync.Mutex
	open chan struct{} // closed while bytes may pass
}

// newLink makes a link to a server, which ends with ctx.
func newLink(ctx context.Context, to string, delay time.Duration) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{addr: listener.Addr().String(), delay: delay, open: make(chan struct{})}
	close(l.open)
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			stop := context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
			var both sync.WaitGroup
			both.Go(func() { l.pass(ctx, near, far) })
			both.Go(func() { l.pass(ctx, far, near) })
			go func() { both.Wait(); stop() }()
		}
	}()
	return l, nil
}

// cut lets nothing pass until heal is called.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.open)
}

// pass carries the bytes of one direction.
func (l *link) pass(ctx context.Context, from, to net.Conn) {
	type chunk struct {
		bytes []byte
		due   time.Time
	}
	under := make(chan chunk, 4096) // way
	go func() {
		defer close(under)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				under <- chunk{buffer[:n], time.Now().Add(l.delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range under {
		if l.wait(ctx, c.due) != nil {
			break
		}
		if _, err := to.Write(c.bytes); err != nil {
			break
		}
	}
	_, _ = from.Close(), to.Close()
	for range under { // so that the reader ends
	}
}

// wait waits until bytes that are due at an instant arrive.
func (l *link) wait(ctx context.Context, due time.Time) error {
	select {
	case <-ctx.Done():
		return io.EOF
	case <-time.After(time.Until(due)):
	}
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	select {
	case <-ctx.Done():
		return io.EOF
	case <-open:
		return nil
	}
}
