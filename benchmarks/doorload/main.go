// Command doorload measures the cost of a change: it sets two builds of weir beside each other at
// each door, and prints by how much the second one's processor time for a request differs.
//
//	git worktree add ../before COMMIT && (cd ../before && go build -o ../weir-a ./cmd/weir)
//	go build -o ../weir-b ./cmd/weir
//	cd benchmarks && go run ./doorload -a ../../weir-a -b ../../weir-b
//
// They run as they are by default, all doors of one process open, on the embedded store. Only the
// processor time of the servers is compared.
//
// A process has its own luck: where its memory lies, how its maps are seeded. So servers are
// started anew for each of several lives, and a life counts as one figure: the ratio of the
// processor times that the two took in it. Within a life they are measured in turn, there and back,
// since other work on the machine comes and goes. A third server, of the first build, is measured
// with them. Any difference from its twin is luck, and a difference between the builds that is no
// larger says nothing.
//
// With -profiles it writes processor profiles of one build instead, one for each door.
//
// The table has the median over the lives. The interval beside it holds the true median with the
// probability in the heading. It goes from one life's figure to another's, and so needs no
// assumption on how they are spread.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
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

// plan describes the measurement.
type plan struct {
	a, b     string // programs
	doors    []string
	lives    int
	rounds   int // of each door and load in a life
	requests int // of one measurement
	most     time.Duration
	procs    int // GOMAXPROCS of the servers

	profiles   string        // a folder for profiles of a, instead of a comparison
	profileFor time.Duration // of each door
}

const allDoors = "http,post,nginx,rls,resp,proxy,chunked,h2"

func parse(args []string, usage io.Writer) (p plan, err error) {
	var doors string
	flags := flag.NewFlagSet("doorload", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&p.a, "a", "", "the weir to compare with")
	flags.StringVar(&p.b, "b", "", "the weir that is compared")
	flags.StringVar(&doors, "doors", allDoors, "doors to measure")
	flags.IntVar(&p.lives, "lives", 9, "how often the servers are started anew")
	flags.IntVar(&p.rounds, "rounds", 12, "measurements of a server in a life, for each door and load")
	flags.IntVar(&p.requests, "requests", 1500, "requests in one measurement")
	flags.IntVar(&p.procs, "procs", 1, "processors of each server (GOMAXPROCS)")
	flags.DurationVar(&p.most, "most", 10*time.Minute, "the longest that all of it may take")
	flags.StringVar(&p.profiles, "profiles", "",
		"a folder: write a processor profile of -a at each door into it, and compare nothing")
	flags.DurationVar(&p.profileFor, "profile-for", 5*time.Second, "how long a profile takes, in whole seconds")
	if err := flags.Parse(args); err != nil {
		return p, err
	}
	p.doors = strings.Split(doors, ",")
	for _, name := range p.doors {
		if dialers[name] == nil {
			return p, fmt.Errorf("-doors: %q is none of %s", name, allDoors)
		}
	}
	switch {
	case p.profiles != "" && (p.a == "" || p.b != ""):
		return p, errors.New("name one program with -a for its -profiles")
	case p.profiles == "" && (p.a == "" || p.b == ""):
		return p, errors.New("name two programs with -a and -b")
	case p.lives < 1 || p.rounds < 1 || p.requests < clients || p.procs < 1:
		return p, fmt.Errorf("-lives, -rounds and -procs are at least 1, -requests at least %d", clients)
	}
	return p, nil
}

// loads are the requests for each door. Under a rule that admits nothing, one key is a client that
// floods, many are a crowd.
var loads = []struct {
	name, path string
	keys       int
}{
	{"admitted", "/admitted", 1000},
	{"refused, many keys", "/refused", 1000},
	{"refused, one key", "/refused", 1},
}

// The servers of a life: the two builds, and the first one again.
const (
	serverA = iota
	serverB
	again
)

// costs are the servers' costs in one life, for one door and load: µs of processor time for a
// request.
type costs [3]float64

// comparison is what came out for one door and load.
type comparison struct {
	door, load string
	lives      []costs
}

