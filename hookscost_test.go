package weir_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/store/memory"
)

// hooksOf are what the program hangs behind decisions, each alone and all of them.
var hooksOf = []struct {
	name string
	make func(t testing.TB) weir.Hooks
}{
	{"none", func(testing.TB) weir.Hooks { return weir.Hooks{} }},
	{"metrics", func(testing.TB) weir.Hooks { return metrics.New(metrics.Options{}).Hooks() }},
	{"recent", func(t testing.TB) weir.Hooks { return remembering(t, nil).Hooks() }},
	{"insight", func(t testing.TB) weir.Hooks { return gathering(t, nil).Hooks() }},
	{"record", func(t testing.TB) weir.Hooks { return recording(t).Hooks() }},
	{"all", func(t testing.TB) weir.Hooks {
		tally := observe.NewTally()
		return tally.Join(metrics.New(metrics.Options{Tally: tally}), remembering(t, tally), gathering(t, tally),
			recording(t))
	}},
}

// gathering returns a collector that runs.
func gathering(t testing.TB, tally *observe.Tally) *gather.Collector {
	c := gather.New(gather.Options{Tally: tally})
	running(t, c.Run)
	return c
}

// recording returns a recorder of requests, for previews, that runs.
func recording(t testing.TB) *record.Recorder {
	r, err := record.NewRecorder(record.Options{})
	if err != nil {
		t.Fatal(err)
	}
	running(t, r.Run)
	return r
}

// running runs a goroutine until the test ends.
func running(t testing.TB, run func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
}

func remembering(t testing.TB, tally *observe.Tally) *recent.Buffer {
	b, err := recent.New(recent.Options{Tally: tally})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// refuseAll admits each key once.
const refuseAll = "1/year"

// decisions are what the cost of hooks is measured on.
var decisions = []struct {
	name, allow string
	keys        int
}{
	{"refused/one", refuseAll, 1},
	{"refused/many", refuseAll, 10_000},
	{"admitted/one", "1000000000/s", 1},
	{"admitted/many", "1000000000/s", 10_000},
}

// decider returns a function that decides n requests of these keys in turn.
func decider(t testing.TB, allow string, keys int, hooks weir.Hooks) func(n int) {
	t.Helper()
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := weir.New(s, weir.WithHooks(hooks), weir.WithRules(load(t,
		"limits: [{name: api, when: {path: /api/**}, per: [user], allow: "+allow+"}]")))
	if err != nil {
		t.Fatal(err)
	}
	users := make([]string, keys)
	for i := range users {
		users[i] = fmt.Sprintf("user-%08d", i)
	}
	attributes := weir.Pairs{{Name: "method", Value: "GET"}, {Name: "path", Value: "/api/orders"}, {Name: "user"}}
	r := weir.Request{Attributes: attributes, Hits: 1, Door: "http"}
	var d weir.Decision
	next := 0
	return func(n int) {
		for range n {
			attributes[2].Value = users[next]
			if next++; next == keys {
				next = 0
			}
			if err := l.Decide(context.Background(), &r, &d); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// BenchmarkHooks decides on the store in memory, with and without what hangs behind.
func BenchmarkHooks(b *testing.B) {
	for _, c := range decisions {
		for _, h := range hooksOf {
			b.Run(c.name+"/"+h.name, func(b *testing.B) {
				decide := decider(b, c.allow, c.keys, h.make(b))
				decide(c.keys)
				b.ReportAllocs()
				b.ResetTimer()
				decide(b.N)
			})
		}
	}
}
