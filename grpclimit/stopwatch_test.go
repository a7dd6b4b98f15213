package grpclimit_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
)

// watch is a stopwatch that times all decisions, and notes what it hears.
type watch struct {
	begun int64
	heard []string
}

func (w *watch) Begin() int64 {
	w.begun++
	return w.begun
}

func (w *watch) End(start int64, r *weir.Request, d *weir.Decision) {
	w.heard = append(w.heard, fmt.Sprint(start, " ", r.Door, " ", d.Allowed))
}

// The stopwatch hears of calls that were admitted or refused at once, and not of one that was held.
func TestStopwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			"limits:\n- {name: q, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 1s}}\n- {name: all, allow: 2/day}\n")
		w := &watch{}
		gate := newGate(t, l, grpclimit.Options{NoHeaders: true, Stopwatch: w})
		for range 3 {
			_ = call(t.Context(), gate.Unary, func() {})
		}
		if want := []string{"1 grpc true", "3 grpc false"}; !slices.Equal(w.heard, want) || w.begun != 3 {
			t.Errorf("began %d times, heard %q", w.begun, w.heard)
		}
	})
}
