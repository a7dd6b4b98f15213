// Command rushload asks a server of Weir for more than it can do, and prints how many requests it
// decides, how many it turns away, and how long either takes, from the instant at which each was
// due.
//
//	go build -o /tmp/weir ./cmd/weir
//	cd benchmarks && go build -o /tmp/rushload ./rushload
//	taskset -c 1 /tmp/rushload -weir /tmp/weir -server-cpu 0 -door rls -light
//
// It starts a server that turns nobody away, and measures how many decisions a second it makes for
// -closed requests at a time. Then it starts a server with the settings under test, and offers it
// the -shares of that rate, open loop: requests are due at instants that do not depend on answers.
// A request that cannot be sent within -patience, because the server has not read the earlier ones,
// is given up. Each request is written by hand, so that one processor can offer several times as
// much as another one decides; the last column tells whether it could.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/exit"
	"github.com/weir-rl/weir/benchmarks/internal/processor"
	"github.com/weir-rl/weir/internal/testkit/histogram"
)

func main() {
	exit.With("rushload", run(os.Args[1:], os.Stdout, os.Stderr))
}

// plan describes the measurement.
type plan struct {
	weir, cpu, door, store string
	light                  bool
	connections, closed    int
	shares                 []float64
	took, patience         time.Duration
	settings               []string
}

func parse(args []string, w io.Writer) (p plan, err error) {
	f := flag.NewFlagSet("rushload", flag.ContinueOnError)
	f.SetOutput(w)
	f.StringVar(&p.weir, "weir", "", "the built program")
	f.StringVar(&p.cpu, "server-cpu", "", "processor of the server, for taskset; any if empty")
	f.StringVar(&p.door, "door", "rls", "rls, resp or http")
	f.StringVar(&p.store, "store", "memory", "store of the server")
	f.BoolVar(&p.light, "light", false, "one limit for each request; else 100 rules with a condition in CEL as well")
	f.IntVar(&p.connections, "connections", 16, "connections to the server")
	f.IntVar(&p.closed, "closed", 32,
		"requests under way on each connection while the capacity is found; over HTTP one")
	shares := f.String("shares", "0.6,1,1.3,3", "what is offered, in parts of the capacity")
	f.DurationVar(&p.took, "for", 5*time.Second, "how long each load lasts")
	f.DurationVar(&p.patience, "patience", 100*time.Millisecond,
		"after which a request that could not be sent is given up")
	f.Func("set", "--FLAG=VALUE for the server; may be repeated",
		func(s string) error { p.settings = append(p.settings, s); return nil })
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if protocols[p.door] == nil || p.weir == "" || p.connections < 1 || p.closed < 1 || p.took <= 0 {
		return p, errors.New("-weir names the program, -door is rls, resp or http, and the numbers are above 0")
	}
	for text := range strings.SplitSeq(*shares, ",") {
		share, err := strconv.ParseFloat(text, 64)
		if err != nil || share <= 0 {
			return p, fmt.Errorf("-shares: %q is no number above 0", text)
		}
		p.shares = append(p.shares, share)
	}
	return p, nil
}

