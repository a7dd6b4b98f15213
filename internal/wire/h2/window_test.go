package h2

import (
	"io"
	"net/http"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// TestManyUnreadBodies: more bodies than fill the window of a connection leave room for others,
// while there is memory for them; and what was lent for that is given back.
func TestManyUnreadBodies(t *testing.T) {
	const unread, size, part = 12, 256 << 10, 16 << 10
	release := make(chan struct{})
	s, addr := serve(t, Options{Window: size, Logger: discard(),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/read" {
				<-release
			}
			_, _ = io.Copy(io.Discard, r.Body)
		})})
	c := dialRaw(t, addr)
	window := defaultWindow
	c.must(c.f.WritePing(false, [8]byte{1}))
	next := func() {
		f := c.next()
		if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
			window += int(w.Increment)
		}
		c.take(f)
	}
	for window == defaultWindow {
		next()
	}
	send := func(id uint32, path string) {
		c.open(id, path)
		for n := 0; n < size; n += part {
			for window < part {
				next()
			}
			c.must(c.f.WriteData(id, n+part == size, make([]byte, part)))
			window -= part
		}
	}
	for i := range uint32(unread) {
		send(2*i+1, "/unread")
	}
	send(2*unread+1, "/read")
	for c.answers[2*unread+1] == nil || !c.answers[2*unread+1].over {
		next()
	}
	if n := s.extra.Load(); n < (unread-5)*size || n > int64(s.o.MaxMemory/16) {
		t.Errorf("the window is wider by %d bytes", n)
	}
	close(release)
	for i := range uint32(unread) {
		for id := 2*i + 1; c.answers[id] == nil || !c.answers[id].over; {
			next()
		}
	}
	if n := s.extra.Load(); n != 0 {
		t.Errorf("%d bytes are lent when all is read", n)
	}
	if window > connWindow {
		t.Errorf("%d bytes of window", window)
	}
}

// TestWindowsShare: connections with bodies that nobody reads share what there is for wider
// windows, and give it back when they end.
func TestWindowsShare(t *testing.T) {
	s, addr := serve(t, Options{MaxMemory: 16 << 20, Window: 256 << 10, Logger: discard(),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		})})
	var all []*rawClient
	for range 3 {
		c := dialRaw(t, addr)
		all = append(all, c)
		window := defaultWindow
		acked := false
		for id := uint32(1); id < 60 && window >= 0; id += 2 {
			c.open(id, "/")
			for n := 0; n < 256<<10 && window >= 0; n += 16 << 10 {
				for window < 16<<10 || !acked {
					if acked { // what there is to say has been said when this is answered
						c.must(c.f.WritePing(false, [8]byte{byte(id)}))
					}
					before := window
					for {
						f := c.next()
						if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
							window += int(w.Increment)
							if !acked {
								acked = true
								break
							}
						}
						if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
							break
						}
					}
					if acked && window == before {
						window = -1 // shut
						break
					}
				}
				if window >= 16<<10 {
					c.must(c.f.WriteData(id, false, make([]byte, 16<<10)))
					window -= 16 << 10
				}
			}
		}
		if window != -1 {
			t.Error("the window is never shut")
		}
	}
	if n := s.extra.Load(); n != 7*256<<10 { // of 2 MiB: half, a quarter, an eighth
		t.Errorf("the windows are wider by %d KiB", n>>10)
	}
	for _, c := range all {
		_ = c.conn.Close()
	}
	patience.Until(t, "all is given back", func() bool { return s.extra.Load() == 0 && s.Memory().Bytes == 0 })
}
