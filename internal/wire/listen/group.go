package listen

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection that a Group serves. The Group calls Serve once; Drain and Close may come at
// any time, from any goroutine, more than once, and before Serve.
type Conn interface {
	// Serve serves the connection until it ends, and closes it.
	Serve()
	// Drain asks the connection to end once everything that has come in is answered.
	Drain()
	// Close cuts the connection off.
	Close() error
}

// GroupOptions tune NewGroup. The zero value is right for most.
type GroupOptions struct {
	// Max bounds the connections that are open at a time; 0 means that nothing does. Further ones
	// wait to be accepted.
	Max int
	// Retrying is called when a listener cannot accept for a reason that may pass, such as too many
	// open files, with the pause before the next attempt. It may be nil.
	Retrying func(err error, pause time.Duration)
	// Cancel is called when connections have been cut off, so that the work they wait for can be
	// cancelled. It may be nil.
	Cancel func()
}

// Group is the accept loop that the doors with protocols of their own share. It accepts
// connections, tracks the open ones, drains them, and cuts them off. Make one with NewGroup. Safe
// for concurrent use.
type Group[C interface {
	comparable
	Conn
}] struct {
	o       GroupOptions
	newConn func(net.Conn) C
	slots   chan struct{} // one element for each open connection; nil without GroupOptions.Max
	running sync.WaitGroup
	ended   chan struct{} // closed by the first Shutdown or Stop
	closing atomic.Bool   // set with mu held

	mu struct {
		sync.Mutex
		listeners map[net.Listener]struct{}
		conns     map[C]struct{}
	}
}

// NewGroup returns a Group without connections. newConn makes the value that serves a new
// connection; it must return at once.
func NewGroup[C interface {
	comparable
	Conn
}](newConn func(net.Conn) C, o GroupOptions) *Group[C] {
	g := &Group[C]{o: o, newConn: newConn, ended: make(chan struct{})}
	if o.Max > 0 {
		g.slots = make(chan struct{}, o.Max)
	}
	g.mu.listeners = map[net.Listener]struct{}{}
	g.mu.conns = map[C]struct{}{}
	return g
}

// Serve accepts connections from l and serves each in a goroutine of its own, until Shutdown or
// Stop; then it returns nil. It closes l.
func (g *Group[C]) Serve(l net.Listener) error {
	defer l.Close()
	if !g.enter(l) {
		return nil
	}
	defer g.leave(l)
	var pause backOff
	for {
		if g.slots != nil {
			select {
			case g.slots <- struct{}{}:
			case <-g.ended:
				return nil
			}
		}
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			g.start(nc)
			continue
		}
		g.freeSlot()
		if g.Closing() {
			return nil
		}
		if !temporary(err) {
			return err
		}
		wait := pause.next()
		if g.o.Retrying != nil {
			g.o.Retrying(err, wait)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-g.ended:
			timer.Stop()
		}
	}
}

// enter notes a listener; it returns false if the group is closing.
func (g *Group[C]) enter(l net.Listener) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing.Load() {
		return false
	}
	g.mu.listeners[l] = struct{}{}
	g.running.Add(1)
	return true
}

func (g *Group[C]) leave(l net.Listener) {
	g.mu.Lock()
	delete(g.mu.listeners, l)
	g.mu.Unlock()
	g.running.Done()
}

// start serves a connection in a goroutine of its own.
func (g *Group[C]) start(nc net.Conn) {
	c := g.newConn(nc)
	if !g.add(c) {
		_ = nc.Close()
		g.freeSlot()
		return
	}
	go func() {
		defer g.freeSlot()
		g.serve(c)
	}()
}

// Run serves a connection that somebody else has accepted, and returns when it ends.
// GroupOptions.Max does not hold for it. After Shutdown, Stop or Drain it is closed.
func (g *Group[C]) Run(c C) {
	if !g.add(c) {
		_ = c.Close()
		return
	}
	g.serve(c)
}

// add notes a connection, which serve forgets again; it returns false if the group is closing.
func (g *Group[C]) add(c C) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing.Load() {
		return false
	}
	g.mu.conns[c] = struct{}{}
	g.running.Add(1)
	return true
}

func (g *Group[C]) serve(c C) {
	defer func() {
		g.mu.Lock()
		delete(g.mu.conns, c)
		g.mu.Unlock()
		g.running.Done()
	}()
	c.Serve()
}

func (g *Group[C]) freeSlot() {
	if g.slots != nil {
		<-g.slots
	}
}

// temporary reports whether accepting may work again. net/http asks the error in the same way.
func temporary(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && t.Temporary()
}

// Closing reports whether Shutdown or Stop was called. Connections see it set before they are
// drained.
func (g *Group[C]) Closing() bool { return g.closing.Load() }

// Len returns the number of open connections.
func (g *Group[C]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.conns)
}

// AppendConns appends the open connections to dst, in no order.
func (g *Group[C]) AppendConns(dst []C) []C {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.mu.conns {
		dst = append(dst, c)
	}
	return dst
}

// end closes the listeners, and returns the connections that were open.
func (g *Group[C]) end() []C {
	g.mu.Lock()
	if !g.closing.Swap(true) {
		close(g.ended)
	}
	for l := range g.mu.listeners {
		_ = l.Close()
	}
	g.mu.Unlock()
	return g.AppendConns(nil)
}

// Drain closes the listeners, drains the connections, and does not wait.
func (g *Group[C]) Drain() {
	for _, c := range g.end() {
		c.Drain()
	}
}

// Shutdown closes the listeners, drains the connections, and waits until all have ended. When ctx
// ends before that, it does as Stop and returns the error of ctx.
func (g *Group[C]) Shutdown(ctx context.Context) error {
	g.Drain()
	done := make(chan struct{})
	go func() {
		g.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		g.Stop()
		return ctx.Err()
	}
}

// Stop closes the listeners, cuts the connections off, and waits until all have ended.
func (g *Group[C]) Stop() {
	for _, c := range g.end() {
		_ = c.Close()
	}
	if g.o.Cancel != nil {
		g.o.Cancel()
	}
	g.running.Wait()
}

// backOff is the pause before the next attempt to accept. The zero value is ready; setting it to 0
// resets it.
type backOff time.Duration

// next returns the pause: 5 ms, twice as much each time, at most a second.
func (b *backOff) next() time.Duration {
	*b = min(max(2**b, backOff(5*time.Millisecond)), backOff(time.Second))
	return time.Duration(*b)
}