func run(args []string, out, progress io.Writer) error {
	p, err := parse(args, progress)
	if err != nil {
		return err
	}
	base := load{door: p.door, connections: p.connections, patience: p.patience}
	closed := base
	closed.window, closed.took = p.closed, min(p.took, 3*time.Second)
	patient := p
	patient.settings = append(slices.Clip(p.settings), "--overload-line=0s")
	s, found, err := patient.startWarm(closed, progress)
	if err != nil {
		return err
	}
	capacity := float64(found.decided) / closed.took.Seconds()
	fmt.Fprintf(out, "capacity %.0f/s, p99 %.1f ms with %d × %d under way\n\n", capacity,
		found.latency.Quantile(0.99).Seconds()*1000,
		p.connections, min(p.closed, protocols[p.door]().most()))
	s.stop()
	if s, _, err = p.startWarm(closed, progress); err != nil {
		return err
	}
	defer s.stop()
	base.address = s.address
	time.Sleep(rest)
	fmt.Fprintln(out,
		"| offered | decided a second | of the capacity | in 20 ms | turned away | given up | p50, p99 of decisions | p99 after 0.5 s | p99 of refusals | CPU | of the load |")
	fmt.Fprintln(out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, share := range p.shares {
		l := base
		l.rate, l.took = share*capacity, p.took
		used := s.used()
		r, err := l.run()
		if err != nil {
			return err
		}
		ms := func(h *histogram.Histogram, q float64) float64 { return h.Quantile(q).Seconds() * 1000 }
		now, seconds, offered := s.used(), l.took.Seconds(), float64(r.due)
		fmt.Fprintf(out,
			"| %.0f %% | %.0f | %.0f %% | %.0f %% | %.0f %% | %.0f %% | %.1f, %.1f ms | %.1f ms | %.1f ms | %.0f %% | %.0f %% |\n", share*100, float64(r.decided)/seconds,
			100*float64(r.decided)/seconds/capacity, 100*float64(r.inTime)/seconds/capacity,
			100*float64(r.shed)/offered, 100*float64(r.unsent)/offered,
			ms(&r.latency, 0.5), ms(&r.latency, 0.99), ms(&r.settled, 0.99), ms(&r.refusals, 0.99),
			100*(now[0]-used[0]).Seconds()/seconds, 100*(now[1]-used[1]).Seconds()/seconds)
		time.Sleep(rest)
	}
	return nil
}

// rest lets the server come to rest, and leave its overload.
const rest = 1500 * time.Millisecond

// startWarm starts a server and loads it twice; it returns the result of the second load.
func (p *plan) startWarm(l load, progress io.Writer) (*server, *result, error) {
	s, err := p.start(progress)
	if err != nil {
		return nil, nil, err
	}
	l.address = s.address
	_, err = l.run()
	var r *result
	if err == nil {
		r, err = l.run()
	}
	if err != nil {
		s.stop()
	}
	return s, r, err
}

// used is the processor time that the server, and this program, have used.
func (s *server) used() (t [2]time.Duration) {
	t[0], _ = processor.Time(s.cmd.Process.Pid)
	t[1], _ = processor.Time(os.Getpid())
	return t
}

// server is a weir that runs.
type server struct {
	cmd     *exec.Cmd
	dir     string
	address string
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// rules are the limits that each request meets, wide enough for none to refuse, and those that are
// only looked at.
func (p *plan) rules() string {
	var b strings.Builder
	b.WriteString("domain: rush\nlimits:\n  - name: user\n    per: [user]\n    allow: 1000000000/s\n")
	for i := 0; i < 100 && !p.light; i++ {
		fmt.Fprintf(&b, "  - name: plan-%d\n    if: 'user.size() > %d'\n    per: [user]\n    allow: 1000000000/s\n",
			i, 1000+i)
	}
	return b.String()
}

func (p *plan) start(progress io.Writer) (*server, error) {
	dir, err := os.MkdirTemp("", "rushload")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "rush.yaml"), []byte(p.rules()), 0o600); err != nil {
		return nil, err
	}
	s := &server{dir: dir, address: filepath.Join(dir, "door")}
	args := []string{p.weir, "serve", "--rules", filepath.Join(dir, "rush.yaml"), "--store", p.store}
	for _, door := range []string{"http", "grpc", "resp", "admin"} {
		args = append(args, "--listen-"+door+"=off")
	}
	s.address = "127.0.0.1:" + strconv.Itoa(20000+os.Getpid()%10000)
	args = append(args, "--listen-"+map[string]string{"rls": "grpc"}[p.door]+strings.TrimPrefix(p.door,
		"rls")+"="+s.address)
	args = append(args, p.settings...)
	if p.cpu != "" {
		args = append([]string{"taskset", "-c", p.cpu}, args...)
	}
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	s.cmd.Stderr = progress
	return s, s.cmd.Start()
}
