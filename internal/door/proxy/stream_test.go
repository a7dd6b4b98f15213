package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

func TestWebSocket(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, data); err != nil {
				return
			}
		}
	}
	for _, upstream := range []string{newUpstream(t, echo).URL, h2cServer(t, echo)} {
		addr := newProxy(t, upstream, `limits: [{name: sockets, allow: 1 concurrent}]`)
		ctx := patience.Context(t)
		c, resp, err := websocket.Dial(ctx, "ws://"+addr+"/ws", nil)
		if err != nil {
			t.Fatal(err)
		}
		c.SetReadLimit(1 << 20)
		if resp.Header.Get("X-RateLimit-Limit") != "1" {
			t.Errorf("the upgrade's headers: %v", resp.Header)
		}
		for i := range 3 {
			want := strings.Repeat("x", i*20_000)
			if err := c.Write(ctx, websocket.MessageText, []byte(want)); err != nil {
				t.Fatal(err)
			}
			if _, got, err := c.Read(ctx); err != nil || string(got) != want {
				t.Fatalf("echo of %d bytes: %d, %v", len(want), len(got), err)
			}
		}
		// The slot is held while the socket is open, and given back when it ends.
		if _, resp, err := websocket.Dial(ctx, "ws://"+addr+"/ws", nil); err == nil || resp == nil ||
			resp.StatusCode != 429 {
			t.Errorf("a second socket: %v, %v", resp, err)
		}
		if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Error(err)
		}
		eventually(t, "the slot is given back", func() bool {
			resp, err := client(t, false).Get("http://" + addr + "/plain")
			read(t, resp, err)
			return resp.StatusCode != 429
		})
	}
}

var eventually = patience.Until

// What the upstream sends reaches the client at once, though the response has not ended.
func TestStreamingResponse(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		next := make(chan bool)
		up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				<-next // the client has read it
			}
		})
		addr := newProxy(t, up.URL, noLimits)
		resp, err := client(t, h2c).Get("http://" + addr + "/events")
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for i := range 3 {
			for lines.Scan() && lines.Text() == "" {
			}
			if lines.Text() != fmt.Sprintf("data: %d", i) {
				t.Fatalf("got %q", lines.Text())
			}
			next <- true
		}
		if lines.Scan(); lines.Err() != nil {
			t.Error(lines.Err())
		}
		_ = resp.Body.Close()
	}
}

// So does a part of a response whose length is known.
func TestStreamingKnownLength(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		next := make(chan bool)
		up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "3000")
			for range 3 {
				_, _ = io.WriteString(w, strings.Repeat("x", 1000))
				w.(http.Flusher).Flush()
				<-next // the client has read it
			}
		})
		addr := newProxy(t, up.URL, noLimits)
		resp, err := client(t, h2c).Get("http://" + addr + "/part")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			next <- true
		}
		if n, err := io.Copy(io.Discard, resp.Body); n > 0 || err != nil {
			t.Errorf("%d bytes more, %v", n, err)
		}
		_ = resp.Body.Close()
	}
}

// A request body reaches the upstream while the client is still sending it, and the answer comes
// back meanwhile.
func TestStreamingBothWays(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			buf := make([]byte, 100)
			for {
				n, err := r.Body.Read(buf)
				_, _ = w.Write(buf[:n])
				w.(http.Flusher).Flush()
				if err != nil {
					return
				}
			}
		})
		addr := newProxy(t, up.URL, noLimits)
		body, send := io.Pipe()
		r, err := http.NewRequest("POST", "http://"+addr+"/echo", body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client(t, h2c).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			want := fmt.Sprintf("line %d\n", i)
			if _, err := io.WriteString(send, want); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
				t.Fatalf("h2c=%v: got %q, %v", h2c, got, err)
			}
		}
		_ = send.Close()
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
		_ = resp.Body.Close()
	}
}

func TestLargeUpload(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprintf(w, "%d %x %v", n, h.Sum(nil), err)
	})
	addr := newProxy(t, up.URL, noLimits)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MB
	want := fmt.Sprintf("%d %x %v", len(data), sha256.Sum256(data), error(nil))
	for _, h2c := range []bool{false, true} {
		for _, chunked := range []bool{false, true} {
			var body io.Reader = bytes.NewReader(data)
			if chunked {
				body = io.MultiReader(body)
			}
			resp, err := client(t, h2c).Post("http://"+addr+"/", "application/octet-stream", body)
			if got := read(t, resp, err); got != want {
				t.Errorf("h2c=%v chunked=%v: %s", h2c, chunked, got)
			}
		}
	}
}

