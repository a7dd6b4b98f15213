//go:build !race

package h1

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestAllocs: a request takes three allocations beside what its handler takes: the request, what it
// hangs on, and the copy of its head. net/http takes some twenty.
func TestAllocs(t *testing.T) {
	answer := []byte("an answer")
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		_, _ = w.Write(answer)
	}))
	c, err := net.Dial("tcp", loop.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, request := range map[string]string{
		"GET":  get("/api/v1/limit?user=ada", "User-Agent: a", "Accept: */*", "X-Forwarded-For: 192.0.2.1", "X-Original-Uri: /a"),
		"POST": post("/api/v1/limit", `{"attributes": {"user": "ada"}}`, "User-Agent: a", "Content-Type: application/json"),
	} {
		t.Run(name, func(t *testing.T) {
			bytes, in := []byte(request), make([]byte, 4096)
			ask := func() {
				if _, err := c.Write(bytes); err != nil {
					t.Fatal(err)
				}
				n, err := c.Read(in)
				if err != nil || n < len(answer) || string(in[n-len(answer):n]) != string(answer) {
					t.Fatalf("%q %v", in[:n], err)
				}
			}
			if n := testing.AllocsPerRun(2000, ask); n > 3 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestSmall: what a large request has taken is not kept.
func TestSmall(t *testing.T) {
	h := newHTTPServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s := New(h)
	client, server := net.Pipe()
	c := s.newConn(server)
	ended := make(chan struct{})
	go func() {
		c.Serve()
		close(ended)
	}()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	for _, request := range []string{post("/", strings.Repeat("x", 64<<10)),
		get("/", "X: "+strings.Repeat("y", 16_000)), get("/")} {
		if _, err := io.WriteString(client, request); err != nil {
			t.Fatal(err)
		}
	}
	_ = client.Close()
	<-ended
	if cap(c.in) > minInput {
		t.Errorf("%d bytes are kept", cap(c.in))
	}
}
