// Command footprint measures the costs of a weir beside its decisions: how long it is until a
// server that is started answers, how much memory it takes at rest and for each key, how much a
// snapshot of many keys writes, and how long it is until a server decides that starts with one.
//
//	go build -o ../weir ./cmd/weir
//	cd benchmarks && go run ./footprint -weir ../../weir
//
// Several programs, separated by commas, are measured in turn, and each figure is a median. It
// reads /proc, so it needs Linux.
//
// A key has 16 bytes and a token bucket, and is charged over the Redis protocol (CL.THROTTLE).
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "footprint:", err)
		os.Exit(1)
	}
}

// plan describes the measurement.
type plan struct {
	programs []string
	starts   int   // how often a server is started to see how long it takes
	lives    int   // how often a server is filled with each number of keys
	keys     []int // numbers of keys
	snapshot int   // keys of the snapshot; 0 for none
	settle   time.Duration
}

func parse(args []string, usage io.Writer) (p plan, err error) {
	var programs, keys string
	flags := flag.NewFlagSet("footprint", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&programs, "weir", "", "the programs to measure")
	flags.IntVar(&p.starts, "starts", 21, "how often each is started; 0 to leave it out")
	flags.IntVar(&p.lives, "lives", 1, "how often each is filled with each number of keys")
	flags.StringVar(&keys, "keys", "1000000,5000000", "numbers of keys; empty to leave it out")
	flags.IntVar(&p.snapshot, "snapshot", 5_000_000, "keys of which a snapshot is taken; 0 to leave it out")
	flags.DurationVar(&p.settle, "settle", time.Second, "how long a server rests before its memory is read")
	if err := flags.Parse(args); err != nil {
		return p, err
	}
	if programs == "" {
		return p, errors.New("name a program with -weir")
	}
	p.programs = strings.Split(programs, ",")
	for text := range strings.SplitSeq(keys, ",") {
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return p, fmt.Errorf("-keys: %q is no number above 0", text)
		}
		p.keys = append(p.keys, n)
	}
	if p.starts < 0 || p.lives < 1 || p.snapshot < 0 || p.snapshot > 0 && p.snapshot < 100 {
		return p, errors.New("-starts is at least 0, -lives at least 1, and -snapshot 0 or at least 100")
	}
	return p, nil
}

// figure is one named figure: for each program, a value for each time.
type figure struct {
	name, unit string
	values     [][]float64
}

type figures struct {
	programs int
	list     []*figure
}

func (f *figures) add(program int, name, unit string, value float64) {
	at := slices.IndexFunc(f.list, func(g *figure) bool { return g.name == name })
	if at < 0 {
		at = len(f.list)
		f.list = append(f.list, &figure{name, unit, make([][]float64, f.programs)})
	}
	f.list[at].values[program] = append(f.list[at].values[program], value)
}

func run(args []string, out, progress io.Writer) error {
	p, err := parse(args, progress)
	if err != nil {
		return err
	}
	f := &figures{programs: len(p.programs)}
	for i := range p.starts {
		for k := range p.programs {
			if err := p.start(f, k); err != nil {
				return fmt.Errorf("start %d: %w", i+1, err)
			}
		}
	}
	for _, keys := range p.keys {
		for range p.lives {
			for k := range p.programs {
				fmt.Fprintf(progress, "%s: %d keys\n", p.programs[k], keys)
				if err := p.fill(f, k, keys); err != nil {
					return err
				}
			}
		}
	}
	if p.snapshot > 0 {
		for range p.lives {
			for k := range p.programs {
				fmt.Fprintf(progress, "%s: snapshots of %d keys\n", p.programs[k], p.snapshot)
				if err := p.snapshots(f, k); err != nil {
					return err
				}
			}
		}
	}
	return f.write(out, p.programs)
}

func (f *figures) write(out io.Writer, programs []string) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintf(w, "| |\t %s |\n|%s\n", strings.Join(programs, " |\t "), strings.Repeat(" --- |\t", len(programs)+1))
	for _, g := range f.list {
		fmt.Fprintf(w, "| %s, %s |", g.name, g.unit)
		for _, v := range g.values {
			fmt.Fprintf(w, "\t %.1f |", median(v))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(list))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// start measures one start with the starter rules, and the memory of the server at rest.
func (p *plan) start(f *figures, k int) error {
	dir, err := os.MkdirTemp("", "footprint")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	begin := time.Now()
	s, err := launch(p.programs[k], dir)
	if err != nil {
		return err
	}
	defer s.kill()
	if err := s.ask(); err != nil {
		return err
	}
	took := time.Since(begin)
	cpu, err := s.processorTime()
	if err != nil {
		return err
	}
	f.add(k, "start to the first decision", "ms", took.Seconds()*1e3)
	f.add(k, "… processor time until then", "ms", cpu.Seconds()*1e3)
	time.Sleep(p.settle)
	m, err := s.memory()
	if err != nil {
		return err
	}
	f.add(k, "at rest: resident", "MB", m.resident/1e6)
	f.add(k, "… of which it shares with nobody and no file", "MB", m.anonymous/1e6)
	return nil
}

// fill charges so many keys, and measures how much memory they add.
func (p *plan) fill(f *figures, k, keys int) error {
	dir, err := os.MkdirTemp("", "footprint")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := launch(p.programs[k], dir)
	if err != nil {
		return err
	}
	defer s.kill()
	if err := s.ask(); err != nil {
		return err
	}
	time.Sleep(p.settle)
	before, err := s.memory()
	if err != nil {
		return err
	}
	if err := s.charge(0, keys); err != nil {
		return err
	}
	after, err := s.memory()
	if err != nil {
		return err
	}
	time.Sleep(p.settle)
	rested, err := s.memory()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d keys", keys)
	per := 1 / float64(keys)
	f.add(k, name+": resident beyond the start, a key", "B", (after.resident-before.resident)*per)
	f.add(k, name+": … at its highest", "B", (after.peak-before.resident)*per)
	f.add(k, name+": … at rest after that", "B", (rested.resident-before.resident)*per)
	return nil
}
