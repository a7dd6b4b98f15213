package h1

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// TestClientGone: the context of a request ends when its client hangs up, and what a client sends
// while it waits is answered afterwards.
func TestClientGone(t *testing.T) {
	told := make(chan string, 10)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(map[string]time.Duration{"/wait": time.Hour, "/first": 5 * time.Second}[r.URL.Path]):
		}
		reason := "nothing"
		if err := r.Context().Err(); err != nil {
			reason = err.Error()
		}
		told <- r.URL.Path + " " + time.Since(begin).String() + " " + reason
		_, _ = io.WriteString(w, r.URL.Path)
	})
	all := func() (s string) {
		for len(told) > 0 {
			s += <-told + "\n"
		}
		return s
	}
	got := both(t, h, func(_ *testing.T, l *pipes, _ server) string {
		gone, more := l.dial(), l.dial()
		gone.send(get("/now") + get("/wait"))
		synctest.Wait()
		time.Sleep(3 * time.Second)
		_ = gone.Close()
		synctest.Wait()
		s := all()
		more.send(get("/first"))
		go more.send(get("/second") + get("/third", "Connection: close"))
		time.Sleep(10 * time.Second)
		begin := time.Now()
		s += all() + story(begin, more)
		stays := l.dial()
		stays.send(get("/wait"))
		time.Sleep(10 * time.Minute)
		return s + all() + story(begin, stays)
	})
	for _, want := range []string{"/wait 3s context canceled\n", "/first 5s nothing\n", "/third 0s nothing\n",
		"/wait 1m0s nothing\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

// TestHalfClosed: a client that ends its sending behind its requests gets all answers, also if
// those wait for the client to go.
func TestHalfClosed(t *testing.T) {
	loop, plain := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		_, _ = io.WriteString(w, "an answer")
	}))
	for n := range 3 {
		if got := same(t, loop, plain, strings.Repeat(get("/"), n)); strings.Count(got, "an answer") != n {
			t.Errorf("the answer to %d is %q", n, got)
		}
	}
}

// TestDrainHTTP2: a server that goes away asks a client of HTTP/2 to go with the next answer,
// though a client of the loop delays the end, and another stream is open.
func TestDrainHTTP2(t *testing.T) {
	slow, answered := make(chan struct{}), make(chan struct{})
	loop := New(newHTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			slow <- struct{}{}
			<-answered
		}
	})))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 4)
	go func() { ended <- loop.Serve(l) }()
	ask := func(path string, transport *http.Transport) error {
		resp, err := (&http.Client{Transport: transport}).Get("http://" + l.Addr().String() + path)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	one, two := &http.Transport{}, &http.Transport{Protocols: new(http.Protocols)}
	two.Protocols.SetUnencryptedHTTP2(true)
	for _, transport := range []*http.Transport{one, two} {
		go func() { ended <- ask("/slow", transport) }()
		<-slow
	}
	go func() { ended <- loop.Shutdown(context.Background()) }()
	patience.Until(t, "nobody can connect", func() bool {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if err := ask("/", two); err != nil {
		t.Errorf("a request while the server goes away: %v", err)
	}
	if err := ask("/", two); err == nil {
		t.Error("the connection is used further")
	}
	close(answered)
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	one.CloseIdleConnections()
	two.CloseIdleConnections()
}

// TestContext: what a handler may ask of a context is there, also when the request is over.
func TestContext(t *testing.T) {
	contexts := make(chan context.Context, 1)
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if _, ok := ctx.Deadline(); ok || ctx.Err() != nil || ctx.Value("none") != nil {
			t.Error("the context of a new request is not empty")
		}
		if s, ok := ctx.Value(http.ServerContextKey).(*http.Server); !ok || s.Handler == nil {
			t.Errorf("%v is no server", s)
		}
		if a, ok := ctx.Value(http.LocalAddrContextKey).(net.Addr); !ok || a.String() == r.RemoteAddr {
			t.Errorf("%v is not the server's address", a)
		}
		if r.URL.Path == "/done" {
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			select {
			case <-child.Done():
				t.Error("the context of a new request has ended")
			default:
			}
		}
		contexts <- ctx
	}))
	for _, path := range []string{"/", "/done"} {
		loop.exchange(t, get(path, "Connection: close"))
		kept := <-contexts
		<-kept.Done()
		if err := kept.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestPanic: a panic ends the connection without an answer, and is logged as by net/http.
func TestPanic(t *testing.T) {
	for _, p := range []any{"a defect", http.ErrAbortHandler} {
		var logged bytes.Buffer
		s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.Context().Done() // the connection is watched
			_, _ = io.WriteString(w, "not sent")
			panic(p)
		}))
		s.ErrorLog = log.New(&logged, "", 0)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		loop := New(s)
		served := make(chan error)
		go func() { served <- loop.Serve(l) }()
		if got := (&side{network: "tcp", addr: l.Addr().String()}).exchange(t, get("/")); got != "" {
			t.Errorf("the answer is %q", got)
		}
		if err := loop.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if got := logged.String(); strings.HasPrefix(got,
			"http: panic serving 127.0.0.1:") != (p != http.ErrAbortHandler) {
			t.Errorf("%v: the log is %q", p, got)
		}
	}
}

