//go:build unix && !race

package spoe

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/observe/otel"
)

// TestNotifyAllocatesNothing: a request that passes is decided and answered without allocating,
// also where requests are followed in traces, but not this one.
func TestNotifyAllocatesNothing(t *testing.T) {
	t.Run("off", func(t *testing.T) { notifyAllocatesNothing(t, nil) })
	t.Run("not followed", func(t *testing.T) {
		o, err := otel.Start(t.Context(), otel.Options{Endpoint: "http://127.0.0.1:1",
			Gatherer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = o.Shutdown(t.Context()) }()
		notifyAllocatesNothing(t, o.Tracer())
	})
}

func notifyAllocatesNothing(t *testing.T, tracer door.Tracer) {
	a := New(newLimiter(t, benchRules), Options{Tracer: tracer})
	c := newCall(a)
	f, ok := parseFrame(string(question(7)[4:]))
	if !ok {
		t.Fatal("no frame")
	}
	ask := func() {
		messages, ok := c.attributes.parse(f.payload)
		if !ok || messages != 1 {
			t.Fatal("no message")
		}
		c.out = c.answer(t.Context(), messages, f.stream, f.id, false, c.out[:0], 16380)
	}
	ask()
	if n := testing.AllocsPerRun(1000, ask); n > 0 {
		t.Errorf("%v allocations a request", n)
	}
	if c.decision.Nearest() == nil {
		t.Error("the request meets no limit")
	}
}
