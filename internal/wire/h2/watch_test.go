package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/pipenet"
	"golang.org/x/net/http2"
)

// timed runs test in a bubble with a client whose frames are read as they come, and noted with when
// they came.
func timed(t *testing.T, o Options, test func(t *testing.T, s *Server, svc *service, c *timedClient)) {
	synctest.Test(t, func(t *testing.T) {
		l := pipenet.Listen()
		svc := newService()
		if o.Methods == nil {
			o.Methods = svc.methods()
		}
		s := New(o)
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		conn := l.Dial()
		c := &timedClient{rawClient: rawOver(t, conn), start: time.Now(), answerPings: true, ended: make(chan struct{}),
			reset: map[uint32]time.Duration{}}
		go c.run()
		c.do(func() {
			_, _ = io.WriteString(conn, preface)
			c.must(c.f.WriteSettings())
		})
		test(t, s, svc, c)
		s.Stop()
		_ = conn.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		<-c.ended
		if held := s.held.Load(); held != 0 {
			t.Errorf("%d bytes are held", held)
		}
	})
}

// timedClient notes what the server does, and when.
type timedClient struct {
	*rawClient
	start       time.Time
	ended       chan struct{}
	write       sync.Mutex
	mu          sync.Mutex
	answerPings bool
	goAways     []time.Duration
	reasons     []string
	pings       int
	reset       map[uint32]time.Duration
	closed      time.Duration // when the server closed
}

func (c *timedClient) run() {
	defer close(c.ended)
	for {
		f, err := c.f.ReadFrame()
		c.mu.Lock()
		at := time.Since(c.start).Round(time.Second)
		if err != nil {
			c.closed = at
			c.mu.Unlock()
			_ = c.conn.Close()
			return
		}
		answer := c.answerPings
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			c.goAways, c.reasons = append(c.goAways, at), append(c.reasons, string(f.DebugData()))
		case *http2.RSTStreamFrame:
			c.reset[f.StreamID] = at
		case *http2.PingFrame:
			c.pings++
			if answer {
				data := f.Data
				go c.do(func() { _ = c.f.WritePing(true, data) })
			}
		}
		c.mu.Unlock()
	}
}

// do writes frames.
func (c *timedClient) do(f func()) {
	c.write.Lock()
	defer c.write.Unlock()
	f()
}

// near reports whether the watch, which looks every second at most, was on time.
func near(at, want time.Duration) bool { return at >= want && at <= want+3*time.Second }

