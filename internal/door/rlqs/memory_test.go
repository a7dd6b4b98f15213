package rlqs

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// memoryStreams is how many streams BenchmarkStreamMemory opens, and memoryServer names the
// variable that tells its client of the server.
const (
	memoryStreams = 500
	memoryServer  = "WEIR_RLQS_MEMORY_SERVER"
)

// BenchmarkStreamMemory is the memory of a stream with its connection and one bucket, in the
// server; the client is another process.
func BenchmarkStreamMemory(b *testing.B) {
	d := newDoor(b, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go d.server.Serve(l) //nolint:errcheck // ends with Stop
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools hold is kept by the first one
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	for b.Loop() {
		before := inUse()
		client := exec.Command(os.Args[0], "-test.run=^TestMemoryClient$", "-test.v")
		client.Env = append(os.Environ(), memoryServer+"="+l.Addr().String())
		stdin, err := client.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		var said bytes.Buffer
		client.Stdout, client.Stderr = &said, &said
		if err := client.Start(); err != nil {
			b.Fatal(err)
		}
		patience.Until(b, "all streams are there",
			func() bool { s := d.Stats(); return s.Streams == memoryStreams && s.Buckets == memoryStreams })
		b.ReportMetric(float64(inUse()-before)/memoryStreams, "B/stream")
		stdin.Close()
		if err := client.Wait(); err != nil {
			b.Fatalf("%v\n%s", err, &said)
		}
		patience.Until(b, "all streams are gone", func() bool { return d.Stats().Streams == 0 })
	}
}

// TestMemoryClient is the client of BenchmarkStreamMemory, and does nothing by itself.
func TestMemoryClient(t *testing.T) {
	server := os.Getenv(memoryServer)
	if server == "" {
		return
	}
	for range memoryStreams {
		conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:revive // all of them at the end
		c, err := rlqspb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e := client{t, c}
		e.report(0, 1, "tenant", "acme")
		e.answer()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the server has measured
}
