//go:build unix

package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/wire/h1"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// The echo server decodes the same request and encodes an equal answer with encoding/json, and
// decides nothing; as does echo-headers, which also sets as many headers. Both are on net/http.
// Goal: the server's processor time per decision is at most 0.7 times the echo's.

func init() {
	doortest.CPUServers["http"] = func(l net.Listener) error {
		set, _, err := file.Load([]file.Source{{Name: "r.yaml", Data: []byte(
			"domain: shop\nlimits:\n- { name: api-per-user, when: { path: /api/** }, per: [user], allow: { rate: 1000000/min, burst: 1000000 } }\n")}}, file.Options{})
		if err != nil {
			return err
		}
		store, err := memory.New(memory.Options{})
		if err != nil {
			return err
		}
		m := metrics.New(metrics.Options{})
		limiter, err := weir.New(m.Store(store), weir.WithRules(set), weir.WithHooks(m.Hooks()))
		if err != nil {
			return err
		}
		return h1.New(listen.NewHTTPServer(New(limiter, Options{Stopwatch: m}), listen.HTTPOptions{})).Serve(l)
	}
	doortest.CPUServers["http-echo"] = func(l net.Listener) error {
		return listen.NewHTTPServer(echoHandler(func(http.Header) {}), listen.HTTPOptions{}).Serve(l)
	}
	doortest.CPUServers["http-echo-headers"] = func(l net.Listener) error {
		return listen.NewHTTPServer(echoHandler(func(h http.Header) {
			h.Set("X-RateLimit-Limit", "1000000")
			h.Set("X-RateLimit-Remaining", strconv.Itoa(999_000+len(h)))
			h.Set("X-RateLimit-Reset", strconv.Itoa(1+len(h)))
			h.Set("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=60", "api-per-user", 1_000_000))
			h.Set("RateLimit", fmt.Sprintf("%q;r=%d;t=1", "api-per-user", 999_000+len(h)))
		}), listen.HTTPOptions{}).Serve(l)
	}
}

func echoHandler(headers func(http.Header)) http.Handler {
	type question struct {
		Domain     string            `json:"domain"`
		Attributes map[string]string `json:"attributes"`
		Hits       int64             `json:"hits"`
	}
	type limit struct {
		Name         string  `json:"name"`
		Algorithm    string  `json:"algorithm"`
		Allowed      bool    `json:"allowed"`
		Limit        int64   `json:"limit"`
		Window       float64 `json:"window"`
		Remaining    int64   `json:"remaining"`
		RetryAfter   float64 `json:"retry_after"`
		ResetAfter   float64 `json:"reset_after"`
		NearLimit    bool    `json:"near_limit"`
		SoftExceeded bool    `json:"soft_exceeded"`
		Shadow       bool    `json:"shadow"`
		Delay        float64 `json:"delay"`
	}
	type answer struct {
		Allowed    bool     `json:"allowed"`
		Domain     string   `json:"domain"`
		LimitedBy  []string `json:"limited_by"`
		RetryAfter float64  `json:"retry_after"`
		Limits     []limit  `json:"limits"`
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		headers(w.Header())
		_ = json.NewEncoder(w).Encode(answer{Allowed: true, Domain: q.Domain, LimitedBy: []string{}, Limits: []limit{{
			Name: "api-per-user", Algorithm: "token_bucket", Allowed: true, Limit: 1_000_000, Window: 60, Remaining: 999_000, ResetAfter: 0.060123,
		}}})
	})
}

// httpRound makes requests over 64 connections, each of which waits for its answer.
func httpRound(b *testing.B, addr string) func() int {
	const connections, each = 64, 500
	type client struct {
		conn net.Conn
		in   *bufio.Reader
	}
	clients := make([]client, connections)
	for i := range clients {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		clients[i] = client{conn, bufio.NewReader(conn)}
	}
	requests := make([][]byte, 10_000)
	for i := range requests {
		body := fmt.Sprintf(`{"domain": "shop", "attributes": {"user": "user-%06d", "path": "/api/x"}, "hits": 1}`, i)
		requests[i] = fmt.Appendf(nil,
			"POST /api/v1/limit HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	return func() int {
		var all sync.WaitGroup
		for n, c := range clients {
			all.Go(func() {
				for i := range each {
					if _, err := c.conn.Write(requests[(n*each+i*7)%len(requests)]); err != nil {
						b.Error(err)
						return
					}
					response, err := http.ReadResponse(c.in, nil)
					if err != nil || response.StatusCode != http.StatusOK {
						b.Errorf("%v %v", response, err)
						return
					}
					if _, err := io.Copy(io.Discard, response.Body); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
		return connections * each
	}
}

// BenchmarkCPUHTTP compares the server's processor time per decision with echo servers'. Use
// -benchtime 5x.
func BenchmarkCPUHTTP(b *testing.B) {
	doortest.CompareCPU(b, func(addr string) func() int { return httpRound(b, addr) }, "http", "http-echo",
		"http-echo-headers")
}

// BenchmarkHTTPHandler is the door without the network: what it allocates is its own.
func BenchmarkHTTPHandler(b *testing.B) {
	l, _, _ := doortest.NewLimiter(b, doortest.ShopRules)
	h := New(l, Options{})
	r, err := http.NewRequest("POST", "/api/v1/limit", nil)
	if err != nil {
		b.Fatal(err)
	}
	const body = `{"domain": "shop", "attributes": {"user": "ada", "path": "/api/x"}, "hits": 1}`
	w := discard{http.Header{}}
	in := &replayed{data: []byte(body)}
	r.Body, r.ContentLength = in, int64(len(body))
	b.ReportAllocs()
	for b.Loop() {
		in.at = 0
		h.ServeHTTP(w, r)
	}
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header       { return d.h }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

type replayed struct {
	data []byte
	at   int
}

func (r *replayed) Read(p []byte) (int, error) {
	if r.at == len(r.data) {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.at:])
	r.at += n
	return n, nil
}

func (*replayed) Close() error { return nil }
