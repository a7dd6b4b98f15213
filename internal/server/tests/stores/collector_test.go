//go:build unix

package stores

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// collectorBed is a collector of OpenTelemetry, and the file that it writes.
type collectorBed struct {
	t              *testing.T
	tool, dir      string
	grpcAt, httpAt string
	running        *servertest.Process
}

// newCollector starts the collector that scripts/test builds of internal/testkit/collector.
func newCollector(t *testing.T) *collectorBed {
	t.Helper()
	tool := filepath.Join(servertest.OriginalRoot, ".cache", "tools", "collector")
	if _, err := os.Stat(tool); err != nil {
		t.Skip("the collector of OpenTelemetry is not built; scripts/test does that")
	}
	c := &collectorBed{t: t, tool: tool, dir: t.TempDir(), grpcAt: "127.0.0.1:" + servertest.FreePort(t),
		httpAt: "127.0.0.1:" + servertest.FreePort(t)}
	servertest.WriteRules(t, filepath.Join(c.dir, "collector.yaml"), fmt.Sprintf(`
receivers: { otlp: { protocols: { grpc: { endpoint: %q }, http: { endpoint: %q } } } }
exporters: { file: { path: %q, flush_interval: 50ms } }
service:
  telemetry: { metrics: { level: none } }
  pipelines:
    traces: { receivers: [otlp], exporters: [file] }
    metrics: { receivers: [otlp], exporters: [file] }
`, c.grpcAt, c.httpAt, c.path()))
	c.start()
	return c
}

func (c *collectorBed) path() string { return filepath.Join(c.dir, "got.jsonl") }

// start starts it, on the same ports each time and with an empty file.
func (c *collectorBed) start() {
	c.t.Helper()
	c.running = servertest.Begin(c.t, exec.Command(c.tool, "--config="+filepath.Join(c.dir, "collector.yaml")))
	c.running.Listens(c.grpcAt)
	c.running.Listens(c.httpAt)
}

// has tells in which signals a trace is: as a span of a decision, and as an exemplar of
// weir_requests_total.
func (c *collectorBed) has(trace string) (span, exemplar bool) {
	c.t.Helper()
	data, err := os.ReadFile(c.path())
	if err != nil {
		c.t.Fatal(err)
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1] // the last line may not be whole yet
	type traced struct {
		TraceID string
		Name    string
	}
	for line := range bytes.Lines(data) {
		var got struct {
			ResourceSpans   []struct{ ScopeSpans []struct{ Spans []traced } }
			ResourceMetrics []struct {
				ScopeMetrics []struct {
					Metrics []struct {
						Name string
						Sum  struct {
							DataPoints []struct{ Exemplars []traced }
						}
					}
				}
			}
		}
		if err := json.Unmarshal(line, &got); err != nil {
			c.t.Fatalf("%v: %s", err, line)
		}
		for _, of := range got.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				for _, s := range scope.Spans {
					span = span || s.TraceID == trace && s.Name == "weir decide"
				}
			}
		}
		for _, of := range got.ResourceMetrics {
			for _, scope := range of.ScopeMetrics {
				for _, m := range scope.Metrics {
					for _, p := range m.Sum.DataPoints {
						for _, e := range p.Exemplars {
							exemplar = exemplar || e.TraceID == trace && m.Name == "weir_requests_total"
						}
					}
				}
			}
		}
	}
	return span, exemplar
}

