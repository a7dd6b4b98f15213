package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// upload is a request with a body of 100 bytes, of which the first ones follow its head.
func upload(target, body string, fields ...string) string {
	return ask("PUT", target, append(fields, "Content-Length: 100")...) + body
}

// TestBodyTimes: a handler that bounds the reading of a body, and a client that stalls or hangs up,
// end a request after the same time as in net/http, with the same answer.
func TestBodyTimes(t *testing.T) {
	told := make(chan string, 10)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		begin := time.Now()
		tell := func(what string, err error) {
			told <- fmt.Sprintf("%s %s after %v: %v, and %v", r.URL.Path, what, time.Since(begin), err,
				r.Context().Err())
		}
		switch r.URL.Path {
		case "/bound":
			_ = control.SetReadDeadline(time.Now().Add(5 * time.Second))
		case "/unbound":
			_ = control.SetReadDeadline(time.Time{})
		case "/waits": // and nobody reads the body
			select {
			case <-r.Context().Done():
			case <-time.After(7 * time.Second):
			}
			tell("waited", nil)
			return
		case "/moves":
			_ = control.SetReadDeadline(time.Now().Add(time.Hour))
			time.AfterFunc(3*time.Second, func() { _ = control.SetReadDeadline(time.Now()) })
		}
		n, err := io.Copy(io.Discard, r.Body)
		tell(fmt.Sprintf("has %d", n), err)
		if r.URL.Path == "/then" {
			<-r.Context().Done()
			tell("was left", nil)
		}
		_, _ = io.WriteString(w, "an answer")
	})
	half := strings.Repeat("x", 50)
	both(t, h, func(_ *testing.T, l *pipes, _ server) string {
		begin := time.Now()
		var s string
		for _, c := range []struct {
			first, then string // after two seconds; none hangs up
		}{
			{upload("/bound", half), "y"}, {upload("/bound", half), half + get("/bound")}, {upload("/unbound", half), half},
			{upload("/moves", half), "y"}, {upload("/waits", half), half}, {upload("/waits", half), ""}, {upload("/", half), ""}, {upload("/then", half), half},
			{get("/first") + upload("/bound", half, "Connection: close"), half},
		} {
			p := l.dial()
			p.send(c.first)
			synctest.Wait()
			time.Sleep(2 * time.Second)
			if c.then == "" {
				_ = p.Close()
			} else {
				p.send(c.then)
			}
			synctest.Wait()
			time.Sleep(10 * time.Second)
			if strings.Contains(c.first, "/then") {
				_ = p.Close()
			}
			synctest.Wait()
			for len(told) > 0 {
				s += <-told + "\n"
			}
			s += story(begin, p)
		}
		return s
	})
}

// TestLeftOver: of a body that no handler reads, the rest is read to keep the connection, or the
// connection ends once the client has had time for the answer.
func TestLeftOver(t *testing.T) {
	for _, size := range []int{1000, maxLeftOver - 1, maxLeftOver, maxLeftOver + 1, 2 * maxLeftOver} {
		for _, target := range []string{"/?read=no", "/?read=close", "/?read=some", "/?read=no&set=Connection:close",
			"/?read=no&write=flush", "/?read=no&set=Connection:keep-alive"} {
			if size == maxLeftOver && target == "/?read=close" {
				continue // net/http reads just that much, and does not say that the connection ends
			}
			got := both(t, http.HandlerFunc(tell), func(_ *testing.T, l *pipes, _ server) string {
				begin := time.Now()
				p := l.dial()
				go p.send(post(target, strings.Repeat("x", size)) + get("/behind"))
				time.Sleep(time.Second)
				return story(begin, p)
			})
			if !strings.Contains(got, "HTTP/1.1 200") {
				t.Errorf("%s of %d: %.100s", target, size, got)
			}
		}
	}
}

// TestDuplex: a handler that has asked for it reads the request while it answers.
func TestDuplex(t *testing.T) {
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		buf := make([]byte, 100)
		for err := control.Flush(); err == nil; {
			var n int
			n, err = r.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			_ = control.Flush()
		}
	}))
	c, err := net.Dial("tcp", loop.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for range 2 {
		if _, err := io.WriteString(c, upload("/", "")); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			part, got := fmt.Sprintf("part %4d\n", i), make([]byte, 10)
			if _, err := io.WriteString(c, part); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != part {
				t.Fatalf("%q %v", got, err)
			}
		}
		if n, err := io.Copy(io.Discard, resp.Body); n > 0 || err != nil {
			t.Error(n, err)
		}
	}
}

