package spoe

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/chars"
)

// Bounds of a connection.
const (
	// a connection's first buffer for reading; it grows up to the largest frame
	firstBuffer = 4 << 10
	keepBuffer  = 16 << 10 // the size kept when it is empty
	maxOut      = 32 << 10 // answers that are gathered before they are written
	maxInFlight = 64       // requests of one connection that are decided at a time
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 64 << 10
	lastLook    = 10 * time.Millisecond // for frames on their way when the agent stops
	// deadlines are set anew only when they have moved by this part of their length: it costs a
	// system timer.
	deadlineParts = 8
)

// conn is one connection of HAProxy's. Its reading goroutine owns all fields that are not marked as
// shared.
type conn struct {
	agent   *Agent
	net     net.Conn
	peer    string
	trusted bool

	in         []byte
	start, end int // bounds of the bytes of in that are read and not handled yet

	ready     bool // the two have introduced themselves
	frameSize int

	readBy    time.Time // the deadline that is set
	inPieces  bool      // readBy is for a frame that has come in part
	progress  bool      // a frame was handled since readBy was set
	lastRound bool      // the agent is stopping, and reads frames that are on their way

	batch *call // whose out holds answers that are not written yet; nil if there are none

	failed  atomic.Bool   // answers cannot be written any more; shared
	writing chan struct{} // holds a value while somebody writes
	writeBy time.Time     // the deadline that is set; of who writes

	// Answers of calls that workers decide: shared.
	// a place for each, until it is written; nil if the connection decides its own
	inFlight chan struct{}
	answered chan struct{} // wakes the goroutine that writes them; nil before the first
	outMu    sync.Mutex
	out      []byte // to be written
	answers  int    // in out
}

func (a *Agent) newConn(nc net.Conn) *conn {
	c := &conn{agent: a, net: nc, writing: make(chan struct{}, 1)}
	if a.o.Parallel > 0 {
		// None takes more than half of the workers.
		c.inFlight = make(chan struct{}, min(maxInFlight, (a.o.Parallel+1)/2))
	}
	return c
}

// Drain implements listen.Conn: a read that waits for the next frame returns.
func (c *conn) Drain() { _ = c.net.SetReadDeadline(time.Unix(1, 0)) }

// Close implements listen.Conn.
func (c *conn) Close() error { return c.net.Close() }

// Serve implements listen.Conn: it answers frames until the connection ends.
func (c *conn) Serve() {
	c.setReadDeadline()
	c.peer = c.net.RemoteAddr().String() // may wait for a header of the PROXY protocol
	c.trusted = c.agent.o.Trusted != nil && c.agent.o.Trusted(c.peer)
	s, detail := c.frames()
	c.settle()
	if s != statusOK {
		c.write(appendDisconnect(nil, s))
		if s != statusNormal {
			c.agent.broken(c.peer, s, detail)
			c.linger()
		}
	}
	_ = c.net.Close()
}

// linger lets the other side read why the connection ends: one that is closed while something is
// left unread is reset.
func (c *conn) linger() {
	half, ok := c.net.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.failed.Load() {
		return
	}
	_ = c.net.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.net, lingerBytes)
}

// frames answers frames. It returns the status for HAProxy at the end, statusOK for none.
func (c *conn) frames() (s status, detail string) {
	for {
		for {
			f, size, s := c.next()
			if s != statusOK {
				return s, ""
			}
			if size == 0 {
				break
			}
			end, s, detail := c.handle(f)
			c.start, c.progress = c.start+size, true
			if end {
				return s, detail
			}
			if c.batch != nil && len(c.batch.out) > maxOut {
				c.flush()
			}
		}
		c.flush()
		if end, s := c.read(); end {
			return s, ""
		}
	}
}

// limit is how large a frame may be now.
func (c *conn) limit() int {
	if !c.ready {
		return min(helloFrame, c.agent.o.MaxFrameSize)
	}
	return c.frameSize
}

