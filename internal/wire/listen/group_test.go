package listen

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// scripted is a listener over pipes, whose failures the test decides.
type scripted struct {
	conns  chan net.Conn
	errs   chan error
	closed chan struct{}
}

func newScripted() *scripted {
	return &scripted{conns: make(chan net.Conn), errs: make(chan error), closed: make(chan struct{})}
}

func (l *scripted) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case err := <-l.errs:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *scripted) Addr() net.Addr { return UnixPeer }

func (l *scripted) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

// dial hands the listener a connection, and returns its other end.
func (l *scripted) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

// mirror answers each byte with itself. When it drains it answers no further one; stubborn does not
// heed that.
type mirror struct {
	net.Conn
	stubborn bool
	drained  atomic.Int64
}

func (e *mirror) Serve() {
	defer e.Conn.Close()
	_, _ = io.Copy(e.Conn, e.Conn)
}

func (e *mirror) Drain() {
	if e.drained.Add(1); !e.stubborn {
		_ = e.SetReadDeadline(time.Unix(1, 0))
	}
}

type passing struct{ error }

func (passing) Temporary() bool { return true }

func TestGroupPausesAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pauses []time.Duration
		g := NewGroup(func(nc net.Conn) *mirror { return &mirror{Conn: nc} }, GroupOptions{
			Retrying: func(_ error, pause time.Duration) { pauses = append(pauses, pause) },
		})
		l := newScripted()
		done := make(chan error, 1)
		go func() { done <- g.Serve(l) }()
		began := time.Now()
		for range 10 {
			l.errs <- passing{errors.New("too many open files")}
		}
		c := l.dial() // after the last pause
		want := []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(pauses, want) || time.Since(began) != 3275*time.Millisecond {
			t.Errorf("pauses %v, %v in all", pauses, time.Since(began))
		}
		l.errs <- passing{io.ErrNoProgress} // begins anew after a connection
		synctest.Wait()
		if last := pauses[len(pauses)-1]; last != 5*time.Millisecond {
			t.Errorf("after a connection the pause is %v", last)
		}
		hard := errors.New("the socket is gone")
		l.errs <- hard
		if err := <-done; err != hard {
			t.Errorf("Serve returned %v", err)
		}
		// What was accepted is served on.
		if _, err := c.Write([]byte{7}); err != nil || g.Len() != 1 {
			t.Errorf("%d connections, %v", g.Len(), err)
		}
		g.Stop()
		if g.Len() != 0 || g.Serve(newScripted()) != nil {
			t.Error("a connection is left, or a group that has ended serves")
		}
	})
}

func TestGroupShutdown(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cancelled := 0
			g := NewGroup(func(nc net.Conn) *mirror { return &mirror{Conn: nc, stubborn: stubborn} },
				GroupOptions{Cancel: func() { cancelled++ }})
			first, second := newScripted(), newScripted()
			done := make(chan error, 2)
			go func() { done <- g.Serve(first) }()
			go func() { done <- g.Serve(second) }()
			a, b := first.dial(), second.dial()
			synctest.Wait()
			conns := g.AppendConns(nil)
			if len(conns) != 2 || g.Closing() {
				t.Fatalf("%d connections, closing %v", len(conns), g.Closing())
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			err := g.Shutdown(ctx)
			if stubborn != (err == context.DeadlineExceeded) || stubborn != (time.Since(began) == time.Minute) ||
				stubborn != (cancelled == 1) {
				t.Errorf("stubborn %v: %v after %v, %d cancelled", stubborn, err, time.Since(began), cancelled)
			}
			for _, c := range conns {
				if c.drained.Load() != 1 {
					t.Errorf("drained %d times", c.drained.Load())
				}
			}
			for _, c := range []net.Conn{a, b} {
				if _, err := c.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("a connection is open: %v", err)
				}
			}
			if err := errors.Join(<-done, <-done); err != nil || g.Len() != 0 || !g.Closing() {
				t.Errorf("%v, %d left", err, g.Len())
			}
		})
	}
}

// With Max, further connections wait until one ends; a waiting connection does not keep the group
// from ending.
func TestGroupMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(func(nc net.Conn) *mirror { return &mirror{Conn: nc} }, GroupOptions{Max: 2})
		l := newScripted()
		done := make(chan error, 1)
		go func() { done <- g.Serve(l) }()
		a := l.dial()
		l.dial()
		third := make(chan net.Conn)
		go func() { third <- l.dial() }()
		synctest.Wait()
		if g.Len() != 2 {
			t.Fatalf("%d connections", g.Len())
		}
		_ = a.Close()
		<-third
		synctest.Wait()
		if g.Len() != 2 {
			t.Fatalf("%d connections", g.Len())
		}
		g.Stop() // while Serve waits for a place
		if err := <-done; err != nil || g.Len() != 0 {
			t.Errorf("%v, %d left", err, g.Len())
		}
	})
}
