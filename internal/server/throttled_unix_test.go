//go:build unix

package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/resp"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/store/memory"
)

// BenchmarkThrottled compares CL.THROTTLE over a socket with insight hearing of each and without:
// in turn, by the processor time of both ends, and by the median. An operation is a pair of runs.
// docs/operating/insight.md has its figures.
func BenchmarkThrottled(b *testing.B) {
	for _, outcome := range []struct{ name, numbers string }{{"admitted", "1000000000 1000000 1"},
		{"refused", "0 1 36000"}} {
		for _, deep := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/pipeline=%d", outcome.name, deep), func(b *testing.B) {
				runs := [2]func(){throttler(b, outcome.numbers, deep, false), throttler(b, outcome.numbers, deep, true)}
				var took [2][]float64
				for i := 0; b.Loop(); i++ {
					for k := range runs {
						which := (i + k) % 2 // whoever comes first in a pair comes second in the next
						before := processorTime(b)
						runs[which]()
						took[which] = append(took[which], float64(processorTime(b)-before)/throttled)
					}
				}
				var ratios []float64
				for i := range took[0] {
					ratios = append(ratios, took[1][i]/took[0][i])
				}
				median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
				b.ReportMetric(median(took[0]), "without-ns/command")
				b.ReportMetric(median(took[1]), "told-ns/command")
				b.ReportMetric(median(ratios), "ratio")
			})
		}
	}
}

// throttled is how many commands one run sends.
const throttled = 8192

// throttler opens a door, and returns what sends it so many commands on 4,096 keys.
func throttler(b *testing.B, numbers string, deep int, told bool) (run func()) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	limiter, err := weir.New(store)
	if err != nil {
		b.Fatal(err)
	}
	p := &program{insight: gather.New(gather.Options{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.insight.Run(ctx); close(done) }()
	b.Cleanup(func() { cancel(); <-done })
	var o resp.Options
	if told {
		o.Throttled = p.throttled
	}
	s := resp.New(limiter, store, o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	b.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
		<-served
	})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })

	const keys = 4096
	var pipelines [][]byte
	for i := range keys / deep {
		var w bytes.Buffer
		for k := range deep {
			fmt.Fprintf(&w, "*5\r\n$11\r\nCL.THROTTLE\r\n$9\r\nuser:%04d\r\n", i*deep+k)
			for n := range strings.FieldsSeq(numbers) {
				fmt.Fprintf(&w, "$%d\r\n%s\r\n", len(n), n)
			}
		}
		pipelines = append(pipelines, w.Bytes())
	}
	replies := make([]byte, 64<<10)
	run = func() {
		for i := range throttled / deep {
			if _, err := c.Write(pipelines[i%len(pipelines)]); err != nil {
				b.Fatal(err)
			}
			for lines := 0; lines < 6*deep; { // of an answer
				n, err := c.Read(replies)
				if err != nil {
					b.Fatal(err)
				}
				lines += bytes.Count(replies[:n], []byte("\n"))
			}
		}
	}
	run() // the first of each key is admitted
	return run
}

// processorTime is what this process has taken, in ns.
func processorTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
