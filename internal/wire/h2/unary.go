package h2

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// prefixLen is the length of the prefix of each message: a flag for compression, and the message's
// length.
const prefixLen = 5

// collect keeps a part of a unary request whose body is not complete, and opens the window for the
// rest. It returns the status with which to refuse the call, or nil. mu must be held.
func (c *conn) collect(st *stream, p []byte) *Status {
	if len(p) > 0 {
		if !c.hold(st, len(p)) {
			return &Status{codeResourceExhausted,
				"too many requests are under way whose messages have not come in whole"}
		}
		st.in = append(st.in, p...)
	}
	if st.need == 0 && len(st.in) >= prefixLen {
		size := int64(binary.BigEndian.Uint32(st.in[1:]))
		if size > int64(c.s.o.MaxMessage) {
			return tooLarge(size, c.s.o.MaxMessage)
		}
		st.need = prefixLen + int(size)
		if more := st.need - len(st.in) - st.recvWindow; more > 0 {
			st.waits = true
			st.granted = more
			c.waiting = append(c.waiting, st)
			c.grantWaiting()
		}
	}
	if st.need > 0 && len(st.in) > st.need {
		return &Status{codeInternal, "the request of a unary call holds more than one message"}
	}
	return nil
}

func tooLarge(size int64, most int) *Status {
	return &Status{codeResourceExhausted, fmt.Sprintf("received message larger than max (%d vs. %d)", size, most)}
}

// grantWaiting opens windows for large messages, one after the other, as far as there is room. The
// one that is granted can always come in whole, so that messages never wait for each other. mu must
// be held.
func (c *conn) grantWaiting() {
	for len(c.waiting) > 0 {
		st := c.waiting[0]
		if c.granted > 0 && c.granted+st.granted > maxGranted {
			return
		}
		c.granted += st.granted
		st.recvWindow += st.granted
		st.waits = false
		c.out = appendWindowUpdate(c.out, st.id, st.granted)
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
	}
	c.waiting = nil
}

// unary answers a unary call whose body is complete. The reader calls it.
func (c *conn) unary(st *stream, body []byte) {
	if c.s.o.Line != nil && c.late.Late(c.s.o.Line) {
		c.turn(st)
		return
	}
	c.call.request, c.call.conn = st.request, c
	var refused *Status
	if c.call.Message, refused = c.message(st.request, body); refused != nil {
		c.reply(st, nil, *refused)
		return
	}
	out, status, rest := c.s.run(c.ctx, st.request.unary, &c.call, c.scratch[:0])
	if rest != nil {
		c.queueJob(st, rest, len(c.call.Message))
	} else {
		c.reply(st, out, status)
	}
	c.call = Call{}
	if c.scratch = out; cap(out) > maxKept {
		c.scratch = nil
	}
	if cap(c.plain) > maxKept {
		c.plain = nil
	}
}

// reply answers a call on the reader.
func (c *conn) reply(st *stream, out []byte, s Status) {
	c.mu.Lock()
	c.answer(st, out, s)
	c.chatter = max(c.chatter-chatterPerCall, 0)
	if len(c.out) >= maxOut/2 {
		c.flush()
	}
	c.recycle(st)
	c.mu.Unlock()
}

// run calls a method. A panic is a defect of ours, which must not end the process.
func (s *Server) run(ctx context.Context, f Unary, call *Call, in []byte) (out []byte, status Status, rest Rest) {
	defer func() {
		if p := recover(); p != nil {
			s.defect(p)
			out, status, rest = nil, Status{codeInternal, "internal error"}, nil
		}
	}()
	return f(ctx, call, in)
}

// runRest is run for the rest of a call.
func (s *Server) runRest(ctx context.Context, rest Rest, in []byte) (out []byte, status Status) {
	defer func() {
		if p := recover(); p != nil {
			s.defect(p)
			out, status = nil, Status{codeInternal, "internal error"}
		}
	}()
	return rest.Answer(ctx, in)
}

// message returns the one message in body, or the status with which to refuse the call. The message
// may lie in c.plain.
func (c *conn) message(r *request, body []byte) ([]byte, *Status) {
	if len(body) < prefixLen {
		return nil, &Status{codeInternal, "the request of a unary call ends before its message"}
	}
	size := int64(binary.BigEndian.Uint32(body[1:]))
	switch {
	case size > int64(c.s.o.MaxMessage):
		return nil, tooLarge(size, c.s.o.MaxMessage)
	case size > int64(len(body)-prefixLen):
		return nil, &Status{codeInternal, "the request of a unary call ends before its message"}
	case size < int64(len(body)-prefixLen):
		return nil, &Status{codeInternal, "the request of a unary call holds more than one message"}
	}
	compressed := body[0]
	body = body[prefixLen:]
	switch {
	case compressed == 0:
		return body, nil
	case compressed != 1:
		return nil, &Status{codeInternal, fmt.Sprintf("received unexpected payload format %d", compressed)}
	case r.encoding == "" || r.encoding == "identity":
		return nil, &Status{codeInternal, "compressed flag set with identity or empty encoding"}
	case r.encoding != "gzip":
		return nil, &Status{codeUnimplemented,
			"messages cannot be compressed with " + strconv.Quote(r.encoding) + ", but with gzip"}
	}
	plain, refused := c.s.gunzip(c.plain[:0], body)
	c.plain = plain
	return plain, refused
}

var gzipReaders sync.Pool