// next returns the next frame, and how many bytes it takes; 0 if it is not there yet. Its texts are
// views of c.in.
func (c *conn) next() (f frame, size int, s status) {
	b := c.in[c.start:c.end]
	if len(b) < 4 {
		return f, 0, statusOK
	}
	n := binary.BigEndian.Uint32(b)
	switch {
	case n > uint32(c.limit()):
		return f, 0, statusTooBig
	case n < minFrame:
		return f, 0, statusInvalid
	case len(b)-4 < int(n):
		return f, 0, statusOK
	}
	f, ok := parseFrame(chars.View(b[4 : 4+n]))
	if !ok {
		return f, 0, statusInvalid
	}
	return f, 4 + int(n), statusOK
}

// read reads more. If end is true the connection ends, and s is the status for HAProxy.
func (c *conn) read() (end bool, s status) {
	if c.start > 0 {
		copy(c.in, c.in[c.start:c.end])
		c.start, c.end = 0, c.end-c.start
	}
	if c.end == 0 && len(c.in) > keepBuffer+4 {
		c.in = nil
	}
	if c.end == len(c.in) {
		// A frame that is larger than its bound is not read, so that there is always room to grow.
		grown := make([]byte, min(max(2*len(c.in), firstBuffer), max(c.agent.o.MaxFrameSize, c.limit())+4))
		copy(grown, c.in)
		c.in = grown
	}
	c.setReadDeadline()
	if c.agent.conns.Closing() {
		if c.lastRound {
			return true, statusNormal
		}
		c.lastRound = true
		_ = c.net.SetReadDeadline(time.Now().Add(lastLook))
	}
	if c.failed.Load() {
		return true, statusOK
	}
	n, err := c.net.Read(c.in[c.end:])
	c.end += n
	switch {
	case n > 0 || err == nil:
		return false, statusOK
	case errors.Is(err, os.ErrDeadlineExceeded):
		switch {
		case c.agent.conns.Closing():
			return false, statusOK // comes back here for the last time
		case c.end == 0 && c.ready:
			return true, statusNormal // it was silent too long
		}
		return true, statusTimeout
	}
	return true, statusOK // HAProxy closes connections that it does not need without a word
}

// setReadDeadline bounds the wait for more.
func (c *conn) setReadDeadline() {
	if !c.ready {
		if c.readBy.IsZero() { // from the beginning of the connection on
			c.readBy = time.Now().Add(c.agent.o.HelloTimeout)
			_ = c.net.SetReadDeadline(c.readBy)
		}
		return
	}
	partial, progress := c.end > 0, c.progress
	c.progress = false
	if partial && c.inPieces && !progress {
		return // still the same frame
	}
	bound := c.agent.o.IdleTimeout
	if partial {
		bound = c.agent.o.FrameTimeout
	}
	by := time.Now().Add(bound)
	if partial == c.inPieces && by.Sub(c.readBy) < bound/deadlineParts {
		return
	}
	c.readBy, c.inPieces = by, partial
	_ = c.net.SetReadDeadline(by)
}

// handle handles one frame. If end is true the connection ends, and s is the status for HAProxy.
func (c *conn) handle(f frame) (end bool, s status, detail string) {
	switch {
	case !c.ready && f.kind != frameHAProxyHello:
		return true, statusInvalid, "the first frame must be a HAPROXY-HELLO"
	case f.flags&flagFin == 0, f.kind == frameUnset && f.flags&flagAbort == 0:
		return true, statusFragmentation, ""
	}
	switch f.kind {
	case frameNotify:
		if f.flags&flagAbort != 0 {
			return false, statusOK, "" // nobody waits for the answer
		}
		return c.notify(f)
	case frameHAProxyHello:
		if c.ready {
			return true, statusInvalid, "a second HAPROXY-HELLO"
		}
		h, s := parseHello(f.payload, c.agent.o.MaxFrameSize)
		if s != statusOK {
			return true, s, "HAPROXY-HELLO"
		}
		c.ready, c.frameSize, c.readBy = true, h.frameSize, time.Time{}
		if h.asked > uint64(h.frameSize) {
			c.agent.remarks.frames.Do(func() {
				c.agent.log.Warn(
					"spoe: HAProxy takes larger requests than fit into a frame; those pass unasked unless its configuration refuses what is not answered; lower its tune.bufsize",
					"haproxy", h.asked, "frame", h.frameSize)
			})
		}
		c.write(appendHello(nil, h))
		return h.healthCheck, statusOK, ""
	case frameHAProxyDisconnect:
		// HAProxy's own reasons: 0 to 2 are how connections that are not needed end.
		if s, message := parseDisconnect(f.payload); s > statusTimeout {
			c.agent.broken(c.peer, s, "HAProxy says: "+printable(message))
		}
		return true, statusNormal, ""
	case frameAgentHello, frameAgentDisconnect, frameAck:
		return true, statusInvalid, "a frame that only agents send"
	}
	return false, statusOK, "" // later versions may have more
}

