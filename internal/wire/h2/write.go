package h2

import (
	"math"
	"strconv"

	"github.com/weir-rl/weir/internal/util/chars"
)

// flush writes the contents of out. If another goroutine is writing, that one writes this as well.
// What others add meanwhile is written by a goroutine of its own, once it is more than a little: a
// long answer would keep the caller, who may be the reader or the handler of another stream, for as
// long as it takes. flush releases mu while it writes. mu must be held.
func (c *conn) flush() {
	if c.writeOut(maxOut) {
		c.flushSoon()
	}
}

// flushAll is flush, and waits until there is nothing left to write. mu must be held.
func (c *conn) flushAll() {
	for c.failed == nil && (c.writing || len(c.out) > 0) {
		if c.writeOut(math.MaxInt); c.writing {
			c.drained.Wait()
		}
	}
}

// flushSoon has another goroutine flush, for one that must not wait. mu must be held.
func (c *conn) flushSoon() {
	if !c.writing {
		c.s.all.Go(func() {
			c.mu.Lock()
			c.writeOut(math.MaxInt)
			c.mu.Unlock()
		})
	}
}

// writeOut writes until out is empty, or so many bytes are written; then it reports that there are
// more. mu must be held; it is released meanwhile.
func (c *conn) writeOut(most int) (more bool) {
	for !c.writing && len(c.out) > 0 && c.failed == nil {
		if most <= 0 {
			return true
		}
		most -= len(c.out)
		c.writing = true
		c.writes++
		out := c.out
		c.out, c.spare = c.spare[:0], nil
		c.mu.Unlock()
		_, err := c.nc.Write(out)
		c.mu.Lock()
		c.writing = false
		if cap(out) <= 2*maxOut {
			c.spare = out[:0]
		}
		if err != nil {
			c.failed = err
			_ = c.nc.Close() // which ends the reader
		}
		if len(c.queue) > 0 {
			c.pump()
		}
		c.drained.Broadcast()
	}
	if c.failed != nil {
		c.out = c.out[:0]
	}
	return false
}

// encoder writes the header blocks of answers. It keeps in the client's dynamic table the fields
// that every successful answer has, and the fields of one other status: calls that are turned away
// come by the hundred thousand, and each is to cost next to nothing. The zero value is ready.
type encoder struct {
	inserted    int  // fields in the table
	contentType int  // content-type: application/grpc is the field of this number, from 1; 0: none
	statusOK    int  // grpc-status: 0; likewise
	often       int  // likewise grpc-status of oftenStatus; the next is its grpc-message
	unary       bool // the fields in the table belong to unary calls only
	total       int  // bytes of all that was ever put into the table
	slots       *slots
	literal     bool // the client's table is too small, or once was
	shrink      bool // the client has to learn that its table is empty

	oftenStatus Status // to be kept in the table
}

// The first index of the dynamic table.
const firstDynamic = 62

const grpcContentType = "application/grpc"

// tableSize applies SETTINGS_HEADER_TABLE_SIZE.
func (e *encoder) tableSize(n uint32) {
	if n < tableBytes && !e.literal {
		*e = encoder{literal: true, shrink: true}
	}
}

// begin begins a block.
func (e *encoder) begin(b []byte) []byte {
	if e.shrink {
		e.shrink = false
		return append(b, 0x20) // the table has 0 bytes from here on
	}
	return b
}

// index is where the field of a number is in the client's tables.
func (e *encoder) index(number int) int { return firstDynamic + e.inserted - number }

// appendIndexed appends the field of a number. Unary calls put few into the table, so that the
// index fits into the byte.
func (e *encoder) appendIndexed(b []byte, number int) []byte {
	return append(b, 0x80|byte(e.index(number)))
}

// insert appends a field, and puts it into the table; it returns its number.
func (e *encoder) insert(b []byte, name, value string) ([]byte, int) {
	e.inserted++
	b = append(appendInt(append(b, 0x40, 0), 7, len(name)), name...)
	return append(appendInt(append(b, 0), 7, len(value)), value...), e.inserted
}

func (e *encoder) appendContentType(b []byte, contentType string) []byte {
	switch {
	case contentType == grpcContentType && e.contentType > 0:
		return e.appendIndexed(b, e.contentType)
	case contentType == grpcContentType && !e.literal:
		e.inserted++
		e.contentType = e.inserted
		b = append(b, 0x40|31, byte(len(contentType)))
		return append(b, contentType...)
	default:
		b = appendInt(append(b, 0x0f, 31-15, 0), 7, len(contentType))
		return append(b, contentType...)
	}
}

func (e *encoder) appendStatusOK(b []byte) []byte {
	switch {
	case e.statusOK > 0:
		return e.appendIndexed(b, e.statusOK)
	case e.literal:
		return appendField(b, "grpc-status", "0")
	}
	b, e.statusOK = e.insert(b, "grpc-status", "0")
	return b
}

