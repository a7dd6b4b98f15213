package redistest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// FaultProxy passes TCP connections on to a server and makes faults on the way. A fault holds from
// when its method returns. A proxy begins without any.
type FaultProxy struct {
	t        testing.TB
	addr     string
	upstream string
	running  sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	links    map[*link]struct{}
	delay    time.Duration
	lose     [2]bool // by direction: bytes are discarded
	loseFrom string  // answers are discarded as soon as a client has sent this; "": never
	lost     int     // see Lost
}

// The two directions through a proxy.
const (
	toServer = iota
	toClient
)

// Proxy starts a proxy before the server at upstream, a host and port. It ends with the test.
func Proxy(t testing.TB, upstream string) *FaultProxy {
	t.Helper()
	p := &FaultProxy{t: t, upstream: upstream, links: map[*link]struct{}{}}
	reserved := p.reserve()
	t.Cleanup(func() {
		p.mu.Lock()
		p.refuse()
		p.cut(func(*link) bool { return true })
		p.mu.Unlock()
		p.running.Wait()
		testproc.Release(reserved)
	})
	l := p.listener
	p.running.Go(func() { p.accept(l) })
	return p
}

// reserve begins to listen at a port that nobody else has, and reserves it.
func (p *FaultProxy) reserve() []net.PacketConn {
	p.t.Helper()
	for try := 1; ; try++ {
		port, reserved, err := testproc.Reserve(false)
		if err != nil {
			p.t.Fatal(err)
		}
		p.addr = testproc.Loopback(port)
		if p.listener, err = net.Listen("tcp", p.addr); err == nil {
			return reserved
		}
		// A reservation keeps other tests away, and nobody else.
		testproc.Release(reserved)
		if try == 10 {
			p.t.Fatal(err)
		}
	}
}

// Addr returns the host and port at which it listens; a change of faults does not change it.
func (p *FaultProxy) Addr() string { return p.addr }

// Pass ends all faults. Connections that have lost bytes are cut, as their remaining bytes make no
// sense.
func (p *FaultProxy) Pass() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.lose, p.loseFrom = 0, [2]bool{}, ""
	p.cut(func(l *link) bool { return l.lost })
	if p.listener != nil {
		return
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.listener = l
	p.running.Go(func() { p.accept(l) })
}

// Refuse makes new connections fail at once, as if nothing listened. Open connections stay.
func (p *FaultProxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse()
}

func (p *FaultProxy) refuse() {
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Cut resets all open connections, once. New ones are taken as before.
func (p *FaultProxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut(func(*link) bool { return true })
}

func (p *FaultProxy) cut(which func(*link) bool) {
	for l := range p.links {
		if which(l) {
			l.cut()
			delete(p.links, l)
		}
	}
}

// Delay delays all bytes by d, each way; 0 ends the delay.
func (p *FaultProxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// BlackHole takes connections and bytes, and nothing of it arrives, in either direction.
func (p *FaultProxy) BlackHole() { p.loseBytes(true, true) }

// Lead makes new connections lead to another server, as when a name or a service moves. Open ones
// stay where they are.
func (p *FaultProxy) Lead(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
}

// LoseRepliesFrom is LoseReplies from when a client sends text, which must arrive in one piece.
func (p *FaultProxy) LoseRepliesFrom(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseFrom = text
}

// Lost returns how often bytes were discarded.
func (p *FaultProxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// LoseReplies delivers the bytes of clients, and discards the server's answers.
func (p *FaultProxy) LoseReplies() { p.loseBytes(false, true) }

func (p *FaultProxy) loseBytes(toServer, toClient bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = [2]bool{toServer, toClient}
}

func (p *FaultProxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		p.connect(l, client)
	}
}

// connect makes a link for a client that a listener has accepted.
func (p *FaultProxy) connect(from net.Listener, client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != from { // connections have been refused since
		reset(client)
		return
	}
	l := &link{proxy: p, done: make(chan struct{})}
	l.ends[toClient] = client
	if p.lose[toServer] {
		// The server gets nothing, and need not even run.
		l.ends[toServer], _ = net.Pipe()
		l.lost = true
	} else {
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			reset(client)
			return
		}
		l.ends[toServer] = server
	}
	p.links[l] = struct{}{}
	for direction := range l.ends {
		queue := make(chan chunk, 1024)
		p.running.Go(func() { l.read(direction, queue) })
		p.running.Go(func() { l.write(direction, queue) })
	}
}

// link is a connection through the proxy.
type link struct {
	proxy *FaultProxy
	ends  [2]net.Conn // by direction: where it leads
	once  sync.Once
	done  chan struct{} // closed when it is cut
	lost  bool          // some of its bytes; under the proxy's mu
}

// chunk is some bytes on their way.
type chunk struct {
	bytes []byte
	since time.Time
}

// read queues the bytes of a direction.
func (l *link) read(direction int, queue chan<- chunk) {
	defer close(queue)
	from := l.ends[1-direction]
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			select {
			case queue <- chunk{append([]byte(nil), buf[:n]...), time.Now()}:
			case <-l.done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// write sends the queued bytes of a direction, each at its time. When one direction ends, so does
// the connection.
func (l *link) write(direction int, queue <-chan chunk) {
	defer l.end()
	for c := range queue {
		if !l.wait(c.since) {
			return
		}
		if l.passes(direction, c.bytes) {
			if _, err := l.ends[direction].Write(c.bytes); err != nil {
				return
			}
		}
	}
}

// wait waits until a chunk is due that came at since, and reports whether the connection is still
// there.
func (l *link) wait(since time.Time) bool {
	for {
		l.proxy.mu.Lock()
		left := time.Until(since.Add(l.proxy.delay))
		l.proxy.mu.Unlock()
		if left <= 0 {
			return true
		}
		select {
		case <-time.After(left):
		case <-l.done:
			return false
		}
	}
}

// passes reports whether bytes in a direction arrive now.
func (l *link) passes(direction int, b []byte) bool {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	if from := l.proxy.loseFrom; from != "" && direction == toServer && bytes.Contains(b, []byte(from)) {
		l.proxy.lose[toClient] = true
	}
	if l.proxy.lose[direction] {
		l.lost = true
		l.proxy.lost++
		return false
	}
	return true
}

// end closes the link in peace.
func (l *link) end() {
	l.once.Do(func() { close(l.done) })
	for _, c := range l.ends {
		_ = c.Close()
	}
	l.proxy.mu.Lock()
	delete(l.proxy.links, l)
	l.proxy.mu.Unlock()
}

// cut resets both ends.
func (l *link) cut() {
	reset(l.ends[:]...)
	l.once.Do(func() { close(l.done) })
}

// reset closes connections so that the other sides see an error, not an end.
func reset(conns ...net.Conn) {
	// All are informed first: as soon as one is closed, the link closes the other in peace.
	for _, c := range conns {
		if c, ok := c.(*net.TCPConn); ok {
			_ = c.SetLinger(0)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
}
