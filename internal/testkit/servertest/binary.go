package servertest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// withoutLine keeps servers from turning requests away: test servers share their machine with other
// tests, and may well be slow. Tests of that say so.
var withoutLine = []string{"WEIR_OVERLOAD_LINE=0s"}

// tests are the tests of a package.
type tests struct{ *testing.M }

// Tests prepares tests of whole servers. Call Run to run them.
func Tests(m *testing.M) interface{ Run() int } {
	// Parallel tests wait for other programs, and for windows to pass, far more than they compute.
	// A -parallel of the command line goes before.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	// Tests ask a server with up to 64 clients at once, each of which keeps its connection.
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 64
	return tests{m}
}

// Run runs the tests, and removes what they share.
func (t tests) Run() int {
	defer func() {
		if builtIn != "" {
			_ = os.RemoveAll(builtIn)
		}
	}()
	return t.M.Run()
}

// Process is a running program, most often the built one.
type Process struct {
	T              *testing.T
	Cmd            *exec.Cmd
	Stdout, Stderr *Output
	Exited         chan error    // how it ended, for one who asks
	Gone           chan struct{} // closed when it has ended, and all that it wrote is there
}

// BuildProgram is BuiltProgram for a test that a quick run does without.
func BuildProgram(t *testing.T) string {
	t.Helper()
	effort.Long(t, "drives the built program")
	return BuiltProgram(t)
}

// BuiltProgram builds the program, once for all tests. Its folder holds nothing else.
func BuiltProgram(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// builtIn is the folder of the built program; tests.Run removes it.
var builtIn string

var built = sync.OnceValues(func() (path string, err error) {
	if builtIn, err = os.MkdirTemp("", "weir-built-"); err != nil {
		return "", err
	}
	path = filepath.Join(builtIn, "weir")
	// At full length it is built as it is released. A quick run builds it with the flags of the
	// tests, so that nothing but the link is left to do.
	cmd := exec.Command(filepath.Join(OriginalRoot, "scripts", "build"), path)
	if !effort.All() {
		cmd = exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "./cmd/weir")
		cmd.Dir = OriginalRoot
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// Launch starts the program in dir with doors on free ports.
func Launch(t *testing.T, program, dir string, args ...string) *Process {
	t.Helper()
	return LaunchIn(t, nil, program, dir, args...)
}

// LaunchIn is Launch with more variables in the environment.
func LaunchIn(t *testing.T, env []string, program, dir string, args ...string) *Process {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = append(append(PlainEnvironment(), env...), "WEIR_LISTEN_HTTP=127.0.0.1:0", "WEIR_LISTEN_GRPC=127.0.0.1:0",
		"WEIR_LISTEN_RESP=127.0.0.1:0", "WEIR_LISTEN_ADMIN=127.0.0.1:0")
	return Begin(t, cmd)
}

// Begin starts a program in a process group of its own, which is killed when the test ends. Unless
// cmd has an environment it gets PlainEnvironment.
func Begin(t *testing.T, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{T: t, Cmd: cmd, Stdout: NewOutput(), Stderr: NewOutput(), Exited: make(chan error, 1),
		Gone: make(chan struct{})}
	if cmd.Env == nil {
		cmd.Env = PlainEnvironment()
	}
	p.Cmd.Stdout, p.Cmd.Stderr = p.Stdout, p.Stderr
	ended := make(chan struct{})
	if cmd.SysProcAttr != nil { // of which Launch keeps little
		if err := p.Cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = p.Cmd.Wait()
			close(ended)
		}()
	} else {
		launched, err := testproc.Launch(cmd)
		if err != nil {
			t.Fatal(err)
		}
		ended = launched.Ended
	}
	go func() {
		defer close(p.Gone)
		<-ended
		var err error
		if state := p.Cmd.ProcessState; !state.Success() {
			err = errors.New(state.String())
		}
		p.Exited <- err
	}()
	t.Cleanup(func() {
		select {
		case <-p.Gone:
			return
		default:
		}
		_ = p.Cmd.Process.Kill()
		// What it has started may hold its output, and write into folders that are removed next.
		testproc.KillGroup(p.Cmd.Process.Pid)
		<-p.Gone
	})
	return p
}

// RunBuilt runs the built program with args until it ends.
func RunBuilt(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(BuiltProgram(t), args...)
	cmd.Env = PlainEnvironment()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// PlainEnvironment is testproc.Environ with withoutLine.
func PlainEnvironment() []string { return append(testproc.Environ(), withoutLine...) }

// Whoever runs the tests may have a Weir, a Redis or a collector of their own. Neither the tests
// nor what they start take settings from that environment. The program itself, which testscript
// makes of this binary, takes what its script says.
func init() {
	if filepath.Base(os.Args[0]) == "weir" {
		return
	}
	own := server.Variables()
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains(own, name) || strings.HasPrefix(name, "REDIS_") || strings.HasPrefix(name, "REDISCLI_") ||
			strings.HasPrefix(name, "OTEL_") {
			_ = os.Unsetenv(name)
		}
	}
}

// Listens waits until the program takes connections at an address.
func (p *Process) Listens(address string) {
	p.T.Helper()
	Eventually(p.T, filepath.Base(p.Cmd.Path)+" takes connections", func() bool {
		select {
		case err := <-p.Exited:
			p.T.Fatalf("%s ended: %v\n%s%s", p.Cmd.Path, err, p.Stdout, p.Stderr)
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func (p *Process) Addr(door string) string {
	p.T.Helper()
	return p.Stderr.Await(p.T, `door=`+door+` addr=(\S+)`)[1]
}

func (p *Process) Signal(s syscall.Signal) {
	p.T.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		p.T.Fatal(err)
	}
}

// Wait waits for the end of the program and returns its exit status; -1 for one that a signal
// ended.
func (p *Process) Wait() int {
	p.T.Helper()
	select {
	case <-p.Exited:
		return p.Cmd.ProcessState.ExitCode()
	case <-time.After(patience.Left(p.T)):
		p.T.Fatalf("it does not end; it wrote\n%s", p.Stderr)
		return 0
	}
}

const DailyRules = "limits: [{ name: daily, per: [key], allow: 1000/day, algorithm: sliding_log }]\n"
