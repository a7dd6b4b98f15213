package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// conn is a connection. Its own goroutine, the reader, reads the frames; all others that touch it
// (workers, handlers, the watch) do so under mu.
type conn struct {
	s       *Server
	session *session
	nc      net.Conn // raw, or TLS over it
	remote  string   // its address
	client  *client
	handler http.Handler
	tls     *tls.ConnectionState
	ctx     context.Context
	cancel  context.CancelFunc

	// Used by the reader only.
	in            []byte // in[r:w] is read but not yet taken
	r, w          int
	small         int // reads in a row that left most of in empty
	headers       *headerReader
	block         []byte // a header block to be continued in a CONTINUATION
	blockID       uint32 // its stream; 0 without a block
	blockEnd      bool   // it ends its stream
	blockSelfish  bool   // its stream depends on itself
	continuations int
	headerEnded   bool // one came in whole in this batch
	awaited       bool // room was, in this batch
	greeted       bool // the client's SETTINGS have come
	acked         bool // it has acknowledged ours
	chatter       int  // see spend
	chatterSince  time.Time
	batch         time.Time  // the time while a batch is taken; zero until somebody asks
	call          Call       // of the call that runs inline
	scratch       []byte     // its answer
	plain         []byte     // its request, decompressed
	ready         []*job     // that go to workers soon
	late          shed.Batch // of calls
	freeStreams   []*stream

	window Window

	mu sync.Mutex
	connState
}

// connState is the part of a connection that mu guards.
type connState struct {
	streams  map[uint32]*stream
	lastID   uint32 // the highest stream that was opened; only the reader writes it
	orphans  int    // calls that go on after their stream was reset
	held     int    // bytes as in Options.MaxBuffered
	handlers int    // calls in the handler
	unread   int    // bytes of bodies that handlers have not read
	recent   [32]closedStream
	recentAt int

	out     []byte // to be written
	spare   []byte // the buffer out had before
	writing bool
	failed  error // of writing: nothing is sent any more

	resting bool // the reader is being woken, to drop its spare memory

	jobs     int       // calls of this connection that are with workers
	flushing bool      // a worker writes what others answer, too, when they had their turn
	flushAt  time.Time // since when it waits for that

	drained sync.Cond
	repaid  int // see conn.spend: calls that others than the reader have answered

	recvWindow    int
	extra         int  // by which the connection's window is wider than connWindow, of Server.extra
	shut          bool // the connection's window is
	sendWindow    int
	toReturn      int       // bytes by which the client may open windows for answers it has got
	initialWindow int       // the window that the client gives each new stream
	queue         []*stream // that have something to send which does not fit yet
	granted       int       // bytes of window given to large messages beyond the initial one
	waiting       []*stream // for such bytes
	enc           encoder

	// Counters by which the watch sees progress.
	reads, calls, writes, moved uint64
	watch                       watchState

	draining drainState
	dead     bool

	memory
	headerSince time.Time // since when a header comes in that is not whole; zero for none
}

// drainState is how far a connection is on its way out.
type drainState byte

const (
	serving   drainState = iota
	warned               // a first GOAWAY is sent, which leaves the client time to learn of it
	closing              // the second is sent: streams beyond lastID are ignored
	hangingUp            // all is said; waiting for the client to close
)

type closedStream struct {
	id     uint32
	ours   bool // we reset it, and frames sent before the client knew may still come
	window int  // that the client had left: so much of its body may be under way
}

const (
	minInput = 4 << 10
	maxInput = 64 << 10
	// maxOut is the number of unwritten bytes above which no more are produced.
	maxOut = 64 << 10
	// maxKept is the largest buffer that is kept for further calls.
	maxKept = 16 << 10
	// maxGranted bounds the windows opened for larger messages on one connection.
	maxGranted = 16 << 20
	// lingerTime is how long a client has to read the last frames.
	lingerTime = time.Second
)

