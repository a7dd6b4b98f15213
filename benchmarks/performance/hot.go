package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/benchmarks"
	"github.com/weir-rl/weir/benchmarks/internal/processor"
)

// hotContestants are the contestants of part hot, and their names on the page.
var hotContestants = [][2]string{
	{"weir", "Weir, with rule matching"}, {"weir-store", "Weir, the store alone"},
	{"sethvargo", "sethvargo/go-limiter"},
}

// hot measures decisions on one key, asked for by as many goroutines as there are processors: how
// long it is from one decision to the next, of all together, and how long each takes.
func (b *bench) hot() error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	type contestant struct {
		name     string
		deciders func() benchmarks.Decider
	}
	var list []contestant
	for _, name := range hotContestants {
		at := slices.IndexFunc(benchmarks.Contestants, func(c benchmarks.Contestant) bool { return c.Name == name[0] })
		deciders, closed, err := benchmarks.Contestants[at].Make(benchmarks.Limit{N: 1_000_000_000,
			Window: 240 * time.Hour}, 1)
		if err != nil {
			return err
		}
		defer func() { _ = closed() }()
		list = append(list, contestant{name[1], deciders})
	}
	for round := range 4*b.rounds + 1 {
		for n := 1; n <= min(runtime.NumCPU(), 8); n *= 2 {
			runtime.GOMAXPROCS(n)
			for _, c := range list {
				ns, cpu, err := together(n, slice/2, c.deciders)
				if err != nil {
					return fmt.Errorf("%s, %d processors: %w", c.name, n, err)
				}
				if round > 0 {
					b.samples.add("ns", c.name, float64(n), ns)
					b.samples.add("cpu_ns", c.name, float64(n), cpu)
				}
			}
		}
	}
	return nil
}

// together asks for one key from n goroutines at a time.
func together(n int, d time.Duration, deciders func() benchmarks.Decider) (ns, cpu float64, err error) {
	var all sync.WaitGroup
	var decisions atomic.Int64
	var refused, ended atomic.Bool
	pid := os.Getpid()
	before, err := processor.Time(pid)
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	for range n {
		all.Go(func() {
			key := make([]byte, keyLength)
			writeKey(key, 1)
			ask, count := deciders(), int64(0)
			for !ended.Load() {
				for range 64 { // so that the question costs little
					if !ask(key) {
						refused.Store(true)
						return
					}
				}
				count += 64
			}
			decisions.Add(count)
		})
	}
	time.Sleep(d)
	ended.Store(true)
	all.Wait()
	took := time.Since(begin)
	after, err := processor.Time(pid)
	if err == nil && refused.Load() {
		err = errRefused
	}
	total := float64(decisions.Load())
	return float64(took) / total, float64(after-before) / total, err
}
