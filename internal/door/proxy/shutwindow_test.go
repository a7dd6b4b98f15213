package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/h2"
)

// inBubble serves a proxy in virtual time. The upstream reads bodies, but not those for /stuck,
// which it answers when release is closed.
func inBubble(t *testing.T, release chan bool, change func(*Options)) (network *pipes, h *Proxy, end func()) {
	t.Helper()
	o := Options{Upstream: &url.URL{Scheme: "http", Host: "upstream"}}
	change(&o)
	h, err := New(newLimiter(t, noLimits), o)
	if err != nil {
		t.Fatal(err)
	}
	h.direct = nil
	h.reverse.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/stuck" {
			select {
			case <-release:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		} else if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, 32<<10)); err != nil { // as a transport
			return nil, err
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}, Request: r}, nil
	})
	network = newPipes()
	s, _ := NewServer(h, h2.HTTPOptions{MaxMemory: 16 << 20})
	go func() { _ = s.Serve(network) }()
	return network, h, func() {
		_ = s.Close()
		_ = network.Close()
		time.Sleep(5 * time.Second) // of the watch of connections
	}
}

// framer is a client of HTTP/2 that knows its windows.
type framer struct {
	t     *testing.T
	f     *http2.Framer
	write sync.Mutex
	enc   *hpack.Encoder
	block bytes.Buffer

	mu     sync.Mutex
	window int            // of the connection
	status map[uint32]int // of answers that have ended
}

func newFramer(t *testing.T, conn io.ReadWriter) *framer {
	c := &framer{t: t, f: http2.NewFramer(conn, conn), window: 65_535, status: map[uint32]int{}}
	c.enc = hpack.NewEncoder(&c.block)
	c.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	go c.read()
	c.say(func() {
		_, _ = io.WriteString(conn, http2.ClientPreface)
		_ = c.f.WriteSettings()
	})
	synctest.Wait()
	return c
}

func (c *framer) read() {
	for {
		frame, err := c.f.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				go c.say(func() { _ = c.f.WriteSettingsAck() })
			}
		case *http2.PingFrame:
			if data := frame.Data; !frame.IsAck() {
				go c.say(func() { _ = c.f.WritePing(true, data) })
			}
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 {
				c.window += int(frame.Increment)
			}
		case *http2.MetaHeadersFrame:
			var status int
			_, _ = fmt.Sscan(frame.PseudoValue("status"), &status)
			c.status[frame.StreamID] = status
		}
		c.mu.Unlock()
	}
}

// say writes frames.
func (c *framer) say(f func()) {
	c.write.Lock()
	defer c.write.Unlock()
	f()
}

// open begins an upload.
func (c *framer) open(id uint32, path string, length int) {
	c.say(func() {
		c.block.Reset()
		for _, f := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
			{Name: ":path", Value: path},
			{Name: ":authority", Value: "x"}, {Name: "content-length", Value: fmt.Sprint(length)}} {
			_ = c.enc.WriteField(f)
		}
		_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true})
	})
}

// send sends n bytes of a body if the connection's window allows that.
func (c *framer) send(id uint32, n int, end bool) bool {
	synctest.Wait()
	c.mu.Lock()
	if c.window < n {
		c.mu.Unlock()
		return false
	}
	c.window -= n
	c.mu.Unlock()
	c.say(func() { _ = c.f.WriteData(id, end, make([]byte, n)) })
	return true
}

func (c *framer) answered(id uint32) int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status[id]
}

// Bodies that nobody reads shut the window of their connection. Others of that connection cannot
// come then, and are not cut for it; but they are as before when it is open.
func TestShutWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		network, h, end := inBubble(t, release, func(*Options) {})
		defer end()
		conn, _ := network.dial(t.Context(), "", "")
		defer conn.Close()
		c := newFramer(t, conn)
		const part = 16 << 10
		id := uint32(1)
		for shut := false; !shut; id += 2 {
			c.open(id, "/stuck", 1<<20)
			for n := 0; n < 256<<10 && !shut; n += part {
				shut = !c.send(id, part, false)
			}
			if id > 100 {
				t.Fatal("the window is never shut")
			}
		}
		late, never := id, id+2
		c.open(late, "/upload", 2*part)
		c.open(never, "/upload", part)
		time.Sleep(10 * time.Minute)
		if status := c.answered(late); status != 0 {
			t.Errorf("while the window is shut: %d", status)
		}
		close(release)
		time.Sleep(time.Second)
		if !c.send(late, part, false) {
			t.Error("the window stays shut")
		}
		time.Sleep(3 * time.Second) // what it could not send has not used its time up
		c.send(late, part, true)
		if status := c.answered(late); status != 200 {
			t.Errorf("when it is open: %d", status)
		}
		time.Sleep(15 * time.Second)
		if status := c.answered(never); status != http.StatusRequestTimeout {
			t.Errorf("a body that could come, and did not: %d; %+v", status, h.Stats())
		}
	})
}

// A chunk of a body over HTTP/1.1 that comes at its rate is not cut, however large it is: net/http
// reads as much as fits.
func TestLargeChunkAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, _, end := inBubble(t, nil, func(*Options) {})
		defer end()
		conn, _ := network.dial(t.Context(), "", "")
		defer conn.Close()
		answer := make(chan int, 1)
		go func() { answer <- statusOf(http.ReadResponse(bufio.NewReader(conn), nil)) }()
		const seconds, each = 90, 1100
		fmt.Fprintf(conn, "POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", seconds*each)
		for range seconds {
			time.Sleep(time.Second)
			if _, err := conn.Write(make([]byte, each)); err != nil {
				break
			}
		}
		_, _ = io.WriteString(conn, "\r\n0\r\n\r\n")
		if status := <-answer; status != 200 {
			t.Errorf("%d", status)
		}
	})
}

// A call over HTTP/2 that holds no place that others may lack may be silent for as long as it
// likes; one over HTTP/1.1, which holds a connection, may not, whatever it says that it is.
func TestSilentCalls(t *testing.T) {
	const pause = 20 * time.Millisecond
	grace(t, pause)
	up := h2cServer(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	addr, h := serveProxy(t, up, newLimiter(t, noLimits), nil,
		func(o *Options) { o.BodyTimeout, o.BodyRate = pause, 1<<40 })
	var silent []*upload
	for _, kind := range []string{"application/grpc", "application/connect+proto"} {
		silent = append(silent, beginUploadWith(t, addr, true, -1, http.Header{"Content-Type": {kind}}))
	}
	for range 3 { // while others that are as silent are cut
		header := http.Header{"Content-Type": {"application/grpc"}}
		if status := beginUploadWith(t, addr, false, -1, header).answered(); status != http.StatusRequestTimeout {
			t.Errorf("over HTTP/1.1: %d", status)
		}
	}
	for _, u := range silent {
		u.end(1)
		if status := u.answered(); status != 200 {
			t.Errorf("over HTTP/2: %d", status)
		}
	}
	patience.Until(t, "no more were cut", func() bool { s := h.Stats(); return s.SlowBodies+s.StalledBodies == 3 })
}