// TestOver: a body and a writer that somebody holds on to are over when the request is, also while
// one reads: the next request is not touched.
func TestOver(t *testing.T) {
	ended := make(chan error, 2)
	controls := make(chan *http.ResponseController, 1)
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		controls <- control
		// bounds the reading of the rest, should the other goroutine come too late
		if err := errors.Join(control.EnableFullDuplex(), control.SetReadDeadline(time.Now().Add(50*time.Millisecond))); err != nil {
			t.Error(err)
		}
		go func() {
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
			_, err = r.Body.Read(make([]byte, 1))
			ended <- err
		}()
	}))
	c, err := net.Dial("tcp", loop.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, upload("/", "half")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
		t.Errorf("%q %v", got, err)
	}
	for range cap(ended) {
		if err := <-ended; err == nil {
			t.Error("a request that is over can be read")
		}
	}
	if (<-controls).SetReadDeadline(time.Time{}) == nil {
		t.Error("a request that is over moves a deadline")
	}
}

// TestOverMoved: what comes behind a request moves no byte of its body while somebody reads that.
func TestOverMoved(t *testing.T) {
	read := make(chan error, 1)
	s := New(newHTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		_ = r.Context().Done()
		<-r.Context().(*request).watch.ended // one byte more has come
		begun := make(chan struct{})
		go func() {
			defer close(read)
			p := make([]byte, 1)
			for i := 0; ; i++ {
				if _, err := r.Body.Read(p); err != nil {
					return
				}
				if p[0] != 'x' {
					read <- fmt.Errorf("%q at %d", p, i)
					return
				}
				if i == 0 {
					close(begun)
				}
			}
		}()
		<-begun
	})))
	client, server := net.Pipe()
	ended := make(chan struct{})
	go func() {
		s.newConn(server).Serve()
		close(ended)
	}()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	// Two requests fill the buffer, so that it is moved.
	both := get("/") + post("/", strings.Repeat("x", 3000), "Padding: ")
	both = strings.Replace(both, "Padding: ", "Padding: "+strings.Repeat("y", minInput-len(both)), 1)
	for _, part := range []string{both, get("/", "Connection: close")} {
		if _, err := io.WriteString(client, part); err != nil {
			t.Fatal(err)
		}
	}
	<-ended
	if err := <-read; err != nil {
		t.Error(err)
	}
}

// TestDrainUpload: a server that goes away waits for a request whose body is on its way, and for an
// answer that is.
func TestDrainUpload(t *testing.T) {
	both(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, n, err)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(4 * time.Second)
	}), func(t *testing.T, l *pipes, s server) string {
		half := strings.Repeat("x", 50)
		begin := time.Now()
		one, two := l.dial(), l.dial()
		one.send(upload("/", half))
		two.send(upload("/", half+half))
		synctest.Wait()
		ended := make(chan error)
		go func() { ended <- s.Shutdown(context.Background()) }()
		time.Sleep(3 * time.Second)
		one.send(half + get("/behind"))
		if err := <-ended; err != nil {
			t.Error(err)
		}
		return story(begin, one, two)
	})
}

// TestBreaksOff: what has been sent of an answer that breaks off is there, and no end of it.
func TestBreaksOff(t *testing.T) {
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 3*beforeChunking)+"!")
		panic(http.ErrAbortHandler)
	}))
	got := loop.exchange(t, get("/")+get("/"))
	if strings.Count(got, "HTTP/1.1 200") != 1 || !strings.HasSuffix(got, "xx\r\n") {
		t.Errorf("%.300q", got)
	}
}

// TestWriteFails: when nothing can be sent any more, the handler learns it, and its context ends.
func TestWriteFails(t *testing.T) {
	failed := make(chan error, 1)
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, 64<<10))
		}
		failed <- r.Context().Err()
	}))
	c, err := net.Dial("tcp", loop.addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, get("/")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	select {
	case err := <-failed:
		if err != context.Canceled {
			t.Error(err)
		}
	case <-patience.Context(t).Done():
		t.Error("the handler goes on")
	}
}
