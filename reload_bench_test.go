package weir_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/histogram"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// manyRules are files of n rules, of which a request for /x/I/a meets the one numbered I. The rate
// differs between editions, so that each counter carries on under another limit.
func manyRules(n, edition int) []file.Source {
	const most = 10_000 // a file may hold 8 MiB
	var files []file.Source
	for from := 0; from < n; from += most {
		data := []byte("domain: many\nlimits:\n")
		for i := from; i < min(n, from+most); i++ {
			data = fmt.Appendf(data,
				"  - name: rule-%d\n    when:\n      path: /x/%d/**\n      method: [GET, POST]\n    per: [user]\n    allow: %d/s\n", i, i, 100_000_000+edition)
		}
		files = append(files, file.Source{Name: fmt.Sprint("f", from, ".yaml"), Data: data})
	}
	return files
}

// BenchmarkReload tells how long decisions take while rules are loaded and put in force: one
// goroutine decides without a pause, requests for all rules in turn, and another one loads on the
// other of two processors. Three arms take turns: no load; loads whose result is thrown away, which
// is what processor and collector cost; and loads that are put in force.
// docs/operating/capacity.md.
//
// Each b.N is a round of the three. A time is from the end of one decision to the end of the next,
// so that nothing that happens in between is missed.
func BenchmarkReload(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		for _, h := range hooksOf {
			if h.name == "none" || h.name == "all" {
				b.Run(fmt.Sprint(n, "/hooks=", h.name), func(b *testing.B) { benchmarkReload(b, n, h.make(b)) })
			}
		}
	}
}

func benchmarkReload(b *testing.B, n int, hooks weir.Hooks) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	editions := [][]file.Source{manyRules(n, 0), manyRules(n, 1)}
	read := func(edition int) *rule.Set {
		set, _, err := file.Load(editions[edition%2], file.Options{})
		if err != nil {
			b.Error(err)
		}
		return set
	}
	s, err := memory.New(memory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	l, err := weir.New(s, weir.WithHooks(hooks), weir.WithRules(read(0)))
	if err != nil {
		b.Fatal(err)
	}
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("/x/%d/a", i)
	}
	attributes := weir.Pairs{{Name: "method", Value: "GET"}, {Name: "path"}, {Name: "user", Value: "ada"}}
	r := weir.Request{Attributes: attributes, Hits: 1, Door: "http"}
	var d weir.Decision
	next := 0
	decide := func() {
		attributes[1].Value = paths[next]
		if next++; next == n {
			next = 0
		}
		if err := l.Decide(context.Background(), &r, &d); err != nil || !d.Allowed || len(d.Limits) != 1 {
			b.Fatal(d.Allowed, len(d.Limits), err)
		}
	}
	for range n {
		decide()
	}

	edition := 0
	load := func() { read(0) }
	swap := func() {
		edition++
		l.SetRules(read(edition))
	}
	arms := []struct {
		name         string
		load         func()
		h            histogram.Histogram
		stalled, all time.Duration
		loads        int
	}{{name: "alone"}, {name: "load", load: load}, {name: "swap", load: swap}}
	round := time.Duration(n) * 40 * time.Microsecond // some loads
	for b.Loop() {
		for i := range arms {
			a := &arms[i]
			runtime.GC()
			var stop atomic.Bool
			done := make(chan int)
			go func() {
				loads := 0
				for a.load != nil && !stop.Load() {
					a.load()
					loads++
				}
				done <- loads
			}()
			begin := time.Now()
			for last := begin; last.Sub(begin) < round; {
				decide()
				now := time.Now()
				took := now.Sub(last)
				a.h.Add(took, 1)
				if took > time.Millisecond {
					a.stalled += took
				}
				last = now
			}
			a.all += time.Since(begin)
			stop.Store(true)
			a.loads += <-done
		}
	}
	for i := range arms {
		a := &arms[i]
		b.ReportMetric(float64(a.h.Quantile(0.5).Nanoseconds()), a.name+"-p50-ns")
		b.ReportMetric(float64(a.h.Quantile(0.99).Nanoseconds()), a.name+"-p99-ns")
		b.ReportMetric(float64(a.h.Quantile(0.9999).Nanoseconds()), a.name+"-p9999-ns")
		b.ReportMetric(float64(a.h.Longest().Microseconds()), a.name+"-longest-µs")
		b.ReportMetric(100*float64(a.stalled)/float64(a.all), a.name+"-%-in-waits-above-1ms")
		if a.load != nil {
			b.ReportMetric(float64(a.loads)/float64(b.N), a.name+"-loads")
		}
	}
}
