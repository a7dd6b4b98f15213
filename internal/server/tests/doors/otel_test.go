package doors

import (
	"compress/gzip"
	"context"
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
	"syscall"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltraces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// receiver takes OTLP, over gRPC by the official services, and over HTTP.
type receiver struct {
	coltraces.UnimplementedTraceServiceServer
	colmetrics.UnimplementedMetricsServiceServer

	mu        sync.Mutex
	spans     []*tracepb.Span
	exemplars map[string][]string // of each metric: the traces of its exemplars
	tokens    map[string]bool     // the headers that came
	service   string
}

func (r *receiver) traces(token []string, m *coltraces.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens[strings.Join(token, ",")] = true
	for _, of := range m.ResourceSpans {
		r.service = attribute(of.Resource.Attributes, "service.name")
		for _, scope := range of.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
}

func (r *receiver) metrics(m *colmetrics.ExportMetricsServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range m.ResourceMetrics {
		for _, scope := range of.ScopeMetrics {
			for _, metric := range scope.Metrics {
				var found []*metricspb.Exemplar
				for _, p := range metric.GetSum().GetDataPoints() {
					found = append(found, p.Exemplars...)
				}
				for _, p := range metric.GetHistogram().GetDataPoints() {
					found = append(found, p.Exemplars...)
				}
				for _, e := range found {
					r.exemplars[metric.Name] = append(r.exemplars[metric.Name], hex.EncodeToString(e.TraceId))
				}
			}
		}
	}
}

// The services of gRPC have methods of one name each.
type (
	traceService   struct{ *receiver }
	metricsService struct{ *receiver }
)

func (s traceService) Export(ctx context.Context,
	m *coltraces.ExportTraceServiceRequest) (*coltraces.ExportTraceServiceResponse, error) {
	s.traces(metadata.ValueFromIncomingContext(ctx, "x-token"), m)
	return &coltraces.ExportTraceServiceResponse{}, nil
}

func (s metricsService) Export(_ context.Context,
	m *colmetrics.ExportMetricsServiceRequest) (*colmetrics.ExportMetricsServiceResponse, error) {
	s.metrics(m)
	return &colmetrics.ExportMetricsServiceResponse{}, nil
}

// ServeHTTP takes OTLP over HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	if err == nil {
		switch q.URL.Path {
		case "/prefix/v1/traces":
			m := new(coltraces.ExportTraceServiceRequest)
			if err = proto.Unmarshal(data, m); err == nil {
				r.traces(q.Header.Values("X-Token"), m)
			}
		case "/prefix/v1/metrics":
			m := new(colmetrics.ExportMetricsServiceRequest)
			if err = proto.Unmarshal(data, m); err == nil {
				r.metrics(m)
			}
		default:
			err = fmt.Errorf("nothing is at %s", q.URL.Path)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// receive starts a receiver, and returns the variables and the flag that send to it.
func receive(t *testing.T, protocol string) (r *receiver, env []string, endpoint string) {
	t.Helper()
	r = &receiver{exemplars: map[string][]string{}, tokens: map[string]bool{}}
	env = []string{"OTEL_EXPORTER_OTLP_HEADERS=X-Token=sesame%3A%20open", "OTEL_METRIC_EXPORT_INTERVAL=50",
		"OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol}
	if protocol == "http" {
		server := httptest.NewServer(r)
		t.Cleanup(server.Close)
		return r, env, "--otel-endpoint=" + server.URL + "/prefix"
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	coltraces.RegisterTraceServiceServer(server, traceService{r})
	colmetrics.RegisterMetricsServiceServer(server, metricsService{r})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return r, env, "--otel-endpoint=http://" + l.Addr().String()
}

func attribute(list []*commonpb.KeyValue, key string) string {
	for _, a := range list {
		if a.Key != key {
			continue
		}
		switch v := a.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			return v.StringValue
		case *commonpb.AnyValue_BoolValue:
			return fmt.Sprint(v.BoolValue)
		case *commonpb.AnyValue_IntValue:
			return fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_ArrayValue:
			var values []string
			for _, e := range v.ArrayValue.Values {
				values = append(values, e.GetStringValue())
			}
			return strings.Join(values, ",")
		}
	}
	return ""
}

// in returns the spans of a trace with a name.
func (r *receiver) in(trace, name string) (list []*tracepb.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if hex.EncodeToString(s.TraceId) == trace && s.Name == name {
			list = append(list, s)
		}
	}
	return list
}

// TestOTel: a receiver of OTLP gets the span of a decision and a metric with one trace id: from
// each door that sees a traceparent, and nothing of requests whose caller does not follow them.
func TestOTel(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			var upstreamGot sync.Map
			upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				upstreamGot.Store(r.URL.Path, r.Header.Get("Traceparent"))
			}))
			defer upstream.Close()
			dir := t.TempDir()
			servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"),
				"domain: shop\nlimits:\n  - { name: login, per: [user], allow: 1/hour, algorithm: sliding_log }\n  - { name: path, per: [path], allow: 1/hour }\n")
			r, env, endpoint := receive(t, protocol)
			p := servertest.LaunchIn(t, env, servertest.BuiltProgram(t), dir,
				slices.Concat(servertest.Patient, []string{"serve", endpoint, "--rules=" + dir,
					"--store=" + redistest.Start(t).URL(),
					"--listen-proxy=127.0.0.1:0", "--proxy-upstream=" + upstream.URL, "--client-ip-trusted-proxies=127.0.0.1"})...)
			const unfollowed = "00000000000000000000000000000099"
			trace := func(n int) (id, traceparent string) {
				id = fmt.Sprintf("%032x", n)
				return id, "00-" + id + "-00f067aa0ba902b7-01"
			}
			ask := func(url, traceparent string) *http.Response {
				t.Helper()
				q, err := http.NewRequest(http.MethodGet, url, nil)
				if err != nil {
					t.Fatal(err)
				}
				if traceparent != "" {
					q.Header.Set("Traceparent", traceparent)
				}
				answer, err := http.DefaultClient.Do(q)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				return answer
			}
			api := "http://" + p.Addr("http") + "/api/v1/limit?user=ada"
			ask(api, "00-"+unfollowed+"-00f067aa0ba902b7-00") // admitted
			ask(api, "")
			refused, traceparent := trace(1)
			answer := ask(api, traceparent)
			if answer.StatusCode != http.StatusTooManyRequests {
				t.Fatalf("%s", answer.Status)
			}
			decision := answer.Header.Get("X-RateLimit-Decision")

			// The span, with the decision, under the caller's.
			var span *tracepb.Span
			servertest.Eventually(t, "the span has come", func() bool {
				if list := r.in(refused, "weir decide"); len(list) == 1 {
					span = list[0]
				}
				return span != nil
			})
			for key, want := range map[string]string{"weir.domain": "shop", "weir.allowed": "false",
				"weir.rule": "login", "weir.decision": decision, "weir.door": "http"} {
				if got := attribute(span.Attributes, key); got != want || want == "" {
					t.Errorf("%s: %q, want %q", key, got, want)
				}
			}
			if parent := hex.EncodeToString(span.ParentSpanId); parent != "00f067aa0ba902b7" {
				t.Errorf("the span's parent is %s", parent)
			}
			servertest.Eventually(t, "the store's part has come",
				func() bool { return len(r.in(refused, "redis")) == 1 })
			if child := r.in(refused, "redis")[0]; string(child.ParentSpanId) != string(span.SpanId) ||
				child.Kind != tracepb.Span_SPAN_KIND_CLIENT {
				t.Errorf("the store's span: %v", child)
			}
			// The metric of the same trace.
			// Of 256 refusals one is an exemplar.
			servertest.Eventually(t, "the metric has come", func() bool {
				ask(api, traceparent)
				r.mu.Lock()
				defer r.mu.Unlock()
				return slices.Contains(r.exemplars["weir_requests_total"], refused)
			})

			// The other doors.
			checked, traceparent := trace(2)
			q, err := http.NewRequest(http.MethodGet, "http://"+p.Addr("http")+"/api/v1/forward-auth/forwarded", nil)
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range map[string]string{"Traceparent": traceparent, "X-Forwarded-Method": "GET",
				"X-Forwarded-Uri": "/", "X-Forwarded-Host": "shop.test", "X-Forwarded-Proto": "http", "X-Forwarded-For": "192.0.2.1"} {
				q.Header.Set(name, value)
			}
			if answer, err := http.DefaultClient.Do(q); err != nil {
				t.Fatal(err)
			} else if answer.Body.Close(); answer.StatusCode != http.StatusOK {
				t.Fatalf("forward auth: %s", answer.Status)
			}
			overGRPC, traceparent := trace(3)
			conn, err := grpc.NewClient(p.Addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(
				metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent),
				&rlspb.RateLimitRequest{Domain: "shop",
					Descriptors: []*ratelimitpb.RateLimitDescriptor{{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "user", Value: "eve"}}}}}); err != nil {
				t.Fatal(err)
			}
			for id, door := range map[string]string{checked: "forward-auth", overGRPC: "rls"} {
				servertest.Eventually(t, "the span of "+door+" has come",
					func() bool { return len(r.in(id, "weir decide")) == 1 })
				if s := r.in(id, "weir decide")[0]; attribute(s.Attributes, "weir.door") != door {
					t.Errorf("%s: %v", door, s)
				}
			}

			// The proxy has a server's span, under which the decision and the upstream's spans lie.
			for n, want := range map[int]string{4: "200", 5: "429"} {
				proxied, traceparent := trace(n)
				answer := ask("http://"+p.Addr("proxy")+"/through", traceparent)
				_ = answer
				servertest.Eventually(t, "the span of the proxy has come",
					func() bool { return len(r.in(proxied, "GET")) == 1 && len(r.in(proxied, "weir decide")) == 1 })
				server, decided := r.in(proxied, "GET")[0], r.in(proxied, "weir decide")[0]
				if server.Kind != tracepb.Span_SPAN_KIND_SERVER ||
					hex.EncodeToString(server.ParentSpanId) != "00f067aa0ba902b7" ||
					string(decided.ParentSpanId) != string(server.SpanId) {
					t.Errorf("%v, %v", server, decided)
				}
				status := attribute(server.Attributes, "http.response.status_code")
				if status != fmt.Sprint(answer.StatusCode) || status != "200" && status != "429" {
					t.Errorf("status %s of the span, %d of the answer, about %s", status, answer.StatusCode, want)
				}
				for key, want := range map[string]string{"http.request.method": "GET", "url.path": "/through",
					"url.scheme": "http", "server.address": "127.0.0.1", "network.peer.address": "127.0.0.1"} {
					if got := attribute(server.Attributes, key); got != want {
						t.Errorf("%s: %q, want %q", key, got, want)
					}
				}
				if status == "200" {
					if got, _ := upstreamGot.Load("/through"); got != "00-"+proxied+"-"+
						hex.EncodeToString(server.SpanId)+"-01" {
						t.Errorf("the upstream got %v, the server's span is %x", got, server.SpanId)
					}
				}
			}
			r.mu.Lock()
			for _, s := range r.spans {
				if id := hex.EncodeToString(s.TraceId); !strings.HasPrefix(id, strings.Repeat("0", 31)) ||
					id == unfollowed {
					t.Errorf("a span of a request that nobody follows: %v", s)
				}
			}
			if !r.tokens["sesame: open"] || len(r.tokens) != 1 || r.service != "weir" {
				t.Errorf("headers %v, service %q", r.tokens, r.service)
			}
			r.mu.Unlock()
			p.Signal(syscall.SIGTERM)
			if status := p.Wait(); status != 0 {
				t.Errorf("exit status %d\n%s", status, p.Stderr)
			}
		})
	}
}

