// Command performance measures the laws of docs/how-it-works/performance.md: how the cost of a
// decision grows with keys, rules, limits, callers, connections and nodes, and how long decisions
// take when they come at their own pace. It sets Weir beside rivals that are to be had, and leaves
// out those that are not installed. scripts/measure performance runs it, and draws its results.
//
//	scripts/measure performance                 all parts
//	scripts/measure performance keys rules      some
//
// Within a part contestants take turns, A B C A B C, and the results are the medians of their
// rounds with the least and the most beside them: a file of CSV for each part, in docs/figures.
// Processor time is the measure to compare. Client and server share the processors, so that
// decisions a second depend on the client as much.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	var err error
	switch args := os.Args[1:]; {
	case len(args) > 0 && args[0] == "decide": // started by startDecider
		err = decide(args[1:], os.Stdin, os.Stdout)
	case len(args) > 0 && args[0] == "node": // started by nodes
		err = node(args[1:], os.Stdout)
	case len(args) > 0 && args[0] == "echo": // started by callers and open
		err = echo(args[1:])
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop() // so that no server is left behind
		err = run(ctx, args, os.Stderr)
	}
	exit.With("performance", err)
}

// part is a law and how it is measured.
type part struct {
	name    string
	about   string
	measure func(*bench) error
}

var parts = []part{
	{"keys", "one decision in process, by the number of keys", (*bench).keys},
	{"hot", "one decision in process on a key that all ask for, by processors", (*bench).hot},
	{"rules", "one decision in process, by the number of rules of each kind", (*bench).rules},
	{"served", "a server at rest, and one decision at each of its doors, by the number of rules", (*bench).served},
	{"limits", "one decision in process, by the limits that it meets", (*bench).limits},
	{"callers", "one decision over gRPC, by the callers of one connection", (*bench).callers},
	{"connections", "one decision over the network, by connections", (*bench).connections},
	{"proxies", "one request through a reverse proxy, by connections", (*bench).proxies},
	{"nodes", "one decision on a Redis that nodes share, by nodes", (*bench).nodes},
	{"open", "how long a decision takes at each door, by the load", (*bench).open},
}

// bench is the common state of the parts.
type bench struct {
	ctx      context.Context
	progress io.Writer
	root     string // of the repository
	dir      string // for temporary files
	self     string // this program
	tools    map[string]string
	samples  samples

	rounds      int
	mostKeys    int
	weir        string
	throttle    string // throttlecrab-server
	rateLimiter string // envoyproxy/ratelimit
}

func run(ctx context.Context, args []string, progress io.Writer) (err error) {
	b := &bench{ctx: ctx, progress: progress, tools: map[string]string{}}
	flags := flag.NewFlagSet("performance", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.IntVar(&b.rounds, "rounds", 3, "how often each is measured")
	flags.IntVar(&b.mostKeys, "most-keys", 10_000_000, "the most keys of part keys; ten million take some 12 GB")
	flags.StringVar(&b.weir, "weir", "", "the weir to measure; built if empty")
	flags.StringVar(&b.throttle, "throttlecrab", "throttlecrab-server",
		"path of throttlecrab's server (cargo install throttlecrab-server)")
	flags.StringVar(&b.rateLimiter, "ratelimit", "", "path of envoyproxy/ratelimit's server; left out if empty")
	out := flags.String("out", filepath.Join("docs", "figures", "performance"),
		"where to write what was found, from the root of the repository")
	flags.Usage = func() {
		fmt.Fprintln(progress, "usage: scripts/measure performance [FLAGS] [PART...]")
		for _, p := range parts {
			fmt.Fprintf(progress, "  %-12s %s\n", p.name, p.about)
		}
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, name := range flags.Args() {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			flags.Usage()
			return fmt.Errorf("there is no part %q", name)
		}
	}
	if b.rounds < 1 {
		return errors.New("-rounds is at least 1")
	}
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("the results name a commit, so run it in a clone: %w", err)
	}
	b.root = strings.TrimSpace(string(top))
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "performance"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.weir == "" {
		b.weir = filepath.Join(b.dir, "weir")
		build := exec.Command("go", "build", "-trimpath", "-o", b.weir, "./cmd/weir")
		build.Dir, build.Env = b.root, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if text, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("weir cannot be built: %w\n%s", err, text)
		}
	} else if b.weir, err = filepath.Abs(b.weir); err != nil {
		return err
	}
	folder := *out
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(b.root, folder)
	}
	for _, p := range parts {
		if flags.NArg() > 0 && !slices.Contains(flags.Args(), p.name) {
			continue
		}
		fmt.Fprintf(progress, "%s: %s\n", p.name, p.about)
		b.samples = samples{}
		watch := startWatch()
		if err := p.measure(b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		h, err := watch.header(b.root)
		if err != nil {
			return err
		}
		if err := b.samples.writeFile(filepath.Join(folder, p.name+".csv"), h); err != nil {
			return err
		}
		fmt.Fprintf(progress, "%s: done in %v, others took %s of the processors\n", p.name,
			time.Since(watch.began).Round(time.Second), h.others)
	}
	return nil
}

// tool builds another program of this module, once.
func (b *bench) tool(name string) (string, error) {
	if path := b.tools[name]; path != "" {
		return path, nil
	}
	path := filepath.Join(b.dir, name)
	build := exec.Command("go", "build", "-o", path, "./"+name)
	build.Dir, build.Env = filepath.Join(b.root, "benchmarks"), append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s cannot be built: %w\n%s", name, err, text)
	}
	b.tools[name] = path
	return path, nil
}
