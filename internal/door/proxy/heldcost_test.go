package proxy

import (
	"io"
	"net"
	"net/url"
	"runtime"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// BenchmarkHeld tells what a held request keeps in memory, its connection included, over HTTP/1.1
// by the loop of package h1 and by net/http. The client's end, a socket without a goroutine, is
// counted with it.
func BenchmarkHeld(b *testing.B) {
	for _, loop := range []bool{true, false} {
		name := "net/http"
		if loop {
			name = "loop"
		}
		b.Run(name, func(b *testing.B) {
			u := &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
			h, err := New(
				newLimiter(b,
					`limits: [{name: q, allow: 1/day, algorithm: fixed_window, on_limit: {wait: {max: 25h, queue: 100000}}}]`), Options{Upstream: u, MaxHeld: 100_000})
			if err != nil {
				b.Fatal(err)
			}
			var addr string
			if loop {
				addr, _ = serveDoor(b, newServer(h), nil)
			} else {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				s, done := newServer(h), make(chan error)
				go func() { done <- s.Serve(l) }()
				b.Cleanup(func() { _ = s.Close(); <-done })
				addr = l.Addr().String()
			}
			const held = 2_000
			inUse := func() uint64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc + m.StackInuse
			}
			for b.Loop() {
				before := inUse()
				conns := make([]net.Conn, held+1)
				for i := range conns { // the first one uses the day's request up
					if conns[i], err = net.Dial("tcp", addr); err != nil {
						b.Fatal(err)
					}
					if _, err := io.WriteString(conns[i], "GET /api/items?page=2 HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"); err != nil {
						b.Fatal(err)
					}
				}
				patience.Until(b, "all but one are held", func() bool { return h.Held().Held >= held })
				b.ReportMetric(float64(int64(inUse()-before))/held, "B/held")
				for _, c := range conns {
					_ = c.Close()
				}
				patience.Until(b, "none is held", func() bool { return h.Held().Held == 0 })
			}
		})
	}
}
