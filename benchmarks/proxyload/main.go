// Command proxyload sets reverse proxies beside each other: weir, httputil.ReverseProxy alone,
// nginx and Caddy, each as a process of its own before the same upstream, under the same load from
// wrk, or from h2load over HTTP/2. It prints the processor time that each spends on a request, of
// all its processes together, and how many it serves.
//
//	cd benchmarks && go run ./proxyload
//
// Processor time is the measure to compare: proxy, upstream and wrk share the processors, so that
// requests a second depend on the other two as much. The proxies take turns, A B A B, and the table
// has the medians of the rounds. Programs that are not installed are left out, and named.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/exit"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "bare" { // started by servers.start
		fmt.Fprintln(os.Stderr, "proxyload bare:", bare(os.Args[2:]))
		os.Exit(1)
	}
	// so that no proxy is left behind
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit.With("proxyload", run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// plan describes the measurement.
type plan struct {
	rounds      int
	connections int
	duration    time.Duration // of each measurement
	only        []string      // names of rivals; empty for all
	loads       []string
	json        bool
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var p plan
	flags := flag.NewFlagSet("proxyload", flag.ContinueOnError)
	flags.SetOutput(progress)
	var only, loads, weir string
	flags.IntVar(&p.rounds, "rounds", 5, "how often each is measured; the table has medians")
	flags.IntVar(&p.connections, "connections", 64, "connections that wrk keeps busy")
	flags.DurationVar(&p.duration, "duration", 2*time.Second,
		"length of each measurement, in whole seconds; one second goes before it as a warm-up")
	flags.StringVar(&only, "only", "", "the rivals to measure, with commas; all if empty")
	flags.StringVar(&loads, "load", "get",
		"get: a GET with a tiny answer; large, get16k, get1m: one with an answer of 10 KiB, 16 KiB, 1 MiB; post, post100k: a POST of 10 KiB, 100 KiB with a tiny answer; events: a GET with a tiny event stream; h2, h2-large, h2-post, h2-post100k: get, large, post, post100k over HTTP/2 without TLS, on an eighth of the connections, 16 at a time on each; with commas")
	flags.StringVar(&weir, "weir", "",
		"a weir to measure besides this checkout's, named weir-other: a path of a program")
	flags.BoolVar(&p.json, "json", false, "print each measurement as a line of JSON, instead of the table")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if p.rounds < 1 || p.connections < 1 || p.duration < time.Second {
		return errors.New("-rounds and -connections have to be above 0, -duration at least 1s")
	}
	if only != "" {
		p.only = strings.Split(only, ",")
	}
	p.loads = strings.Split(loads, ",")
	for _, name := range p.loads {
		if _, ok := scripts[name]; !ok && h2Paths[name] == "" {
			return fmt.Errorf("-load: %q is none of %s", name,
				strings.Join(slices.Sorted(maps.Keys(scripts)),
					", ")+", "+strings.Join(slices.Sorted(maps.Keys(h2Paths)), ", "))
		}
		if _, err := exec.LookPath("h2load"); err != nil && h2Paths[name] != "" {
			return errors.New(
				"h2load makes the load over HTTP/2, and is not installed (Debian has it in nghttp2-client)")
		}
	}
	wrk, err := exec.LookPath("wrk")
	if err != nil {
		return errors.New("wrk makes the load, and is not installed (Debian has it as wrk)")
	}
	dir, err := os.MkdirTemp("", "proxyload")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, err := start(dir, weir, p.only, progress)
	defer all.stop()
	if err != nil {
		return err
	}
	results := map[string][]result{}
	for _, name := range p.loads {
		script := filepath.Join(dir, name+".lua")
		if err := os.WriteFile(script, []byte(scripts[name]+strings.Repeat("x", h2Posts[name])), 0o600); err != nil {
			return err
		}
		for round := range p.rounds {
			for _, r := range all.rivals {
				got, err := measure(ctx, p.loader(ctx, name, wrk, script, r), r, p)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", name, r.name, err)
				}
				if p.json {
					got.Load, got.Name, got.Connections = name, r.name, p.connections
					if err := json.NewEncoder(out).Encode(got); err != nil {
						return err
					}
				}
				key := name + " " + r.name
				results[key] = append(results[key], got)
				fmt.Fprintf(progress, "%s, round %d: %-22s %6.1f µs, %.0f/s\n", name, round+1, r.name, got.CPU,
					got.PerSecond)
			}
		}
		if p.json {
			continue
		}
		if err := writeTable(out, name, all.rivals, results); err != nil {
			return err
		}
	}
	return nil
}

// result is one measurement.
type result struct {
	Load        string        `json:"load"`
	Name        string        `json:"name"`
	Connections int           `json:"connections"`
	CPU         float64       `json:"cpu_us"` // of processor time a request
	PerSecond   float64       `json:"requests_per_second"`
	P99         time.Duration `json:"p99_ns"`
}

// writeTable writes a row for each rival, with medians, and how it compares with the reference
// rival and with nginx.
func writeTable(w io.Writer, load string, rivals []*rival, results map[string][]result) error {
	median := func(name string, number func(result) float64) float64 {
		var numbers []float64
		for _, r := range results[load+" "+name] {
			numbers = append(numbers, number(r))
		}
		if len(numbers) == 0 {
			return 0
		}
		slices.Sort(numbers)
		return numbers[len(numbers)/2]
	}
	cpu := func(r result) float64 { return r.CPU }
	best, nginx := 0.0, median("nginx", cpu)
	for _, r := range rivals {
		if c := median(r.name, cpu); strings.HasPrefix(r.name, "bare") && (best == 0 || c < best) {
			best = c
		}
	}
	ratio := func(c, of float64) string {
		if of == 0 {
			return "–"
		}
		return fmt.Sprintf("%.2f ×", c/of)
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"\n| %s | CPU µs a request | best bare proxy | nginx | requests/s | p99 |\n| --- | --- | --- | --- | --- | --- |\n", load)
	for _, r := range rivals {
		c := median(r.name, cpu)
		slowest := "–" // h2load does not report it
		if p99 := median(r.name, func(r result) float64 { return r.P99.Seconds() * 1e3 }); p99 > 0 {
			slowest = fmt.Sprintf("%.1f ms", p99)
		}
		fmt.Fprintf(&b, "| %s | %.1f | %s | %s | %.0f | %s |\n", r.name, c, ratio(c, best), ratio(c, nginx),
			median(r.name, func(r result) float64 { return r.PerSecond }), slowest)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