// TestHTTP2: a connection with HTTP/2 goes to net/http, by prior knowledge and over TLS. HTTP/1.1
// over TLS is served by the loop, and its handler sees the connection's state.
func TestHTTP2(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
		if r.TLS != nil {
			_, _ = io.WriteString(w, " over TLS "+r.TLS.NegotiatedProtocol)
		}
	})
	loop, plain := newSides(t, h)
	ask := func(scheme, addr string, transport *http.Transport) string {
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get(scheme + "://" + addr + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	protocols := func(one bool) *http.Protocols {
		p := new(http.Protocols)
		p.SetHTTP1(one)
		p.SetHTTP2(!one)
		p.SetUnencryptedHTTP2(!one)
		return p
	}
	if got := ask("http", loop.addr, &http.Transport{Protocols: protocols(false)}); got != "HTTP/2.0" {
		t.Error(got)
	}
	// HTTP/2 cannot begin behind a request, where net/http takes it for another one.
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for _, s := range []*side{loop, plain} {
		for _, parts := range [][]string{{get("/") + preface}, {post("/", "x") + "\r\n" + preface},
			{post("/", "x") + "\r\n\r", "\n" + preface}} {
			got := s.exchange(t, parts...)
			if strings.Count(got, "HTTP/1.1 ") != 2 || strings.Contains(got, "\x00") {
				t.Errorf("to %q: %q", parts, got)
			}
		}
	}
	for pause, parts := range map[time.Duration][]string{
		time.Second: {post("/", "x") + "\r\nPR", preface[2:]},
		time.Minute: {get("/"), preface}, // longer than an answer may take
	} {
		got := both(t, h, func(_ *testing.T, l *pipes, _ server) string {
			p := l.dial()
			for _, part := range parts {
				p.send(part)
				time.Sleep(pause)
				synctest.Wait()
			}
			got, _ := p.all()
			return fmt.Sprint(strings.Count(got, "HTTP/1.1 "), strings.Contains(got, "\x00"))
		})
		if got != "2 false" {
			t.Error(got)
		}
	}

	certified := httptest.NewUnstartedServer(h)
	certified.StartTLS()
	defer certified.Close()
	s := newHTTPServer(h)
	s.Protocols.SetHTTP2(true)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
	over := New(s)
	served := make(chan error)
	go func() { served <- over.Serve(handshaken{tls.NewListener(raw, config)}) }()
	client := certified.Client().Transport.(*http.Transport).TLSClientConfig
	for one, want := range map[bool]string{true: "HTTP/1.1 over TLS ", false: "HTTP/2.0 over TLS h2"} {
		c := client.Clone()
		c.NextProtos = nil
		if got := ask("https", raw.Addr().String(), &http.Transport{TLSClientConfig: c, Protocols: protocols(one)}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	c, err := tls.Dial("tcp", raw.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, get("/")+"GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || strings.Count(string(got), " over TLS ") != 2 {
		t.Errorf("%q %v", got, err) // the second answer is net/http's, which knows of TLS as well
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience.Left(t))
	defer cancel()
	if err := over.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// handshaken is a listener as the doors have it: the handshake is done.
type handshaken struct{ net.Listener }

func (l handshaken) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		_ = c.(*tls.Conn).Handshake()
	}
	return c, err
}

// TestBroken: when the listener breaks, Serve says so.
func TestBroken(t *testing.T) {
	l := newPipes()
	s := New(newHTTPServer(http.NotFoundHandler()))
	_ = l.Close()
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Serve(newPipes()); err != nil {
		t.Errorf("after Shutdown: %v", err)
	}
}

// TestLingersForReader: a client that is still sending can take its answer also where a goroutine
// of the handler reads the body when the request ends, as the proxy's does.
func TestLingersForReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			go func() { _, _ = io.Copy(io.Discard, r.Body) }()
			time.Sleep(time.Second) // it waits for more
			w.WriteHeader(http.StatusForbidden)
		})))
		l := newPipes()
		served := make(chan error)
		go func() { served <- s.Serve(l) }()
		client, begin := l.dial(), time.Now()
		client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome")
		time.Sleep(time.Minute)
		got := story(begin, client)
		if !strings.HasPrefix(got, "3s: \"HTTP/1.1 403 ") {
			t.Errorf("%s, want a 403, and the end when it has sent nothing for two seconds", got)
		}
		_ = s.Shutdown(t.Context())
		<-served
	})
}