// TestCollector: a real collector of OpenTelemetry gets the span and the exemplar of a refusal with
// one trace id. While it hangs, and after it was killed, decisions are answered,
// what it does not get is counted, and memory stays bounded. When it is back, data arrives again.
func TestCollector(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := newCollector(t)
			endpoint := c.httpAt
			if protocol == "grpc" {
				endpoint = c.grpcAt
			}
			dir := t.TempDir()
			servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"),
				"limits: [{ name: login, per: [user], allow: 1/hour }]\n")
			// What waits for the collector fails after half a second.
			weir := servertest.LaunchIn(t, []string{"OTEL_EXPORTER_OTLP_TIMEOUT=500",
				"OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_METRIC_EXPORT_INTERVAL=50"}, program, dir, "serve",
				"--rules=rules.yaml", "--otel-endpoint=http://"+endpoint)
			api, admin := "http://"+weir.Addr("http")+"/api/v1/limit?user=ada", "http://"+weir.Addr("admin")

			// ask sends n requests of one trace, each of which must be answered with a decision.
			const clients = 8
			transport := &http.Transport{MaxIdleConnsPerHost: clients}
			defer transport.CloseIdleConnections()
			ask := func(n int, trace string) {
				t.Helper()
				var asking sync.WaitGroup
				for client := range clients {
					asking.Go(func() {
						for range (n + clients - 1 - client) / clients {
							q, err := http.NewRequest(http.MethodGet, api, nil)
							if err != nil {
								t.Error(err)
								return
							}
							q.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
							answer, err := transport.RoundTrip(q)
							if err != nil {
								t.Error(err)
								return
							}
							_, _ = io.Copy(io.Discard, answer.Body)
							answer.Body.Close()
							if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusTooManyRequests {
								t.Errorf("%s", answer.Status)
								return
							}
						}
					})
				}
				asking.Wait()
				if t.Failed() {
					t.FailNow()
				}
			}
			arrives := func(trace string) {
				t.Helper()
				servertest.Eventually(t, "span and exemplar of one trace have come", func() bool {
					ask(256, trace) // of so many refusals one is an exemplar
					span, exemplar := c.has(trace)
					return span && exemplar
				})
			}
			dropped := func() int {
				t.Helper()
				_, _, body := servertest.Get(t, admin+"/metrics")
				found := regexp.MustCompile(
					`(?m)^weir_otel_dropped_total\{signal="traces"\} (\S+)$`).FindStringSubmatch(body)
				if found == nil {
					t.Fatal("no weir_otel_dropped_total of traces")
				}
				n, err := strconv.ParseFloat(found[1], 64)
				if err != nil {
					t.Fatal(err)
				}
				return int(n)
			}
			heap := func() int {
				t.Helper()
				_, _, body := servertest.Get(t, admin+"/debug/pprof/heap?gc=1&debug=1")
				found := regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`).FindStringSubmatch(body)
				if found == nil {
					t.Fatal("the profile does not tell the heap")
				}
				n, err := strconv.Atoi(found[1])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}

			arrives(fmt.Sprintf("%032x", 1))
			// So many that all that remembers decisions is full; as many spans
			// would be more than the growth that is borne below.
			const load, growth = 20_000, 16 << 20
			ask(load, fmt.Sprintf("%032x", 2))
			full := heap()
			away := func(how string) {
				t.Helper()
				spans := dropped()
				ask(load, fmt.Sprintf("%032x", 3))
				servertest.Eventually(t, "what the collector does not get is counted while it is "+how, func() bool {
					return dropped() > spans
				})
				got := heap()
				t.Logf("%s: heap %d KiB, before %d KiB", how, got>>10, full>>10)
				if got > full+growth {
					t.Errorf("while the collector is %s the heap is %d bytes, before %d", how, got, full)
				}
			}
			c.running.Signal(syscall.SIGSTOP)
			away("stopped")
			c.running.Signal(syscall.SIGKILL)
			c.running.Wait()
			away("killed")
			c.start()
			arrives(fmt.Sprintf("%032x", 4))
			weir.Signal(syscall.SIGTERM)
			if status := weir.Wait(); status != 0 {
				t.Errorf("it exits with %d: %s", status, weir.Stderr)
			}
		})
	}
}

// TestCollectorStores: a real collector gets a span for each call of a store that nodes share, with
// the names of the semantic conventions, under the span of the decision. TestCassandra has the one
// of Cassandra.
func TestCollectorStores(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	for system, open := range map[string]func(t *testing.T) string{
		"redis":      func(t *testing.T) string { return redistest.Start(t).URL() },
		"postgresql": func(t *testing.T) string { return pgtest.Start(t).URL() },
	} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			testCollectorStore(t, newCollector(t), program, system, open(t))
		})
	}
}

// testCollectorStore: a collector gets the span of a call of the store at url.
func testCollectorStore(t *testing.T, c *collectorBed, program, system, url string) {
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"),
		"limits: [{ name: both, per: [user], allow: [10/min, 100/hour] }]\n")
	weir := servertest.Launch(t, program, dir, "serve", "--rules=rules.yaml", "--otel-endpoint=http://"+c.httpAt,
		"--store="+url, "--store-deadline=30s", "--store-timeout=30s", "--store-max-deadline=30s")
	servertest.NodeOf(t, weir.Stderr, weir.Addr).AwaitBack()
	const trace = "0af7651916cd43dd8448eb211c80319c"
	q, err := http.NewRequest(http.MethodGet, "http://"+weir.Addr("http")+"/api/v1/limit?user=ada", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	var decide, call *collectedSpan
	servertest.Eventually(t, "the spans have come", func() bool {
		decide, call = c.span(trace, "weir decide"), c.span(trace, system)
		return decide != nil && call != nil
	})
	const client = 3 // SPAN_KIND_CLIENT
	if call.ParentSpanID != decide.SpanID || call.Kind != client {
		t.Errorf("the span of the call is %+v, the decision's %+v", call, decide)
	}
	got := map[string]string{}
	for _, a := range call.Attributes {
		got[a.Key] = a.Value.StringValue + a.Value.IntValue
	}
	want := map[string]string{"db.system.name": system, "db.operation.name": "take", "db.operation.batch.size": "2",
		"weir.limits": "2"}
	if !maps.Equal(got, want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
}

// collectedSpan is a span as the collector writes it.
type collectedSpan struct {
	TraceID, SpanID, ParentSpanID, Name string

	Kind       int
	Attributes []struct {
		Key   string
		Value struct{ StringValue, IntValue string }
	}
}

// span returns a span of a trace; nil if it has not come.
func (c *collectorBed) span(trace, name string) *collectedSpan {
	c.t.Helper()
	data, err := os.ReadFile(c.path())
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range bytes.Lines(data[:bytes.LastIndexByte(data, '\n')+1]) {
		var got struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []collectedSpan }
			}
		}
		if err := json.Unmarshal(line, &got); err != nil {
			c.t.Fatalf("%v: %s", err, line)
		}
		for _, of := range got.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				for i := range scope.Spans {
					if s := &scope.Spans[i]; s.TraceID == trace && s.Name == name {
						return s
					}
				}
			}
		}
	}
	return nil
}