// TestOTelShare: of requests without a traceparent the configured share is followed, here all.
func TestOTelShare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"),
		"domain: shop\nlimits: [{ name: login, per: [user], allow: 1/hour }]\n")
	r, _, endpoint := receive(t, "http")
	p := servertest.Start(t, "serve", endpoint, "--rules="+dir, "--otel-traces=100%")
	defer p.End()
	servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?user=ada")
	servertest.Eventually(t, "the span has come", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.spans) == 1 && attribute(r.spans[0].Attributes, "weir.allowed") == "true" &&
			len(r.spans[0].ParentSpanId) == 0
	})
}

// TestDecisionLogServe: the program writes a line of JSON for each refusal to stdout, as the admin
// API has it, and nothing else.
func TestDecisionLogServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"),
		"domain: shop\nlimits: [{ name: login, per: [user], allow: 1/hour, algorithm: sliding_log }]\n")
	p := servertest.Start(t, "serve", "--rules="+dir, "--decisions-log=stdout")
	base := "http://" + p.Addr("http") + "/api/v1/limit?user=ada"
	servertest.Get(t, base)
	_, header, _ := servertest.Get(t, base)
	id := header.Get("X-RateLimit-Decision")
	admin := "http://" + p.Addr("admin")
	p.Stdout.Await(t, id)
	_, _, body := servertest.Get(t, admin+"/api/v1/decisions/"+id)
	_, _, metrics := servertest.Get(t, admin+"/metrics")
	p.End()
	var line, shown map[string]any
	if err := json.Unmarshal([]byte(p.Stdout.String()), &line); err != nil {
		t.Fatalf("%v: %s", err, p.Stdout)
	}
	if err := json.Unmarshal([]byte(body), &shown); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if fmt.Sprint(line) != fmt.Sprint(shown) || line["decision"] != id || line["allowed"] != false {
		t.Errorf("logged %v, shown %v", line, shown)
	}
	if !strings.Contains(metrics, "\nweir_decision_log_dropped_total 0\n") {
		t.Error("no weir_decision_log_dropped_total")
	}
}
