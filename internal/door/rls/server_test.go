package rls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
)

const twoAMinute = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 2}}\n"

func TestRLSResponseHeaders(t *testing.T) {
	const rules = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: z, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: y, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: q, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: s, rate_limit: {unit: minute, requests_per_unit: 2, throttle: {soft: 50%}}}
- {key: p, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log, count_denied: true}}
limits:
- {name: n, when: {n: "*"}, allow: 4/hour, algorithm: sliding_log}
- {name: m, when: {m: "*"}, allow: 1/day, algorithm: sliding_log}
- {name: o, when: {o: "*"}, allow: 0/min, on_limit: shadow}
`
	for _, c := range []struct{ ask, want string }{
		{"d: n=1", "L=4 R=3 S=3600"},           // a native limit, where no descriptor is counted
		{"d: a=1 n=1", "L=4 R=3 S=3600"},       // no descriptor of two entries is counted
		{"d+3: a=6; n=1 +0", "L=4 R=1 S=3600"}, // it has fewer remaining
		{"d+1: b=6; n=1", "L=3 R=2 S=3600"},    // it has not
		{"d+4: a=7; n=1", "L=4 R=0 S=3600 X-RateLimit-Warning=near_limit; limit=\"a\", near_limit; limit=\"n\""},
		// more than it can ever be: no Retry-After
		{"d+5: a=8 +1; n=1", "L=4 R=4 S=3600 X-RateLimit-Decision=ID"},
		{"d: o=1", ""},                       // one in shadow has no say
		{"d: a=1; b=1", "L=3 R=2 S=3600"},    // the fewest remaining
		{"d+2: a=2; b=2 +0", "L=5 R=3 S=60"}, // the first on a tie
		// the last that refuses
		{"d: a=3; z=1; b=3; y=1", "L=0 R=0 S=3600 X-RateLimit-Decision=ID"},
		{"d: a=4; z=1; q=1", "L=0 R=0 S=86400 X-RateLimit-Decision=ID"}, // but no quota
		{"d+2: s=1", "L=2 R=0 S=60 X-RateLimit-Warning=near_limit; limit=\"s\""},
		{"d+3: s=1", "L=2 R=0 S=60 X-RateLimit-Soft=exceeded X-RateLimit-Warning=near_limit; limit=\"s\""},
		{"d: x=1", ""}, // nothing counted
		{"elsewhere: a=1", "X-RateLimit-Warning=unknown_domain"},
		{"d: x=1; b=5", "L=3 R=2 S=3600"}, // the only one
		// A second request, behind "then".
		// not of a, which passes
		{"d: n=1; m=1 then d: a=9; m=1", "L=1 R=0 S=86400 X-RateLimit-Decision=ID Retry-After=86400"},
		{"d+5: a=10 then d: a=10; n=1", "L=5 R=0 S=60 X-RateLimit-Decision=ID Retry-After=60"},
		// what refuses longest
		{"d+4: a=11 +5; n=1 then d+1: a=11 +5; n=1", "L=4 R=0 S=3600 X-RateLimit-Decision=ID Retry-After=3600"},
		// a peek
		{"d: p=1 +7 then d: p=1 +0", "L=5 R=0 S=60 X-RateLimit-Decision=ID Retry-After=60"},
		{"d+3: b=7; m=1 +0 then d+1: b=7; m=1", "L=3 R=0 S=3600 X-RateLimit-Decision=ID Retry-After=3600"},
	} {
		b := newBed(t, rules, Options{ResponseHeaders: true, LimitHeader: "L", RemainingHeader: "R", ResetHeader: "S"},
			ServerOptions{})
		var answer *rlspb.RateLimitResponse
		for ask := range strings.SplitSeq(c.ask, " then ") {
			var err error
			if answer, err = b.client.ShouldRateLimit(context.Background(), parseRequest(t, ask)); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, h := range answer.ResponseHeadersToAdd {
			if _, err := weir.ParseDecisionID(h.Value); err == nil {
				h.Value = "ID"
			}
			got = append(got, h.Key+"="+h.Value)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.ask, got, c.want)
		}
	}
	b := newBed(t, rules, Options{ResponseHeaders: true}, ServerOptions{})
	answer, err := b.client.ShouldRateLimit(context.Background(), parseRequest(t, "d: a=1"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"} {
		if got := answer.ResponseHeadersToAdd[i].GetKey(); got != want {
			t.Errorf("header %d is %s, want %s", i, got, want)
		}
	}
}

func TestRLSDynamicMetadata(t *testing.T) {
	const rules = `