// printable cuts a foreign text short, and replaces what could garble a log.
func printable(s string) string {
	b := []byte(s[:min(len(s), 200)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

// notify answers a NOTIFY that can be decided at once, and hands another one to a worker.
func (c *conn) notify(f frame) (end bool, s status, detail string) {
	if c.batch == nil {
		c.batch = c.agent.calls.Get().(*call)
	}
	k, apart := c.batch, c.inFlight != nil
	payload := f.payload
	if apart { // it may go on when the buffer is overwritten
		k.payload = append(k.payload[:0], payload...)
		payload = chars.View(k.payload)
	}
	messages, ok := k.attributes.parse(payload)
	if !ok {
		k.release()
		return true, statusInvalid, "NOTIFY"
	}
	if !apart {
		k.out = k.answer(c.agent.ctx, messages, f.stream, f.id, c.trusted, k.out, c.frameSize)
		return false, statusOK, ""
	}
	if k.out, ok = k.answerNow(c.agent.ctx, messages, f.stream, f.id, c.trusted, k.out, c.frameSize); !ok {
		k.conn, k.stream, k.id = c, f.stream, f.id
		c.hand(k)
	}
	return false, statusOK, ""
}

// hand hands k, which is the batch, to a worker. The answers in it go on waiting to be written.
func (c *conn) hand(k *call) {
	c.batch = nil
	if len(k.out) > 0 {
		c.batch = c.agent.calls.Get().(*call)
		c.batch.out, k.out = k.out, c.batch.out
	}
	if c.answered == nil {
		c.answered = make(chan struct{}, 1)
		go c.writeAnswers()
	}
	select {
	case c.inFlight <- struct{}{}:
	default:
		c.flush() // nobody waits for those that are answered
		c.inFlight <- struct{}{}
	}
	if !c.agent.workers.try(k) {
		c.flush()
		c.agent.workers.do(k)
	}
}

// flush writes the answers that the connection has gathered.
func (c *conn) flush() {
	if k := c.batch; k != nil {
		c.batch = nil
		c.write(k.out)
		k.written()
	}
}

// settle waits until all requests of the connection are answered.
func (c *conn) settle() {
	c.flush()
	for range cap(c.inFlight) {
		c.inFlight <- struct{}{}
	}
	if c.answered != nil {
		close(c.answered)
	}
}

// decide decides a call of the connection, in a worker, and leaves its answer to the goroutine that
// writes: a worker must not wait for the other side, which may take no answers.
func (c *conn) decide(k *call) {
	k.out = k.answerRest(k.stream, k.id, k.out, c.frameSize)
	c.outMu.Lock()
	c.out = append(c.out, k.out...)
	c.answers++
	select {
	case c.answered <- struct{}{}:
	default: // it will come anyway
	}
	c.outMu.Unlock()
	k.conn = nil
	k.written()
}

// writeAnswers writes what workers answer, as much at a time as there is, until c.answered is
// closed.
func (c *conn) writeAnswers() {
	var spare []byte
	for range c.answered {
		c.outMu.Lock()
		out, answers := c.out, c.answers
		c.out, c.answers = spare[:0], 0
		c.outMu.Unlock()
		c.write(out)
		if spare = out; cap(spare) > maxOut/4 { // an idle connection is to be small
			spare = nil
		}
		for range answers {
			<-c.inFlight
		}
	}
}

// write writes b, unless that failed before.
func (c *conn) write(b []byte) {
	if c.failed.Load() || len(b) == 0 {
		return
	}
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	if by := time.Now().Add(c.agent.o.WriteTimeout); by.Sub(c.writeBy) >= c.agent.o.WriteTimeout/deadlineParts {
		c.writeBy = by
		_ = c.net.SetWriteDeadline(by)
	}
	if _, err := c.net.Write(b); err != nil {
		c.failed.Store(true)
		_ = c.net.Close() // ends the reading too
	}
}