var errLate = errors.New("it takes longer than -most")

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
	if p.profiles != "" {
		return p.profile(up.Addr().String(), progress)
	}
	var list []comparison
	for _, door := range p.doors {
		for _, load := range loads {
			list = append(list, comparison{door: door, load: load.name})
		}
	}
	for life := range p.lives {
		fmt.Fprintf(progress, "life %d of %d\n", life+1, p.lives)
		took, err := p.live(life, up.Addr().String(), end)
		if errors.Is(err, errLate) && life > 0 {
			return errors.Join(err, writeTable(out, list)) // of the lives that are whole
		}
		if err != nil {
			return err
		}
		for i := range list {
			list[i].lives = append(list[i].lives, took[i])
		}
	}
	return writeTable(out, list)
}

// live starts the servers, and returns their costs for each load at each door.
func (p plan) live(life int, upstream string, end time.Time) (took []costs, err error) {
	var servers [3]*server
	for _, i := range turn(life) {
		if time.Now().After(end) {
			return nil, errLate
		}
		if servers[i], err = startServer([3]string{p.a, p.b, p.a}[i], upstream, p.procs); err != nil {
			return nil, err
		}
		defer servers[i].stop()
	}
	for _, door := range p.doors {
		for _, load := range loads {
			var sum costs
			for round := -warmup; round < p.rounds; round++ {
				for _, i := range turn(round + warmup) {
					if time.Now().After(end) {
						return nil, errLate
					}
					cost, err := servers[i].measure(door, load.path, load.keys, p.requests)
					if err != nil {
						return nil, fmt.Errorf("%s, %s: %w", door, load.name, err)
					}
					if round >= 0 {
						sum[i] += cost / float64(p.rounds)
					}
				}
			}
			took = append(took, sum)
		}
	}
	return took, nil
}

// warmup is how many rounds of each load do not count: memory grows, and connections are made.
const warmup = 2

// turn is the order of the servers in a round: there and back, and in six rounds each order once.
func turn(round int) [3]int {
	first := round / 2
	order := [3]int{first % 3, (first + 1) % 3, (first + 2) % 3}
	if round%2 == 1 {
		slices.Reverse(order[:])
	}
	return order
}

// writeTable writes a row for each comparison.
func writeTable(w io.Writer, list []comparison) error {
	_, sure := outermost(len(list[0].lives))
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	interval := fmt.Sprintf("(%.0f %% interval)", 100*sure)
	fmt.Fprintf(t, "| door\t| load\t| A µs\t| B µs\t| A again ÷ A %s\t| B ÷ A %[1]s\t|\n", interval)
	fmt.Fprintf(t, "| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t|\n")
	for _, c := range list {
		over := func(figure func(costs) float64) []float64 {
			var all []float64
			for _, life := range c.lives {
				all = append(all, figure(life))
			}
			slices.Sort(all)
			return all
		}
		ratio := func(server int) string {
			all := over(func(c costs) float64 { return c[server] / c[serverA] })
			k, _ := outermost(len(all))
			return fmt.Sprintf("%.3f (%.3f to %.3f)", median(all), all[k], all[len(all)-1-k])
		}
		fmt.Fprintf(t, "| %s\t| %s\t| %.2f\t| %.2f\t| %s\t| %s\t|\n", c.door, c.load,
			median(over(func(c costs) float64 { return c[serverA] })),
			median(over(func(c costs) float64 { return c[serverB] })), ratio(again), ratio(serverB))
	}
	return t.Flush()
}

// median is the middle of a sorted list.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// outermost is how many of n sorted figures can be left out at each end, so that the others span
// the true median with a probability of at least 95 %, and how probable that is. Each figure lies
// on either side of the median as a coin falls. Fewer than 6 are not enough: all of them are left
// in, and the probability is less.
func outermost(n int) (leave int, sure float64) {
	tail := math.Pow(0.5, float64(n)) // that none of n lies below the median
	below := tail                     // that at most leave do
	for {
		tail *= float64(n-leave) / float64(leave+1)
		if 1-2*(below+tail) < 0.95 {
			return leave, 1 - 2*below
		}
		leave++
		below += tail
	}
}
