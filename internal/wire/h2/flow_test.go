package h2

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// TestAnswerWaits: an answer that does not fit into the client's windows comes in parts as they
// open, and others pass it.
func TestAnswerWaits(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		s, addr := serve(t, o)
		c := dialRaw(t, addr)
		c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}))
		c.call(1, sizePath, []byte("100"))
		c.call(3, echoPath, []byte("short"))
		if a := c.answer(3); a.message() != "short" {
			t.Fatalf("%+v", a)
		}
		if n := s.held.Load(); n == 0 {
			t.Error("an answer that waits is not counted")
		}
		c.must(c.f.WriteWindowUpdate(1, 50))
		c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 30}))
		c.must(c.f.WriteWindowUpdate(1, 25))
		if a := c.answer(1); a.message() != strings.Repeat("s", 100) || a.header.Get("grpc-status") != "0" {
			t.Errorf("%+v", a)
		}
		if n := s.held.Load(); n != 0 {
			t.Errorf("%d bytes are held", n)
		}
		c.alive(5)
	})
}

// TestLargeAnswers: answers of many frames arrive whole, through the connection's window.
func TestLargeAnswers(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		c := dialRaw(t, addr)
		const streams, size = 4, 100_000
		for i := range uint32(streams) {
			c.call(2*i+1, sizePath, []byte(strconv.Itoa(size)))
		}
		got := map[uint32]int{}
		for ended := 0; ended < streams; {
			switch f := c.next().(type) {
			case *http2.DataFrame:
				n := len(f.Data())
				got[f.StreamID] += n
				c.must(c.f.WriteWindowUpdate(0, uint32(n)))
				c.must(c.f.WriteWindowUpdate(f.StreamID, uint32(n)))
			case *http2.MetaHeadersFrame:
				if f.StreamEnded() {
					ended++
				}
			}
		}
		for id, n := range got {
			if n != size+prefixLen {
				t.Errorf("stream %d: %d bytes", id, n)
			}
		}
		c.alive(2*streams + 1)
	})
}

// TestAnswersBeyondMemory: the bytes of unsent answers are bounded; further calls are refused at
// once.
func TestAnswersBeyondMemory(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		o.MaxBuffered = 400_000 // a quarter for each connection
		s, addr := serve(t, o)
		c := dialRaw(t, addr)
		c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
		for i := range uint32(6) {
			c.call(2*i+1, sizePath, []byte("20000"))
		}
		refused := 0
		for blocks := 0; blocks < 6; {
			if f, ok := c.next().(*http2.MetaHeadersFrame); ok {
				blocks++
				if f.StreamEnded() {
					if got := f.Fields[len(f.Fields)-2].Value; got != "8" {
						t.Errorf("%v", f.Fields)
					}
					refused++
				}
			}
		}
		if refused != 2 {
			t.Errorf("%d of 6 are refused", refused)
		}
		// Who resets them makes room.
		for i := range uint32(6) {
			c.must(c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}
		c.must(c.f.WritePing(false, [8]byte{1}))
		for {
			if f, ok := c.next().(*http2.PingFrame); ok && f.IsAck() {
				break
			}
		}
		if n := s.held.Load(); n != 0 {
			t.Errorf("%d bytes are held", n)
		}
		checkServing(t, addr)
	})
}

// TestLargeMessages: the window opens for messages that are larger than it, for as many at once as
// there is room for.
func TestLargeMessages(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		s, addr := serve(t, o)
		c := dialRaw(t, addr)
		// All messages together are far larger than what one connection may hold at a time.
		const size = 1 << 20
		streams := effort.Of[uint32](36, 64)
		message := frameMessage(bytes.Repeat([]byte("m"), size))
		sent := make([]int, streams)
		window := make([]int, streams)
		conn, ended := 65_535, uint32(0)
		acked := false
		write := func() {
			for i := range sent {
				for n := 1; n > 0 && sent[i] < len(message); {
					n = min(len(message)-sent[i], window[i], conn, 16<<10)
					if n > 0 {
						c.must(c.f.WriteData(uint32(2*i+1), sent[i]+n == len(message), message[sent[i]:sent[i]+n]))
						sent[i], window[i], conn = sent[i]+n, window[i]-n, conn-n
					}
				}
			}
		}
		for i := range streams {
			c.open(2*i+1, headPath)
		}
		for ended < streams {
			f, err := c.f.ReadFrame()
			c.must(err)
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					c.must(c.f.WriteSettingsAck())
					v, _ := f.Value(http2.SettingInitialWindowSize)
					for i := range window {
						window[i] += int(v)
					}
					acked = true
				}
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					conn += int(f.Increment)
				} else {
					window[f.StreamID/2] += int(f.Increment)
				}
			case *http2.MetaHeadersFrame:
				if f.StreamEnded() {
					ended++
					if f.Fields[len(f.Fields)-1].Value != "0" {
						t.Fatalf("%v", f.Fields)
					}
				}
			}
			if acked {
				write()
			}
			if held := s.held.Load(); held > 32<<20 {
				t.Fatalf("%d bytes are held", held)
			}
		}
		c.alive(2*streams + 1)
	})
}

// TestMessagesBeyondMemory: parts of messages are kept within a bound.
func TestMessagesBeyondMemory(t *testing.T) {
	o := Options{Methods: newService().methods(), MaxBuffered: 4 * 50_100}
	s, addr := serve(t, o)
	c := dialRaw(t, addr)
	part := frameMessage(make([]byte, 20_000))[:10_000]
	for i := range uint32(6) {
		c.open(2*i+1, echoPath)
		c.must(c.f.WriteData(2*i+1, false, part))
	}
	if a := c.answer(11); a.header.Get("grpc-status") != "8" {
		t.Errorf("%+v", a)
	}
	if f, ok := c.next().(*http2.RSTStreamFrame); !ok || f.StreamID != 11 || f.ErrCode != http2.ErrCodeNo {
		t.Errorf("the client is not told to stop: %v", f)
	}
	c.alive(13)
	if n := s.held.Load(); n != 50_000 {
		t.Errorf("%d bytes are held", n)
	}
	for i := range uint32(5) {
		c.must(c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	c.alive(15)
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// TestWindowsHold: a client that sends more than its windows allow is stopped.
func TestWindowsHold(t *testing.T) {
	_, addr := serve(t, Options{Methods: newService().methods()})

	c := dialRaw(t, addr)
	c.must(c.f.WriteSettingsAck()) // for later streams: from here on each has 16 KiB
	c.open(1, waitPath)
	big := frameMessage(make([]byte, 1<<20))
	c.must(c.f.WriteData(1, false, []byte{0})) // tells no length, so that no window opens
	c.must(c.f.WriteData(1, false, make([]byte, 16<<10)))
	if a := c.answer(1); a.reset != http2.ErrCodeFlowControl {
		t.Errorf("%+v", a)
	}
	c.alive(3)

	c = dialRaw(t, addr)
	_, _ = c.f.ReadFrame()
	for id := uint32(1); ; id += 2 { // on streams that are gone, where it is only counted
		if err := c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields(echoPath), EndHeaders: true}); err != nil || id > 400 {
			break
		}
		_ = c.f.WriteData(id, false, big[:16<<10])
		_ = c.f.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	_ = c.f.WriteWindowUpdate(0, 1<<31-1)
	if code, _ := c.goAway(); code != http2.ErrCodeFlowControl && code != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("%v", code)
	}
}