func newConn(p *session, nc net.Conn, state *tls.ConnectionState) *conn {
	s, raw := p.s, p.raw
	peer := raw.RemoteAddr()
	c := &conn{s: s, session: p, nc: nc, tls: state, handler: s.o.Handler, remote: peer.String(),
		client: s.clientOf(peer), headers: newHeaderReader(s), in: make([]byte, minInput)}
	ctx := context.WithValue(s.ctx, http.LocalAddrContextKey, nc.LocalAddr())
	if h := p.handed; h != nil {
		ctx, c.handler = h.ctx, h.handler
	}
	c.ctx, c.cancel = context.WithCancel(connContext{ctx, c})
	c.recvWindow = defaultWindow
	c.streams = map[uint32]*stream{}
	c.drained.L = &c.mu
	c.enc.oftenStatus, c.enc.unary = s.often, s.o.Methods != nil
	c.sendWindow, c.initialWindow = defaultWindow, defaultWindow
	c.watch.begin(time.Now(), &s.o)
	return c
}

// serve serves the connection until it ends.
func (c *conn) serve() {
	defer c.end()
	if !c.readPreface() || !c.session.ready(c) {
		return
	}
	err := c.readFrames()
	if c.saidCalm() {
		return
	}
	if fault, ok := errors.AsType[connError](err); ok {
		c.fail(fault)
	}
}

// end cleans up.
func (c *conn) end() {
	p := recover()
	if p != nil { // a defect of ours must not end the process
		c.s.defect(p)
	}
	c.handOver() // whose end is counted
	c.cancel()
	_ = c.nc.Close()
	if p == nil {
		c.mu.Lock()
	} else {
		// the defect may have left mu locked by this goroutine; others hold it for moments only
		for i := 0; !c.mu.TryLock() && i < 1000; i++ {
			time.Sleep(time.Millisecond)
		}
	}
	defer c.mu.Unlock()
	c.dead = true
	if c.failed == nil {
		c.failed = net.ErrClosed
	}
	for _, st := range c.streams {
		st.abort()
		c.close(st)
	}
	c.settle()
	c.s.leaveBehind(c)
	c.s.extra.Add(-int64(c.extra))
	c.extra = 0
	c.drained.Broadcast()
}

// readPreface reads the client preface. It answers a client that speaks HTTP/1 with a hint to use
// HTTP/2.
func (c *conn) readPreface() bool {
	handed := c.session.handed
	if handed != nil && handed.prefaced {
		c.w = copy(c.in, preface)
	}
	for c.w < len(preface) {
		n, err := c.nc.Read(c.in[c.w:])
		c.w += n
		if got := c.in[:min(c.w, len(preface))]; !strings.HasPrefix(preface, string(got)) {
			if method, _, ok := bytes.Cut(c.in[:c.w], []byte(" /")); ok && validMethod(method) && handed == nil {
				const text = "This port speaks gRPC, which is HTTP/2: over TLS, or by prior knowledge.\n"
				_, _ = fmt.Fprintf(c.nc,
					"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\nConnection: close\r\n"+
						"Content-Length: %d\r\n\r\n%s", len(text), text)
				c.linger()
			}
			return false
		}
		if err != nil {
			return false
		}
	}
	c.r = len(preface)
	c.out = appendFrameHeader(c.out, 18, frameSettings, 0, 0)
	c.out = appendSetting(c.out, settingMaxStreams, c.s.o.MaxStreams)
	c.out = appendSetting(c.out, settingInitialWindow, c.s.o.Window)
	c.out = appendSetting(c.out, settingMaxHeaderListSize, c.s.o.MaxHeaderBytes)
	c.out = appendWindowUpdate(c.out, 0, connWindow-c.recvWindow)
	c.recvWindow = connWindow
	return true
}

func validMethod(m []byte) bool {
	for _, b := range m {
		if b < 'A' || b > 'Z' {
			return false
		}
	}
	return len(m) > 0
}