func TestTrailers(t *testing.T) {
	var got string
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got = r.Trailer.Get("X-Sum")
		w.Header().Set("Trailer", "X-Declared")
		fmt.Fprint(w, "body")
		w.Header().Set("X-Declared", "a")
		w.Header().Set(http.TrailerPrefix+"X-Undeclared", "b")
	}
	for _, upstream := range []string{newUpstream(t, handler).URL, h2cServer(t, handler)} {
		for _, h2c := range []bool{false, true} {
			got = ""
			addr := newProxy(t, upstream, noLimits)
			r, err := http.NewRequest("POST", "http://"+addr+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Trailer = http.Header{"X-Sum": nil}
			r.Body, r.ContentLength = io.NopCloser(&onEOF{strings.NewReader("hello"),
				func() { r.Trailer.Set("X-Sum", "42") }}), -1
			resp, err := client(t, h2c).Do(r)
			body := read(t, resp, err)
			if body != "body" || resp.Trailer.Get("X-Declared") != "a" || resp.Trailer.Get("X-Undeclared") != "b" ||
				got != "42" {
				t.Errorf("%s, h2c=%v: body %q, trailers %v, the upstream got %q", upstream, h2c, body, resp.Trailer,
					got)
			}
		}
	}
}

type onEOF struct {
	io.Reader
	f func()
}

func (o *onEOF) Read(p []byte) (int, error) {
	n, err := o.Reader.Read(p)
	if err == io.EOF {
		o.f()
	}
	return n, err
}

// A client that hangs up cancels the request to the upstream, and its slot is free again.
func TestHangUp(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		arrived, cancelled := make(chan bool, 1), make(chan bool, 1)
		up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				arrived <- true
				<-r.Context().Done()
				cancelled <- true
			}
		})
		addr := newProxy(t, up.URL, `limits: [{name: c, allow: 1 concurrent}]`,
			func(o *Options) { o.CutAbandoned = true })
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/slow", nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		c := client(t, h2c)
		go func() {
			resp, err := c.Do(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			done <- err
		}()
		<-arrived
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the client got %v", err)
		}
		<-cancelled
		eventually(t, "the slot is free", func() bool {
			resp, err := c.Get("http://" + addr + "/quick")
			read(t, resp, err)
			return resp.StatusCode == 200
		})
	}
}

// The slot is held until the body has ended, not only until the header has come.
func TestConcurrencySpansTheBody(t *testing.T) {
	proceed := make(chan bool)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "begin")
		w.(http.Flusher).Flush()
		<-proceed
	})
	addr := newProxy(t, up.URL, `limits: [{name: c, allow: 1 concurrent}]`)
	c := client(t, false)
	first, err := c.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get("http://" + addr)
	if read(t, resp, err); resp.StatusCode != 429 {
		t.Errorf("while the first body flows: %d", resp.StatusCode)
	}
	close(proceed)
	if body := read(t, first, nil); body != "begin" {
		t.Errorf("body %q", body)
	}
	eventually(t, "the slot is free", func() bool {
		resp, err := c.Get("http://" + addr)
		read(t, resp, err)
		return resp.StatusCode == 200
	})
}

// Held requests arrive at the upstream, each once and not before its turn. On a busy machine two
// that are late may change places on their way.
func TestLeakyBucketHoldsForReal(t *testing.T) {
	const pace = 40 * time.Millisecond
	var mu sync.Mutex
	at := map[string][]time.Time{}
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		at[r.URL.Path] = append(at[r.URL.Path], time.Now())
	})
	decided := make(chan bool)
	limiter := newLimiter(t, `limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1/40ms, burst: 5}}]`,
		weir.WithHooks(weir.Hooks{Decided: func(*weir.Request, *weir.Decision) { decided <- true }}))
	addr, _ := serveProxy(t, up.URL, limiter, nil)
	start := time.Now()
	var wg sync.WaitGroup
	var paths []string // in the order of their turns
	for i := range 6 {
		path := fmt.Sprintf("/%d", i)
		paths = append(paths, path)
		c := client(t, false)
		wg.Go(func() {
			resp, err := c.Get("http://" + addr + path)
			if err != nil {
				t.Error(err)
				return
			}
			if _ = resp.Body.Close(); resp.StatusCode != 200 {
				t.Errorf("%s: %d", path, resp.StatusCode)
			}
		})
		<-decided // so that the next comes behind
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	for i, path := range paths {
		if len(at[path]) != 1 {
			t.Errorf("the upstream saw %s %d times", path, len(at[path]))
		} else if early := start.Add(time.Duration(i) * pace).Sub(at[path][0]); early > 0 {
			t.Errorf("%s left %v before its turn", path, early)
		}
	}
}

