package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/upstream"
	"github.com/weir-rl/weir/overload"
)

// grace sets how long every body may be waited for, for this test.
func grace(t *testing.T, d time.Duration) {
	before := bodyGrace
	bodyGrace = d
	t.Cleanup(func() { bodyGrace = before })
}

// upload is a request whose body the test sends as it likes.
type upload struct {
	t      *testing.T
	h2c    bool
	send   io.WriteCloser
	leave  func()   // hangs up
	status chan int // of its answer; 0 if it got none
}

// beginUpload sends the header of a POST over HTTP/1.1, or HTTP/2 if h2c. Its body is length bytes
// long; below 0 it is not told.
func beginUpload(t *testing.T, addr string, h2c bool, length int64) *upload {
	t.Helper()
	return beginUploadWith(t, addr, h2c, length, http.Header{})
}

// beginUploadWith is beginUpload with more in its header. Over HTTP/1.1 that may have Expect.
func beginUploadWith(t *testing.T, addr string, h2c bool, length int64, header http.Header) *upload {
	t.Helper()
	u := &upload{t: t, h2c: h2c, status: make(chan int, 1)}
	if h2c {
		body, send := io.Pipe()
		u.send = send
		ctx, leave := context.WithCancel(t.Context())
		u.leave = leave
		r, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/upload", body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength, r.Header = length, header
		c := client(t, true)
		t.Cleanup(func() { _ = body.CloseWithError(io.ErrClosedPipe) })
		go func() { u.status <- statusOf(c.Do(r)) }()
		return u
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	u.send, u.leave = conn, func() { _ = conn.Close() }
	framing := fmt.Sprintf("Content-Length: %d", length)
	if length < 0 {
		framing = "Transfer-Encoding: chunked"
	}
	fmt.Fprintf(conn, "POST /upload HTTP/1.1\r\nHost: x\r\n%s\r\n", framing)
	_ = header.Write(conn)
	fmt.Fprintf(conn, "\r\n")
	go func() {
		in := bufio.NewReader(conn)
		status := http.StatusContinue
		for status == http.StatusContinue {
			status = statusOf(http.ReadResponse(in, nil))
		}
		u.status <- status
	}()
	return u
}

func statusOf(resp *http.Response, err error) int {
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// write sends the next n bytes; the other side may have hung up.
func (u *upload) write(n int) { _, _ = io.WriteString(u.send, strings.Repeat("x", n)) }

// end sends the last n bytes.
func (u *upload) end(n int) {
	if u.write(n); u.h2c {
		_ = u.send.Close()
	}
}

// answered waits for the status of the answer.
func (u *upload) answered() int {
	u.t.Helper()
	return patience.Receive(u.t, "an answer", u.status)
}

// Requests whose bodies do not come take no place: not of a bound on concurrency, nor of a limit on
// it. The upstream is not asked before.
func TestSlowBodiesTakeNoPlace(t *testing.T) {
	grace(t, time.Hour) // nothing is cut
	var uploads atomic.Int64
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			uploads.Add(1)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	const rule = `limits: [{name: few, allow: 3 concurrent}]`
	for name, fixed := range map[string]int{"a bound": 3, "adaptive": 0, "a limit": -1} {
		for _, h2c := range []bool{false, true} {
			yaml := noLimits
			var guard *overload.Limiter
			var err error
			switch fixed {
			case -1:
				yaml = rule
			case 0:
				guard, err = overload.New(overload.Options{Min: 3, Max: 3})
			default:
				guard, err = overload.New(overload.Options{Fixed: fixed})
			}
			if err != nil {
				t.Fatal(err)
			}
			arrived := make(chan bool, 100)
			addr := newProxy(t, up.URL, yaml, func(o *Options) {
				o.Overload, o.BodyTimeout = guard, time.Hour
				o.Trace = func(*http.Request) *weir.Trace { arrived <- true; return nil }
			})
			uploads.Store(0)
			const length = 30_000
			var slow []*upload
			for range 5 {
				u := beginUpload(t, addr, h2c, length)
				u.write(1)
				slow = append(slow, u)
				patience.Receive(t, "the header is there", arrived)
			}
			c := client(t, false)
			for i := range 5 {
				if status := statusOf(c.Get("http://" + addr + "/")); status != 200 {
					t.Errorf("%s, h2c=%v: good request %d: %d", name, h2c, i, status)
				}
			}
			if n := uploads.Load(); n != 0 {
				t.Errorf("%s, h2c=%v: the upstream saw %d uploads", name, h2c, n)
			}
			for _, u := range slow { // one after the other there is a place for each
				u.end(length - 1)
				if status := u.answered(); status != 200 {
					t.Errorf("%s, h2c=%v: an upload that is there: %d", name, h2c, status)
				}
			}
		}
	}
}

// A body that comes too slowly is cut with a 408, either way, and gives its place back.
func TestSlowBodyCut(t *testing.T) {
	grace(t, 20*time.Millisecond)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	h2up := h2cServer(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for _, upstreamURL := range []string{up.URL, h2up} {
		for _, h2c := range []bool{false, true} {
			for _, body := range []struct {
				length int64
				first  int
			}{{30_000, 1}, {1 << 20, upstream.MaxBody + 100}, {-1, 0}} {
				guard, err := overload.New(overload.Options{Fixed: 1})
				if err != nil {
					t.Fatal(err)
				}
				addr, h := serveProxy(t, upstreamURL, newLimiter(t, noLimits), nil, func(o *Options) {
					o.Overload, o.BodyTimeout, o.BodyRate = guard, time.Hour, 1<<40
				})
				u := beginUpload(t, addr, h2c, body.length)
				u.write(body.first)
				what := fmt.Sprintf("%s, h2c=%v, %d bytes", upstreamURL, h2c, body.length)
				if status := u.answered(); status != http.StatusRequestTimeout {
					t.Errorf("%s: %d", what, status)
				}
				if s := h.Stats(); s.SlowBodies != 1 || s.StalledBodies != 0 {
					t.Errorf("%s: %+v", what, s)
				}
				patience.Until(t, "the place is free", func() bool { return guard.Stats().InFlight == 0 })
				if status := statusOf(client(t, false).Get("http://" + addr + "/")); status != 200 {
					t.Errorf("%s: a good request: %d", what, status)
				}
			}
		}
	}
}

// A client that pauses for too long in the middle of a body is cut over both protocols.
func TestBodyStalls(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for _, h2c := range []bool{false, true} {
		for _, length := range []int64{-1, 30_000, 1 << 20} {
			addr, h := serveProxy(t, up.URL, newLimiter(t, noLimits), nil, func(o *Options) {
				o.BodyTimeout, o.BodyRate = 20*time.Millisecond, -1
			})
			u := beginUpload(t, addr, h2c, length)
			if status := u.answered(); status != http.StatusRequestTimeout {
				t.Errorf("h2c=%v, %d bytes: %d", h2c, length, status)
			}
			if s := h.Stats(); s.SlowBodies != 0 || s.StalledBodies != 1 {
				t.Errorf("h2c=%v, %d bytes: %+v", h2c, length, s)
			}
		}
	}
}

// Over HTTP/2 a call in both directions may be silent in one of them, once its answer has begun.
func TestTwoWaysSilent(t *testing.T) {
	up := h2cServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Answer") != "" {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.Copy(w, r.Body)
	})
	for pause := 20 * time.Millisecond; ; pause *= 2 { // until the answer is in time, on a busy machine
		grace(t, pause)
		guard, err := overload.New(overload.Options{Fixed: 1000}) // so that they have a place to hold
		if err != nil {
			t.Fatal(err)
		}
		addr, h := serveProxy(t, up, newLimiter(t, noLimits), nil, func(o *Options) {
			o.Overload, o.BodyTimeout, o.BodyRate = guard, pause, 1<<40
		})
		body, send := io.Pipe()
		r, err := http.NewRequest("POST", "http://"+addr+"/", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Answer", "now")
		resp, err := client(t, true).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == http.StatusRequestTimeout {
			_ = resp.Body.Close()
			continue
		}
		for range 3 { // while others that are as silent are cut
			if status := beginUpload(t, addr, true, -1).answered(); status != http.StatusRequestTimeout {
				t.Errorf("a body that does not come: %d", status)
			}
		}
		go func() {
			_, _ = io.WriteString(send, "late")
			_ = send.Close()
		}()
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if s := h.Stats(); err != nil && s.SlowBodies+s.StalledBodies > 3 {
			continue // it was cut in the moment in which the answer began
		}
		if string(got) != "late" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		return
	}
}

// TestPace: a body may be behind its rate by ten seconds, and get ahead of it by a minute.
func TestPace(t *testing.T) {
	const rate = 1 << 10
	for _, c := range []struct {
		name   string
		first  int           // bytes at once
		n      int           // then so many bytes
		every  time.Duration // so often
		before time.Duration // it is cut before that; 0 for never
		after  time.Duration // and not before that
	}{
		{"nothing", 0, 0, time.Second, 11 * time.Second, 9 * time.Second},
		{"a byte each 3 s", 0, 1, 3 * time.Second, 13 * time.Second, 9 * time.Second},
		{"40 KB, then a byte each 3 s", 40_000, 1, 3 * time.Second, 53 * time.Second, 46 * time.Second},
		{"1 GB, then a byte each 3 s", 1 << 30, 1, 3 * time.Second, 64 * time.Second, 57 * time.Second},
		{"1,100 bytes a second", 0, 1100, time.Second, 0, 0},
		{"20 KB each 15 s, a little too late", 0, 20 << 10, 15 * time.Second, 11 * time.Second, 9 * time.Second},
		{"20 KB at first, then each 15 s", 20 << 10, 20 << 10, 15 * time.Second, 0, 0},
		{"1,000 bytes a second", 0, 1000, time.Second, 440 * time.Second, 370 * time.Second},
	} {
		p := pace(10 * time.Second)
		p.add(c.first, 0, rate)
		var at time.Duration
		for at < time.Hour && time.Duration(p) >= c.every {
			at += c.every
			p.add(c.n, c.every, rate)
		}
		at += min(time.Duration(p), c.every)
		if c.before == 0 && at < time.Hour || c.before > 0 && (at < c.after || at > c.before) {
			t.Errorf("%s: cut after %v", c.name, at)
		}
	}
}
