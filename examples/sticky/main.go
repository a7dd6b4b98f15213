//go:build unix

// Command sticky shows what limits are worth without a shared store: a balancer sends each user to
// one of three nodes of Weir, each with an embedded store of its own. One node dies, and comes
// back, while users ask for more than they may. It prints how many requests were admitted that one
// node would have refused, and how many had no answer. From the root of the repository:
//
//	go run ./examples/sticky
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-rl/weir/examples/internal/programs"
)

//go:embed weir.yaml nginx.conf envoy.yaml rules
var files embed.FS

// options are the flags.
type options struct {
	balancer string
	program  string // of the balancer
	any      bool
	users    int
	limit    int64
	window   time.Duration
	rate     float64
	duration time.Duration
	dies     time.Duration
	back     time.Duration
	hangs    bool
	weir     string
}

func main() {
	log.SetFlags(0)
	var o options
	flag.StringVar(&o.balancer, "balancer", "nginx", "what stands in front: nginx or envoy")
	flag.StringVar(&o.program, "program", "", "the balancer's program, if it is not in the PATH")
	flag.BoolVar(&o.any, "any", false, "for comparison: send each request to any node, whoever asks")
	flag.IntVar(&o.users, "users", 60, "how many users ask, up to 1000")
	flag.Int64Var(&o.limit, "limit", 50, "requests of a user in a window: N")
	flag.DurationVar(&o.window, "window", 10*time.Second, "the window, whole seconds")
	flag.Float64Var(&o.rate, "rate", 0, "requests a second of each user; 0: 1.6 N in a window")
	flag.DurationVar(&o.duration, "duration", 50*time.Second, "how long users ask, at most 10m")
	flag.DurationVar(&o.dies, "dies", 15*time.Second, "when a node dies; 0: never")
	flag.DurationVar(&o.back, "back", 35*time.Second, "when it comes back, with empty counters; 0: never")
	flag.BoolVar(&o.hangs, "hangs", false, "the node hangs, and goes on with its counters, in place of dying")
	flag.StringVar(&o.weir, "weir", "", "the program weir; built if empty")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("%q is no flag; see -help", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, &o, os.Stdout)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// check completes the options.
func (o *options) check() error {
	if o.rate == 0 {
		o.rate = 1.6 * float64(o.limit) / o.window.Seconds()
	}
	if o.program == "" {
		o.program = o.balancer
	}
	switch {
	case o.balancer != "nginx" && o.balancer != "envoy":
		return fmt.Errorf("-balancer is nginx or envoy, not %q", o.balancer)
	case o.users < 1 || o.users > 1000 || o.limit < 1 || o.rate < 0 || o.rate > 1000:
		return errors.New("-users is from 1 to 1000, -limit at least 1, and -rate from 0 to 1000")
	case o.window < time.Second || o.window%time.Second != 0:
		return errors.New("-window is whole seconds, such as 10s")
	case o.duration < o.window || o.duration > 10*time.Minute:
		return errors.New("-duration is at least one window, and at most 10m")
	case o.dies < 0 || o.back < 0 || o.back > 0 && o.back <= o.dies:
		return errors.New("-dies is not below 0, and -back after it")
	}
	return nil
}

// bench holds the programs that were started: the nodes, and the balancer before them.
type bench struct {
	o        *options
	dir      string
	front    string // address of the balancer
	upstream string // address of the API behind the nodes
	nodes    []*node
	started  programs.List
}

// node is a server with counters of its own.
type node struct {
	addr    string
	process *programs.Process
}

func run(ctx context.Context, o *options, out io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sticky-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{o: o, dir: dir}
	defer b.started.Stop()
	fmt.Fprintf(out, "starting: three nodes with counters of their own, and %s before them\n", o.balancer)
	api, err := b.serveAPI()
	if err != nil {
		return err
	}
	defer api.Close()
	if err := b.open(ctx); err != nil {
		return err
	}
	a := newAsking(o, b.front)
	fmt.Fprintf(out, "%d users ask %.1f times a second each; each may %d times in %v\n\n", o.users, o.rate, o.limit,
		o.window)
	broken := make(chan error, 1)
	go func() { broken <- b.lose(ctx, a.start) }()
	a.run(ctx)
	if err := <-broken; err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("stopped")
	}
	a.report(out)
	return nil
}