// An upstream that breaks off in the middle is not taken for a complete answer.
func TestUpstreamBreaksOff(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "only this")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	addr := newProxy(t, up.URL, noLimits)
	for range 2 {
		resp, err := client(t, false).Get("http://" + addr)
		if err != nil {
			continue // it had not even begun
		}
		if body, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%d %q is taken for complete", resp.StatusCode, body)
		}
		_ = resp.Body.Close()
	}
}

// An upstream that answers before it has read the request: the answer arrives, and the connection
// is still good or closed, but never out of step.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprint(w, r.Method)
	})
	addr := newProxy(t, up.URL, noLimits)
	for _, size := range []int{1, 100 << 10, 300 << 10, 4 << 20} {
		for _, expect := range []bool{false, true} {
			for _, chunked := range []bool{false, true} {
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", size)
				data := strings.Repeat("G", size)
				if chunked {
					head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
					data = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, data)
				}
				if expect {
					head += "Expect: 100-continue\r\n"
				}
				go func() { // first the header alone, so that the answer can come before the body
					_, _ = io.WriteString(conn, head+"\r\n")
					if !expect {
						_, _ = io.WriteString(conn, data+"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
					}
				}()
				what := fmt.Sprintf("%d bytes, expect %v, chunked %v", size, expect, chunked)
				in := bufio.NewReader(conn)
				resp, err := http.ReadResponse(in, &http.Request{Method: "POST"})
				for err == nil && resp.StatusCode == 100 {
					resp, err = http.ReadResponse(in, &http.Request{Method: "POST"})
				}
				if err != nil {
					// A client that is cut off while it sends may lose the answer (RFC 9112 9.6);
					// only large bodies are cut off.
					if size <= maxLeftOver/2 {
						t.Errorf("%s: %v", what, err)
					}
					_ = conn.Close()
					continue
				}
				closing := resp.Close
				if closing && !chunked && !expect && size <= maxLeftOver/2 {
					t.Errorf("%s: the connection is closed without need", what)
				}
				if body := read(t, resp, nil); resp.StatusCode != 403 || body != "POST" {
					t.Errorf("%s: %d %q", what, resp.StatusCode, body)
				}
				if !expect {
					resp, err = http.ReadResponse(in, &http.Request{Method: "GET"})
					if err == nil {
						if body := read(t, resp, nil); resp.StatusCode != 200 || body != "GET" {
							t.Errorf("%s: the next request on the connection: %d %q", what, resp.StatusCode, body)
						}
					} else if size <= maxLeftOver/2 && !closing {
						t.Errorf("%s: the connection was not kept: %v", what, err)
					}
				}
				_ = conn.Close()
			}
		}
	}
}

// A body that a client is asked for (Expect: 100-continue) goes through, and is not asked for when
// the request is refused.
func TestExpectContinue(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	addr := newProxy(t, up.URL, `limits: [{name: a, allow: 1/min, algorithm: sliding_log}]`)
	tr := &http.Transport{ExpectContinueTimeout: time.Hour}
	defer tr.CloseIdleConnections()
	for _, want := range []int{200, 429} {
		asked := &askedBody{Reader: strings.NewReader("hello")}
		r, err := http.NewRequest("POST", "http://"+addr, asked)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Expect", "100-continue")
		resp, err := (&http.Client{Transport: tr}).Do(r)
		body := read(t, resp, err)
		if resp.StatusCode != want || asked.yes.Load() != (want == 200) || want == 200 && body != "5 <nil>" {
			t.Errorf("%d %q, asked %v", resp.StatusCode, body, asked.yes.Load())
		}
	}
}

type askedBody struct {
	io.Reader
	yes atomic.Bool
}

func (b *askedBody) Read(p []byte) (int, error) { b.yes.Store(true); return b.Reader.Read(p) }
