package main

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is an HTTP/2 connection for calls of ShouldRateLimit. grpc-go's client would do too, but it
// needs nearly three times the processor time for a call, more than some servers do, and takes that
// time from the servers, with which it shares the processors. On the wire the two look alike: calls
// that come together are written at once, and later headers refer to the first call's.
type conn struct {
	net    net.Conn
	framer *http2.Framer // reads in serve; writes to out, under mu
	ready  chan struct{} // closed when the server has sent its settings, or failed

	mu      sync.Mutex
	out     outbox // frames to write
	spare   outbox // the frames written last
	writing bool
	first   []byte // headers of the first call; nil when it is made
	later   []byte // headers of every later call
	stream  uint32 // of the next call
	calls   map[uint32]*call
	room    sync.Cond // calls, streams, window or err have changed
	streams int       // how many calls the server takes at a time
	window  int       // how many bytes the server takes now
	err     error     // why the connection is of no use any more
}

// outbox is a buffer that can be taken from under the framer.
type outbox []byte

func (o *outbox) Write(p []byte) (int, error) {
	*o = append(*o, p...)
	return len(p), nil
}

// call is a caller's memory for its calls.
type call struct {
	answer []byte
	err    error
	done   chan struct{}
}

func newCall() *call { return &call{done: make(chan struct{}, 1)} }

const (
	// prefix is the length of gRPC's message prefix: whether the message is compressed, and how
	// long it is.
	prefix = 5
	// ourWindow is how many bytes of answers may be under way.
	ourWindow = 1 << 20
	// tableSize is how many bytes of headers either side remembers, unless the server wants it
	// otherwise.
	tableSize = 4096
)

// dial connects, and waits for the server's settings.
func dial(addr string) (*conn, error) {
	nc, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	c := &conn{net: nc, ready: make(chan struct{}), calls: map[uint32]*call{}, stream: 1, streams: math.MaxInt,
		window: 65_535}
	c.room.L = &c.mu
	c.framer = http2.NewFramer(&c.out, bufio.NewReaderSize(nc, 64<<10))
	c.framer.SetReuseFrames()
	c.write(func() {
		c.out = append(c.out, http2.ClientPreface...)
		_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: ourWindow})
		_ = c.framer.WriteWindowUpdate(0, ourWindow)
	})
	go c.serve(addr)
	select {
	case <-c.ready:
	case <-time.After(patience):
		c.end(fmt.Errorf("no HTTP/2 server answers within %v", patience))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, c.err
}

// encodeHeaders encodes the headers of calls, for a server that remembers so many bytes of them.
func (c *conn) encodeHeaders(authority string, table uint32) {
	var out outbox
	e := hpack.NewEncoder(&out)
	e.SetMaxDynamicTableSizeLimit(table)
	encode := func() []byte {
		out = nil
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"},
			{Name: ":scheme", Value: "http"},
			{Name: ":path", Value: rlspb.RateLimitService_ShouldRateLimit_FullMethodName},
			{Name: ":authority", Value: authority},
			{Name: "content-type", Value: "application/grpc"},
			{Name: "user-agent", Value: "rlsload"},
			{Name: "te", Value: "trailers"},
		} {
			_ = e.WriteField(f)
		}
		return out
	}
	c.first = encode()
	c.later = encode()
}

// ask makes a call. message includes its prefix; the answer comes without one. The answer is valid
// until the next call.
func (c *conn) ask(k *call, message []byte) ([]byte, error) {
	k.answer, k.err = k.answer[:0], nil
	c.mu.Lock()
	for c.err == nil && (len(c.calls) >= c.streams || c.window < len(message)) {
		c.room.Wait()
	}
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	if c.stream > math.MaxInt32 {
		c.mu.Unlock()
		return nil, errors.New("the connection has no streams left")
	}
	headers := c.later
	if c.first != nil {
		headers, c.first = c.first, nil
	}
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: headers, EndHeaders: true})
	_ = c.framer.WriteData(c.stream, true, message)
	c.window -= len(message)
	c.calls[c.stream] = k
	c.stream += 2
	c.flush()
	<-k.done
	if k.err != nil {
		return nil, k.err
	}
	if len(k.answer) < prefix || k.answer[0] != 0 {
		return nil, errors.New("the answer is no uncompressed message")
	}
	return k.answer[prefix:], nil
}