domain: d
descriptors:
- {key: a, metadata: {plan: free, deep: {x: 1, list: [1, two]}}, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: b, value_to_metric: true, metadata: {plan: paid, deep: {x: 2, w: true}}, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: z, metadata: {plan: none, only: z}, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: s, shadow_mode: true, metadata: {shadow: yes indeed}, rate_limit: {unit: minute, requests_per_unit: 0}}
`
	b := newBed(t, rules, Options{DynamicMetadata: true}, ServerOptions{})
	for i, c := range []struct{ ask, want string }{
		{"d: a=1", `{"domain": "d", "descriptors": [{"entries": ["a=1"]}], "metadata": {"plan": "free", "deep": {"x": 1, "list": [1, "two"]}}}`},
		{"d+1: a=1; b=1 +0", `{"domain": "d", "hitsAddend": 1, "descriptors": [{"entries": ["a=1"]}, {"entries": ["b=1"], "hitsAddend": 0}],
			"metadata": {"plan": "free", "deep": {"x": 1, "list": [1, "two"], "w": true}}}`},
		// The merge before has written nothing into the rule; what refuses adds nothing.
		{"d: a=1; b=1", `{"domain": "d", "descriptors": [{"entries": ["a=1"]}, {"entries": ["b=1"]}], "metadata": {"plan": "paid", "deep": {"x": 2, "w": true}}}`},
		{"d: a=2", `{"domain": "d", "descriptors": [{"entries": ["a=2"]}], "metadata": {"plan": "free", "deep": {"x": 1, "list": [1, "two"]}}}`},
		{"d: z=1; x=1 y= @3/HOUR", `{"domain": "d", "descriptors": [{"entries": ["z=1"]}, {"entries": ["x=1", "y="], "limit": "requests_per_unit:3 unit:HOUR"}]}`},
		{"d: s=1", `{"domain": "d", "descriptors": [{"entries": ["s=1"]}], "metadata": {"shadow": "yes indeed"}}`},
		{"e: a=1", `{"domain": "e", "descriptors": [{"entries": ["a=1"]}]}`},
	} {
		answer, err := b.client.ShouldRateLimit(context.Background(), parseRequest(t, c.ask))
		if err != nil {
			t.Fatal(err)
		}
		var want structpb.Struct
		if err := protojson.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(answer.DynamicMetadata, &want) {
			t.Errorf("%d: %s\n got %v\nwant %v", i, c.ask, answer.DynamicMetadata, &want)
		}
	}
}

func TestRLSWithoutStore(t *testing.T) {
	const rules = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 2, on_store_error: allow}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 2, on_store_error: deny}}
- {key: c, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: s, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
limits:
- {name: n, when: {native: deny}, allow: 5/min, on_store_error: deny}
`
	set, _, err := file.Load([]file.Source{{Name: "r.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{}
	if b.limiter, err = weir.New(doortest.FailingStore{Err: errors.New("gone away")}, weir.WithRules(set)); err != nil {
		t.Fatal(err)
	}
	b.serve(t, Options{}, ServerOptions{})
	for _, c := range []struct{ ask, want string }{
		{"d: a=1", "OK: OK"},
		{"d: c=1", "Unavailable: the store failed: gone away"},
		{"d: a=1; c=1", "Unavailable: the store failed: gone away"},
		{"d: a=1; b=1; c=1", "OVER_LIMIT: OK; OVER_LIMIT; OK"},
		{"d: a=1; s=1", "OK: OK; OK"},
		{"d: a=1; native=deny", "OVER_LIMIT: OK; OK"},
		{"d: x=1", "OK: OK"},
	} {
		if got := b.ask(t, c.ask); got != c.want {
			t.Errorf("%s: got %s, want %s", c.ask, got, c.want)
		}
	}
	with := &bed{limiter: b.limiter}
	with.serve(t, Options{ResponseHeaders: true}, ServerOptions{})
	answer, err := with.client.ShouldRateLimit(context.Background(), parseRequest(t, "d: a=1; native=deny"))
	if err != nil {
		t.Fatal(err)
	}
	if h := answer.ResponseHeadersToAdd; len(h) != 1 || h[0].Key != "Retry-After" || h[0].Value != "1" {
		t.Errorf("headers of a refusal without the store: %v", h)
	}
}

func TestRLSManyDescriptors(t *testing.T) {
	b := newBed(t, twoAMinute+"limits:\n- {name: n, per: [k], allow: 3/min}\n", Options{}, ServerOptions{})
	m := &rlspb.RateLimitRequest{Domain: "d"}
	for i := range 10_000 {
		m.Descriptors = append(m.Descriptors, &ratelimitpb.RateLimitDescriptor{
			Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "k", Value: fmt.Sprint(i)}}})
	}
	for round, want := range []rlspb.RateLimitResponse_Code{1, 1, 2} {
		answer, err := b.client.ShouldRateLimit(context.Background(), m)
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.Statuses) != len(m.Descriptors) || answer.OverallCode != want {
			t.Fatalf("round %d: %d statuses, %v", round, len(answer.Statuses), answer.OverallCode)
		}
		for i, s := range answer.Statuses {
			if s.Code != want || s.CurrentLimit.GetRequestsPerUnit() != 2 {
				t.Fatalf("round %d: status %d is %v", round, i, s)
			}
		}
	}
	for range 10_000 {
		m.Descriptors = append(m.Descriptors, m.Descriptors[0])
	}
	_, err := b.client.ShouldRateLimit(context.Background(), m)
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "at most 16384") {
		t.Errorf("20,000 descriptors: %v", err)
	}
	one := &ratelimitpb.RateLimitDescriptor{}
	for range 70_000 {
		one.Entries = append(one.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: "k"})
	}
	_, err = b.client.ShouldRateLimit(context.Background(),
		&rlspb.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitpb.RateLimitDescriptor{one}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("70,000 entries: %v", err)
	}
	m.Domain = strings.Repeat("d", 2<<20)
	if _, err = b.client.ShouldRateLimit(context.Background(), m); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of 2 MiB: %v", err)
	}
	if got := b.ask(t, "d: k=alive"); got != "OK: OK 2/MINUTE left 1 reset 60" {
		t.Error(got)
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (rawCodec) Name() string                       { return "proto" }

// TestRLSGarbage throws at the port what no client would send; the server goes on.
func TestRLSGarbage(t *testing.T) {
	b := newBed(t, twoAMinute, Options{}, ServerOptions{})

	for name, body := range map[string][]byte{
		"not UTF-8": {0x0a, 1, 0xff}, "cut": {0x12, 50, 1}, "a bad tag": {0xff}, "field 0": {0, 1}, "a group without end": {0x0b},
	} {
		var out []byte
		err := b.conn.Invoke(context.Background(), rlspb.RateLimitService_ShouldRateLimit_FullMethodName, body, &out,
			grpc.ForceCodec(rawCodec{}))
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}

	random := make([]byte, 4096)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(random)
	frame := func(write func(f *http2.Framer)) []byte {
		var out bytes.Buffer
		out.WriteString(http2.ClientPreface)
		f := http2.NewFramer(&out, nil)
		f.AllowIllegalWrites = true
		_ = f.WriteSettings()
		write(f)
		return out.Bytes()
	}
	var big bytes.Buffer
	enc := hpack.NewEncoder(&big)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"},
		{":path", rlspb.RateLimitService_ShouldRateLimit_FullMethodName},
		{":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"},
		{"big", strings.Repeat("x", 1<<20)}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	for name, data := range map[string][]byte{
		"nothing":           {},
		"random bytes":      random,
		"HTTP/1.1":          []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":               {0x16, 3, 1, 0, 5, 1, 2, 3, 4, 5},
		"half a preface":    []byte(http2.ClientPreface[:10]),
		"random frames":     append([]byte(http2.ClientPreface), random...),
		"a huge frame":      append([]byte(http2.ClientPreface), 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1),
		"data on no stream": frame(func(f *http2.Framer) { _ = f.WriteData(0, true, []byte("x")) }),
		"an even stream":    frame(func(f *http2.Framer) { _ = f.WriteRawFrame(http2.FrameHeaders, 5, 2, []byte{0x82}) }),
		"bad HPACK":         frame(func(f *http2.Framer) { _ = f.WriteRawFrame(http2.FrameHeaders, 5, 1, []byte{0xff, 0xff, 0xff}) }),
		"a zero window":     frame(func(f *http2.Framer) { _ = f.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, make([]byte, 4)) }),
		"1 MB of header": frame(func(f *http2.Framer) {
			block := big.Bytes()
			_ = f.WriteRawFrame(http2.FrameHeaders, 0, 1, block[:16000])
			for block = block[16000:]; len(block) > 16000; block = block[16000:] {
				_ = f.WriteRawFrame(http2.FrameContinuation, 0, 1, block[:16000])
			}
			_ = f.WriteRawFrame(http2.FrameContinuation, http2.FlagContinuationEndHeaders, 1, block)
		}),
		"resets in a row": frame(func(f *http2.Framer) {
			for i := range uint32(500) {
				_ = f.WriteRawFrame(http2.FrameHeaders, 4, 2*i+1, []byte{0x83, 0x86, 0x84})
				_ = f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
			}
		}),
	} {
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(patience.End(t)) // a test that hangs
		_, _ = conn.Write(data)               // the server may have hung up
		_ = conn.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the server holds on to the connection", name)
		}
		_ = conn.Close()
		if got := b.ask(t, "d: k="+name); !strings.HasPrefix(got, "OK") {
			t.Errorf("after %s: %s", name, got)
		}
	}
}

