package resp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// Sizes of a connection's memory.
const (
	// a connection's own memory: its goroutine's stack, its small buffer, its decision
	connMemory  = 16 << 10
	smallBuffer = 4 << 10 // for reading
	largeBuffer = maxCommand
	keepOut     = 4 << 10   // up to which size the room for answers is kept
	keepArgs    = 128       // for how many arguments room is kept
	chunkSize   = 32 << 10  // answers are handed on when there are so many bytes
	maxUnread   = 512 << 10 // answers that wait for the client to read
	maxGuesses  = 3         // wrong passwords of a connection
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

var (
	errClosing = errors.New("the server is closing")
	errMemory  = errors.New("the memory for connections is used up")
	errUnread  = errors.New("the answers are not read")
	errGuesses = errors.New("too many wrong passwords")
	errRevoked = errors.New("the password of the connection is no longer good")
)

// conn is a connection. Only its own goroutine touches it, except nc.
type conn struct {
	*Server // not through the asker: the outbox uses it beside the goroutine that changes askers
	*asker
	nc net.Conn
	parser
	small  []byte
	large  *[largeBuffer]byte // nil if small is in use
	hungry bool               // the last read filled all the room that it had
	busy   bool               // reads were more than small holds, or nearly, until now

	out      []byte // answers that are not on their way
	outTaken int    // bytes of memory taken for out
	outbox   *outbox

	batch batch

	heard      bool       // a command has come
	late       shed.Batch // of commands that decide
	since      time.Time
	readUntil  time.Time
	writeUntil time.Time

	resp3     bool
	trusted   bool // of the peer, before AUTH
	authed    bool
	unwatch   func()      // of the password by which it is; nil for none
	revoked   atomic.Bool // that is no longer good
	guesses   int
	id        int64
	name, lib string
	quit      bool
	commands  uint64 // that decide nothing, not added to the counts yet
}

func (s *Server) newConn(nc net.Conn) *conn {
	s.accepted.Add(1)
	c := &conn{Server: s, asker: &asker{Server: s}, nc: nc, id: s.lastClient.Add(1)}
	c.most, c.mostArgs = maxCommand, maxArgs
	if s.o.Required {
		c.most, c.mostArgs = maxStrangerCommand, maxStrangerArgs
	}
	return c
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// Drain implements listen.Conn: a read that waits for the next command returns.
func (c *conn) Drain() { _ = c.nc.SetReadDeadline(longAgo) }

// revoke ends the connection, since its password is no longer good.
func (c *conn) revoke() {
	c.revoked.Store(true)
	_ = c.nc.SetReadDeadline(longAgo)
}

// stopWatch ends the watching of the password.
func (c *conn) stopWatch() {
	if c.unwatch != nil {
		c.unwatch()
		c.unwatch = nil
	}
}

// Close implements listen.Conn.
func (c *conn) Close() error { return c.nc.Close() }

// Serve implements listen.Conn.
func (c *conn) Serve() {
	defer func() {
		if p := recover(); p != nil { // a defect of ours must not end the process
			c.defect(p)
		}
		_ = c.nc.Close()
		c.stopWatch()
		if c.outbox != nil {
			c.outbox.close()
		}
	}()
	if !c.take(connMemory) {
		c.dropped[dropMemory].Add(1)
		_ = c.nc.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.nc.Write([]byte("-ERR " + errMemory.Error() + "\r\n"))
		_ = c.nc.Close()
		return
	}
	defer c.letGo()
	c.small, c.out = make([]byte, smallBuffer), make([]byte, 0, 512)
	c.reset(c.small)
	err := c.serve()
	c.end(err)
}

// serve reads and answers until the connection is over. It returns nil if the client said QUIT.
func (c *conn) serve() error {
	for {
		for {
			ok, err := c.parse()
			if err == nil && ok {
				err = c.command()
				c.consume()
			}
			if err != nil {
				return errors.Join(err, c.decideBatch())
			}
			if !ok || c.quit {
				break
			}
		}
		if err := c.decideBatch(); err != nil {
			return err
		}
		c.tell()
		if c.commands > 0 {
			c.others.Add(c.commands)
			c.commands = 0
		}
		if err := c.flush(); err != nil || c.quit {
			return err
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// command takes up the command that was found.
func (c *conn) command() error {
	args := c.args
	if !c.heard {
		c.heard = true
		if c.o.Trusted != nil {
			c.trusted = c.o.Trusted(c.nc.RemoteAddr().String())
		}
	}
	c.since = time.Time{}
	v := verbOf(args[0])
	switch {
	case c.o.Required && !c.authed && !opensDoors(args[0]):
		c.out = appendError(c.out, "NOAUTH Authentication required.")
	case v == noVerb:
		if err := c.decideBatch(); err != nil {
			return err
		}
		c.commands++
		if err := c.other(args); err != nil {
			return err
		}
	case c.o.Line != nil && c.late.Late(c.o.Line):
		if err := c.decideBatch(); err != nil { // which comes before
			return err
		}
		c.out = c.turnAway(c.out, v, args, c.trusted || c.authed)
	case c.lanes != nil:
		return c.decideOrWait(v, args)
	default:
		c.out = c.decide(c.out, v, args, c.trusted || c.authed)
	}
	return c.grown()
}

// grown takes memory for the growth of out, and hands answers on when they are many.
func (c *conn) grown() error {
	if n := cap(c.out); n > keepOut && n != c.outTaken {
		if !c.take(n - c.outTaken) {
			return errMemory
		}
		c.outTaken = n
	}
	if len(c.out) >= chunkSize {
		return c.handOn()
	}
	return nil
}

// dropOut forgets out, which is written.
func (c *conn) dropOut() {
	c.out = c.out[:0]
	if c.outTaken > 0 && !c.keeps() {
		c.giveBack(c.outTaken)
		c.out, c.outTaken = nil, 0
	}
}

// keeps reports whether the connection may keep large buffers until it needs them again.
func (c *conn) keeps() bool { return c.busy && c.memory.Load() < c.o.MaxMemory/2 }

// flush sends the answers. Where more commands seem to wait it does not wait for the client to read
// them: it may read none before it has written all.
func (c *conn) flush() error {
	switch {
	case len(c.out) == 0:
		return nil
	case c.hungry || c.outbox != nil && !c.outbox.idle():
		return c.handOn()
	}
	now := time.Now()
	if c.writeUntil.Sub(now) < c.o.Stall { // a deadline costs
		c.writeUntil = now.Add(c.o.Stall + c.o.Stall/4)
		if err := c.nc.SetWriteDeadline(c.writeUntil); err != nil {
			return err
		}
	}
	_, err := c.nc.Write(c.out)
	c.dropOut()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errUnread
	}
	return err
}

// fill reads more, after making room for it.
func (c *conn) fill() error {
	p := &c.parser
	if p.w == 0 && cap(p.spans) > keepArgs && !c.keeps() {
		p.args, p.spans = nil, nil
	}
	switch {
	case p.w == 0 && c.large != nil && !c.hungry && !c.keeps():
		c.putLarge()
	case c.large == nil && (c.hungry || p.w == len(p.buf) && p.r == 0):
		if !c.take(largeBuffer) {
			return errMemory
		}
		c.large = largeBuffers.Get().(*[largeBuffer]byte)
		p.w = copy(c.large[:], p.buf[p.r:p.w])
		p.r, p.buf = 0, c.large[:]
	case p.r > 0:
		p.w = copy(p.buf, p.buf[p.r:p.w])
		p.r = 0
	}
	if err := c.wait(); err != nil {
		return err
	}
	c.late.End(c.o.Line)
	n, err := c.nc.Read(p.buf[p.w:])
	if err != nil && c.revoked.Load() {
		return errRevoked
	}
	p.w += n
	c.hungry = p.w == len(p.buf)
	c.busy = c.hungry || n > smallBuffer || c.busy && n > smallBuffer/4
	if n > 0 {
		return nil // the error, if there is one, comes again
	}
	return err
}

func (c *conn) putLarge() {
	if c.large != nil {
		// else the views would hold the buffer when the pool has let go of it
		clear(c.args[:cap(c.args)])
		largeBuffers.Put(c.large)
		c.giveBack(largeBuffer)
		c.large = nil
		c.buf = c.small
	}
}

// wait sets how long the next read may take.
func (c *conn) wait() error {
	now := time.Now()
	until := now.Add(idle)
	switch {
	case c.w > 0:
		if c.since.IsZero() {
			c.since = now
		}
		until = c.since.Add(c.o.Patience)
	case !c.heard:
		until = now.Add(c.o.Patience)
	}
	// Idle connections need no exact time, and a deadline costs.
	if until.Before(c.readUntil) || until.Sub(c.readUntil) > idle/8 {
		c.readUntil = until
		if err := c.nc.SetReadDeadline(until); err != nil {
			return err
		}
	}
	if c.conns.Closing() { // Shutdown's deadline may have been overwritten
		return errClosing
	}
	if c.revoked.Load() { // likewise
		return errRevoked
	}
	return nil
}

// end closes the connection, after telling the client why.
func (c *conn) end(err error) {
	last, linger := "", false
	switch bad, isBad := errors.AsType[protocolError](err); {
	case isBad && bad == errOther:
		c.dropped[dropOther].Add(1)
	case isBad:
		c.dropped[dropProtocol].Add(1)
		last, linger = "ERR "+bad.Error(), true
	case errors.Is(err, errMemory):
		c.dropped[dropMemory].Add(1)
		last, linger = "ERR "+errMemory.Error(), true
	case errors.Is(err, errGuesses) || errors.Is(err, errRevoked):
		c.dropped[dropAuth].Add(1)
	case errors.Is(err, errUnread) ||
		errors.Is(err, os.ErrDeadlineExceeded) && !c.conns.Closing() && (c.w > 0 || !c.heard):
		c.dropped[dropSlow].Add(1)
	case errors.Is(err, os.ErrDeadlineExceeded) && !c.conns.Closing():
		c.dropped[dropIdle].Add(1)
	}
	if last != "" {
		c.out = appendError(c.out, last)
		c.hungry = false
	}
	if len(c.out) > 0 && (err == nil || linger || errors.Is(err, errGuesses)) {
		_ = c.flush()
	}
	if c.outbox != nil {
		if c.outbox.close(); errors.Is(c.outbox.err, errUnread) && !errors.Is(err, errUnread) {
			c.dropped[dropSlow].Add(1) // the reader heard only that the connection was closed
		}
	}
	if linger || err == nil {
		c.sayGoodbye()
	}
}

// letGo gives back the connection's memory, and adds its counts to the server's.
func (c *conn) letGo() {
	c.putLarge()
	c.giveBack(connMemory + c.outTaken)
	c.tell()
	c.others.Add(c.commands)
}

// How long, and for how many bytes, a connection is read on after its last answer.
const (
	lingerFor   = 100 * time.Millisecond
	lingerBytes = 256 << 10
)

// sayGoodbye lets the client read its last answer: a connection that is closed while bytes of the
// client's are unread is reset, and the answer may be lost.
func (c *conn) sayGoodbye() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if c.nc.SetReadDeadline(time.Now().Add(lingerFor)) != nil || c.conns.Closing() {
		return
	}
	_, _ = io.CopyN(io.Discard, onlyReader{c.nc}, lingerBytes)
}

// onlyReader hides what else a connection can do, which would copy with buffers of its own choice.
type onlyReader struct{ io.Reader }
