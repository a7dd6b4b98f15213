package h2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// plainClient speaks HTTP/2 without TLS.
func plainClient(t testing.TB) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestHandlerAlike: a handler meets the same requests, and its answers come out alike, behind
// net/http.
func TestHandlerAlike(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/show":
			body, err := io.ReadAll(r.Body)
			r.Header.Del("Date")
			fmt.Fprintf(w, "%s %s %s %s %q %v %d %v %v %v", r.Method, r.URL, r.Host, r.Proto, body, err,
				r.ContentLength, r.Header, r.RequestURI, r.TLS == nil)
		case "/statuses":
			w.Header().Set("X-Kept", "1")
			w.WriteHeader(http.StatusTeapot)
			w.WriteHeader(http.StatusOK) // too late
			w.Header().Set("X-Late", "1")
			_, _ = io.WriteString(w, "short and stout")
		case "/nothing":
		case "/nocontent":
			w.WriteHeader(http.StatusNoContent)
			_, err := io.WriteString(w, "x")
			if err != http.ErrBodyNotAllowed {
				t.Errorf("a body with 204: %v", err)
			}
		case "/trailers":
			w.Header().Set("Trailer", "X-Announced, X-Absent")
			w.Header().Set("X-Header", "h")
			_, _ = io.WriteString(w, "body")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Announced", "a")
			w.Header().Set(http.TrailerPrefix+"X-Not-Announced", "n")
			w.Header().Set(http.TrailerPrefix+"Content-Length", "4")
		case "/trailersonly":
			w.Header().Set("Trailer", "X-Announced")
			w.WriteHeader(http.StatusOK)
			w.Header().Set("X-Announced", "a")
		case "/large":
			for range 100 {
				_, _ = w.Write(bytes.Repeat([]byte("l"), 9999))
			}
		case "/largeheader":
			for i := range 100 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("h", 400))
			}
		case "/connection":
			w.Header().Set("Transfer-Encoding", "chunked")
			w.Header()["Bad Name"] = []string{"x"}
			w.Header().Set("X-Bad", "a\x00b")
		case "/unread":
			_, _ = io.WriteString(w, "no, thanks")
		case "/html", "/htmllarge", "/encoded", "/untyped":
			switch r.URL.Path {
			case "/encoded":
				w.Header().Set("Content-Encoding", "x")
			case "/untyped":
				w.Header()["Content-Type"] = nil
			}
			_, _ = io.WriteString(w, "<html>")
			if r.URL.Path == "/htmllarge" {
				_, _ = w.Write(make([]byte, 20_000))
			}
		case "/hints":
			w.Header().Set("Link", "</a>")
			w.Header().Set("Content-Length", "4")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("X-Later", "1")
			w.WriteHeader(http.StatusProcessing)
			_, _ = io.WriteString(w, "done")
		case "/dated":
			w.Header()["Date"] = []string{"then"}
		case "/undated":
			w.Header()["Date"] = nil
		case "/length":
			w.Header().Set("Content-Length", "20000")
			_, _ = w.Write(make([]byte, 15_000))
			_, err := w.Write(make([]byte, 5_000))
			if err == nil && r.Method != http.MethodHead {
				_, err = w.Write([]byte("x"))
				w.Header().Set(http.TrailerPrefix+"X-Beyond", fmt.Sprint(err != nil))
			}
		case "/badlength":
			w.Header().Set("Content-Length", "-5")
			_, _ = io.WriteString(w, "five")
		case "/short":
			w.Header().Set("Content-Length", "20")
			_, _ = io.WriteString(w, "less")
		case "/requesttrailers":
			before := fmt.Sprint(r.Trailer, r.Header["Trailer"])
			_, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, before, r.Trailer, err)
		case "/control":
			control := http.NewResponseController(w)
			_, _, hijacked := control.Hijack()
			fmt.Fprint(w, control.EnableFullDuplex(), hijacked != nil, control.SetReadDeadline(time.Time{}),
				control.SetWriteDeadline(time.Time{}), control.Flush())
		case "/latebody":
			fmt.Fprint(w, http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)))
			_, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, errors.Is(err, os.ErrDeadlineExceeded), err)
		case "/latewrite":
			_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
			<-r.Context().Done()
		}
	})
	_, addr := serve(t, Options{Handler: handler})
	reference := httpServer(t, handler, nil)
	configured := httpServer(t, handler, nil, configure)

	show := func(client *http.Client, base, method, path, body string, header http.Header) string {
		var reader io.Reader
		if body != "" {
			reader = struct{ io.Reader }{strings.NewReader(body)} // of unknown length
			if len(body) < 100 {
				reader = strings.NewReader(body)
			}
		}
		r, err := http.NewRequest(method, base+strings.TrimPrefix(path, "*"), reader)
		if err != nil {
			t.Fatal(err)
		}
		if path == "*" {
			r.URL.Opaque = path
		}
		r.Header = header
		r.Host = "example.test"
		informed := ""
		r = r.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				informed += fmt.Sprint(code, h)
				return nil
			},
		}))
		if path == "/requesttrailers" {
			r.Trailer = http.Header{"X-Told": nil, "X-Silent": nil}
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("body"),
				whenRead(func() { r.Trailer.Set("X-Told", "yes") })))
			r.ContentLength = -1
		}
		if path == "/latebody" { // does not end before the answer, or it might be there in time
			source, send := io.Pipe()
			defer source.Close()
			go func() { _, _ = io.WriteString(send, body) }()
			r.Body = source
		}
		answer, err := client.Do(r)
		if err != nil {
			return "error: " + strings.TrimPrefix(err.Error(), method[:1]+strings.ToLower(method[1:])+" \""+base)
		}
		defer answer.Body.Close()
		data, err := io.ReadAll(answer.Body)
		if _, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			answer.Header.Set("Date", "now")
		}
		return fmt.Sprintf("%s%d %v %v %v %q %d", informed, answer.StatusCode, answer.Header, answer.Trailer, err, data,
			answer.ContentLength)
	}
	client := plainClient(t)
	for _, c := range []struct {
		method, path, body string
		header             http.Header
	}{
		{"GET", "/show?a=b&c=%20", "", http.Header{"X-A": {"1", "2"}, "Cookie": {"a=b; c=d", "e=f"}}},
		{"GET", "/show//x/../y;z", "", nil},
		{"POST", "/show", "hello", http.Header{"Content-Type": {"text/plain"}}},
		{"POST", "/show", strings.Repeat("long", 30_000), nil},
		{"POST", "/show", "please", http.Header{"Expect": {"100-continue"}}},
		{"OPTIONS", "/show", "", nil},
		{"HEAD", "/statuses", "", nil},
		{"GET", "/statuses", "", nil},
		{"GET", "/nothing", "", nil},
		{"HEAD", "/nothing", "", nil},
		{"GET", "/nocontent", "", nil},
		{"GET", "/trailers", "", nil},
		{"GET", "/trailersonly", "", nil},
		{"GET", "/large", "", nil},
		{"GET", "/largeheader", "", nil},
		{"GET", "/connection", "", nil},
		{"POST", "/unread", "a few words", nil},
		{"GET", "/html", "", nil},
		{"HEAD", "/html", "", nil},
		{"GET", "/htmllarge", "", nil},
		{"HEAD", "/htmllarge", "", nil},
		{"GET", "/encoded", "", nil},
		{"GET", "/untyped", "", nil},
		{"GET", "/hints", "", nil},
		{"GET", "/dated", "", nil},
		{"GET", "/undated", "", nil},
		{"GET", "/length", "", nil},
		{"HEAD", "/length", "", nil},
		{"GET", "/badlength", "", nil},
		{"GET", "/short", "", nil},
		{"POST", "/requesttrailers", "body", nil},
		{"GET", "/control", "", nil},
		{"POST", "/latebody", strings.Repeat("long", 30_000), nil},
		{"GET", "/latewrite", "", nil},
		{"OPTIONS", "*", "", nil},
	} {
		want := show(client, reference, c.method, c.path, c.body, c.header)
		for _, base := range []string{"http://" + addr, configured} {
			if c.path == "*" && base != configured {
				continue // net/http answers it in place of the handler
			}
			if got := show(client, base, c.method, c.path, c.body, c.header); got != want {
				t.Errorf("%s %s:\n got %.2000s\nwant %.2000s", c.method, c.path, got, want)
			}
		}
	}
}

