//go:build !race

package resp

import (
	"bytes"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/observe/otel"
	"github.com/weir-rl/weir/store/memory"
)

// TestAllocations: a decision allocates nothing (the race detector does), by any command, and also
// where requests are followed in traces, but not this one.
func TestAllocations(t *testing.T) {
	t.Run("off", func(t *testing.T) { testAllocations(t, nil) })
	t.Run("not followed", func(t *testing.T) {
		o, err := otel.Start(t.Context(), otel.Options{Endpoint: "http://127.0.0.1:1",
			Gatherer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = o.Shutdown(t.Context()) }()
		testAllocations(t, o.Tracer())
	})
}

func testAllocations(t *testing.T, tracer door.Tracer) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	told := 0
	d := openDoorOn(t, store, newClock(), limitRules,
		Options{Tracer: tracer, Throttled: func(_ string, key []byte, _, _ int64, _ *algo.Result) { told += len(key) }})
	for name, commands := range map[string]string{
		"CL.THROTTLE":           command("CL.THROTTLE", "key", "1000000", "1", "60"),
		"CL.THROTTLE, refused":  command("CL.THROTTLE", "other", "0", "1", "60"),
		"CL.THROTTLE, long key": command("CL.THROTTLE", strings.Repeat("k", 300), "1000000", "1", "60"),
		"THROTTLE":              command("THROTTLE", "key", "1000000", "1", "60"),
		"WEIR.LIMIT":            command("WEIR.LIMIT", "shop", "1", "key", "ada", "path", "/all"),
		"WEIR.LIMIT, traced":    command("WEIR.LIMIT", "shop", "1", "key", "ada", "path", "/all", "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
		"WEIR.LIMIT, inline":    "WEIR.LIMIT shop 1 key 'ada' path \"/all\"\r\n",
		"ECHO":                  command("ECHO", "x"),
	} {
		c := d.dial(t)
		pipeline := []byte(strings.Repeat(commands, 16) + command("PING"))
		replies := make([]byte, 16<<10)
		round := func() {
			if _, err := c.Write(pipeline); err != nil {
				t.Fatal(err)
			}
			for n := 0; !bytes.HasSuffix(replies[:n], []byte("+PONG\r\n")); {
				m, err := c.Read(replies[n:])
				if n += m; err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 10 {
			round()
		}
		if got := testing.AllocsPerRun(200, round); got > 0.5 {
			t.Errorf("%s: %v allocations in 16 commands", name, got)
		}
		c.Close()
	}
}
