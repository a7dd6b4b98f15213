package otel

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/store"
)

const followed = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestSampled(t *testing.T) {
	for traceparent, want := range map[string][2]bool{
		followed: {true, true},
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00":       {false, true},
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03":       {true, true},
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later": {true, true},
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later": {},
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":       {},
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g":       {},
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7":          {},
		"": {}, "x": {},
	} {
		if yes, ok := sampled(traceparent); yes != want[0] || ok != want[1] {
			t.Errorf("%q: %v, %v", traceparent, yes, ok)
		}
	}
}

// nothing is a store that decides nothing.
type nothing struct{ store.Store }

func (nothing) Take(context.Context, []store.Charge, []algo.Result) (int64, error) { return 1, nil }

// TestCollectorHangs: with a collector that takes connections and never answers, decisions go on,
// and what waits for it stays within its bound.
func TestCollectorHangs(t *testing.T) {
	hang, asked := make(chan struct{}), make(chan struct{}, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-hang
	}))
	defer collector.Close()
	defer close(hang)
	o, err := Start(t.Context(), Options{Endpoint: collector.URL, Metrics: time.Hour,
		Gatherer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	tracer, hooks := o.Tracer(), o.Tracer().Hooks()
	s := tracer.Store(nothing{}, "redis")
	decide := func() {
		ctx, trace := tracer.Follow(context.Background(), followed, "")
		r := weir.Request{Domain: "shop", Trace: trace, Door: "http"}
		if _, err := s.Take(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		hooks.Decided(&r, &weir.Decision{Domain: "shop", ID: 7})
	}
	used := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for range 4 * maxWaiting {
		decide()
	}
	<-asked // an export is under way, and stays so: from here on everything waits behind it
	before := used()
	// None of these may wait for the collector, which does not answer until the test has ended.
	decisions := effort.Of(12, 50) * maxWaiting
	for range decisions {
		decide()
	}
	// Kept, these would take 1 kB each and more: two spans, of half a kilobyte or more.
	if grown := used() - before; grown > 16<<20 {
		t.Errorf("%d decisions made %d bytes more wait", decisions, grown)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Shutdown(ctx); err == nil {
		t.Error("nothing is lost, though the collector took nothing")
	}
}

// TestNotFollowed: of a request that is not followed nothing is made.
func TestNotFollowed(t *testing.T) {
	o, err := Start(t.Context(), Options{Endpoint: "http://127.0.0.1:1", Gatherer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	tracer, hooks := o.Tracer(), o.Tracer().Hooks()
	s, ctx := tracer.Store(nothing{}, "redis"), context.Background()
	holds, settlements := tracer.Store(reserver{}, "redis").(store.Reserver), make([]store.Settlement, 2)
	r, d := weir.Request{Domain: "shop"}, weir.Decision{Domain: "shop", ID: 7}
	for _, traceparent := range []string{"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"} {
		if n := testing.AllocsPerRun(100, func() {
			with, trace := tracer.Follow(ctx, traceparent, "")
			if r.Trace = trace; trace != nil {
				t.Fatal("it is followed")
			}
			if _, ok := s.(store.Prompt).TakeNow(nil, nil); ok {
				t.Fatal("a store that is no Prompt decides at once")
			}
			_, _ = s.Take(with, nil, nil)
			_ = holds.Settle(with, settlements)
			hooks.Decided(&r, &d)
		}); n != 0 {
			t.Errorf("%q: %v allocations", traceparent, n)
		}
	}
	if err := o.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestServe: the span of a server ends once, also where the answer breaks off, and the handler sees
// the writer's own abilities.
func TestServe(t *testing.T) {
	o, err := Start(t.Context(), Options{Endpoint: "http://127.0.0.1:1", Gatherer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	var saw, flushed atomic.Int32
	server := httptest.NewServer(o.Tracer().Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if TraceOf(r) != nil {
			saw.Add(1)
		}
		if http.NewResponseController(w).Flush() == nil {
			flushed.Add(1)
		}
		panic(http.ErrAbortHandler)
	})))
	defer server.Close()
	for _, traceparent := range []string{followed, ""} {
		r, err := http.NewRequest(http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Traceparent", traceparent)
		if answer, err := http.DefaultClient.Do(r); err == nil {
			// The head of the answer comes before the handler has counted. The body ends after it.
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
	}
	if saw.Load() != 1 || flushed.Load() != 2 {
		t.Errorf("%d of 1 requests with a trace, %d of 2 flushed", saw.Load(), flushed.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = o.Shutdown(ctx)
}
