package sparselog

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Line
		for i, step := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {0, 0}, {59 * time.Second, 0}, {time.Second, 3}, {time.Minute, 1}, {time.Hour, 1}, {time.Second, 0}} {
			time.Sleep(step.after)
			if got := l.Due(time.Minute); got != step.want {
				t.Errorf("step %d: %d, want %d", i, got, step.want)
			}
		}
	})
}

// Every event is counted once.
func TestLineTogether(t *testing.T) {
	const each = 1000
	var l Line
	var sum atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range each {
				sum.Add(int64(l.Due(0)))
			}
		})
	}
	if wg.Wait(); sum.Load() != 4*each {
		t.Errorf("%d events", sum.Load())
	}
}