// flush writes what there is to write, unless somebody does already, who will write this too. It is
// called with the lock, and gives it up.
func (c *conn) flush() {
	defer c.mu.Unlock()
	if c.writing {
		return
	}
	c.writing = true
	for len(c.out) > 0 && c.err == nil {
		c.mu.Unlock()
		runtime.Gosched() // let others add theirs
		c.mu.Lock()
		c.out, c.spare = c.spare[:0], c.out
		c.mu.Unlock()
		_, err := c.net.Write(c.spare)
		c.mu.Lock()
		if err != nil {
			c.fail(err)
		}
	}
	c.writing = false
}

// fail gives the connection up. It is called with the lock.
func (c *conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	_ = c.net.Close()
	for _, k := range c.calls {
		k.err = err
		k.done <- struct{}{}
	}
	clear(c.calls)
	c.room.Broadcast()
}

// end is fail without the lock.
func (c *conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(err)
}

// write has frames written that belong to no call. It does not wait for that, as reading must not
// wait for writing.
func (c *conn) write(frames func()) {
	c.mu.Lock()
	frames()
	c.mu.Unlock()
	go func() {
		c.mu.Lock()
		c.flush()
	}()
}

// serve reads until the connection fails.
func (c *conn) serve(authority string) {
	r := reader{conn: c, authority: authority}
	r.decoder = hpack.NewDecoder(tableSize, r.header)
	for {
		frame, err := c.framer.ReadFrame()
		if err == nil {
			err = r.receive(frame)
		}
		if err != nil {
			c.end(err)
			if !r.opened {
				close(c.ready)
			}
			return
		}
	}
}

// reader is what serve keeps in mind.
type reader struct {
	conn      *conn
	authority string
	opened    bool
	decoder   *hpack.Decoder
	// Of the headers that are being read.
	httpStatus, status, message string
	// received are bytes of answers that the server has not got back as window.
	received int
}

func (r *reader) header(f hpack.HeaderField) {
	switch f.Name {
	case ":status":
		r.httpStatus = f.Value
	case "grpc-status":
		r.status = f.Value
	case "grpc-message":
		r.message = f.Value
	}
}

// receive returns an error if the connection is of no use any more.
func (r *reader) receive(frame http2.Frame) error {
	c := r.conn
	if _, settings := frame.(*http2.SettingsFrame); !r.opened && !settings {
		return errors.New("the server does not begin with its settings")
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		c.mu.Lock()
		k := c.calls[f.StreamID]
		c.mu.Unlock()
		if k != nil {
			k.answer = append(k.answer, f.Data()...)
		}
		if r.received += int(f.Length); r.received >= ourWindow/2 {
			n := uint32(r.received)
			r.received = 0
			c.write(func() { _ = c.framer.WriteWindowUpdate(0, n) })
		}
	case *http2.HeadersFrame:
		if !f.HeadersEnded() {
			return errors.New("headers in several frames are not supported")
		}
		r.httpStatus, r.status, r.message = "", "", ""
		if _, err := r.decoder.Write(f.HeaderBlockFragment()); err != nil {
			return err
		}
		if err := r.decoder.Close(); err != nil {
			return err
		}
		switch {
		case r.httpStatus != "" && r.httpStatus != "200":
			c.answered(f.StreamID, fmt.Errorf("the server answers with HTTP status %s", r.httpStatus))
		case f.StreamEnded() && r.status != "0":
			c.answered(f.StreamID, fmt.Errorf("the server answers with gRPC status %s: %s", r.status, r.message))
		case f.StreamEnded():
			c.answered(f.StreamID, nil)
		}
	case *http2.RSTStreamFrame:
		c.answered(f.StreamID, fmt.Errorf("the server resets the stream: %v", f.ErrCode))
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server ends the connection: %v %s", f.ErrCode, f.DebugData())
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 { // a stream's first window is enough for a request
			c.mu.Lock()
			c.window += int(f.Increment)
			c.room.Broadcast()
			c.mu.Unlock()
		}
	case *http2.PingFrame:
		if data := f.Data; !f.IsAck() {
			c.write(func() { _ = c.framer.WritePing(true, data) })
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			r.settings(f)
		}
	}
	return nil
}

func (r *reader) settings(f *http2.SettingsFrame) {
	c := r.conn
	c.write(func() {
		if n, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
			c.streams = int(n)
			c.room.Broadcast()
		}
		if !r.opened {
			r.opened = true
			table, ok := f.Value(http2.SettingHeaderTableSize)
			if !ok {
				table = tableSize
			}
			c.encodeHeaders(r.authority, table)
			close(c.ready)
		}
		_ = c.framer.WriteSettingsAck()
	})
}

// answered ends the call of a stream. There is none if it has failed before.
func (c *conn) answered(stream uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[stream]
	if k == nil {
		return
	}
	delete(c.calls, stream)
	c.room.Signal()
	k.err = err
	k.done <- struct{}{}
}
