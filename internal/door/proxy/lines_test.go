package proxy

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLines: a client that makes requests fail cannot fill the log, however long its paths and
// methods are.
func TestLines(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close() // an upstream that fails
		}
	}()
	for _, direct := range []bool{true, false} {
		t.Run(fmt.Sprintf("direct=%t", direct), func(t *testing.T) {
			var mu sync.Mutex
			var said []string
			h, err := New(newLimiter(t, noLimits), Options{Upstream: &url.URL{Scheme: "http", Host: l.Addr().String()},
				Logf: func(format string, args ...any) {
					mu.Lock()
					defer mu.Unlock()
					said = append(said, fmt.Sprintf(format, args...))
				}})
			if err != nil {
				t.Fatal(err)
			}
			if !direct {
				h.direct = nil
			}
			s := httptest.NewUnstartedServer(nil)
			s.Config = newServer(h)
			s.Start()
			defer s.Close()
			const requests = 40
			began := time.Now()
			for range requests {
				r, _ := http.NewRequest(strings.Repeat("M", 3000), s.URL+"/"+strings.Repeat("p", 30_000), nil)
				answer, err := http.DefaultTransport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				if answer.StatusCode != http.StatusBadGateway {
					t.Fatal(answer.Status)
				}
			}
			most := 1 + int(time.Since(began)/time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if len(said) == 0 || len(said) > most {
				t.Errorf("%d requests failed, %d lines tell of it", requests, len(said))
			}
			for _, line := range said {
				if len(line) > 1000 || !strings.Contains(line, "(3000 bytes)") ||
					!strings.Contains(line, "(30001 bytes)") || !strings.Contains(line, "the upstream failed") {
					t.Errorf("a line of %d bytes: %.300s", len(line), line)
				}
			}
		})
	}
}