// whenRead calls a function when it is read, and is at its end.
type whenRead func()

func (f whenRead) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

// TestHandlerStreams: bodies flow in both directions at once.
func TestHandlerStreams(t *testing.T) {
	_, addr := serve(t, Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		buffer := make([]byte, 10_000)
		for {
			n, err := r.Body.Read(buffer)
			if _, failed := w.Write(buffer[:n]); failed != nil || err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	})})
	client := plainClient(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			in, out := io.Pipe()
			r, _ := http.NewRequest("POST", "http://"+addr+"/", in)
			answer, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			piece := bytes.Repeat([]byte("0123456789"), 5_000)
			got := make([]byte, len(piece))
			for range 20 {
				go func() { _, _ = out.Write(piece) }()
				if _, err := io.ReadFull(answer.Body, got); err != nil || !bytes.Equal(got, piece) {
					t.Errorf("%v, %d bytes", err, len(got))
					return
				}
			}
			_ = out.Close()
			if rest, err := io.ReadAll(answer.Body); err != nil || len(rest) > 0 {
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
	all.Wait()
}

// TestHandlerCancelled: a handler learns that its request was cancelled, or its connection lost,
// whatever it waits for.
func TestHandlerCancelled(t *testing.T) {
	var began, ended sync.WaitGroup
	s, addr := serve(t, Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer ended.Done()
		var err error
		switch r.URL.Path {
		case "/context":
			began.Done()
			<-r.Context().Done()
		case "/read":
			began.Done()
			_, err = io.Copy(io.Discard, r.Body)
		case "/write":
			began.Done()
			for err == nil {
				_, err = w.Write(make([]byte, 10_000))
			}
		}
		if r.URL.Path != "/context" && err == nil {
			t.Errorf("%s: no error", r.URL.Path)
		}
		<-r.Context().Done()
	})})
	for _, how := range []string{"reset", "close", "stop"} {
		c := dialRaw(t, addr)
		for i, path := range []string{"/context", "/read", "/write"} {
			began.Add(1)
			ended.Add(1)
			c.open(uint32(2*i+1), path)
		}
		began.Wait()
		switch how {
		case "reset":
			for i := range uint32(3) {
				c.must(c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
			}
		case "close":
			_ = c.conn.Close()
		case "stop":
			s.Stop()
		}
		ended.Wait()
	}
}

