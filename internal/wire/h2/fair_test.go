package h2

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// TestLongBody: of a body that its handler never catches up with no more is kept than the client
// may send ahead.
func TestLongBody(t *testing.T) {
	const size = 16 << 20
	most := make(chan int, 1)
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, st := w.(*response).c, w.(*response).st
		kept := 0
		for range (size - 64<<10) >> 14 {
			patience.Until(t, "there is more than is read", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				kept = max(kept, st.kept())
				return st.unread > 16<<10
			})
			if _, err := io.ReadFull(r.Body, make([]byte, 16<<10)); err != nil {
				t.Error(err)
				break
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		most <- kept
	}), nil, configure)
	answer, err := plainClient(t).Post(base, "", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if n := <-most; n > 1<<20 {
		t.Errorf("%d bytes", n)
	}
}

// slowListener accepts connections that take their time to write, and write nothing while gate is
// locked.
type slowListener struct {
	net.Listener
	gate *sync.Mutex
}

func (l slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return slowConn{c, l.gate}, err
}

type slowConn struct {
	net.Conn
	gate *sync.Mutex
}

func (c slowConn) Write(p []byte) (int, error) {
	c.gate.Lock()
	defer c.gate.Unlock()
	time.Sleep(time.Millisecond)
	return c.Conn.Write(p)
}

// TestBesideLongAnswer: while one answer is as much as the connection takes, other requests are
// read and answered, also if it began while the reader was writing.
func TestBesideLongAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var gate sync.Mutex
	began, start := make(chan *conn, 1), make(chan struct{})
	serveOn(t, slowListener{l, &gate}, Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			began <- w.(*response).c
			<-start
			_, _ = io.Copy(w, zeros{}) // until the client is gone
		}
	})})
	c := dialRaw(t, l.Addr().String())
	c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow}))
	c.must(c.f.WriteWindowUpdate(0, 1<<30))
	c.open(1, "/long")
	server := <-began
	gate.Lock()
	c.must(c.f.WritePing(false, [8]byte{1}))
	patience.Until(t, "the reader writes", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.writing
	})
	close(start)
	c.open(3, "/")
	gate.Unlock()
	for got := 0; ; {
		switch f := c.next().(type) {
		case *http2.DataFrame:
			if got += len(f.Data()); got > 8<<20 {
				t.Fatal("the other request is not answered")
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == 3 {
				return
			}
		}
	}
}

// TestBesideUnreadBodies: bodies that nobody reads leave the rest of the connection's window to
// others.
func TestBesideUnreadBodies(t *testing.T) {
	base := httpServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/read" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		<-r.Context().Done()
	}), nil, configure)
	c := dialRaw(t, address(base))
	window := defaultWindow
	update := func() {
		for {
			if f, ok := c.next().(*http2.WindowUpdateFrame); ok && f.StreamID == 0 {
				window += int(f.Increment)
				return
			}
		}
	}
	update()
	c.must(c.f.WritePing(false, [8]byte{1})) // the SETTINGS are acknowledged
	for i, path := range []string{"/", "/", "/", "/read"} {
		id := uint32(2*i + 1)
		c.open(id, path)
		for range 16 {
			c.must(c.f.WriteData(id, false, make([]byte, 16<<10)))
			window -= 16 << 10
		}
	}
	for window < 128<<10 {
		update()
	}
}

// TestRestOfBody: what is under way of a body that its handler did not want costs the client
// nothing, of however many frames it is.
func TestRestOfBody(t *testing.T) {
	base := httpServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, configure)
	c := dialRaw(t, address(base))
	c.open(1, "/")
	c.answer(1)
	for range 4 * maxChatter {
		c.must(c.f.WriteData(1, false, []byte("part")))
	}
	c.open(3, "/")
	if a := c.answer(3); a.header.Get(":status") != "200" {
		t.Errorf("%+v", a)
	}
}

// TestSteadyRapidReset: requests that are reset at once count also where their handlers have ended
// before the next one comes.
func TestSteadyRapidReset(t *testing.T) {
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	timed(t, Options{Handler: handler}, func(t *testing.T, _ *Server, _ *service, c *timedClient) {
		for i := range uint32(2 * maxChatter) {
			c.do(func() {
				c.open(2*i+1, "/handler")
				_ = c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
			})
			synctest.Wait()
			c.mu.Lock()
			over := len(c.reasons) > 0
			c.mu.Unlock()
			if over {
				return
			}
		}
		t.Error("it goes on for ever")
	})
}

// TestBeyondGoAway: frames of a stream that came too late for a connection that drains are ignored,
// and those under way are answered.
func TestBeyondGoAway(t *testing.T) {
	release := make(chan struct{})
	s, base := startHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), nil, configure)
	c := dialRaw(t, address(base))
	c.open(1, "/")
	c.must(c.f.WritePing(false, [8]byte{1}))
	for {
		if f, ok := c.next().(*http2.PingFrame); ok && f.IsAck() {
			break
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(t.Context()) }()
	for last := uint32(0); last != 1; {
		switch f := c.next().(type) {
		case *http2.PingFrame:
			c.must(c.f.WritePing(true, f.Data))
		case *http2.GoAwayFrame:
			last = f.LastStreamID
		}
	}
	c.open(3, "/")
	c.must(c.f.WriteData(3, false, []byte("x")))
	c.must(c.f.WriteWindowUpdate(3, 1))
	c.must(c.f.WriteRSTStream(3, http2.ErrCodeCancel))
	c.must(c.f.WritePing(false, [8]byte{2}))
	for {
		f := c.next()
		if g, ok := f.(*http2.GoAwayFrame); ok {
			t.Fatalf("%v %s", g.ErrCode, g.DebugData())
		}
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
			break
		}
	}
	close(release)
	if a := c.answer(1); a.header.Get(":status") != "200" {
		t.Errorf("%+v", a)
	}
	_ = c.conn.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestStreamsThatEndByReset: a client may end streams by a reset, as gRPC clients do, once it has
// an answer.
func TestStreamsThatEndByReset(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	timed(t, Options{Handler: handler}, func(t *testing.T, _ *Server, _ *service, c *timedClient) {
		for i := range uint32(2 * maxChatter) {
			c.do(func() { c.open(2*i+1, "/handler") })
			synctest.Wait()
			c.do(func() { _ = c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel) })
			synctest.Wait()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.reasons) > 0 {
			t.Errorf("the connection ended: %q", c.reasons)
		}
	})
}
