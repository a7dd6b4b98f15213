package h2

import (
	"encoding/binary"
	"net/http"
	"slices"
	"time"
)

// frame takes one frame.
func (c *conn) frame(kind, flags byte, id uint32, p []byte) error {
	if c.blockID != 0 && (kind != frameContinuation || id != c.blockID) {
		return connError{protocolError, "a header block is not continued"}
	}
	if !c.greeted && (kind != frameSettings || flags&flagAck != 0) {
		return connError{protocolError, "the first frame is not SETTINGS"}
	}
	switch kind {
	case frameData:
		return c.data(flags, id, p)
	case frameHeaders:
		return c.headersFrame(flags, id, p)
	case frameContinuation:
		return c.continuation(flags, id, p)
	case frameSettings:
		return c.settings(flags, id, p)
	case framePing:
		return c.ping(flags, id, p)
	case frameWindowUpdate:
		return c.windowUpdate(id, p)
	case frameReset:
		return c.reset(id, p)
	case framePriority:
		switch {
		case id == 0:
			return connError{protocolError, "PRIORITY of no stream"}
		case len(p) != 5:
			return c.resetStream(id, frameSizeError)
		case binary.BigEndian.Uint32(p)&(1<<31-1) == id:
			return c.resetStream(id, protocolError)
		}
		return c.spend(1, "too many PRIORITY frames")
	case framePushPromise:
		return connError{protocolError, "a client sent PUSH_PROMISE"}
	case frameGoAway:
		if id != 0 {
			return connError{protocolError, "GOAWAY of a stream"}
		}
		if len(p) < 8 {
			return connError{frameSizeError, "GOAWAY is too short"}
		}
		return c.spend(1, "too many GOAWAY frames") // the client closes when it has all its answers
	default:
		return c.spend(1, "too many unknown frames")
	}
}

// maxSettings bounds the settings of a frame. Each may change the windows of all streams.
const maxSettings = 100