// gunzip decompresses b into a buffer that is appended to out.
func (s *Server) gunzip(out, b []byte) ([]byte, *Status) {
	broken := func(err error) ([]byte, *Status) {
		return nil, &Status{codeInternal, "the message cannot be decompressed: " + err.Error()}
	}
	source := bytes.NewReader(b)
	z, _ := gzipReaders.Get().(*gzip.Reader)
	var err error
	if z == nil {
		z, err = gzip.NewReader(source)
	} else {
		err = z.Reset(source)
	}
	if err != nil {
		return broken(err)
	}
	defer gzipReaders.Put(z)
	buffer := bytes.NewBuffer(out)
	n, err := buffer.ReadFrom(io.LimitReader(z, int64(s.o.MaxMessage)+1))
	if n > int64(s.o.MaxMessage) {
		return nil, &Status{codeResourceExhausted,
			fmt.Sprintf("received message after decompression larger than max %d", s.o.MaxMessage)}
	}
	if err != nil {
		return broken(err)
	}
	return buffer.Bytes(), nil
}

// refuse answers a request from its header alone, with an HTTP status and a gRPC one. A call of
// gRPC gets 200, as its clients look at no other status then.
func (c *conn) refuse(st *stream, httpStatus int, s Status) error {
	c.mu.Lock()
	if !st.closed {
		start := len(c.out)
		c.out = append(c.out, frameRoom[:]...)
		call := isGRPC(st.request.contentType)
		if call {
			httpStatus = http.StatusOK
		}
		c.out = appendStatus(c.enc.begin(c.out), httpStatus)
		if call || c.s.o.Methods != nil {
			c.out = c.enc.appendContentType(c.out, grpcContentType)
			c.out = c.enc.appendGRPCStatus(c.out, s)
		}
		c.sealBlock(start, st.id, true)
		c.finish(st)
	}
	c.mu.Unlock()
	return c.spend(1, "too many requests are refused")
}

// job is a unary call that goes on on a worker.
type job struct {
	c    *conn
	st   *stream
	ctx  context.Context
	rest Rest
	held int // bytes as in Options.MaxBuffered, which last for longer than the stream may
	out  []byte
}

var jobs = sync.Pool{New: func() any { return new(job) }}

// queueJob has a worker answer the rest of a call, which holds so many bytes.
func (c *conn) queueJob(st *stream, rest Rest, size int) {
	c.mu.Lock()
	if st.closed {
		c.mu.Unlock()
		rest.Abandon()
		return
	}
	c.letGo(st, st.held)
	if !c.holdBytes(size) {
		c.answer(st, nil, Status{codeResourceExhausted, "too many requests are under way"})
		c.mu.Unlock()
		rest.Abandon()
		return
	}
	j := jobs.Get().(*job)
	j.c, j.st, j.rest, j.held = c, st, rest, size
	if r := st.request; r.hasTimeout {
		j.ctx, st.cancel = context.WithTimeout(c.ctx, r.timeout)
	} else {
		j.ctx, st.cancel = context.WithCancel(c.ctx)
	}
	st.async = true
	st.in = nil
	c.jobs++
	c.mu.Unlock()
	if c.ready = append(c.ready, j); len(c.ready) == maxReady {
		c.handOver()
	}
}

// maxReady is how many calls are gathered before they go to workers: waking workers one at a time
// costs more than the call, and no call is to wait long.
const maxReady = 32

// handOver gives workers the calls that were gathered.
func (c *conn) handOver() {
	if len(c.ready) == 0 {
		return
	}
	c.s.jobs.Put(c.late.Since(c.now()), c.ready...)
	for range c.ready {
		select {
		case c.s.wake <- struct{}{}: // a worker is idle
		default:
			go c.s.work()
		}
	}
	clear(c.ready)
	c.ready = c.ready[:0]
}

// maxIdle is how many workers wait for calls, and how many goroutines for requests for the handler.
// They keep the stacks that they have grown.
const maxIdle = 256

// work answers a call and then, for as long as the server runs, others that come while it is idle.
// Each worker that is started or woken takes one, the oldest.
func (s *Server) work() {
	for {
		s.runJob(s.jobs.Take())
		if s.idle.Add(1) > maxIdle {
			s.idle.Add(-1)
			return
		}
		select {
		case <-s.wake:
			s.idle.Add(-1)
		case <-s.ctx.Done():
			s.idle.Add(-1)
			return
		}
	}
}

// flushTogether writes the answers of workers and handlers. A store over a network answers many
// calls at once, so where others of the connection are under way, those that are ready to run have
// their turn first, and one write takes the answers of all. A single call would only lose time.
// While all processors are busy, a goroutine that gave its turn away may have none for long; then
// another one writes. mu must be held; it is released meanwhile.
func (c *conn) flushTogether(others bool) {
	switch {
	case c.flushing:
		if others && time.Since(c.flushAt) < together {
			return
		}
		c.flushAt = time.Now()
	case others && !c.writing:
		c.flushing, c.flushAt = true, time.Now()
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
		c.flushing = false
	}
	c.flush()
}

// together is how long answers wait for others, to be written with them.
const together = 3 * time.Millisecond

// runJob answers j, or turns it away.
func (s *Server) runJob(j *job, late bool) {
	c, st := j.c, j.st
	var out []byte
	var status Status
	if late {
		j.rest.Abandon()
		s.o.Line.Turned(1)
		out, status = s.o.Turn(j.out[:0])
	} else {
		out, status = s.runRest(j.ctx, j.rest, j.out[:0])
	}
	c.mu.Lock()
	c.letGoBytes(j.held)
	st.async = false
	if st.closed {
		c.orphans--
		c.dropHead(st)
	} else {
		c.answer(st, out, status)
		c.repaid++
	}
	st.cancel()
	c.jobs--
	c.flushTogether(c.jobs > 0)
	c.settle()
	c.mu.Unlock()
	j.out = out
	j.c, j.st, j.ctx, j.rest = nil, nil, nil, nil
	if cap(j.out) <= maxKept {
		jobs.Put(j)
	}
}
