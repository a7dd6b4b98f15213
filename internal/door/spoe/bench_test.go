//go:build unix

package spoe

import (
	"io"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir"
)

const benchRules = `
domain: api
limits:
  - {name: per-address, when: {path: /api/**}, per: [ip], allow: 1000000000/hour}
  - {name: per-key, when: {path: /api/**}, per: [header.x-api-key], allow: 1000000000/hour}
`

// question is a NOTIFY as the example's HAProxy sends it.
func question(i int) []byte {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return notify(uint64(i), 1, message("check-request", "ip", addr, "method", "GET", "path",
		"/api/v1/orders/"+strconv.Itoa(i), "query", nil, "host", "shop.example", "header.x-api-key", "k"+
			strconv.Itoa(i%100)))
}

// endless is a connection that always brings the same frames, and drops what is written: the agent
// without a network.
type endless struct {
	script
	frames []byte
	at     int
	left   int // frames' rounds
}

func (e *endless) Read(b []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := copy(b, e.frames[e.at:])
	if e.at += n; e.at == len(e.frames) {
		e.at = 0
		e.left--
	}
	return n, nil
}

func (e *endless) Write(b []byte) (int, error) { return len(b), nil }

func benchmarkAgent(b *testing.B, rules string, o Options) {
	const round = 64
	a := New(newLimiter(b, rules), o)
	var frames []byte
	for i := range round {
		frames = append(frames, question(i)...)
	}
	c := a.newConn(&endless{frames: frames, left: b.N/round + 1})
	c.ready, c.frameSize = true, 16380
	b.ReportAllocs()
	b.ResetTimer()
	c.Serve()
}

// BenchmarkAgent is a decision without the network: reading the frame, deciding, and writing the
// ACK.
func BenchmarkAgent(b *testing.B) { benchmarkAgent(b, benchRules, Options{}) }

// BenchmarkAgentUnlimited meets no limit.
func BenchmarkAgentUnlimited(b *testing.B) {
	benchmarkAgent(b, "domain: api\nlimits: [{name: a, when: {path: /other}, per: [ip], allow: 1/s}]", Options{})
}

// BenchmarkAgentRefused is a refusal.
func BenchmarkAgentRefused(b *testing.B) {
	benchmarkAgent(b, "domain: api\nlimits: [{name: a, when: {path: /api/**}, per: [host], allow: 1/year}]", Options{})
}

// BenchmarkAgentWorkers decides in workers.
func BenchmarkAgentWorkers(b *testing.B) { benchmarkAgent(b, benchRules, Options{Parallel: 64}) }

// BenchmarkDecide is the limiter alone.
func BenchmarkDecide(b *testing.B) {
	l := newLimiter(b, benchRules)
	r := weir.Request{Hits: 1, Attributes: weir.Pairs{{Name: "ip", Value: "10.0.0.1"},
		{Name: "path", Value: "/api/v1/orders/1"}, {Name: "header.x-api-key", Value: "k1"}}}
	var d weir.Decision
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Decide(b.Context(), &r, &d); err != nil {
			b.Fatal(err)
		}
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkLoopback sends frames over a connection, so many at a time, and waits for the answers.
// cpu-ns/op counts both sides.
func BenchmarkLoopback(b *testing.B) {
	for _, pipeline := range []int{1, 16, 64} {
		for _, parallel := range []int{0, 64} {
			b.Run("pipeline "+strconv.Itoa(pipeline)+", workers "+strconv.Itoa(parallel), func(b *testing.B) {
				addr := serve(b, New(limiterFor(b, Options{Parallel: parallel}, benchRules),
					Options{Parallel: parallel}))
				c, err := net.Dial("tcp", addr)
				if err != nil {
					b.Fatal(err)
				}
				p := newPeer(b, c).greet()
				defer c.Close()
				var frames []byte
				for i := range pipeline {
					frames = append(frames, question(i)...)
				}
				buf := make([]byte, 64<<10)
				runtime.GC()
				b.ReportAllocs()
				b.ResetTimer()
				cpu := cpuTime(b)
				for range b.N / pipeline {
					p.send(frames)
					for answered, left := 0, 0; answered < pipeline; {
						n, err := c.Read(buf)
						if err != nil {
							b.Fatal(err)
						}
						answered, left = countFrames(buf[:n], answered, left)
					}
				}
				b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// countFrames counts the frames that end in b; left is how much of the one before is missing.
func countFrames(b []byte, frames, left int) (int, int) {
	for {
		if left > len(b) {
			return frames, left - len(b)
		}
		if left > 0 {
			b, left = b[left:], 0
			frames++
		}
		if len(b) == 0 {
			return frames, 0
		}
		if len(b) < 4 {
			panic("a length in two reads") // which a single write of ours is not cut into
		}
		left = int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3])
		b = b[4:]
	}
}
