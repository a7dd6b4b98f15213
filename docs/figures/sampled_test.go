package main

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/examples/regions/regionplot"
	"github.com/weir-rl/weir/rule"
)

// sampled sends each limiter its load from begin on, the turn of a minute, in a bubble of virtual
// time, and returns what each has admitted in the minute at every step.
func sampled(
	t *testing.T, begin time.Time, span, step time.Duration, limiters []*weir.Limiter, loads []load,
) (samples []regionplot.Sample) {
	var (
		mu       sync.Mutex
		admitted = make([]int64, len(loads)) // in this minute
		minute   = 0
		running  sync.WaitGroup
	)
	for i, l := range loads {
		running.Go(func() {
			pause := time.Second / time.Duration(l.rate)
			// No two ask at the same instant, nor when a minute turns.
			time.Sleep(time.Duration(i+1) * time.Millisecond)
			for ; time.Since(begin) < span; time.Sleep(pause) {
				d, err := limiters[i].Allow(t.Context(), weir.Request{Attributes: rule.Map{"tenant": "acme"}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if m := int(time.Since(begin) / time.Minute); m != minute {
					minute = m
					clear(admitted)
				}
				if d.Allowed {
					admitted[i]++
				}
				mu.Unlock()
			}
		})
	}
	// What was admitted before the instant; for the first of a minute, nothing.
	for at := time.Duration(0); at < span; at += step {
		time.Sleep(time.Until(begin.Add(at)))
		mu.Lock()
		s := regionplot.Sample{At: at, Admitted: slices.Clone(admitted)}
		if at%time.Minute == 0 {
			clear(s.Admitted)
		}
		mu.Unlock()
		samples = append(samples, s)
	}
	running.Wait()
	return samples
}
