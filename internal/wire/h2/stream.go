package h2

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// stream is one request and its answer.
type stream struct {
	id      uint32
	request *request

	// conn.mu guards all fields below, except a unary call's fields while its message is answered.
	began        time.Time
	hasBody      bool  // the header did not end the stream
	remoteClosed bool  // the client has sent all
	received     int64 // bytes of the body, without padding
	recvWindow   int
	in           []byte // of the body of a unary call, which is not yet complete
	parts        *part  // the unread part of the body of a handler's request
	lastPart     *part
	unread       int  // bytes in parts
	need         int  // bytes of a unary request, as its prefix says; 0 while that has not come
	granted      int  // bytes of window beyond the initial one
	waits        bool // for more window: it is in conn.waiting
	held         int  // bytes as in Options.MaxBuffered
	head         int  // what its header is counted with, as in memory.heads

	sendWindow int
	out        []byte // of the answer, not yet sent
	queued     bool   // it is in conn.queue
	trailOK    bool   // after out comes grpc-status: 0
	last       bool   // after out, or with it, ends a handler's answer
	trail      []byte // with these trailers

	answering bool // the header of a handler's answer is sent
	closed    bool // it is answered or reset: nothing is sent any more
	async     bool // a worker or handler has it
	cancel    context.CancelFunc
	cond      sync.Cond // of a handler that waits to read or write; L is conn.mu

	trailer               http.Header   // of the request, for a handler
	late                  bool          // the deadline of reading its body has passed
	readBy                time.Time     // that deadline; zero for none
	shut                  time.Duration // Window.Shut when it was set
	wakeAt                time.Time     // when readTimer wakes who waits; zero for never
	readTimer, writeTimer *time.Timer   // of the handler's deadlines
}

func (st *stream) contentType() string {
	if st.request == nil || st.request.contentType == "" {
		return grpcContentType
	}
	return st.request.contentType
}

// openStream makes a stream; nil if there are too many. mu must be held.
func (c *conn) openStream(id uint32, r *request, end bool) *stream {
	if len(c.streams)+c.orphans >= c.s.o.MaxStreams {
		return nil
	}
	var st *stream
	if n := len(c.freeStreams); n > 0 {
		st = c.freeStreams[n-1]
		c.freeStreams = c.freeStreams[:n-1]
	} else {
		st = new(stream)
		st.cond.L = &c.mu
	}
	st.id, st.request, st.remoteClosed, st.hasBody = id, r, end, !end
	st.recvWindow, st.sendWindow = c.s.o.Window, c.initialWindow
	if !c.acked {
		st.recvWindow = defaultWindow
	}
	c.streams[id] = st
	return st
}

// recycle takes back a stream that is closed and that only the reader knows of.
func (c *conn) recycle(st *stream) {
	if !st.closed || st.queued || st.waits || st.async {
		return
	}
	c.headers.release(st.request)
	if len(c.freeStreams) < 64 {
		*st = stream{}
		st.cond.L = &c.mu
		c.freeStreams = append(c.freeStreams, st)
	}
}

// close forgets a stream. mu must be held.
func (c *conn) close(st *stream) {
	if st.closed {
		return
	}
	st.closed = true
	delete(c.streams, st.id)
	if st.async {
		c.orphans++ // until its goroutine is done
	} else {
		c.dropHead(st)
	}
	c.letGo(st, st.held)
	if st.queued {
		c.unqueue(st)
	}
	switch {
	case st.waits:
		st.waits = false
		c.waiting = slices.DeleteFunc(c.waiting, func(other *stream) bool { return other == st })
		c.grantWaiting()
	case st.granted > 0:
		c.granted -= st.granted
		c.grantWaiting()
	}
	if st.request.unary == nil {
		c.unread -= st.unread
		c.openWindow()
		for st.unread = 0; st.parts != nil; {
			st.dropPart()
		}
	}
	st.in, st.out = nil, nil
	c.note(st.id, false).window = st.recvWindow
	st.cond.Broadcast()
	c.hangUpIfDone()
}

// abort cancels the call that runs on a stream.
func (st *stream) abort() {
	if st.cancel != nil {
		st.cancel()
	}
}

// note remembers how a stream was closed. mu must be held.
func (c *conn) note(id uint32, ours bool) *closedStream {
	last := &c.recent[(c.recentAt+len(c.recent)-1)%len(c.recent)]
	if last.id != id {
		last = &c.recent[c.recentAt]
		*last = closedStream{id: id}
		c.recentAt = (c.recentAt + 1) % len(c.recent)
	}
	last.ours = ours
	return last
}

// isIdle reports whether the client cannot have opened the stream. One that it opened after we
// stopped to look is not idle. mu must be held.
func (c *conn) isIdle(id uint32) bool {
	return id%2 == 0 || id > c.lastID && c.draining < closing
}

// closedLately looks for a stream among those closed recently; nil if it is not there. mu must be
// held.
func (c *conn) closedLately(id uint32) *closedStream {
	for i := range c.recent {
		if r := &c.recent[i]; r.id == id {
			return r
		}
	}
	return nil
}

// hold counts n bytes that are kept for st; false if there is no room for them. mu must be held.
func (c *conn) hold(st *stream, n int) bool {
	if !c.holdBytes(n) {
		return false
	}
	st.held += n
	return true
}

func (c *conn) holdBytes(n int) bool {
	if c.held+n > c.s.o.MaxBuffered/4 || c.held+c.heads+n > c.s.o.MaxMemory/4 || !c.s.hold(n) {
		return false
	}
	c.held += n
	if c.leaving {
		c.s.leaving.Add(int64(n))
	}
	return true
}

func (c *conn) letGoBytes(n int) {
	c.held -= n
	c.s.held.Add(-int64(n))
	if c.leaving {
		c.s.leaving.Add(-int64(n))
	}
}

// letGo gives n bytes of st back. mu must be held.
func (c *conn) letGo(st *stream, n int) {
	if n > 0 {
		st.held -= n
		c.letGoBytes(n)
	}
}

// resetStream ends a stream with an error.
func (c *conn) resetStream(id uint32, code errorCode) error {
	c.mu.Lock()
	c.resetLocked(id, code)
	c.mu.Unlock()
	return c.spend(2, "too many streams with errors")
}

func (c *conn) resetLocked(id uint32, code errorCode) {
	c.out = appendReset(c.out, id, code)
	if st := c.streams[id]; st != nil {
		st.abort()
		c.close(st)
	}
	c.note(id, true)
}
