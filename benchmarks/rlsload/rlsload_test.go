package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// counter admits 10 requests of each key under "refused", all of the others, and has rules in
// domain "bench" only. In domain "broken" it fails.
type counter struct {
	mu   sync.Mutex
	hits map[string]int
}

func (c *counter) ShouldRateLimit(_ context.Context, r *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	switch r.Domain {
	case "bench":
	case "broken":
		return nil, status.Error(codes.Unavailable, "the store is away")
	default:
		return &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK,
			Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{{
				Code: rlspb.RateLimitResponse_OK}}}, nil
	}
	entry := r.Descriptors[0].Entries[0]
	if len(entry.Value) != 16 {
		return nil, status.Errorf(codes.InvalidArgument, "key of %d bytes", len(entry.Value))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hits[entry.Key+entry.Value]++
	code := rlspb.RateLimitResponse_OK
	if entry.Key == "refused" && c.hits[entry.Key+entry.Value] > 10 {
		code = rlspb.RateLimitResponse_OVER_LIMIT
	}
	return &rlspb.RateLimitResponse{OverallCode: code, Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{{
		Code: code, CurrentLimit: &rlspb.RateLimitResponse_RateLimit{RequestsPerUnit: 10,
			Unit: rlspb.RateLimitResponse_RateLimit_HOUR}}}}, nil
}

func serve(t *testing.T, options ...grpc.ServerOption) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	rlspb.RegisterRateLimitServiceServer(s, &counter{hits: map[string]int{}})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

var brief = []string{"-keys", "200", "-warmup", "10ms", "-duration", "50ms"}