// TestKeepalive: a client that is silent is asked whether it is there, and given up if it does not
// answer.
func TestKeepalive(t *testing.T) {
	timed(t, Options{}, func(t *testing.T, s *Server, svc *service, c *timedClient) {
		time.Sleep(10 * time.Minute)
		c.mu.Lock()
		if c.closed != 0 || c.pings < 8 || c.pings > 11 {
			t.Errorf("closed at %v after %d pings", c.closed, c.pings)
		}
		c.answerPings = false
		c.start = time.Now()
		c.mu.Unlock()
		time.Sleep(3 * time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed < 20*time.Second || c.closed > 85*time.Second {
			t.Errorf("closed after %v", c.closed)
		}
	})
}

// TestRest: a connection that is silent gives back what a burst has made it grow, and goes on.
func TestRest(t *testing.T) {
	timed(t, Options{}, func(t *testing.T, s *Server, svc *service, c *timedClient) {
		size := func() (in, out int) {
			for _, p := range s.sessions.AppendConns(nil) {
				sc := p.open()
				sc.mu.Lock()
				in, out = in+minInput+sc.reader, out+cap(sc.out)+cap(sc.spare)
				sc.mu.Unlock()
			}
			return in, out
		}
		c.mu.Lock()
		c.answerPings = false // it would answer the acknowledgements
		c.mu.Unlock()
		var burst bytes.Buffer
		for range 14 {
			burst.Write(appendFrameHeader(nil, maxFrame, 0xbb, 0, 0))
			burst.Write(make([]byte, maxFrame))
		}
		for range 1500 {
			burst.Write(appendPing(nil, 0, make([]byte, 8)))
		}
		c.do(func() { _, _ = c.conn.Write(burst.Bytes()) })
		synctest.Wait()
		if in, out := size(); in <= minInput || out <= maxKept {
			t.Errorf("a burst made it grow to %d and %d bytes only", in, out)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if in, out := size(); in != minInput || out > 2*maxKept {
			t.Errorf("it holds %d and %d bytes", in, out)
		}
		// It goes on, also from the middle of a frame.
		ping := appendPing(nil, 0, make([]byte, 8))
		c.do(func() {
			_, _ = c.conn.Write(append(appendFrameHeader(nil, maxFrame, 0xbb, 0, 0), make([]byte, 9000)...))
		})
		time.Sleep(10 * time.Second)
		if in, _ := size(); in != 16<<10 {
			t.Errorf("with half a frame it holds %d bytes", in)
		}
		c.mu.Lock()
		before := c.pings
		c.mu.Unlock()
		c.do(func() { _, _ = c.conn.Write(append(make([]byte, maxFrame-9000), ping...)) })
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.pings != before+1 || c.closed != 0 {
			t.Errorf("%d pings were answered, closed at %v", c.pings-before, c.closed)
		}
	})
}

// TestIdle: a connection without calls is ended politely.
func TestIdle(t *testing.T) {
	timed(t, Options{IdleTimeout: 5 * time.Minute}, func(t *testing.T, s *Server, svc *service, c *timedClient) {
		time.Sleep(3 * time.Minute)
		c.do(func() { c.call(1, echoPath, nil) })
		time.Sleep(10 * time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.goAways) != 2 || !near(c.goAways[0], 8*time.Minute) || c.reasons[0] != "idle" ||
			!near(c.closed, 8*time.Minute) {
			t.Errorf("GOAWAY at %v (%q), closed at %v", c.goAways, c.reasons, c.closed)
		}
	})
}

// TestAge: an old connection is ended; calls under way have some time.
func TestAge(t *testing.T) {
	o := Options{MaxAge: time.Hour, MaxAgeGrace: 30 * time.Minute}
	within := func(at, from, to time.Duration) bool { return at >= from-time.Second && at <= to+3*time.Second }
	// a call that goes on for ever
	timed(t, o, func(t *testing.T, s *Server, svc *service, c *timedClient) {
		c.do(func() { c.call(1, waitPath, nil) })
		time.Sleep(2 * time.Hour)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.goAways) != 2 || !within(c.goAways[0], 54*time.Minute, 66*time.Minute) || c.reasons[0] != "max_age" ||
			!near(c.closed, c.goAways[0]+30*time.Minute) {
			t.Errorf("GOAWAY at %v (%q), closed at %v", c.goAways, c.reasons, c.closed)
		}
	})
	timed(t, o, func(t *testing.T, s *Server, svc *service, c *timedClient) { // one that ends
		c.do(func() { c.call(1, waitPath, nil) })
		time.Sleep(70 * time.Minute)
		c.mu.Lock()
		c.start = time.Now()
		c.mu.Unlock()
		close(svc.release)
		time.Sleep(time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.goAways) != 2 || c.closed > 2*time.Second {
			t.Errorf("GOAWAY at %v, closed after %v", c.goAways, c.closed)
		}
	})
}

// TestRequestTimeout: a call whose message does not come in is reset.
func TestRequestTimeout(t *testing.T) {
	timed(t, Options{Methods: newService().methodsAs(true)},
		func(t *testing.T, s *Server, svc *service, c *timedClient) {
			c.do(func() { c.open(1, echoPath) })
			c.do(func() { c.must(c.f.WriteData(1, false, []byte{0, 0, 0, 1, 0, 'x'})) })
			time.Sleep(20 * time.Second)
			c.do(func() { c.must(c.f.WriteData(1, false, []byte("y"))) })
			time.Sleep(2 * time.Minute)
			c.mu.Lock()
			defer c.mu.Unlock()
			if at := c.reset[1]; !near(at, 30*time.Second) || c.closed != 0 {
				t.Errorf("reset at %v, closed at %v", at, c.closed)
			}
		})
}

// TestStalled: a client that opens no window for waiting answers is disconnected; one that opens it
// slowly is not.
func TestStalled(t *testing.T) {
	for _, slowly := range []bool{false, true} {
		timed(t, Options{Methods: newService().methodsAs(true)},
			func(t *testing.T, s *Server, svc *service, c *timedClient) {
				c.do(func() {
					c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
					c.call(1, sizePath, []byte("100"))
				})
				for range 5 {
					time.Sleep(20 * time.Second)
					if slowly {
						c.do(func() { c.must(c.f.WriteWindowUpdate(1, 1)) })
					}
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				if slowly && c.closed != 0 || !slowly && !near(c.closed, 30*time.Second) {
					t.Errorf("slowly %t: closed at %v", slowly, c.closed)
				}
			})
	}
}

// TestUnread: a client that does not read is disconnected.
func TestUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pipenet.Listen()
		s := New(Options{})
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		conn := l.Dial()
		var err error
		go func() {
			_, _ = io.WriteString(conn, preface)
			f := http2.NewFramer(conn, nil)
			for err = f.WriteSettings(); err == nil; err = f.WritePing(false, [8]byte{}) {
			}
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.Stop(); err == nil {
			t.Error("the connection is still open")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestDeadline: a call's context ends when its client said that it would not wait any longer.
func TestDeadline(t *testing.T) {
	timed(t, Options{}, func(t *testing.T, s *Server, svc *service, c *timedClient) {
		c.do(func() { c.call(1, waitPath, nil, "grpc-timeout", "20S") })
		time.Sleep(19 * time.Second)
		if svc.waiting.Load() != 1 {
			t.Error("it is over too soon")
		}
		time.Sleep(2 * time.Second)
		if svc.waiting.Load() != 0 {
			t.Error("it goes on")
		}
	})
}

// TestShutdown: calls under way are answered, new ones are not taken, and then the connections
// close.
func TestShutdown(t *testing.T) {
	timed(t, Options{}, func(t *testing.T, s *Server, svc *service, c *timedClient) {
		c.do(func() { c.call(1, waitPath, []byte("x")) })
		synctest.Wait()
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(context.Background()) }()
		synctest.Wait()
		c.do(func() { c.call(3, echoPath, nil) }) // the client has been told
		time.Sleep(time.Minute)
		c.mu.Lock()
		if len(c.goAways) != 2 || c.closed != 0 || c.reset[3] != 0 {
			t.Errorf("GOAWAY at %v, closed at %v, %v", c.goAways, c.closed, c.reset)
		}
		c.mu.Unlock()
		select {
		case err := <-down:
			t.Errorf("Shutdown returns while a call is under way: %v", err)
		default:
		}
		close(svc.release)
		if err := <-down; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

// TestShutdownOfDeaf: a client that does not heed GOAWAY, nor pings, holds up Shutdown for a few
// seconds only.
func TestShutdownOfDeaf(t *testing.T) {
	timed(t, Options{}, func(t *testing.T, s *Server, svc *service, c *timedClient) {
		c.mu.Lock()
		c.answerPings = false
		c.mu.Unlock()
		synctest.Wait()
		start := time.Now()
		if err := s.Shutdown(context.Background()); err != nil || time.Since(start) > 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestShutdownInTime: what does not end is cut off when the time is over.
func TestShutdownInTime(t *testing.T) {
	timed(t, Options{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })},
		func(t *testing.T, s *Server, svc *service, c *timedClient) {
			c.do(func() { c.call(1, waitPath, []byte("x")); c.open(3, "/") })
			synctest.Wait()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Shutdown: %v", err)
			}
			synctest.Wait()
			if svc.canceled.Load() != 1 {
				t.Error("the call is not cancelled")
			}
		})
}

// TestServeEnds: Serve returns at once when the server was stopped before, and with the listener's
// error.
func TestServeEnds(t *testing.T) {
	s := New(Options{})
	s.Stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is open")
	}
	s = New(Options{})
	defer s.Stop()
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener: %v", err)
	}
}
