package h2

import (
	"context"
	"maps"
	"slices"
	"time"
)

// All memory that the connections of a server make the process keep is in one budget,
// Options.MaxMemory: bodies and answers (Server.held, counted as they come and go), and requests
// with the needs of their handlers, and buffers (Server.kept, counted once a batch). Each cost is
// an upper estimate. An open connection that keeps nothing is not in it: MaxConnections bounds
// those.
//
// No connection may keep more than a quarter of the budget: then its next request is refused. So it
// is when its client (see client) would keep more than all together leave of the first five
// eighths, unless that would be little: an eighth as much as another client keeps, or leastShare. A
// connection that keeps no more than leastShare itself may begin requests while all together keep
// half.
// So clients that are as greedy as each other get an even share, and nobody's connection is ended.
// When all keep more than three quarters, since bodies have come or clients that keep little need
// room, connections are ended with ENHANCE_YOUR_CALM, one after the other, always one of the client
// that keeps most. The last quarter is for memory that has not been given back yet: handlers may
// take a moment to notice that nobody waits for them. When that is used up too, requests wait for
// it.
//
// Requests that go on when their connections have ended count for their clients. They are the first
// to be ended, so that they take nothing of the share of others.

// Costs of a request beside its fields.
const (
	// streamCost is a stream, a request, and their places in maps.
	streamCost = 1 << 10
	// handlerCost is a goroutine with its stack, an http.Request, a response, and the copies that a
	// handler such as the proxy makes of these.
	handlerCost = 16 << 10
	// bodyCost bounds the part of a body in a handler's own buffers.
	bodyCost = 96 << 10
	// streamingCost is the same for a body of unknown length.
	streamingCost = 32 << 10
	// writeCost is the memory of a handler whose answer waits for the client.
	writeCost = 32 << 10
	// fieldCost is the memory of a field beside its text, in a request and in a map.
	fieldCost = 96
	// settleStep is how much a connection may keep before it reports that to the server.
	settleStep = 256 << 10
	// leastShare is how much a client may keep however much others do, or a 1,024th of all.
	leastShare = 64 << 10
)

// headCost is the cost of a header of so many fields, whose size is counted as in
// SETTINGS_MAX_HEADER_LIST_SIZE. Its text may be there three times: as it came, in the map, and as
// the proxy sends it on.
func headCost(fields, size int) int { return 3*size + fieldCost*fields }

// cost is what r makes the process keep while it is under way. end says that it has no body.
func (s *Server) cost(r *request, end bool) int {
	n := streamCost
	if r.unary != nil {
		if !r.shared {
			n += headCost(len(r.fields), r.size)
		}
		return n
	}
	n += handlerCost + headCost(len(r.fields), r.size)
	switch {
	case end || s.o.Methods != nil:
	case r.length < 0:
		n += streamingCost
	default:
		n += int(min(r.length, bodyCost))
	}
	return n
}

// memory is what of a connection is in Server.kept. conn.mu guards it.
type memory struct {
	heads  int // of requests under way, and answers that wait
	reader int // buffers and such that the reader keeps
	told   int // as last reported to the server

	heldBefore int  // conn.held at the end of the last batch
	leaving    bool // the connection is being ended: its memory is in Server.leaving

	share     int  // its part of client.keeps
	left      int  // its part of Server.left
	forgotten bool // by its client

	bearable context.Context    // ends when leaving begins; nil before somebody asks
	enough   context.CancelFunc // of bearable
	behind   bool               // it has ended, and keeps something all the same: see Server.behind
}

// raiseMost notes how much a client keeps.
func (s *Server) raiseMost(w *client) {
	for n := w.keeps.Load(); ; {
		most := s.most.Load()
		if n <= most || s.most.CompareAndSwap(most, n) {
			return
		}
	}
}

// roomFor reports whether c may keep n bytes more. mu must be held.
func (c *conn) roomFor(n int) bool {
	most := c.s.o.MaxMemory
	return c.held+c.heads+n <= most/4 && c.s.held.Load()+c.s.kept.Load()+int64(n) <= int64(most)
}

// awaitRoom waits, for a second at most and once in a batch, until connections that are being ended
// have given back their memory, if nothing else is in the way. mu must be held; it is released
// meanwhile.
func (c *conn) awaitRoom(n int) {
	s := c.s
	if c.awaited {
		return
	}
	c.awaited = true
	for range 100 {
		if c.leaving || c.held+c.heads+n > s.o.MaxMemory/4 || c.roomFor(n) {
			return
		}
		c.mu.Unlock()
		s.relieve()
		s.awaiting.Add(1)
		select {
		case <-s.freed:
		case <-time.After(10 * time.Millisecond):
		}
		s.awaiting.Add(-1)
		c.mu.Lock()
	}
}

// keep counts n bytes of a request's header. It reports whether somebody has to be ended for that,
// which Server.relieve does once mu is free. mu must be held.
func (c *conn) keep(st *stream, n int) (pressed bool) {
	st.head += n
	c.heads += n
	return c.heads+c.reader-c.told >= settleStep && c.settle()
}

// dropHead gives back what st was counted with, when neither its client nor a goroutine has it any
// more. mu must be held.
func (c *conn) dropHead(st *stream) {
	c.heads -= st.head
	st.head = 0
}

