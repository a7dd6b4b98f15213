//go:build !race

package record

import (
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/rule"
)

// Recording allocates nothing on the deciding path: neither what is taken nor what is not.
func TestRecordingAllocatesNothing(t *testing.T) {
	w := newWorld(t,
		`limits: [{ name: a, per: [user], allow: 5/min }, { name: b, per: [header.x-api-key], allow: 5/min }]`, Options{})
	r := weir.Request{Attributes: rule.Pairs{{Name: "user", Value: "ada"}, {Name: "path", Value: "/"},
		{Name: "header.x-api-key", Value: "k"}}, Hits: 1}
	var d weir.Decision
	for range 100 { // beyond the limit, and until all buffers have grown
		w.askInto(&r, &d)
		w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
		w.limiter.Phases().Answered(&r, &d, weir.Answer{Status: 200})
	}
	w.recorder.drain()
	for name, level := range map[string]uint32{"taken": 0, "left out": Strata - 1} {
		w.recorder.level.Store(level)
		if n := testing.AllocsPerRun(100, func() {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
			w.recorder.answered(&r, &d, weir.Answer{Status: 200})
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkDecided measures what the hook costs a decision: of a client that is taken, of one that
// is not, and in a flood.
func BenchmarkDecided(b *testing.B) {
	w := newWorld(b, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{})
	r := weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: "ada"},
		{Name: "ip", Value: "192.0.2.1"}}, Hits: 1}
	var d weir.Decision
	for range 10 {
		w.askInto(&r, &d)
	}
	b.Run("taken", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
			if i%512 == 0 {
				for k := range w.recorder.stage {
					w.recorder.stage[k].buf = w.recorder.stage[k].buf[:0]
				}
			}
		}
	})
	b.Run("left out", func(b *testing.B) {
		w.recorder.level.Store(Strata - 1)
		for b.Loop() {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
		}
	})
	b.Run("flood", func(b *testing.B) {
		w.recorder.closed.Store(true)
		for b.Loop() {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
		}
	})
}