func TestCompare(t *testing.T) {
	own := fmt.Sprintf("server=%d", os.Getpid())
	var out bytes.Buffer
	err := run(append([]string{"compare", "-callers", "1,7", "-connections", "2",
		"-target", "a=" + serve(t) + "," + own,
		"-target", "b=" + serve(t, grpc.MaxConcurrentStreams(2)) + ",redis=" + fmt.Sprint(os.Getpid()) + "," + own}, brief...), &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := "| server | pattern | callers | decisions/s | p50 µs | p99 µs | server CPU µs | redis CPU µs | sum | refused |"; lines[0] != want {
		t.Errorf("header\n%s\nwant\n%s", lines[0], want)
	}
	i := 2
	for _, pattern := range patternNames() {
		refused := `0\.0`
		if pattern == "refused" {
			refused = `100\.0`
		}
		for _, callers := range []int{1, 7} {
			for _, server := range []string{"a", "b"} {
				redis := ""
				if server == "b" {
					redis = ` \d+\.\d`
				}
				want := fmt.Sprintf(`^\| %s \| %s \| %d \| \d+ \| \d+ \| \d+ \| \d+\.\d \|%s \| \d+\.\d \| %s %% \|$`,
					server, pattern, callers, redis, refused)
				if i >= len(lines) || !regexp.MustCompile(want).MatchString(lines[i]) {
					t.Fatalf("row %d of\n%s\nis not %s", i, out.String(), want)
				}
				i++
			}
		}
	}
	if len(lines) != i {
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	err := run(append([]string{"-addr", serve(t), "-name", "x", "-pids", fmt.Sprintf("server=%d", os.Getpid()),
		"-pattern", "zipf",
		"-callers", "300", "-rounds", "2", "-json"}, brief...), &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(&out)
	for round := range 2 {
		var r result
		if err := decoder.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Name != "x" || r.Pattern != "zipf" || r.Callers != 300 || r.Keys != 200 || r.Connections != 1 ||
			r.Round != round+1 {
			t.Errorf("not as asked for: %+v", r)
		}
		if r.Decisions < 300 || r.P50 <= 0 || r.P99 < r.P50 || r.Refused != 0 ||
			r.PerSecond != float64(r.Decisions)/r.Seconds {
			t.Errorf("%+v", r)
		}
		if runtime.GOOS == "linux" && (r.CPU["server"] <= 0 || r.ClientCPU <= 0) {
			t.Errorf("no processor time: %+v", r)
		}
	}
	if decoder.More() {
		t.Error("more than two measurements")
	}
}

func TestErrors(t *testing.T) {
	addr := serve(t)
	port, held, err := testproc.Reserve(false)
	if err != nil {
		t.Fatal(err)
	}
	defer testproc.Release(held)
	silent := testproc.Loopback(port)
	for args, want := range map[string]string{
		"":                                   "no server",
		"compare":                            "no server",
		"-addr " + addr + " -pattern x":      `"x" is none of uniform, zipf, hot, refused`,
		"-addr " + addr + " -callers 1,0":    `"0" is no number of callers`,
		"-addr " + addr + " -keys 0":         "have to be above 0",
		"-addr " + addr + " -pids server":    `"server" is not process=PID`,
		"-addr " + addr + " more":            `unexpected argument "more"`,
		"compare -target " + addr:            "is not NAME=HOST:PORT",
		"compare -target a=" + addr + ",x=y": `"x=y" is not process=PID`,
		"-addr " + addr + " -domain unknown": `the server names no limit for descriptor key "user"`,
		"-addr " + addr + " -domain broken":  "gRPC status 14: the store is away",
		"-addr " + silent:                    "refused",
		"-name me -addr " + silent:           "me: ",
	} {
		err := run(strings.Fields(args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// TestServerStops: a run that loses its server fails, and does not hang.
func TestServerStops(t *testing.T) {
	l, err := newLoader(target{addr: serve(t)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := newRequests("bench", "user", 10)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range 100 { // until calls are under way
			runtime.Gosched()
		}
		_ = l.conns[0].net.Close()
	}()
	if _, err := l.load(patterns[0], requests, 16, time.Hour); err == nil {
		t.Error("no error")
	}
}

func TestOverallCode(t *testing.T) {
	for _, code := range []rlspb.RateLimitResponse_Code{rlspb.RateLimitResponse_OK,
		rlspb.RateLimitResponse_OVER_LIMIT} {
		m := &rlspb.RateLimitResponse{OverallCode: code,
			Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{{Code: code, LimitRemaining: 300}}}
		wire, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := proto.Marshal(&rlspb.RateLimitResponse{Statuses: m.Statuses})
		if err != nil {
			t.Fatal(err)
		}
		field := wire[:len(wire)-len(rest)]
		for _, wire := range [][]byte{wire, append(bytes.Clone(rest), field...)} {
			if got, err := overallCode(wire); got != code || err != nil {
				t.Errorf("%v of %x: %v, %v", code, wire, got, err)
			}
		}
		for n := range len(field) {
			if got, err := overallCode(append(bytes.Clone(rest), field[:n]...)); err == nil {
				t.Errorf("%x without %d bytes: %v", wire, n, got)
			}
		}
	}
	if got, err := overallCode([]byte{8, 0}); err == nil {
		t.Errorf("UNKNOWN: %v", got)
	}
}

// TestPatterns: keys are drawn as often as their pattern says.
func TestPatterns(t *testing.T) {
	const n, draws = 10_000, 1_000_000
	var sum float64
	for k := range n {
		sum += math.Pow(float64(k+1), -zipfExponent)
	}
	share := map[string]func(k int) float64{
		"uniform": func(int) float64 { return 1.0 / n },
		"refused": func(int) float64 { return 1.0 / n },
		"zipf":    func(k int) float64 { return math.Pow(float64(k+1), -zipfExponent) / sum },
		"hot":     func(k int) float64 { return float64(max(0, 1-k)) },
	}
	for _, p := range patterns {
		draw := p.draw(rand.New(rand.NewPCG(1, 2)), n)
		count := make([]int, n)
		for range draws {
			count[draw()]++
		}
		for _, k := range []int{0, 1, 9, 99, n - 1} {
			want := draws * share[p.name](k)
			if math.Abs(float64(count[k])-want) > 5*math.Sqrt(want)+1 {
				t.Errorf("%s: key %d drawn %d times, want about %.0f", p.name, k, count[k], want)
			}
		}
	}
}

func TestPercentile(t *testing.T) {
	list := make([]time.Duration, 200)
	for i := range list {
		list[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		n, p int
		want time.Duration
	}{{200, 50, 100}, {200, 99, 198}, {101, 99, 100}, {3, 50, 2}, {2, 99, 2}, {1, 50, 1}} {
		if got := percentile(list[:c.n], c.p); got != c.want {
			t.Errorf("percentile %d of 1 to %d: %d, want %d", c.p, c.n, got, c.want)
		}
	}
}
