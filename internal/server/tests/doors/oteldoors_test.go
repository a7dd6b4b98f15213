package doors

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/rueidis"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// tracedBed is the built program with all its doors, over Redis, whose traces a receiver gets.
type tracedBed struct {
	t        *testing.T
	p        *servertest.Process
	got      *receiver
	redis    rueidis.Client // of the door that speaks the Redis protocol
	upstream sync.Map       // the Traceparent of each path that the upstream was asked for; of deferred ones behind "deferred "
}

func newTracedBed(t *testing.T, share string) *tracedBed {
	t.Helper()
	program := servertest.BuildProgram(t)
	b := &tracedBed{t: t}
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		key := r.URL.Path
		if r.Header.Get("X-Weir-Ticket") != "" {
			key = "deferred " + key
		}
		b.upstream.Store(key, r.Header.Get("Traceparent"))
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"), `domain: shop
limits:
  - { name: day, per: [user], when: { user: "*" }, allow: 900000000/year }
  - { name: slots, per: [holder], when: { holder: "*" }, allow: 1000, algorithm: concurrency }
  - { name: orders, per: [path], when: { path: /orders/* }, allow: { rate: 20/s, burst: 1 }, on_limit: { defer: orders } }
`)
	got, _, endpoint := receive(t, "http")
	b.got = got
	b.p = servertest.LaunchIn(t, []string{"OTEL_METRICS_EXPORTER=none"}, program, dir,
		slices.Concat(servertest.Patient, []string{"serve", endpoint, "--rules=" + dir,
			"--store=" + redistest.Start(t).URL(), "--otel-traces=" + share,
			"--listen-proxy=127.0.0.1:0", "--proxy-upstream=" + upstream.URL, "--listen-spoe=127.0.0.1:0", "--client-ip-trusted-proxies=127.0.0.1"})...)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{b.p.Addr("resp")},
		ForceSingleClient: true, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	b.redis = client
	return b
}

// http asks a door over HTTP, and returns the answer's body.
func (b *tracedBed) http(door, method, path, body, traceparent string, status int, headers ...string) string {
	b.t.Helper()
	q, err := http.NewRequestWithContext(b.t.Context(), method, "http://"+b.p.Addr(door)+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if traceparent != "" {
		q.Header.Set("Traceparent", traceparent)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != status {
		b.t.Fatalf("%s %s: %s, want %d\n%s%v", method, path, answer.Status, status, text, err)
	}
	return string(text)
}

// member returns a text of an answer in JSON, by the name of the member, at whatever depth.
func (b *tracedBed) member(body, name string) (text string) {
	b.t.Helper()
	d := json.NewDecoder(strings.NewReader(body))
	for found := false; ; {
		token, err := d.Token()
		if err != nil {
			b.t.Fatalf("no %s in %s", name, body)
		}
		if text, ok := token.(string); ok && found {
			return text
		}
		found = token == name
	}
}

// command sends a command of the Redis protocol.
func (b *tracedBed) command(traceparent string, args ...string) rueidis.RedisResult {
	b.t.Helper()
	if traceparent != "" {
		args = append(args, "traceparent", traceparent)
	}
	r := b.redis.Do(b.t.Context(), b.redis.B().Arbitrary(args...).Build())
	if err := r.Error(); err != nil {
		b.t.Fatalf("%q: %v", args, err)
	}
	return r
}

// spoe asks as HAProxy does: a HELLO and a NOTIFY with one message (doc/SPOE.txt).
func (b *tracedBed) spoe(args ...string) {
	b.t.Helper()
	text := func(s string) []byte { return append([]byte{byte(len(s))}, s...) } // below 240 bytes
	typed := func(name, value string) []byte { return append(append(text(name), 8), text(value)...) }
	frame := func(kind, stream byte, payload []byte) []byte {
		f := append([]byte{kind, 0, 0, 0, 1, stream, stream}, payload...)
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(f))), f...)
	}
	hello := append(typed("supported-versions", "2.0"), typed("capabilities", "pipelining")...)
	hello = append(append(hello, text("max-frame-size")...), 3, 0xfc, 0xf0, 0x06) // UINT32 16380
	notify := append(text("check-request"), byte(len(args)/2))
	for i := 0; i < len(args); i += 2 {
		notify = append(notify, typed(args[i], args[i+1])...)
	}
	conn, err := net.Dial("tcp", b.p.Addr("spoe"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	for _, f := range []struct {
		ask    []byte
		answer byte
	}{{frame(1, 0, hello), 101}, {frame(3, 7, notify), 103}} {
		if _, err := conn.Write(f.ask); err != nil {
			b.t.Fatal(err)
		}
		head := make([]byte, 5)
		if _, err := io.ReadFull(conn, head); err != nil || head[4] != f.answer {
			b.t.Fatalf("a frame of the kind %d, want %d: %v", head[4], f.answer, err)
		}
		body := make([]byte, binary.BigEndian.Uint32(head)-1)
		if _, err := io.ReadFull(conn, body); err != nil {
			b.t.Fatal(err)
		}
		if f.answer == 103 && !bytes.Contains(body, typedBool("deny", false)) {
			b.t.Fatalf("the request is not admitted: %q", body)
		}
	}
}

func typedBool(name string, value bool) []byte {
	b := append([]byte{byte(len(name))}, name...)
	if value {
		return append(b, 0x11)
	}
	return append(b, 0x01)
}

func (b *tracedBed) reserve(traceparent string) (body string) {
	b.t.Helper()
	body = b.http("http", http.MethodPost, "/api/v1/reserve", `{"attributes":{"user":"ada"},"hits":3}`, traceparent,
		http.StatusOK)
	return fmt.Sprintf(`"reservation":%q`, b.member(body, "reservation"))
}

func (b *tracedBed) slot() string {
	b.t.Helper()
	return b.member(b.http("http", http.MethodGet, "/api/v1/limit?holder=ada", "", "", http.StatusOK), "slot")
}

func (b *tracedBed) rls(traceparent string) {
	b.t.Helper()
	conn, err := grpc.NewClient(b.p.Addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	ctx := b.t.Context()
	if traceparent != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", traceparent)
	}
	if _, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlspb.RateLimitRequest{Domain: "shop",
		Descriptors: []*ratelimitpb.RateLimitDescriptor{{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "user",
			Value: "ada"}}}}}); err != nil {
		b.t.Fatal(err)
	}
}

// deferred sends requests until one is deferred, and waits until the upstream has it.
func (b *tracedBed) deferred(traceparent string) {
	b.t.Helper()
	// One path for each, so that the request before it is not in its way.
	path := "/orders/" + hex.EncodeToString([]byte(traceparent))
	b.http("proxy", http.MethodPost, path, "", "", http.StatusOK)
	for status := 0; status != http.StatusAccepted; {
		q, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, "http://"+b.p.Addr("proxy")+path,
			strings.NewReader("an order"))
		if err != nil {
			b.t.Fatal(err)
		}
		q.Header.Set("Traceparent", traceparent)
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			b.t.Fatal(err)
		}
		answer.Body.Close()
		status = answer.StatusCode
	}
	servertest.Eventually(b.t, "the deferred request is sent", func() bool {
		_, ok := b.upstream.Load("deferred " + path)
		return ok
	})
}

// wanted is a span that a door makes.
type wanted struct {
	name       string
	attributes map[string]string
	redis      int // calls of Redis in it
}

// TestOTelDoors: each door of the built program makes the spans of a request whose caller follows
// it, under the caller's span, with the outcome and how long Redis took; and none of one whose
// caller does not, though all that have no traceparent are followed.
func TestOTelDoors(t *testing.T) {
	t.Parallel()
	b := newTracedBed(t, "100%")
	decide := func(door string) wanted {
		return wanted{"weir decide", map[string]string{"weir.door": door, "weir.allowed": "true", "weir.domain": "shop",
			"weir.rule": "day"}, 1}
	}
	act := func(name string, found bool, redis int) wanted {
		return wanted{name, map[string]string{"weir.door": "http", "weir.found": fmt.Sprint(found)}, redis}
	}
	const user = `{"attributes":{"user":"ada"}}`
	post := func(path, body string, status int) func(string) {
		return func(traceparent string) { b.http("http", http.MethodPost, path, body, traceparent, status) }
	}
	rows := []struct {
		name string
		ask  func(traceparent string)
		want []wanted
	}{
		{"limit", func(traceparent string) {
			b.http("http", http.MethodGet, "/api/v1/limit?user=ada", "", traceparent, http.StatusOK)
		}, []wanted{decide("http")}},
		{"limit, POST", post("/api/v1/limit", user, http.StatusOK), []wanted{decide("http")}},
		{"limit/batch", post("/api/v1/limit/batch", `{"requests":[`+user+`,`+user+`]}`, http.StatusOK), []wanted{decide("http"), decide("http")}},
		{"reserve", func(traceparent string) { b.reserve(traceparent) }, []wanted{{"weir reserve",
			map[string]string{"weir.door": "http", "weir.allowed": "true", "weir.domain": "shop", "weir.rule": "day",
				"weir.reserved": "true"}, 2}}},
		{"commit", func(traceparent string) {
			b.http("http", http.MethodPost, "/api/v1/commit", `{`+b.reserve("")+`,"hits":1}`, traceparent,
				http.StatusNoContent)
		}, []wanted{act("weir commit", true, 2)}},
		{"commit of what is gone", post("/api/v1/commit", `{"reservation":"ABCDEFGHIJKLMNOPQRSTUVWXYZ","hits":1}`, http.StatusNotFound), []wanted{act("weir commit", false, 1)}},
		{"cancel", func(traceparent string) {
			b.http("http", http.MethodPost, "/api/v1/cancel", `{`+b.reserve("")+`}`, traceparent, http.StatusNoContent)
		}, []wanted{act("weir cancel", true, 2)}},
		{"release", func(traceparent string) {
			b.http("http", http.MethodPost, "/api/v1/release", fmt.Sprintf(`{"slot":%q}`, b.slot()), traceparent,
				http.StatusNoContent)
		}, []wanted{act("weir release", true, 1)}},
		{"json", post("/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`, http.StatusOK), []wanted{decide("rls")}},
		{"forward auth", func(traceparent string) {
			b.http("http", http.MethodGet, "/api/v1/forward-auth/forwarded", "", traceparent, http.StatusOK,
				"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/", "X-Forwarded-Host", "shop.test", "X-Forwarded-Proto", "http", "X-Forwarded-For", "192.0.2.1")
		}, []wanted{{"weir decide", map[string]string{"weir.door": "forward-auth", "weir.allowed": "true"}, 0}}},
		{"RLS", b.rls, []wanted{decide("rls")}},
		{"SPOE", func(traceparent string) { b.spoe("user", "ada", "traceparent", traceparent) }, []wanted{decide("spoe")}},
		{"WEIR.LIMIT", func(traceparent string) { b.command(traceparent, "WEIR.LIMIT", "shop", "1", "user", "ada") }, []wanted{decide("resp")}},
		{"proxy",
			func(traceparent string) {
				b.http("proxy", http.MethodGet, "/through", "", traceparent,
					http.StatusOK)
			}, []wanted{
				{"GET", map[string]string{"http.response.status_code": "200"}, 0}, {"weir decide", map[string]string{"weir.door": "proxy", "weir.allowed": "true"}, 0}}},
		{"deferred", b.deferred, []wanted{
			{"POST", map[string]string{"http.response.status_code": "202"}, 0},
			{"weir decide", map[string]string{"weir.door": "proxy", "weir.allowed": "false", "weir.rule": "orders"}, 1},
			{"weir decide", map[string]string{"weir.door": "deferred", "weir.allowed": "true", "weir.rule": "orders"}, 1},
			{"weir forward", map[string]string{"weir.door": "deferred", "weir.attempt": "1", "http.response.status_code": "200"}, 0},
		}},
	}
	const caller = "00f067aa0ba902b7"
	traces := func(i int) (followed, not string) { return fmt.Sprintf("%032x", i+1), fmt.Sprintf("%032x", 1000+i) }
	// All are asked before any span is looked for: spans are sent together, once in a while.
	for i, row := range rows {
		followed, not := traces(i)
		row.ask("00-" + not + "-" + caller + "-00")
		row.ask("00-" + followed + "-" + caller + "-01")
	}
	for i, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			outer := b.t
			b.t = t
			defer func() { b.t = outer }()
			followed, not := traces(i)
			b.check(followed, caller, row.want)
			if list := b.got.all(not); len(list) > 0 {
				t.Errorf("spans of a request that its caller does not follow: %v", list)
			}
		})
	}
}

// check waits for the spans of a trace, and for no other.
func (b *tracedBed) check(id, caller string, want []wanted) {
	b.t.Helper()
	total := 0
	for _, w := range want {
		total += 1 + w.redis
	}
	var list []*tracepb.Span
	servertest.Eventually(b.t, "the spans have come", func() bool {
		list = b.got.all(id)
		// A request may have been sent more often until it was deferred, or asked for more often.
		return len(list) >= total && len(missing(list, want)) == 0
	})
	for _, w := range missing(list, want) {
		b.t.Errorf("no span %v in %v", w, list)
	}
	under := map[string]bool{caller: true}
	for _, s := range list {
		under[hex.EncodeToString(s.SpanId)] = true
	}
	for _, s := range list {
		if !under[hex.EncodeToString(s.ParentSpanId)] {
			b.t.Errorf("%s is not under the caller's span: %v", s.Name, s)
		}
	}
	if forward := b.got.in(id, "weir forward"); len(forward) == 1 {
		path := "deferred /orders/" + hex.EncodeToString([]byte("00-"+id+"-"+caller+"-01"))
		if got, _ := b.upstream.Load(path); got != fmt.Sprintf("00-%s-%x-01", id, forward[0].SpanId) {
			b.t.Errorf("the upstream of the deferred request got %v; it was sent in the span %x", got,
				forward[0].SpanId)
		}
		return // its order may have met the limit more than once
	}
	if len(list) != total {
		b.t.Errorf("%d spans, want %d: %v", len(list), total, list)
	}
}

// missing returns which spans are not in list.
func missing(list []*tracepb.Span, want []wanted) (out []wanted) {
	used := map[int]bool{}
	for _, w := range want {
		found := false
		for i, s := range list {
			if used[i] || s.Name != w.name || !w.matches(s) {
				continue
			}
			redis := 0
			for _, child := range list {
				if child.Name == "redis" && bytes.Equal(child.ParentSpanId, s.SpanId) {
					redis++
				}
			}
			if redis == w.redis {
				used[i], found = true, true
				break
			}
		}
		if !found {
			out = append(out, w)
		}
	}
	return out
}

func (w *wanted) matches(s *tracepb.Span) bool {
	for key, value := range w.attributes {
		if attribute(s.Attributes, key) != value {
			return false
		}
	}
	return true
}

// all returns the spans of a trace.
func (r *receiver) all(trace string) (list []*tracepb.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if hex.EncodeToString(s.TraceId) == trace {
			list = append(list, s)
		}
	}
	return list
}

// TestOTelDoorsShare: commands and messages that have no traceparent are followed by the configured
// share, here all of them, each as a trace of its own.
func TestOTelDoorsShare(t *testing.T) {
	t.Parallel()
	b := newTracedBed(t, "100%")
	b.command("", "WEIR.LIMIT", "shop", "1", "user", "ada")
	b.command("", "CL.THROTTLE", "key", "0", "1", "3600")
	b.command("", "CL.THROTTLE", "key", "0", "1", "3600")
	b.command("", "THROTTLE", "key", "5", "1", "3600")
	full, err := b.command("", "WEIR.LIMIT", "shop", "1", "holder", "ada", "FULL").ToArray()
	if err != nil {
		t.Fatal(err)
	}
	slots, err := full[9].AsStrSlice()
	if err != nil || len(slots) != 1 {
		t.Fatal(slots, err)
	}
	b.command("", "WEIR.RELEASE", slots[0])
	b.spoe("user", "ada")
	b.rls("")
	want := []wanted{
		{"weir decide", map[string]string{"weir.door": "resp", "weir.allowed": "true", "weir.rule": "day", "weir.command": ""}, 1},
		{"weir decide", map[string]string{"weir.door": "resp", "weir.allowed": "true", "weir.command": "cl.throttle"}, 1},
		{"weir decide", map[string]string{"weir.door": "resp", "weir.allowed": "false", "weir.command": "cl.throttle"}, 1},
		{"weir decide", map[string]string{"weir.door": "resp", "weir.allowed": "true", "weir.command": "throttle"}, 1},
		{"weir decide", map[string]string{"weir.door": "resp", "weir.allowed": "true", "weir.rule": "slots"}, 1},
		{"weir release", map[string]string{"weir.door": "resp", "weir.found": "true"}, 1},
		{"weir decide", map[string]string{"weir.door": "spoe", "weir.allowed": "true", "weir.rule": "day"}, 1},
		{"weir decide", map[string]string{"weir.door": "rls", "weir.allowed": "true", "weir.rule": "day"}, 1},
	}
	var list []*tracepb.Span
	spans := func() []*tracepb.Span {
		b.got.mu.Lock()
		defer b.got.mu.Unlock()
		return append([]*tracepb.Span(nil), b.got.spans...)
	}
	servertest.Eventually(t, "the spans have come", func() bool {
		list = spans()
		return len(missing(list, want)) == 0
	})
	traces := map[string]bool{}
	for _, s := range list {
		if len(s.ParentSpanId) == 0 {
			traces[string(s.TraceId)] = true
		}
	}
	if len(traces) != len(want) || len(list) != 2*len(want) {
		t.Errorf("%d traces of %d spans, want %d of two each: %v", len(traces), len(list), len(want), list)
	}
}