// TestRLSSlowHandshake: who does not say what it wants is shown out.
func TestRLSSlowHandshake(t *testing.T) {
	b := newBed(t, twoAMinute, Options{}, ServerOptions{HandshakeTimeout: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(http2.ClientPreface[:10])); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(patience.End(t)) // a test that hangs
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
}

// panickingStore has a defect.
type panickingStore struct{ doortest.FailingStore }

func (panickingStore) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	panic("a defect")
}

// TestRLSPanic: a defect fails the call and is logged; the process goes on.
func TestRLSPanic(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "r.yaml", Data: []byte(twoAMinute)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(panickingStore{}, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	var logged string
	r := New(l, Options{Logger: doortest.LogTo(func(m string) { logged = m })})
	request, err := proto.Marshal(parseRequest(t, "d: k=a"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(answer []byte, err error) {
		t.Helper()
		if len(answer) > 0 || status.Code(err) != codes.Internal || !strings.Contains(logged, "a defect") ||
			!strings.Contains(logged, "rls/unary.go") {
			t.Errorf("%v, %v, logged %q", answer, err, logged)
		}
		logged = ""
	}
	answer, rest, err := r.answerWire(context.Background(), request, nil, nil)
	if rest == nil {
		t.Fatalf("it was decided at once: %v, %v", answer, err)
	}
	check(rest.answerRest(context.Background(), nil))
	if r.limiter, err = weir.New(panickingPrompt{}, weir.WithRules(set)); err != nil {
		t.Fatal(err)
	}
	answer, rest, err = r.answerWire(context.Background(), request, nil, nil)
	if rest != nil {
		t.Error("it waits")
	}
	check(answer, err)
}

// panickingPrompt has the same defect where it decides at once.
type panickingPrompt struct{ panickingStore }

func (panickingPrompt) TakeNow([]store.Charge, []algo.Result) (int64, bool) { panic("a defect") }

// stopwatch times every second call.
type stopwatch struct{ begun, ended atomic.Int64 }

func (w *stopwatch) Begin() int64 { return w.begun.Add(1) % 2 }
func (w *stopwatch) End(_ int64, _ *weir.Request, d *weir.Decision) {
	w.ended.Add(1)
}

func TestRLSStopwatch(t *testing.T) {
	w := &stopwatch{}
	b := newBed(t, twoAMinute, Options{Stopwatch: w}, ServerOptions{})
	for range 4 {
		b.ask(t, "d: k=a")
	}
	for range 2 {
		if _, err := b.rls.ShouldRateLimit(context.Background(), parseRequest(t, "d: k=a")); err != nil {
			t.Fatal(err)
		}
	}
	if begun, ended := w.begun.Load(), w.ended.Load(); begun != 6 || ended != 3 {
		t.Errorf("%d begun, %d ended", begun, ended)
	}
}

func TestRLSHealth(t *testing.T) {
	var ready atomic.Bool
	b := newBed(t, twoAMinute, Options{}, ServerOptions{Ready: ready.Load})
	client := healthpb.NewHealthClient(b.conn)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
			answer, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: name})
			if err != nil || answer.Status != want {
				t.Errorf("%q: %v, %v; want %v", name, answer.GetStatus(), err, want)
			}
		}
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	ready.Store(true)
	check(healthpb.HealthCheckResponse_SERVING)
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}

	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		answer, err := watch.Recv()
		if err != nil || answer.Status != want {
			t.Fatalf("watching: %v, %v; want %v", answer.GetStatus(), err, want)
		}
	}
	next(healthpb.HealthCheckResponse_SERVING)
	ready.Store(false)
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	ready.Store(true)
	next(healthpb.HealthCheckResponse_SERVING)
	b.server.Drain()
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	if got := b.ask(t, "d: k=a"); !strings.HasPrefix(got, "OK") {
		t.Errorf("while draining: %s", got)
	}
}

