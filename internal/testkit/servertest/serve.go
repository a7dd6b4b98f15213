// Package servertest runs whole servers for tests: in this process (Start, serve.go), or as the
// built program (Launch, binary.go).
package servertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// Output collects what a program writes, and lets one wait for it.
type Output struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func NewOutput() *Output { return &Output{changed: make(chan struct{})} }

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Lines returns what is there of the output in whole lines: of the last one some may be on its way.
func (o *Output) Lines() string {
	text := o.String()
	return text[:strings.LastIndexByte(text, '\n')+1]
}

// Await waits until pattern is in the output, and returns its submatches.
func (o *Output) Await(t *testing.T, pattern string) []string {
	t.Helper()
	expression := regexp.MustCompile(pattern)
	limit := time.After(patience.Left(t))
	for {
		o.mu.Lock()
		found, changed := expression.FindStringSubmatch(o.b.String()), o.changed
		o.mu.Unlock()
		if found != nil {
			return found
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%q did not come; the output is\n%s", pattern, o)
		}
	}
}

// Running is a program that runs in this process.
type Running struct {
	t              *testing.T
	Stdout, Stderr *Output
	Stop           context.CancelFunc
	status         chan int
}

// Patient are settings under which a slow machine is not taken for a Redis that is away.
var Patient = []string{"--store-deadline=30s", "--store-timeout=30s"}

// command runs weir with args, as main does, and returns its exit status.
type command func(ctx context.Context, args, env []string, stdout, stderr io.Writer) int

// Start runs weir serve or weir proxy in this process, without the commands, until the test ends.
func Start(t *testing.T, args ...string) *Running {
	t.Helper()
	return StartWith(t, serveCommand, args...)
}

// serveCommand is weir serve or weir proxy, which is the first of args that is no flag.
func serveCommand(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("weir", pflag.ContinueOnError)
	check, upstream := flags.Bool("check", false, ""), flags.String("upstream", "", "")
	server.AddFlags(flags)
	err := flags.Parse(args)
	if err == nil && *upstream != "" {
		err = flags.Set("proxy-upstream", *upstream)
	}
	var c *server.Config
	if err == nil {
		c, err = server.Load(flags, env)
	}
	if err == nil && flags.Arg(0) == "proxy" {
		c.OnlyProxy(flags)
	}
	status := 78 // if the configuration is wrong
	if err == nil {
		err = server.Serve(ctx, c, *check, "(devel)", stdout, stderr)
		if setup, early := errors.AsType[*server.SetupError](err); !early || setup.MayPass() {
			status = 1
		}
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "weir:", settings.Redact(err.Error()))
	return status
}

// StartWith is Start by another way to run weir.
func StartWith(t *testing.T, run command, args ...string) *Running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Running{t: t, Stdout: NewOutput(), Stderr: NewOutput(), Stop: cancel, status: make(chan int, 1)}
	env := append([]string{"WEIR_LISTEN_HTTP=127.0.0.1:0", "WEIR_LISTEN_GRPC=127.0.0.1:0",
		"WEIR_LISTEN_RESP=127.0.0.1:0", "WEIR_LISTEN_ADMIN=127.0.0.1:0"}, withoutLine...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.status <- run(ctx, args, env, p.Stdout, p.Stderr)
	}()
	// The next test begins when it has ended: until then it may write into folders that are removed
	// with the test, and has what there is once in a process, as the pace of the garbage collector.
	t.Cleanup(func() {
		cancel()
		patience.Receive(t, "the end of weir "+strings.Join(args, " "), ended)
	})
	return p
}

// End stops the program as SIGTERM does and checks that it exits well.
func (p *Running) End() {
	p.t.Helper()
	p.Stop()
	p.Exits(0)
}

func (p *Running) Exits(want int) {
	p.t.Helper()
	select {
	case status := <-p.status:
		if status != want {
			p.t.Errorf("exit status %d, want %d; it wrote\n%s", status, want, p.Stderr)
		}
	case <-time.After(patience.Left(p.t)):
		p.t.Fatalf("it does not end; it wrote\n%s", p.Stderr)
	}
}

// Addr waits for a door.
func (p *Running) Addr(door string) string {
	p.t.Helper()
	return p.Stderr.Await(p.t, `door=`+door+` addr=(\S+)`)[1]
}

func Get(t *testing.T, url string) (int, http.Header, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header, string(b)
}

// WriteRules replaces a file as a whole. In place it would be empty for a moment, and for longer on
// a busy machine: a server that watches it could load that, and log it, where a test counts the
// lines.
func WriteRules(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

var Eventually = patience.Until

func StatusOf(client *http.Client, url string) (int, error) {
	r, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err
}