// serveAPI starts the server behind the nodes.
func (b *bench) serveAPI() (*http.Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b.upstream = l.Addr().String()
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w,
			"hello")
	}), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.Serve(l) }()
	return s, nil
}

// open writes the files with the addresses of this machine, and starts the programs that read them.
func (b *bench) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // most of it to build
	defer cancel()
	if b.o.weir, err = programs.Built(ctx, b.o.weir, "github.com/weir-rl/weir/cmd/weir", b.dir); err != nil {
		return err
	}
	if err := os.CopyFS(b.dir, files); err != nil {
		return err
	}
	if err := b.change("rules/api.yaml", "50/10s", fmt.Sprintf("%d/%v", b.o.limit, b.o.window)); err != nil {
		return err
	}
	for range 3 {
		n := &node{}
		b.nodes = append(b.nodes, n)
		// An address was free a moment ago; if it is not any more, another one is tried.
		for tries := 5; ; tries-- {
			if n.addr, err = programs.FreeAddress(); err != nil {
				return err
			}
			if err = b.startNode(ctx, n); err == nil {
				break
			} else if tries == 0 || ctx.Err() != nil {
				return err
			}
		}
	}
	return b.startBalancer(ctx)
}

// change replaces text in a file of the example, which must be there.
func (b *bench) change(name string, pairs ...string) error {
	path := filepath.Join(b.dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(string(data), pairs[i]) {
			return fmt.Errorf("%s does not say %q", name, pairs[i])
		}
	}
	return os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(string(data))), 0o644)
}

func (b *bench) startNode(ctx context.Context, n *node) (err error) {
	n.process, err = b.started.Start("node "+n.addr, b.dir, b.o.weir, "serve",
		"--config=weir.yaml", "--listen-proxy="+n.addr, "--proxy-upstream=http://"+b.upstream)
	if err != nil {
		return err
	}
	_, err = n.process.Said(ctx, `door=proxy addr=(\S+)`)
	return err
}

func (b *bench) startBalancer(ctx context.Context) (err error) {
	if b.front, err = programs.FreeAddress(); err != nil {
		return err
	}
	config, args := "nginx.conf", []string{"-p", ".", "-c", "nginx.conf"}
	if os.Geteuid() == 0 {
		args = append(args, "-g", "user root;") // the folder is nobody else's to read
	}
	pairs := []string{"127.0.0.1:8000", b.front}
	for i, n := range b.nodes {
		pairs = append(pairs, "127.0.0.1:"+strconv.Itoa(8001+i), n.addr)
	}
	whoever := []string{"hash $http_x_user consistent;     # when a node goes, only its users move", "random;"}
	if b.o.balancer == "envoy" {
		config, args = "envoy.yaml", []string{"-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id",
			"--log-level", "warning"}
		for i := 0; i < len(pairs); i += 2 {
			for j := range 2 {
				_, port, _ := net.SplitHostPort(pairs[i+j])
				pairs[i+j] = "port_value: " + port + " "
			}
		}
		pairs = append(pairs, "port_value: 9901 ", "port_value: 0 ")
		whoever = []string{"lb_policy: RING_HASH     # when a node goes, only its users move", "lb_policy: RANDOM"}
	}
	if b.o.any {
		pairs = append(pairs, whoever...)
	}
	if err := b.change(config, pairs...); err != nil {
		return err
	}
	process, err := b.started.Start(b.o.balancer, b.dir, b.o.program, args...)
	if err != nil {
		return err
	}
	for {
		if answer, err := http.Get("http://" + b.front + "/"); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-process.Done():
			_, err := process.Said(ctx, "(neverSaid)")
			return err
		case <-ctx.Done():
			return fmt.Errorf("%s does not pass requests on", b.o.balancer)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lose takes a node away, and brings it back.
func (b *bench) lose(ctx context.Context, start time.Time) error {
	n := b.nodes[0]
	wait := func(at time.Duration) bool {
		if at == 0 || at >= b.o.duration {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Until(start.Add(at))):
			return true
		}
	}
	away, again := syscall.SIGKILL, func() error { return b.startNode(ctx, n) }
	if b.o.hangs {
		away, again = syscall.SIGSTOP, func() error { return n.process.Signal(syscall.SIGCONT) }
	}
	if !wait(b.o.dies) {
		return nil
	}
	if err := n.process.Signal(away); err != nil {
		return err
	}
	if !wait(b.o.back) {
		if b.o.hangs {
			return again()
		}
		return nil
	}
	return again()
}