// TestHandlerPanics: what a handler has begun is cut off.
func TestHandlerPanics(t *testing.T) {
	logged := make(chan string, 1)
	_, addr := serve(t, Options{
		Methods: newService().methods(),
		Logger:  doortest.LogTo(func(m string) { logged <- m }),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			if r.URL.Path == "/abort" {
				panic(http.ErrAbortHandler)
			}
			panic("a defect")
		})})
	c := dialRaw(t, addr)
	for i, path := range []string{"/abort", "/panic"} {
		c.open(uint32(2*i+1), path)
		if a := c.answer(uint32(2*i + 1)); a.reset != http2.ErrCodeInternal || string(a.body) != "half" {
			t.Errorf("%+v", a)
		}
	}
	if text := <-logged; !strings.Contains(text, "a defect") {
		t.Errorf("logged %q", text)
	}
	c.alive(5)
}

// TestAllHandlersBounded: the handlers of all connections together are bounded, too, and make room
// when they end.
func TestAllHandlersBounded(t *testing.T) {
	release := make(chan struct{})
	s, addr := serve(t, Options{Methods: newService().methods(), MaxAllHandlers: 2,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })})
	first, second := dialRaw(t, addr), dialRaw(t, addr)
	first.open(1, "/")
	first.open(3, "/")
	first.alive(5)
	second.open(1, "/")
	if a := second.answer(1); a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("%+v", a)
	}
	close(release)
	for _, id := range []uint32{1, 3} {
		if a := first.answer(id); a.header.Get(":status") != "200" {
			t.Errorf("%+v", a)
		}
	}
	second.open(3, "/")
	if a := second.answer(3); a.header.Get(":status") != "200" {
		t.Errorf("%+v", a)
	}
	first.alive(7)
	if n := s.handlers.Load(); n != 0 {
		t.Errorf("%d calls are counted", n)
	}
}

// TestHandlersBounded: the number of concurrent calls of the handler is bounded; a client may retry
// the others.
func TestHandlersBounded(t *testing.T) {
	release := make(chan struct{})
	_, addr := serve(t, Options{Methods: newService().methods(), MaxHandlers: 3,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })})
	c := dialRaw(t, addr)
	for i := range uint32(4) {
		c.open(2*i+1, "/")
	}
	if a := c.answer(7); a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("%+v", a)
	}
	// A reset makes no room while the handler goes on.
	c.must(c.f.WriteRSTStream(1, http2.ErrCodeCancel))
	c.open(9, "/")
	if a := c.answer(9); a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("%+v", a)
	}
	close(release)
	for _, id := range []uint32{3, 5} {
		if a := c.answer(id); a.header.Get(":status") != "200" {
			t.Errorf("%+v", a)
		}
	}
	c.alive(11)
}