// appendGRPCStatus appends grpc-status and grpc-message.
func (e *encoder) appendGRPCStatus(b []byte, s Status) []byte {
	if s.Code == codeOK {
		return e.appendStatusOK(b)
	}
	keep := s == e.oftenStatus && !e.literal
	if keep && e.often > 0 {
		return e.appendIndexed(e.appendIndexed(b, e.often), e.often+1)
	}
	var digits [10]byte
	code := string(strconv.AppendUint(digits[:0], uint64(s.Code), 10))
	if keep {
		b, e.often = e.insert(b, "grpc-status", code)
		b, _ = e.insert(b, "grpc-message", chars.GRPCMessage(s.Message))
		return b
	}
	b = appendField(b, "grpc-status", code)
	if s.Message != "" {
		b = appendField(b, "grpc-message", chars.GRPCMessage(s.Message))
	}
	return b
}

// sealBlock ends a header block that was appended to c.out with room for a frame header at start.
// mu must be held.
func (c *conn) sealBlock(start int, id uint32, end bool) {
	block := c.out[start+frameHeaderLen:]
	if len(block) > maxFrame {
		c.out = appendHeaders(c.out[:start], id, append([]byte(nil), block...), end)
		return
	}
	flags := byte(flagEndHeaders)
	if end {
		flags |= flagEndStream
	}
	appendFrameHeader(c.out[:start], len(block), frameHeaders, flags, id)
}

var frameRoom [frameHeaderLen]byte

// answer answers a unary call. mu must be held.
func (c *conn) answer(st *stream, message []byte, s Status) {
	if st.closed {
		return
	}
	size := 5 + len(message)
	direct := size <= min(c.sendWindow, st.sendWindow, maxFrame) && len(c.out) < maxOut
	if s.Code == codeOK && !direct && !c.hold(st, size) {
		s = Status{codeResourceExhausted, "the answer would wait for the client, as too many do already"}
	}
	start := len(c.out)
	c.out = append(c.out, frameRoom[:]...)
	c.out = appendStatus(c.enc.begin(c.out), 200)
	c.out = c.enc.appendContentType(c.out, st.contentType())
	if s.Code != codeOK {
		c.out = c.enc.appendGRPCStatus(c.out, s)
		if s.Code == codeUnimplemented {
			c.out = appendField(c.out, "grpc-accept-encoding", "identity,gzip")
		}
		c.sealBlock(start, st.id, true)
		c.finish(st)
		return
	}
	c.sealBlock(start, st.id, false)
	if direct {
		c.sendWindow -= size
		c.out = appendFrameHeader(c.out, size, frameData, 0, st.id)
		c.out = append(c.out, 0, byte(len(message)>>24), byte(len(message)>>16), byte(len(message)>>8),
			byte(len(message)))
		c.out = append(c.out, message...)
		c.trailOK(st)
		return
	}
	st.out = make([]byte, 0, size)
	st.out = append(st.out, 0, byte(len(message)>>24), byte(len(message)>>16), byte(len(message)>>8),
		byte(len(message)))
	st.out = append(st.out, message...)
	st.trailOK = true
	c.send(st)
}

// trailOK ends the answer to a call that went well. mu must be held.
func (c *conn) trailOK(st *stream) {
	start := len(c.out)
	c.out = append(c.out, frameRoom[:]...)
	c.out = c.enc.appendStatusOK(c.enc.begin(c.out))
	c.sealBlock(start, st.id, true)
	c.finish(st)
}

// finish ends a stream that is answered. If its client is still sending, a reset asks it to stop.
// mu must be held.
func (c *conn) finish(st *stream) {
	c.close(st)
	if !st.remoteClosed {
		c.note(st.id, true)
		c.out = appendReset(c.out, st.id, noError)
	}
}

// send sends as much of st.out as the windows allow, and queues st for the rest. mu must be held.
func (c *conn) send(st *stream) {
	if !c.sendSome(st) && !st.queued {
		st.queued = true
		c.queue = append(c.queue, st)
	}
}

// sendSome sends as much of st.out as the windows allow. It reports whether the stream needs no
// more sending: all is sent, or the stream is closed. mu must be held.
func (c *conn) sendSome(st *stream) bool {
	for !st.closed && len(st.out) > 0 {
		n := min(len(st.out), st.sendWindow, c.sendWindow, maxFrame)
		if n <= 0 || len(c.out) >= maxOut {
			return false
		}
		st.sendWindow -= n
		c.sendWindow -= n
		flags := byte(0)
		if st.last && n == len(st.out) && len(st.trail) == 0 {
			flags = flagEndStream
		}
		c.out = appendFrameHeader(c.out, n, frameData, flags, st.id)
		c.out = append(c.out, st.out[:n]...)
		c.toReturn += 2 * n
		st.out = st.out[n:]
		c.moved++
	}
	switch {
	case st.closed:
	case st.trailOK:
		c.trailOK(st)
	case st.last:
		if len(st.trail) > 0 {
			start := len(c.out)
			c.out = append(c.out, frameRoom[:]...)
			c.out = append(c.enc.begin(c.out), st.trail...)
			c.sealBlock(start, st.id, true)
		}
		c.finish(st)
	}
	st.cond.Broadcast()
	return true
}

// pump sends as much of the queued streams as the windows allow. mu must be held.
func (c *conn) pump() {
	kept := c.queue[:0]
	for i, st := range c.queue {
		if c.sendWindow <= 0 || len(c.out) >= maxOut {
			kept = append(kept, c.queue[i:]...)
			break
		}
		st.queued = false
		if !c.sendSome(st) {
			st.queued = true
			kept = append(kept, st)
		}
	}
	clear(c.queue[len(kept):])
	c.queue = kept
}
