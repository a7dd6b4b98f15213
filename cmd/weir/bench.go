package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weir-rl/weir/internal/lab/bench"
	"github.com/weir-rl/weir/internal/util/human"
)

type benchOptions struct {
	load       bench.Options
	warmup     time.Duration
	target     bench.Target
	draw       string
	door       string
	attributes []string
	headers    []string
	throttle   string
	pids       []string
	json       bool
}

func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench URL",
		Short: "Load a running server, and tell how long its decisions take",
		Long: `Asks a running server so many times a second, and tells how long its decisions take: from the instant at which each
request was due, whatever became of those before it. So time that a request stood in line, because the server was busy,
is part of its latency. --rate 0 asks as fast as answers come, with --callers at a time, to find how much there is.

The URL says which door is asked: http://HOST:PORT the decision API, grpc://HOST:PORT Envoy's rate limit service,
redis://HOST:PORT the Redis protocol (WEIR.LIMIT). --door throttle asks CL.THROTTLE there, and --door proxy sends plain
GET requests to an http:// URL, where 429 is a refusal. Other servers that speak these can be asked too.

It charges real counters: bench a server that serves nobody, or a key that is nobody's.`,
		Example: `  weir bench http://127.0.0.1:8080 --domain shop --attribute path=/search --key user --rate 5000
  weir bench grpc://127.0.0.1:8081 --domain edge --key user --keys 100000 --draw zipf --rate 0 --pid weir=1234
  weir bench redis://127.0.0.1:6380 --door throttle --throttle 15,30,60 --rate 20000 --for 30s
  weir bench http://127.0.0.1:8000/search --door proxy --key X-User --rate 2000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.target.URL = args[0]
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.Float64Var(&o.load.Rate, "rate", 1000, "requests a second; 0: each caller asks again when it was answered")
	f.DurationVar(&o.load.For, "for", 10*time.Second, "how long requests are due")
	f.DurationVar(&o.warmup, "warmup", time.Second, "asked before that, and not counted")
	f.IntVar(&o.load.Callers, "callers", 64, "requests that may be under way at a time")
	f.IntVar(&o.target.Connections, "connections", 0, "connections, which the callers share (default: one for each, up to 64)")
	f.IntVar(&o.load.Keys, "keys", 10_000, "different keys")
	f.StringVar(&o.draw, "draw", string(bench.Uniform), "how keys are drawn: uniform, zipf (few are busy) or turn (one after the other)")
	f.Uint64Var(&o.load.Seed, "seed", 1, "of keys and instants: the same seed asks for the same")
	f.StringVar(&o.door, "door", "", "http, rls, resp, throttle or proxy (default: by the URL)")
	f.StringVar(&o.target.Domain, "domain", "", "domain of the requests")
	f.StringVar(&o.target.Key, "key", "user", "attribute that the keys are values of; with --door proxy a header")
	f.StringSliceVar(&o.attributes, "attribute", nil, "NAME=VALUE: a further attribute of each request; with --door proxy a header")
	f.StringArrayVar(&o.headers, "header", nil, "NAME: VALUE: a header of each request over HTTP, such as Authorization")
	f.StringVar(&o.throttle, "throttle", "15,30,60", "max_burst, count and period of --door throttle")
	f.StringSliceVar(&o.pids, "pid", nil, "[NAME=]PID of a process here whose processor time is told, for one decision")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	doors := []string{}
	for _, d := range bench.Doors {
		doors = append(doors, string(d))
	}
	completeFlag(cmd, "door", doors)
	completeFlag(cmd, "draw", []string{string(bench.Uniform), string(bench.Zipf), string(bench.InTurn)})
	return cmd
}

// benched is a process whose processor time is reported.
type benched struct {
	name   string
	pid    int
	before time.Duration
	CPU    float64 // µs a decision
}

// complete reads the flags.
func (o *benchOptions) complete() (processes []*benched, err error) {
	o.load.Draw, o.target.Door = bench.Draw(o.draw), bench.Door(o.door)
	if err := o.load.Check(); err != nil {
		return nil, err
	}
	if o.warmup < 0 || o.warmup > time.Hour {
		return nil, fmt.Errorf("--warmup %v is not from 0 to an hour", o.warmup)
	}
	for _, text := range o.attributes {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--attribute %s: write NAME=VALUE", text)
		}
		if name == o.target.Key {
			return nil, fmt.Errorf("--attribute %s: the keys are values of %s already (--key)", text, name)
		}
		o.target.Attributes = append(o.target.Attributes, [2]string{name, value})
	}
	for _, text := range o.headers {
		name, value, ok := strings.Cut(text, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("--header %q: write NAME: VALUE", text)
		}
		if o.target.Header == nil {
			o.target.Header = http.Header{}
		}
		o.target.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	numbers := strings.Split(o.throttle, ",")
	for i := range o.target.Throttle {
		if len(numbers) != len(o.target.Throttle) {
			return nil, fmt.Errorf("--throttle %s: write max_burst,count,period, such as 15,30,60", o.throttle)
		}
		if o.target.Throttle[i], err = strconv.ParseInt(strings.TrimSpace(numbers[i]), 10, 64); err != nil {
			return nil, fmt.Errorf("--throttle %s: %s is no whole number", o.throttle, numbers[i])
		}
	}
	for _, text := range o.pids {
		name, number, ok := strings.Cut(text, "=")
		if !ok {
			name, number = "process "+text, text
		}
		pid, err := strconv.Atoi(number)
		if err != nil || pid < 1 {
			return nil, fmt.Errorf("--pid %s: %q is no process id", text, number)
		}
		p := &benched{name: name, pid: pid}
		if _, err := bench.ProcessorTime(pid); err != nil {
			return nil, fmt.Errorf("--pid %s: %w", text, err)
		}
		processes = append(processes, p)
	}
	return processes, nil
}

func (o *benchOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	processes, err := o.complete()
	if err != nil {
		return usageError(fmt.Errorf("bench: %w", err))
	}
	askers, closed, err := o.target.Open(o.load.Callers)
	if err != nil {
		return usageError(fmt.Errorf("bench: %w", err))
	}
	defer closed()
	// The warm-up comes first, by itself, so that no process is charged for it.
	if o.warmup > 0 {
		warmup := o.load
		warmup.For = o.warmup
		if _, err := bench.Run(ctx, &warmup, askers, nil); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	for _, p := range processes {
		if p.before, err = bench.ProcessorTime(p.pid); err != nil {
			return fmt.Errorf("bench: %s: %w", p.name, err)
		}
	}
	var done atomic.Int64
	hide := watchBench(&o.load, &done, stderr)
	result, err := bench.Run(ctx, &o.load, askers, &done)
	hide()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if result.Answered() == 0 {
		return fmt.Errorf("bench: nothing was answered: %w", errors.Join(result.Failure))
	}
	for _, p := range processes {
		after, err := bench.ProcessorTime(p.pid)
		if err != nil {
			return fmt.Errorf("bench: %s: %w", p.name, err)
		}
		p.CPU = float64((after - p.before).Nanoseconds()) / 1000 / float64(result.Answered())
	}
	if o.json {
		return o.writeJSON(stdout, result, processes)
	}
	o.write(stdout, result, processes)
	return nil
}

// watchBench draws a progress bar while stderr is a terminal. The returned function removes it.
func watchBench(o *bench.Options, done *atomic.Int64, stderr io.Writer) (hide func()) {
	f, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	total, value := int64(o.Rate*o.For.Seconds()), done.Load
	if o.Rate == 0 { // how many there will be is not known: time passes
		begun := time.Now()
		total, value = o.For.Milliseconds(), func() int64 { return min(time.Since(begun), o.For).Milliseconds() }
	}
	bar := progressbar.NewOptions64(total, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription("asking"),
		progressbar.OptionFullWidth(), progressbar.OptionThrottle(65*time.Millisecond), progressbar.OptionClearOnFinish())
	return drawWhile(bar, value)
}

// quantiles are the quantiles that are reported.
var quantiles = []struct {
	name string
	of   float64
}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}}

func (o *benchOptions) write(w io.Writer, r *bench.Result, processes []*benched) {
	rate := float64(r.Answered()) / r.Took.Seconds()
	fmt.Fprintf(w, "%s answered in %.1f s: %s a second\n", human.Count(r.Answered(), "request"), r.Took.Seconds(), human.Number(rate))
	fmt.Fprintf(w, "allowed %s, refused %s", human.Number(r.Allowed), human.Number(r.Refused))
	if r.Failed > 0 {
		fmt.Fprintf(w, ", failed %s (%v)", human.Number(r.Failed), r.Failure)
	}
	fmt.Fprintln(w)
	if r.Unsent > 0 {
		fmt.Fprintf(w, "%s could not be sent in time, since all %s waited for answers: the server, or this command, is slower than --rate asks\n",
			human.Count(r.Unsent, "request"), human.Count(o.load.Callers, "caller"))
	}
	since := "since it was due"
	if o.load.Rate == 0 {
		since = "since it was sent"
	}
	fmt.Fprintf(w, "\nlatency of a request, %s\n", since)
	for _, q := range quantiles {
		fmt.Fprintf(w, "  %-6s %s\n", q.name, milliseconds(r.Latency.Quantile(q.of)))
	}
	fmt.Fprintf(w, "  %-6s %s\n\n", "most", milliseconds(r.Latency.Longest()))
	writeHistogram(w, r)
	if len(processes) > 0 {
		fmt.Fprintln(w)
	}
	for _, p := range processes {
		fmt.Fprintf(w, "processor time of a decision, %s: %.1f µs\n", p.name, p.CPU)
	}
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%9.3f ms", float64(d)/float64(time.Millisecond))
}

// writeHistogram draws a bar for each doubling of the latency.
func writeHistogram(w io.Writer, r *bench.Result) {
	const width = 50
	type bar struct {
		to time.Duration
		n  float64
	}
	var bars []bar
	most := 0.0
	from := time.Duration(0)
	for to := 16 * time.Microsecond; ; to *= 2 {
		n := r.Latency.Between(from, to)
		if n > 0 || len(bars) > 0 {
			bars = append(bars, bar{to, n})
			most = max(most, n)
		}
		if from = to; to > r.Latency.Longest() {
			break
		}
	}
	for _, b := range bars {
		length := int(b.n/most*width + 0.5)
		if b.n > 0 {
			length = max(length, 1)
		}
		fmt.Fprintf(w, "  below %s  %-*s %s\n", milliseconds(b.to), width, strings.Repeat("#", length), human.Number(b.n))
	}
}

func (o *benchOptions) writeJSON(w io.Writer, r *bench.Result, processes []*benched) error {
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	latency := map[string]float64{"most": us(r.Latency.Longest()), "mean": us(r.Latency.Mean())}
	for _, q := range quantiles {
		latency[q.name] = us(r.Latency.Quantile(q.of))
	}
	cpu := map[string]float64{}
	for _, p := range processes {
		cpu[p.name] = p.CPU
	}
	failure := ""
	if r.Failure != nil {
		failure = r.Failure.Error()
	}
	return json.NewEncoder(w).Encode(struct {
		Rate      float64            `json:"rate"`
		PerSecond float64            `json:"per_second"`
		Seconds   float64            `json:"seconds"`
		Allowed   int64              `json:"allowed"`
		Refused   int64              `json:"refused"`
		Failed    int64              `json:"failed"`
		Failure   string             `json:"failure,omitempty"`
		Unsent    int64              `json:"unsent"`
		Latency   map[string]float64 `json:"latency_us"`
		CPU       map[string]float64 `json:"cpu_us,omitempty"`
	}{o.load.Rate, float64(r.Answered()) / r.Took.Seconds(), r.Took.Seconds(), r.Allowed, r.Refused, r.Failed, failure, r.Unsent, latency, cpu})
}