// settings takes SETTINGS.
func (c *conn) settings(flags byte, id uint32, p []byte) error {
	if id != 0 {
		return connError{protocolError, "SETTINGS of a stream"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if flags&flagAck != 0 {
		if len(p) != 0 {
			return connError{frameSizeError, "an acknowledgement of SETTINGS that is not empty"}
		}
		if !c.acked {
			c.acked = true
			for _, st := range c.streams {
				st.recvWindow += c.s.o.Window - defaultWindow
			}
		}
		return c.spend(1, "too many SETTINGS frames")
	}
	if len(p)%6 != 0 {
		return connError{frameSizeError, "SETTINGS of a length that is no multiple of 6"}
	}
	if len(p) > maxSettings*6 {
		return connError{enhanceYourCalm, "too many settings at once"}
	}
	for ; len(p) > 0; p = p[6:] {
		value := binary.BigEndian.Uint32(p[2:])
		switch binary.BigEndian.Uint16(p) {
		case settingHeaderTableSize:
			c.enc.tableSize(value)
		case settingEnablePush:
			if value > 1 {
				return connError{protocolError, "SETTINGS_ENABLE_PUSH is neither 0 nor 1"}
			}
		case settingInitialWindow:
			if value > maxWindow {
				return connError{flowControlError, "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1"}
			}
			change := int(value) - c.initialWindow
			c.initialWindow = int(value)
			for _, st := range c.streams {
				if st.sendWindow += change; st.sendWindow > maxWindow {
					return connError{flowControlError, "SETTINGS_INITIAL_WINDOW_SIZE makes a window exceed 2^31-1"}
				}
			}
		case settingMaxFrameSize:
			if value < maxFrame || value > 1<<24-1 {
				return connError{protocolError, "SETTINGS_MAX_FRAME_SIZE is not within 2^14 and 2^24-1"}
			}
		}
	}
	if !c.greeted {
		c.greeted = true
		_ = c.nc.SetDeadline(time.Time{}) // from here on the watch looks after it
	}
	c.out = appendFrameHeader(c.out, 0, frameSettings, flagAck, 0)
	c.pump()
	return c.spend(4, "too many SETTINGS frames")
}

// ping takes PING.
func (c *conn) ping(flags byte, id uint32, p []byte) error {
	if id != 0 {
		return connError{protocolError, "PING of a stream"}
	}
	if len(p) != 8 {
		return connError{frameSizeError, "PING that is not 8 bytes long"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if flags&flagAck != 0 {
		if [8]byte(p) == drainPing {
			c.drainNow()
		}
	} else {
		c.out = appendPing(c.out, flagAck, p)
	}
	return c.spend(1, "too_many_pings") // as gRPC has it: clients then ping more seldom
}

// windowUpdate takes WINDOW_UPDATE.
func (c *conn) windowUpdate(id uint32, p []byte) error {
	if len(p) != 4 {
		return connError{frameSizeError, "WINDOW_UPDATE that is not 4 bytes long"}
	}
	n := int(binary.BigEndian.Uint32(p) & (1<<31 - 1))
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == 0 {
		if n == 0 {
			return connError{protocolError, "WINDOW_UPDATE of 0"}
		}
		if c.sendWindow += n; c.sendWindow > maxWindow {
			return connError{flowControlError, "the connection's window exceeds 2^31-1"}
		}
		if len(c.queue) > 0 {
			c.pump()
		}
		return c.spendWindow(n)
	}
	st := c.streams[id]
	if st == nil {
		if c.isIdle(id) {
			return connError{protocolError, "WINDOW_UPDATE of an idle stream"}
		}
		return c.spendWindow(n)
	}
	if st.sendWindow += n; n == 0 || st.sendWindow > maxWindow {
		code := protocolError
		if n != 0 {
			code = flowControlError
		}
		c.resetLocked(id, code)
		return c.spend(2, "too many streams with errors")
	}
	if st.queued && c.sendSome(st) && st.queued {
		c.unqueue(st)
	}
	return c.spendWindow(n)
}

// minReturn is the smallest WINDOW_UPDATE that a client may send at will, for answers it has got.
const minReturn = 256

// spendWindow is spend for a WINDOW_UPDATE of n. Those that come of large answers are many, and no
// attack. mu must be held.
func (c *conn) spendWindow(n int) error {
	if n >= minReturn && n <= c.toReturn {
		c.toReturn -= n
		return nil
	}
	return c.spend(1, "too many WINDOW_UPDATE frames")
}

// unqueue takes st out of the queue. mu must be held.
func (c *conn) unqueue(st *stream) {
	st.queued = false
	c.queue = slices.DeleteFunc(c.queue, func(other *stream) bool { return other == st })
}

// A stream that is reset sooner than this after it began was hardly worth beginning.
const rapid = 10 * time.Millisecond

// reset takes RST_STREAM.
func (c *conn) reset(id uint32, p []byte) error {
	if len(p) != 4 {
		return connError{frameSizeError, "RST_STREAM that is not 4 bytes long"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isIdle(id) {
		return connError{protocolError, "RST_STREAM of an idle stream"}
	}
	cost := 1
	if st := c.streams[id]; st != nil {
		st.abort()
		c.close(st)
		c.note(id, false)
		cost = 4
		if st.answering || c.now().Sub(st.began) >= rapid {
			cost = 0 // its bytes have come, or a deadline has passed
		}
	}
	return c.spend(cost, "too many streams are reset at once")
}

// headersFrame takes HEADERS.
func (c *conn) headersFrame(flags byte, id uint32, p []byte) error {
	if id%2 == 0 {
		return connError{protocolError, "HEADERS of a stream that a client cannot open"}
	}
	p, ok := unpad(flags, p)
	if !ok {
		return connError{protocolError, "HEADERS is shorter than its padding"}
	}
	selfish := false
	if flags&flagPriority != 0 {
		if len(p) < 5 {
			return connError{frameSizeError, "HEADERS is shorter than its priority"}
		}
		selfish = binary.BigEndian.Uint32(p)&(1<<31-1) == id
		p = p[5:]
	}
	if flags&flagEndHeaders == 0 {
		c.blockID, c.blockEnd, c.blockSelfish, c.continuations = id, flags&flagEndStream != 0, selfish, 0
		c.block = append(c.block[:0], p...)
		return nil
	}
	return c.header(id, flags&flagEndStream != 0, selfish, p)
}

// continuation takes CONTINUATION.
func (c *conn) continuation(flags byte, id uint32, p []byte) error {
	if c.blockID == 0 {
		return connError{protocolError, "CONTINUATION of nothing"}
	}
	c.continuations++
	if most := c.s.maxBlock(); len(c.block)+len(p) > most || c.continuations > max(maxContinuations, most>>10) {
		return connError{enhanceYourCalm, "a header is far too large"}
	}
	c.block = append(c.block, p...)
	if flags&flagEndHeaders == 0 {
		return nil
	}
	c.blockID = 0
	err := c.header(id, c.blockEnd, c.blockSelfish, c.block)
	if cap(c.block) > minInput {
		c.block = nil
	}
	return err
}

// header takes a header block that has come in whole. A stream that is selfish depends on itself.
func (c *conn) header(id uint32, end, selfish bool, block []byte) error {
	c.headerEnded = true
	if id <= c.lastID {
		return c.trailer(id, end, block)
	}
	r, err := c.headers.read(block)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.calls++
	cost := c.s.cost(r, end)
	may := c.mayBegin(cost)
	if may && !c.roomFor(cost) {
		c.awaitRoom(cost)
	}
	if c.draining >= closing { // the client knows that nobody looks at it
		c.mu.Unlock()
		c.headers.release(r)
		return nil
	}
	c.lastID = id
	if r.malformed || selfish || r.length > 0 && end {
		c.mu.Unlock()
		c.headers.release(r)
		return c.resetStream(id, protocolError)
	}
	var st *stream
	if may && c.roomFor(cost) {
		st = c.openStream(id, r, end)
	} else {
		c.s.overMemory.requests.Add(1)
	}
	if st == nil {
		c.mu.Unlock()
		c.headers.release(r)
		return c.resetStream(id, refusedStream)
	}
	pressed := c.keep(st, cost)
	if !end || r.unary == nil {
		st.began = c.now()
	}
	c.mu.Unlock()
	if pressed {
		c.s.relieve()
	}
	switch {
	case r.tooLarge:
		return c.refuse(st, http.StatusRequestHeaderFieldsTooLarge,
			Status{codeResourceExhausted, "the header of the request is too large"})
	case r.unary == nil:
		return c.startHandler(st)
	case r.badTimeout:
		return c.refuse(st, http.StatusBadRequest, Status{codeInternal, "malformed grpc-timeout"})
	case end:
		c.unary(st, nil)
	}
	return nil
}

// trailer takes a header block on a stream that was opened before.
func (c *conn) trailer(id uint32, end bool, block []byte) error {
	fields, cost, ok, odd, err := c.headers.readTrailer(block)
	if err != nil {
		return err
	}
	c.mu.Lock()
	st := c.streams[id]
	if st == nil {
		was := c.closedLately(id)
		c.mu.Unlock()
		switch {
		case was != nil && was.ours:
			return c.spend(1, "too many frames on closed streams")
		case was != nil:
			return connError{streamClosed, "HEADERS of a closed stream"}
		}
		return connError{protocolError, "HEADERS of a stream below one that was opened"}
	}
	if st.remoteClosed {
		c.resetLocked(id, streamClosed)
	} else if !ok || !end || odd && st.request.announces {
		c.resetLocked(id, protocolError)
	} else if len(fields) > 0 && !c.roomFor(cost) {
		c.s.overMemory.requests.Add(1)
		c.resetLocked(id, enhanceYourCalm)
	} else {
		if len(fields) > 0 {
			st.trailer = fields
			c.keep(st, cost) // the end of the batch looks whether that is too much
		}
		return c.body(st, nil, 0, true)
	}
	c.mu.Unlock()
	return c.spend(2, "too many streams with errors")
}

// data takes DATA.
func (c *conn) data(flags byte, id uint32, p []byte) error {
	if id == 0 {
		return connError{protocolError, "DATA of no stream"}
	}
	size := len(p) // padding counts
	p, ok := unpad(flags, p)
	if !ok {
		return connError{protocolError, "DATA is shorter than its padding"}
	}
	c.mu.Lock()
	if size > c.recvWindow {
		c.mu.Unlock()
		return connError{flowControlError, "DATA beyond the connection's window"}
	}
	c.recvWindow -= size
	st := c.streams[id]
	if st == nil {
		if c.isIdle(id) {
			c.mu.Unlock()
			return connError{protocolError, "DATA of an idle stream"}
		}
		was := c.closedLately(id)
		ours := was != nil && was.ours
		expected := ours && size > 0 && size <= was.window
		if expected { // the rest of a body that nobody wanted, which may be many frames
			was.window -= size
		}
		c.mu.Unlock()
		switch {
		case expected:
			return nil
		case ours || id > c.lastID:
			// this one may have been sent before the client knew
			return c.spend(1, "too many frames on closed streams")
		}
		return c.resetStream(id, streamClosed)
	}
	if st.remoteClosed || size > st.recvWindow {
		code := flowControlError
		if st.remoteClosed {
			code = streamClosed
		}
		c.resetLocked(id, code)
		c.mu.Unlock()
		return c.spend(2, "too many streams with errors")
	}
	st.recvWindow -= size
	end := flags&flagEndStream != 0
	if err := c.body(st, p, size-len(p), end); err != nil || size > 0 || end {
		return err
	}
	return c.spend(1, "too many empty DATA frames")
}

// body takes the next bytes of a request's body, which came with so much padding. mu must be held;
// it unlocks it.
func (c *conn) body(st *stream, p []byte, padding int, end bool) error {
	st.received += int64(len(p))
	st.remoteClosed = end
	if length := st.request.length; length >= 0 && (st.received > length || end && st.received != length) {
		c.resetLocked(st.id, protocolError)
		c.mu.Unlock()
		return c.spend(2, "too many streams with errors")
	}
	whole := p
	switch {
	case st.request.unary == nil:
		c.feed(st, p)
		whole = nil
	case !end || len(st.in) > 0:
		if refused := c.collect(st, p); refused != nil {
			c.answer(st, nil, *refused)
		}
		whole = st.in
	}
	call := end && st.request.unary != nil && !st.closed
	if padding > 0 && !end && !st.closed {
		st.recvWindow += padding
		c.out = appendWindowUpdate(c.out, st.id, padding)
	}
	c.mu.Unlock()
	switch {
	case call:
		c.unary(st, whole)
	case padding > 0:
		return c.spend(paddingCost(len(p), padding), "too much padding")
	}
	return nil
}

// paddingCost is the cost of a DATA frame with padding. One that holds less data than padding is
// paid by the length of the rest, since a frame of one byte would be as cheap else as one of 16
// KiB; others may be padded to hide how long they are.
func paddingCost(data, padding int) int { return 1 + max(0, padding-data)/64 }