// readFrames handles frames until the connection ends. It handles all frames that have come in
// before it writes the answers.
func (c *conn) readFrames() error {
	for {
		for c.w-c.r >= frameHeaderLen {
			h := c.in[c.r:]
			length := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
			if length > maxFrame {
				return connError{frameSizeError, "a frame is larger than SETTINGS_MAX_FRAME_SIZE"}
			}
			if len(h) < frameHeaderLen+length || c.w-c.r < frameHeaderLen+length {
				break
			}
			c.r += frameHeaderLen + length
			id := binary.BigEndian.Uint32(h[5:]) & (1<<31 - 1)
			if err := c.frame(h[3], h[4], id,
				h[frameHeaderLen:frameHeaderLen+length:frameHeaderLen+length]); err != nil {
				return err
			}
		}
		c.handOver()
		c.late.End(c.s.o.Line)
		if !c.endBatch() {
			return net.ErrClosed
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// endBatch writes the answers to the frames handled so far, and waits while too much is unwritten.
func (c *conn) endBatch() bool {
	c.batch, c.awaited = time.Time{}, false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.openWindow()
	c.reads++
	c.chatter = max(c.chatter-c.repaid*chatterPerCall, 0)
	c.repaid = 0
	c.flush()
	if c.headerEnded || !c.midHeader() {
		c.headerSince, c.headerEnded = time.Time{}, false
	}
	if c.headerSince.IsZero() && c.midHeader() {
		c.headerSince = time.Now()
	}
	if c.settleReader() {
		c.mu.Unlock()
		c.s.relieve() // which may end this connection
		c.mu.Lock()
	}
	for c.writing && len(c.out) > maxOut {
		c.drained.Wait()
	}
	return c.failed == nil && !c.leaving
}

// fill reads more. The buffer grows while it is filled, up to maxInput, and shrinks when it mostly
// stays empty.
func (c *conn) fill() error {
	if c.r > 0 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	if c.w == len(c.in) {
		c.resize(2 * len(c.in))
	} else if c.small >= 64 && len(c.in) > minInput && c.w < len(c.in)/4 {
		c.resize(len(c.in) / 2)
	}
	n, err := c.nc.Read(c.in[c.w:])
	for n == 0 && err != nil {
		if !c.rested(err) {
			return err
		}
		n, err = c.nc.Read(c.in[c.w:])
	}
	if n < len(c.in)/8 {
		c.small++
	} else {
		c.small = 0
	}
	c.w += n
	if c.w == len(c.in) && len(c.in) < maxInput {
		c.resize(2 * len(c.in))
	}
	return nil
}

func (c *conn) resize(n int) {
	in := make([]byte, n)
	copy(in, c.in[:c.w])
	c.in, c.small = in, 0
}

// rest releases the large buffers of a silent connection. The reader waits in a read with its own
// buffer, so rest wakes it to make that smaller. mu must be held.
func (c *conn) rest() {
	if !c.writing && len(c.out) == 0 {
		if cap(c.out) > maxKept {
			c.out = nil
		}
		if cap(c.spare) > maxKept {
			c.spare = nil
		}
	}
	if c.reader > minInput && c.draining == serving && !c.resting {
		c.resting = true
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// rested reports whether err, of a read, came of rest, and shrinks the buffer then.
func (c *conn) rested(err error) bool {
	c.mu.Lock()
	asked := c.resting && c.draining != hangingUp && errors.Is(err, os.ErrDeadlineExceeded)
	if asked {
		c.resting = false
		_ = c.nc.SetReadDeadline(time.Time{})
	}
	c.mu.Unlock()
	if asked {
		n := minInput
		for n <= c.w {
			n *= 2
		}
		if n != len(c.in) {
			c.resize(n)
		}
		c.trim()
		c.mu.Lock()
		c.settleReader()
		c.mu.Unlock()
	}
	return asked
}

// now is the time at which the batch of frames was taken.
func (c *conn) now() time.Time {
	if c.batch.IsZero() {
		c.batch = time.Now()
	}
	return c.batch
}

// Bounds on the frames that a client may send besides calls: maxChatter at once, and chatterPerSec
// a second. Each answered call makes up for chatterPerCall of them.
const (
	maxChatter     = 2_000
	chatterPerSec  = 500
	chatterPerCall = 4
)

// spend counts n frames that cost the client little and bring it nothing: pings, settings, resets,
// empty DATA, and the like. It fails for a client that keeps sending too many.
func (c *conn) spend(n int, what string) error {
	if c.chatter += n; c.chatter <= maxChatter {
		return nil
	}
	now := time.Now()
	if !c.chatterSince.IsZero() {
		c.chatter -= int(min(now.Sub(c.chatterSince).Seconds()*chatterPerSec, maxChatter))
	} else {
		c.chatter -= maxChatter / 2
	}
	c.chatterSince = now
	if c.chatter > maxChatter {
		return connError{enhanceYourCalm, what}
	}
	return nil
}

// fail says why the connection ends, and waits a moment for the client to read it.
func (c *conn) fail(fault connError) {
	c.cancel()
	c.mu.Lock()
	c.out = appendGoAway(c.out, c.lastID, fault.code, fault.reason)
	c.draining = hangingUp
	for _, st := range c.streams {
		st.abort()
		c.close(st)
	}
	c.flushAll()
	c.mu.Unlock()
	c.linger()
}

// linger ends our side of the connection and reads until the client ends its own. A socket closed
// with unread input is reset, and the client then loses the answers it has not read yet. That
// happens to clients that keep sending; where one sends more than it may have under way, linger
// reads no further, and the client has the rest of the time to read.
func (c *conn) linger() {
	end := time.Now().Add(c.s.linger)
	_ = c.nc.SetDeadline(end)
	closeWrite(c.nc)
	for total := 0; total < 2*connWindow; {
		n, err := c.nc.Read(c.in)
		if err != nil {
			return
		}
		total += n
	}
	select {
	case <-time.After(time.Until(end)):
	case <-c.s.ctx.Done():
	}
}

func closeWrite(nc net.Conn) {
	if w, ok := nc.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	} else {
		_ = nc.Close()
	}
}

// drain asks the client to make no more calls here, and closes the connection once the calls under
// way are answered.
func (c *conn) drain(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drainLocked(reason)
}

func (c *conn) drainLocked(reason string) {
	if c.draining != serving || c.dead {
		return
	}
	c.draining = warned
	c.watch.drainAt = time.Now()
	c.out = appendGoAway(c.out, 1<<31-1, noError, reason)
	c.out = appendPing(c.out, 0, drainPing[:])
	c.flushSoon()
}

// The server's pings; they differ in their payload.
var (
	drainPing = [8]byte{'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'}
	alivePing = [8]byte{'k', 'e', 'e', 'p', 'a', 'l', 'i', 'v'}
)

// drainNow ends the time that the client had to learn that the connection drains. mu must be held.
func (c *conn) drainNow() {
	if c.draining != warned {
		return
	}
	c.draining = closing
	c.out = appendGoAway(c.out, c.lastID, noError, "")
	c.hangUpIfDone()
}

// hangUpIfDone ends a connection that drains and has no calls left. mu must be held.
func (c *conn) hangUpIfDone() {
	if c.draining != closing || len(c.streams) > 0 || c.dead {
		return
	}
	c.draining = hangingUp
	c.s.all.Go(func() {
		c.mu.Lock()
		c.flushAll()
		c.mu.Unlock()
		// The reader keeps reading until the client closes its side.
		_ = c.nc.SetDeadline(time.Now().Add(c.s.linger))
		closeWrite(c.nc)
	})
}
