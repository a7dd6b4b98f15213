// Command doorload tells what a change costs: it sets two builds of weir beside each other at each
// door, and prints by how much the second one's processor time for a request differs.
//
//	git worktree add ../before COMMIT && (cd ../before && go build -o ../weir-a ./cmd/weir)
//	go build -o ../weir-b ./cmd/weir
//	cd benchmarks && go run ./doorload -a ../../weir-a -b ../../weir-b
//
// Both run as they are by default, all doors of one process open, on the embedded store. Each load
// is a fixed number of requests to one door, which go to the two in turn, A B B A A B B A.
// Processor time of the server alone is compared, within a pair, since on a machine with other work
// the pairs differ by more than the servers do. The table has the median of the ratios and the
// quartiles.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "doorload:", err)
		os.Exit(1)
	}
}

// plan is what is measured.
type plan struct {
	a, b     string // programs
	doors    []string
	rounds   int // pairs
	requests int // of one measurement
	most     time.Duration
	procs    int // GOMAXPROCS of the servers
}

func parse(args []string, usage io.Writer) (p plan, err error) {
	var doors string
	flags := flag.NewFlagSet("doorload", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&p.a, "a", "", "the weir to compare with")
	flags.StringVar(&p.b, "b", "", "the weir that is compared")
	flags.StringVar(&doors, "doors", "http,rls,resp,proxy", "doors to measure")
	flags.IntVar(&p.rounds, "rounds", 24, "pairs of measurements for each door and load")
	flags.IntVar(&p.requests, "requests", 4000, "requests in one measurement")
	flags.IntVar(&p.procs, "procs", 1, "processors of each server (GOMAXPROCS)")
	flags.DurationVar(&p.most, "most", 10*time.Minute, "the longest that all of it may take")
	if err := flags.Parse(args); err != nil {
		return p, err
	}
	p.doors = strings.Split(doors, ",")
	for _, name := range p.doors {
		if dialers[name] == nil {
			return p, fmt.Errorf("-doors: %q is none of http, rls, resp and proxy", name)
		}
	}
	switch {
	case p.a == "" || p.b == "":
		return p, errors.New("name two programs with -a and -b")
	case p.rounds < 1 || p.requests < clients || p.procs < 1:
		return p, fmt.Errorf("-rounds and -procs have to be at least 1, -requests at least %d", clients)
	}
	return p, nil
}

// loads are what is asked of each door. Of a rule that admits nothing, one key is a client that
// floods, many are a crowd.
var loads = []struct {
	name, path string
	keys       int
}{
	{"admitted", "/admitted", 1000},
	{"refused, many keys", "/refused", 1000},
	{"refused, one key", "/refused", 1},
}

// comparison is what came out for one door and load.
type comparison struct {
	door, load string
	a, b       []float64 // µs of processor time for a request
}

func run(args []string, out, progress io.Writer) error {
	p, err := parse(args, progress)
	if err != nil {
		return err
	}
	end := time.Now().Add(p.most)
	up, err := startUpstream()
	if err != nil {
		return err
	}
	defer up.Close()
	var servers [2]*server
	for i, program := range []string{p.a, p.b} {
		if servers[i], err = startServer(program, up.Addr().String(), p.procs); err != nil {
			return err
		}
		defer servers[i].stop()
	}
	var list []comparison
	for _, door := range p.doors {
		for _, load := range loads {
			c := comparison{door: door, load: load.name}
			fmt.Fprintf(progress, "%s, %s\n", door, load.name)
			for round := range p.rounds + 1 {
				if time.Now().After(end) {
					return errors.New("it takes longer than -most")
				}
				var cost [2]float64
				for i := range servers {
					i = (i + round) & 1
					if cost[i], err = servers[i].measure(door, load.path, load.keys, p.requests); err != nil {
						return fmt.Errorf("%s, %s: %w", door, load.name, err)
					}
				}
				if round > 0 { // the first one warms up
					c.a, c.b = append(c.a, cost[0]), append(c.b, cost[1])
				}
			}
			list = append(list, c)
		}
	}
	return writeTable(out, list)
}

// writeTable writes a row for each comparison.
func writeTable(w io.Writer, list []comparison) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(t, "| door\t| load\t| A µs\t| B µs\t| B ÷ A\t| quartiles\t|\n| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t|\n")
	for _, c := range list {
		ratios := make([]float64, len(c.a))
		for i := range ratios {
			ratios[i] = c.b[i] / c.a[i]
		}
		fmt.Fprintf(t, "| %s\t| %s\t| %.2f\t| %.2f\t| %.3f\t| %.3f to %.3f\t|\n", c.door, c.load, quantile(c.a, 2), quantile(c.b, 2),
			quantile(ratios, 2), quantile(ratios, 1), quantile(ratios, 3))
	}
	return t.Flush()
}

// quantile returns the q-th quartile of a list: 2 is the median, the upper one of an even number.
func quantile[T cmp.Ordered](list []T, q int) T {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(len(sorted)*q/4, len(sorted)-1)]
}
