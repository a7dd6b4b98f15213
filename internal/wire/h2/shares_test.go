package h2

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// fill opens streams on a connection until one is refused, and returns how many were not.
func fill(c *rawClient, path string, field ...string) (n int) {
	for id := uint32(1); ; id += 2 {
		c.open(id, path, field...)
		c.ping()
		if a := c.answers[id]; a != nil && a.wasReset {
			if a.reset != http2.ErrCodeRefusedStream {
				c.t.Fatalf("reset by %v", a.reset)
			}
			return n
		}
		n++
	}
}

// TestEvenShares: connections that want more than there is are refused further requests, one after
// the other, and none of them is ended for that; who comes later finds room.
func TestEvenShares(t *testing.T) {
	s, addr := serve(t, Options{
		MaxMemory: 8 << 20, MaxStreams: 1000, MaxHandlers: 1000, Logger: discard(),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				<-r.Context().Done()
			}
		}),
	})
	var counts []int
	for range 6 {
		counts = append(counts, fill(dialRaw(t, addr), "/wait"))
	}
	m := s.Memory()
	if m.Connections != 0 || m.Requests < 6 || m.Bytes > 6<<20 {
		t.Errorf("streams of %v: %+v", counts, m)
	}
	if counts[0] < 30 || counts[5] < 1 || !slices.IsSortedFunc(counts, func(a, b int) int { return b - a }) {
		t.Errorf("streams of %v", counts)
	}
	// Those that come later find room for one request, however many they are: others are ended.
	for i := range 80 {
		late := dialRaw(t, addr)
		late.open(1, "/wait")
		late.ping()
		if late.answers[1] != nil {
			t.Fatalf("one that comes later, as number %d, gets %+v", i, late.answers[1])
		}
	}
	if m := s.Memory(); m.Connections == 0 || m.Bytes > 8<<20 {
		t.Errorf("%+v", m)
	}
}

// TestKeptWhile: a handler that goes on when its client has left is told when what it keeps is
// needed, whether its connection is ended for that or has ended before.
func TestKeptWhile(t *testing.T) {
	var left, kept atomic.Int64
	s, addr := serve(t, Options{
		MaxMemory: 8 << 20, MaxStreams: 1000, MaxHandlers: 1000, Logger: discard(),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/keep" {
				return
			}
			<-r.Context().Done()
			while := KeptWhile(r.Context())
			goesOn := while.Err() == nil
			if goesOn {
				kept.Add(1)
			}
			if left.Add(1); goesOn {
				<-while.Done()
			}
		}),
	})
	large := strings.Repeat("x", 14_000) // 60 KB for each
	good := dialRaw(t, addr)
	streams := 0
	for n := 0; s.Memory().Connections < 2; n++ {
		c := dialRaw(t, addr)
		begun := 0
		for range 10 {
			c.open(uint32(2*begun+1), "/keep", "x-large", large)
			begun++
		}
		c.ping()
		if len(c.answers) > 1 { // 0 is the connection
			t.Fatalf("with %d connections gone, %d of 10 requests are answered; %+v", n, len(c.answers)-1, s.Memory())
		}
		streams += begun
		_ = c.conn.Close()
		patience.Until(t, "the end is noticed", func() bool { return left.Load() == int64(streams) })
		if n > 100 {
			t.Fatalf("%+v", s.Memory())
		}
		id := uint32(2*n + 1)
		good.open(id, "/")
		if a := good.answer(id); a.header.Get(":status") != "200" {
			t.Fatalf("another one gets %+v", a)
		}
	}
	if m := s.Memory(); m.Bytes > 8<<20 {
		t.Errorf("%+v", m)
	}

	// A connection that is alive, and greedy.
	before := kept.Load()
	c := dialRaw(t, addr)
	fill(c, "/keep", "x-large", large)
	for _, p := range s.sessions.AppendConns(nil) {
		if open := p.open(); open != nil && open.remote == c.conn.LocalAddr().String() {
			open.calm()
		}
	}
	if code, _ := c.goAway(); code != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("%v", code)
	}
	for _, left := range s.leftBehind() {
		left.calm()
	}
	patience.Until(t, "all is given back", func() bool { return s.handlers.Load() == 0 && len(s.leftBehind()) == 0 })
	if n := kept.Load() - before; n != 0 {
		t.Errorf("%d were kept of a connection that had kept too much", n)
	}
}

// TestHeadersOneAfterAnother: each header has its own time to come in, also where the next one
// begins with the bytes that end the one before.
func TestHeadersOneAfterAnother(t *testing.T) {
	timed(t, Options{HandshakeTimeout: 30 * time.Second}, func(t *testing.T, _ *Server, _ *service, c *timedClient) {
		var block []byte
		c.do(func() { block = append(block, c.fields(waitPath)...) })
		frame := func(id uint32) []byte {
			return append(appendFrameHeader(nil, len(block), frameHeaders, flagEndHeaders|flagEndStream, id), block...)
		}
		var rest []byte
		for id := uint32(1); id < 30; id += 2 {
			next := frame(id)
			c.do(func() { _, _ = c.conn.Write(append(rest, next[:20]...)) })
			rest = next[20:]
			time.Sleep(20 * time.Second)
		}
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed != 0 {
			t.Errorf("closed after %v", c.closed)
		}
	})
}

// TestAwaitRoomOnce: of the requests that come in one go, only the first waits for room.
func TestAwaitRoomOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxMemory: 8 << 20})
		s.kept.Add(8 << 20)
		c := &conn{s: s}
		c.mu.Lock()
		defer c.mu.Unlock()
		start := time.Now()
		for range 100 {
			c.awaitRoom(1000)
		}
		if waited := time.Since(start); waited < 900*time.Millisecond || waited > 2*time.Second {
			t.Errorf("it waited for %v", waited)
		}
	})
}