// settle reports to the server how much c keeps. It returns whether somebody has to be ended for
// that. mu must be held.
func (c *conn) settle() (pressed bool) {
	change := c.heads - c.told
	if !c.dead { // else its buffers are about to go
		change += c.reader + max(0, cap(c.out)+cap(c.spare)-2*minInput)
	}
	if change == 0 {
		c.tellClient() // of bodies and answers
		return false
	}
	c.told += change
	c.tellClient()
	c.s.kept.Add(int64(change))
	if c.leaving {
		c.s.leaving.Add(int64(change))
	}
	if c.dead {
		c.s.leaveBehind(c)
	} else if change > 0 {
		c.s.raiseMost(c.client)
	}
	if change < 0 && c.s.awaiting.Load() > 0 {
		select {
		case c.s.freed <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
	return change > 0 && c.s.pressed()
}

// settleReader is settle for the reader, which knows its own memory. It is called at the end of
// each batch, and looks at bodies and answers, too, which the server knows of already.
func (c *conn) settleReader() (pressed bool) {
	c.reader = len(c.in) - minInput + cap(c.block) + cap(c.scratch) + cap(c.plain) + len(c.freeStreams)*streamCost/2 +
		c.headers.spare()
	more := c.held > c.heldBefore
	c.heldBefore = c.held
	pressed = c.settle()
	if more {
		c.s.raiseMost(c.client)
	}
	return pressed || more && c.s.pressed()
}

// trim drops the reader's spare memory.
func (c *conn) trim() {
	c.freeStreams, c.scratch, c.plain = nil, nil, nil
	c.headers.more = nil
	if c.headers.free = nil; c.blockID == 0 {
		c.block = nil
	}
	c.headers.forget()
}

// pressed reports whether the connections, without those that are being ended, keep more than they
// may in the long run.
func (s *Server) pressed() bool { return s.keeps() > int64(s.o.MaxMemory)*3/4 }

func (s *Server) keeps() int64 { return s.held.Load() + s.kept.Load() - s.leaving.Load() }

// relieve ends connections until an eighth of the budget is free again for those that keep little.
func (s *Server) relieve() {
	s.relieving.Lock()
	defer s.relieving.Unlock()
	if !s.pressed() {
		return // another one was quicker
	}
	low := int64(s.o.MaxMemory) * 5 / 8
	for _, c := range s.leftBehind() { // for whose requests nobody waits
		if s.keeps() > low {
			c.calm()
		}
	}
	for all := greediest(s.sessions.AppendConns(nil)); s.keeps() > low; {
		c := next(&all)
		if c == nil {
			return
		}
		c.calm()
	}
}

// calm ends a connection that keeps too much, from any goroutine, and what requests keep that go on
// without their clients.
func (c *conn) calm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving || c.dead && !c.behind {
		return
	}
	c.settle()
	kept := c.held + c.told
	c.leaving = true
	if c.enough != nil {
		c.enough() // before the streams are aborted
	}
	c.s.leaving.Add(int64(kept))
	c.s.overMemory.connections.Add(1)
	if n := c.s.overMemory.told.Due(time.Minute); n > 0 {
		c.s.o.Logger.Warn(
			"HTTP/2 connections were ended, since they kept most of the memory that all may take (limits.memory)",
			"peer", c.remote, "bytes", kept, "connections", n)
	}
	if c.dead {
		c.tellClient()
		c.s.leaveBehind(c)
		return
	}
	c.out = appendGoAway(c.out, c.lastID, enhanceYourCalm, "this connection makes the server keep too much")
	c.draining = hangingUp
	for _, st := range c.streams {
		st.abort()
		c.close(st)
	}
	c.settle()
	// The reader says the rest. It may be waiting to read, or for a client that takes nothing.
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.s.linger))
}

// saidCalm ends the connection after calm, and reports whether there was one.
func (c *conn) saidCalm() bool {
	c.mu.Lock()
	if !c.leaving {
		c.mu.Unlock()
		return false
	}
	c.in, c.r, c.w, c.blockID = make([]byte, minInput), 0, 0, 0
	c.trim()
	c.settleReader()
	c.flushAll()
	c.mu.Unlock()
	c.linger()
	return true
}

// KeptWhile returns a context that ends when the connection of a request, by its context, makes the
// server keep too much. A handler that goes on when its client has hung up is to end then, also if
// the connection has ended before. It is nil if the request came over another protocol.
func KeptWhile(ctx context.Context) context.Context {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bearable == nil {
		c.bearable, c.enough = context.WithCancel(context.Background())
		if c.leaving {
			c.enough()
		}
	}
	return c.bearable
}

// leaveBehind notes what c, which is dead, keeps all the same. mu must be held.
func (s *Server) leaveBehind(c *conn) {
	left := c.told
	if c.leaving {
		left = 0
	}
	s.left.Add(int64(left - c.left))
	c.left = left
	if c.held+c.told == 0 && !c.forgotten {
		c.forgotten = true
		s.forget(c.client)
	}
	if keeps := c.heads > 0; keeps != c.behind {
		c.behind = keeps
		s.behind.Lock()
		defer s.behind.Unlock()
		if keeps {
			s.behind.conns[c] = true
		} else {
			delete(s.behind.conns, c)
		}
	}
}

// leftBehind returns the connections that have ended, and keep something all the same.
func (s *Server) leftBehind() []*conn {
	s.behind.Lock()
	defer s.behind.Unlock()
	return slices.Collect(maps.Keys(s.behind.conns))
}

// MemoryStats is how much a server keeps for its connections, and how often that was too much.
type MemoryStats struct {
	Bytes       int64  // kept now
	Connections uint64 // that were ended, since they kept most
	Requests    uint64 // that were refused, since their connection kept its share, or all of it was used up
}

// Memory reads the counters.
func (s *Server) Memory() MemoryStats {
	return MemoryStats{s.held.Load() + s.kept.Load(), s.overMemory.connections.Load(), s.overMemory.requests.Load()}
}

// midHeader reports whether the header of a request has begun to come in, and not ended.
func (c *conn) midHeader() bool {
	if c.blockID != 0 {
		return true
	}
	return c.w-c.r > 3 && (c.in[c.r+3] == frameHeaders || c.in[c.r+3] == frameContinuation)
}
