// Command rlsload loads servers of Envoy's rate limit service over gRPC and measures the cost of a
// decision: how many they make in a second, how long one takes, and the processor time that each
// process behind them spends on it.
//
//	rlsload -addr 127.0.0.1:8081 -name NAME -pids server=PID,redis=PID -pattern zipf -callers 64
//	rlsload compare -target a=127.0.0.1:8081,server=PID,redis=PID -target b=127.0.0.1:9081,server=PID
//
// The load is a closed loop: each caller asks, waits for the answer, and asks again. compare takes
// the servers in turn, A B A B, for each pattern and number of callers, and prints the medians of
// its rounds as a Markdown table; rlsload alone is the same for one server, one pattern and one
// round, unless its flags say otherwise.
//
// The servers need a rule for each of the descriptor keys user, hot and refused, in the domain that
// -domain names: the first two too wide to be met, the third narrow. A server that finds no rule
// for a request is not measured.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/exit"
	"github.com/weir-rl/weir/benchmarks/internal/processor"
)

func main() {
	debug.SetGCPercent(400) // the servers under test share the processors
	exit.With("rlsload", run(os.Args[1:], os.Stdout, os.Stderr))
}

// plan describes the measurement. Each target gets the same.
type plan struct {
	targets     []target
	patterns    []pattern
	callers     []int
	rounds      int
	connections int
	keys        int
	domain      string
	warmup      time.Duration // before each measurement
	duration    time.Duration // of each measurement
	json        bool
}

// target is a server and the processes that its decisions cost time.
type target struct {
	name      string
	addr      string
	processes []process
}

type process struct {
	name string // processes of one name are added up
	pid  int
}

func run(args []string, out, progress io.Writer) error {
	p, err := parse(args, progress)
	if err != nil {
		return err
	}
	var loaders []*loader
	for _, t := range p.targets {
		l, err := newLoader(t, p.connections)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		defer l.close()
		loaders = append(loaders, l)
	}
	var results []result
	encoder := json.NewEncoder(out)
	for _, pattern := range p.patterns {
		requests, err := newRequests(p.domain, pattern.descriptor, p.keys)
		if err != nil {
			return err
		}
		for _, callers := range p.callers {
			for round := range p.rounds {
				for _, l := range loaders {
					r, err := l.measure(pattern, requests, callers, p.warmup, p.duration)
					if err != nil {
						return fmt.Errorf("%s, %s, %d callers: %w", l.target.name, pattern.name, callers, err)
					}
					r.Round = round + 1
					results = append(results, r)
					if p.json {
						if err := encoder.Encode(r); err != nil {
							return err
						}
					} else if len(loaders)*p.rounds > 1 {
						fmt.Fprintf(progress, "%s, %d callers, round %d: %s %.0f/s\n", pattern.name, callers, r.Round,
							r.Name, r.PerSecond)
					}
				}
			}
		}
	}
	if p.json {
		return nil
	}
	return writeTable(out, p.processNames(), results)
}

// processNames are the names of the targets' processes, as first given.
func (p plan) processNames() []string {
	var out []string
	for _, t := range p.targets {
		for _, process := range t.processes {
			if !slices.Contains(out, process.name) {
				out = append(out, process.name)
			}
		}
	}
	return out
}

func parse(args []string, usage io.Writer) (plan, error) {
	var p plan
	compare := len(args) > 0 && args[0] == "compare"
	command, callers, names, rounds := "rlsload", "64", "uniform", 1
	if compare {
		args = args[1:]
		command, callers, names, rounds = "rlsload compare", "1,64,256", strings.Join(patternNames(), ","), 3
	}
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(usage)
	var single target
	if compare {
		flags.Func("target",
			"`NAME=HOST:PORT,server=PID,redis=PID`: a server and its processes; repeat it for each server", func(
				s string) error {
				t, err := parseTarget(s)
				p.targets = append(p.targets, t)
				return err
			})
	} else {
		flags.StringVar(&single.addr, "addr", "", "the server's `HOST:PORT`")
		flags.StringVar(&single.name, "name", "", "what to call the server (default its address)")
		flags.Func("pids", "`server=PID,redis=PID`: the processes whose time is measured", func(s string) (err error) {
			single.processes, err = parseProcesses(s)
			return err
		})
	}
	flags.StringVar(&callers, "callers", callers, "callers that ask at a time; several, with commas")
	flags.StringVar(&names, "pattern", names,
		"which keys are asked for, of "+strings.Join(patternNames(), ", ")+"; several, with commas")
	flags.IntVar(&p.rounds, "rounds", rounds, "how often each is measured; the table has medians")
	flags.IntVar(&p.connections, "connections", 1, "connections to each server, which the callers share")
	flags.IntVar(&p.keys, "keys", 10_000, "how many keys there are")
	flags.StringVar(&p.domain, "domain", "bench", "the domain of the requests")
	flags.DurationVar(&p.warmup, "warmup", time.Second, "load before each measurement")
	flags.DurationVar(&p.duration, "duration", 3*time.Second, "length of each measurement")
	flags.BoolVar(&p.json, "json", false, "print each measurement as a line of JSON, instead of the table")
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	if flags.NArg() > 0 {
		return plan{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if !compare && single.addr != "" {
		if single.name == "" {
			single.name = single.addr
		}
		p.targets = []target{single}
	}
	if len(p.targets) == 0 {
		return plan{}, errors.New("no server: name it with -addr, or several with compare and -target")
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(patterns, func(p pattern) bool { return p.name == name })
		if i < 0 {
			return plan{}, fmt.Errorf("-pattern: %q is none of %s", name, strings.Join(patternNames(), ", "))
		}
		p.patterns = append(p.patterns, patterns[i])
	}
	for text := range strings.SplitSeq(callers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return plan{}, fmt.Errorf("-callers: %q is no number of callers", text)
		}
		p.callers = append(p.callers, n)
	}
	if p.rounds < 1 || p.connections < 1 || p.keys < 1 || p.duration <= 0 || p.warmup < 0 {
		return plan{}, errors.New(
			"-rounds, -connections, -keys and -duration have to be above 0, and -warmup not below it")
	}
	return p, nil
}

// parseTarget reads NAME=HOST:PORT,process=PID,…
func parseTarget(s string) (target, error) {
	first, rest, more := strings.Cut(s, ",")
	name, addr, found := strings.Cut(first, "=")
	if !found || name == "" || addr == "" {
		return target{}, fmt.Errorf("%q is not NAME=HOST:PORT", first)
	}
	t := target{name: name, addr: addr}
	if !more {
		return t, nil
	}
	var err error
	t.processes, err = parseProcesses(rest)
	return t, err
}

// parseProcesses reads process=PID,…
func parseProcesses(s string) ([]process, error) {
	var out []process
	for part := range strings.SplitSeq(s, ",") {
		name, text, _ := strings.Cut(part, "=")
		pid, err := strconv.Atoi(text)
		if name == "" || err != nil || pid < 1 {
			return nil, fmt.Errorf("%q is not process=PID", part)
		}
		if _, err := processor.Time(pid); err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
		out = append(out, process{name, pid})
	}
	return out, nil
}