func TestRLSShutdown(t *testing.T) {
	b := newBed(t, twoAMinute, Options{}, ServerOptions{})
	if got := b.ask(t, "d: k=a"); !strings.HasPrefix(got, "OK") {
		t.Fatal(got)
	}
	watch, err := healthpb.NewHealthClient(b.conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	// The watcher's call never ends by itself, so that only the end of the time given ends it.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	b2 := newBed(t, twoAMinute, Options{}, ServerOptions{})
	if got := b2.ask(t, "d: k=a"); !strings.HasPrefix(got, "OK") {
		t.Fatal(got)
	}
	if err := b2.server.Shutdown(context.Background()); err != nil {
		t.Errorf("Shutdown without calls: %v", err)
	}
}

func TestRLSReflection(t *testing.T) {
	b := newBed(t, twoAMinute, Options{}, ServerOptions{})
	stream, err := reflectionpb.NewServerReflectionClient(b.conn).ServerReflectionInfo(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var names []string
	for _, s := range ask(
		&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}).
		GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	all := strings.Join(names, " ")
	const service = "envoy.service.ratelimit.v3.RateLimitService"
	if !strings.Contains(all, service) || !strings.Contains(all, "grpc.health.v1.Health") {
		t.Errorf("services: %s", all)
	}
	files := ask(
		&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: service}}).GetFileDescriptorResponse().GetFileDescriptorProto()
	found := false
	for _, data := range files {
		var f descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(data, &f); err != nil {
			t.Fatal(err)
		}
		found = found || len(f.Service) == 1 && f.Service[0].Method[0].GetName() == "ShouldRateLimit"
	}
	if !found {
		t.Error("no description of the service")
	}
}

// TestRLSTogether: on one key, 32 callers together are let through exactly as often as the limit
// says.
func TestRLSTogether(t *testing.T) {
	b := newBed(t, "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 500}}\n", Options{},
		ServerOptions{})
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 50 {
				answer, err := b.client.ShouldRateLimit(context.Background(), parseRequest(t, "d: k=a; x=y"))
				if err != nil {
					t.Error(err)
					return
				}
				if len(answer.Statuses) != 2 || answer.Statuses[1].CurrentLimit != nil {
					t.Errorf("mixed up: %v", answer)
				}
				if answer.OverallCode == rlspb.RateLimitResponse_OK {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if passed.Load() != 500 {
		t.Errorf("%d passed, want 500", passed.Load())
	}
}
