package h1

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener on connections in memory, for tests in a bubble of synctest.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// peer is the other end of a connection. What comes over it is gathered, with the time at which it
// was closed.
type peer struct {
	net.Conn
	mu     sync.Mutex
	got    bytes.Buffer
	closed time.Time
}

func (p *pipes) dial() *peer {
	client, server := net.Pipe()
	p.conns <- server
	c := &peer{Conn: client}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := client.Read(b)
			c.mu.Lock()
			c.got.Write(b[:n])
			if err != nil {
				c.closed = time.Now()
				c.mu.Unlock()
				return
			}
			c.mu.Unlock()
		}
	}()
	return c
}

func (p *peer) send(s string) { _, _ = io.WriteString(p.Conn, s) }

// all returns what has come, and when the connection was closed; zero if it is open.
func (p *peer) all() (string, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return undated(p.got.String()), p.closed
}

// server is either of the two.
type server interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
}

// both runs do with the loop and with net/http, each in a bubble, and compares the two results.
func both(t *testing.T, h http.Handler, do func(t *testing.T, l *pipes, s server) string) string {
	t.Helper()
	run := func(wrap func(*http.Server) server) (result string) {
		synctest.Test(t, func(t *testing.T) {
			s, l := wrap(newHTTPServer(h)), newPipes()
			served := make(chan struct{})
			go func() {
				_ = s.Serve(l)
				close(served)
			}()
			result = do(t, l, s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = s.Shutdown(ctx)
			if plain, ok := s.(*http.Server); ok {
				_ = plain.Close()
			}
			<-served
		})
		return result
	}
	got := run(func(s *http.Server) server { return New(s) })
	want := run(func(s *http.Server) server { return s })
	if got != want {
		t.Errorf("the loop:  %q\nnet/http:  %q", got, want)
	}
	return got
}

// story tells what has come over each connection, and when it was closed.
func story(begin time.Time, peers ...*peer) (s string) {
	synctest.Wait()
	for _, p := range peers {
		got, closed := p.all()
		end := "open"
		if !closed.IsZero() {
			end = closed.Sub(begin).String()
		}
		s += fmt.Sprintf("%s: %q\n", end, got)
	}
	return s
}

// TestTimes: connections end after the same times as in net/http.
func TestTimes(t *testing.T) {
	h := http.HandlerFunc(tell)
	for name, c := range map[string]struct {
		parts []string
		pause time.Duration
		close string // when
	}{
		"nothing comes":                {nil, 0, "10s"},
		"part of a first request":      {[]string{"GE"}, 0, "10s"},
		"part of a first head":         {[]string{"GET / HTTP/1.1\r\nHost:"}, 0, "10s"},
		"a head that dribbles in":      {[]string{"GET ", "/ HTTP", "/1.1\r\n", "Host: a\r\n", "\r\n"}, 3 * time.Second, "10s"},
		"part of a second head":        {[]string{get("/"), "GET / HTTP"}, 20 * time.Second, "30s"},
		"a rest after a request":       {[]string{get("/")}, 0, "2m0s"},
		"a rest after two requests":    {[]string{get("/"), get("/")}, 90 * time.Second, "3m30s"},
		"a rest after many":            {[]string{get("/1"), get("/2"), get("/3"), get("/4"), get("/5")}, 50 * time.Second, "5m20s"},
		"a body just in time":          {[]string{post("/", "a body")[:62], post("/", "a body")[62:]}, 29 * time.Second, "2m29s"},
		"what is odd":                  {[]string{get("/"), "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"}, time.Minute, "3m0s"},
		"what is odd, in part":         {[]string{get("/"), "GET / HTTP/1.0\r\n"}, time.Minute, "1m10s"},
		"blank lines behind a body":    {[]string{post("/", "a body") + "\r\n", get("/")}, time.Second, "2m1s"},
		"more blank lines behind it":   {[]string{post("/", "a body") + "\r\n\r\n", get("/")}, time.Second, "2m1s"},
		"too many blank lines":         {[]string{post("/", "a body") + "\r\n\r\n\r\n" + get("/")}, 0, "0s"},
		"blank lines behind no body":   {[]string{get("/") + "\r\n" + get("/")}, 0, "0s"},
		"a request behind blank lines": {[]string{post("/", "a body") + "\r\n" + get("/a"), get("/b")}, time.Second, "2m1s"},
	} {
		t.Run(name, func(t *testing.T) {
			got := both(t, h, func(_ *testing.T, l *pipes, _ server) string {
				begin := time.Now()
				p := l.dial()
				for i, part := range c.parts {
					if i > 0 {
						time.Sleep(c.pause)
					}
					p.send(part)
				}
				time.Sleep(time.Hour)
				return story(begin, p)
			})
			if !strings.HasPrefix(got, c.close+":") {
				t.Errorf("closed after %.20s, want %s", got, c.close)
			}
		})
	}
}

// TestSlowBody: a body that does not come in time ends the connection. In net/http it depends on a
// few microseconds whether there is an answer.
func TestSlowBody(t *testing.T) {
	for _, parts := range [][]string{
		{post("/", "a body")[:62]}, {post("/", "a body")[:62], "y"}, {post("/?read=no", "a body")[:70]}, {get("/before"), post("/", "a body")[:62]},
	} {
		both(t, http.HandlerFunc(tell), func(_ *testing.T, l *pipes, _ server) string {
			p := l.dial()
			begin := time.Now()
			for _, part := range parts {
				p.send(part)
				time.Sleep(20 * time.Second)
				synctest.Wait()
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			_, closed := p.all()
			return closed.Sub(begin).String()
		})
	}
}

// TestDrain: a server that goes away ends connections as net/http does, except that it answers a
// request that it has read.
func TestDrain(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			time.Sleep(20 * time.Second)
		}
		_, _ = io.WriteString(w, r.URL.Path)
	})
	got := both(t, h, func(t *testing.T, l *pipes, s server) string {
		fresh, used, slow, part, odd := l.dial(), l.dial(), l.dial(), l.dial(), l.dial()
		used.send(get("/used"))
		slow.send(get("/slow"))
		odd.send("GET /used HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
		synctest.Wait()
		time.Sleep(time.Second) // net/http looks in steps of at most half a second
		begin := time.Now()
		ended := make(chan error)
		go func() { ended <- s.Shutdown(context.Background()) }()
		synctest.Wait()
		told := story(begin, used, odd)
		part.send(get("/part"))
		if got, _ := part.all(); got != "" && !strings.Contains(got, "Connection: close") { // net/http says nothing
			t.Errorf("%q", got)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d < 19*time.Second || d > 20*time.Second {
			t.Errorf("it took %v", d)
		}
		_, closed := fresh.all()
		if d := closed.Sub(begin); closed.IsZero() || d > 6*time.Second {
			t.Errorf("the new connection was closed after %v", d)
		}
		return told + story(begin, slow)
	})
	if !strings.Contains(got, "Connection: close") {
		t.Errorf("no answer says that the connection ends: %s", got)
	}
}

// TestDrainRest: the line end that some clients send behind a body does not hold up a server that
// goes away.
func TestDrainRest(t *testing.T) {
	got := both(t, http.HandlerFunc(tell), func(t *testing.T, l *pipes, s server) string {
		p := l.dial()
		p.send(post("/", "a body") + "\r\n")
		synctest.Wait()
		begin := time.Now()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		return story(begin, p)
	})
	if !strings.HasPrefix(got, "0s:") {
		t.Errorf("%s", got)
	}
}

// TestDate: an answer bears the date at which it begins, not the date of its request.
func TestDate(t *testing.T) {
	got := both(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(20 * time.Second) }),
		func(_ *testing.T, l *pipes, _ server) string {
			p := l.dial()
			p.send(get("/"))
			time.Sleep(time.Minute)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.got.String()
		})
	if !strings.Contains(got, " 00:00:20 GMT\r\n") { // the clock of a bubble begins at midnight
		t.Errorf("%q", got)
	}
}
