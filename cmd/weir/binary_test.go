package main

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
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// withoutLine keeps servers from turning requests away: test servers share their machine with other
// tests, and may well be slow. Tests of that say so.
var withoutLine = []string{"WEIR_OVERLOAD_LINE=0s", "WEIR_OVERLOAD_PROXY_LINE=0s"}

// tests are the tests of a package.
type tests struct{ *testing.M }

// prepare sets what the tests of whole servers need. Run of what it returns runs the tests.
func prepare(m *testing.M) interface{ Run() int } {
	// Parallel tests wait for other programs, and for windows to pass, far more than they compute. A
	// -parallel of the command line goes before.
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

// process is a running program, most often the built one.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *output
	exited         chan error    // how it ended, for one who asks
	gone           chan struct{} // closed when it has ended, and all that it wrote is there
}

// buildProgram is builtProgram for a test that a quick run does without.
func buildProgram(t *testing.T) string {
	t.Helper()
	effort.Long(t, "drives the built program")
	return builtProgram(t)
}

// builtProgram builds the program, once for all tests. Its folder holds nothing else.
func builtProgram(t *testing.T) string {
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
	cmd := exec.Command(filepath.Join(originalRoot, "scripts", "build"), path)
	if !effort.All() {
		cmd = exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "./cmd/weir")
		cmd.Dir = originalRoot
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// launch starts the program in dir with doors on free ports.
func launch(t *testing.T, program, dir string, args ...string) *process {
	t.Helper()
	return launchIn(t, nil, program, dir, args...)
}

// launchIn is launch with more variables in the environment.
func launchIn(t *testing.T, env []string, program, dir string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = append(append(plainEnvironment(), env...), "WEIR_LISTEN_HTTP=127.0.0.1:0", "WEIR_LISTEN_GRPC=127.0.0.1:0", "WEIR_LISTEN_RESP=127.0.0.1:0", "WEIR_LISTEN_ADMIN=127.0.0.1:0")
	return begin(t, cmd)
}

// begin starts a program in a process group of its own, which is killed when the test ends. Unless
// cmd has an environment it gets plainEnvironment.
func begin(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, stdout: newOutput(), stderr: newOutput(), exited: make(chan error, 1), gone: make(chan struct{})}
	if cmd.Env == nil {
		cmd.Env = plainEnvironment()
	}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	ended := make(chan struct{})
	if cmd.SysProcAttr != nil { // of which Launch keeps little
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = p.cmd.Wait()
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
		defer close(p.gone)
		<-ended
		var err error
		if state := p.cmd.ProcessState; !state.Success() {
			err = errors.New(state.String())
		}
		p.exited <- err
	}()
	t.Cleanup(func() {
		select {
		case <-p.gone:
			return
		default:
		}
		_ = p.cmd.Process.Kill()
		// What it has started may hold its output, and write into folders that are removed next.
		testproc.KillGroup(p.cmd.Process.Pid)
		<-p.gone
	})
	return p
}

// runBuilt runs the built program with args until it ends.
func runBuilt(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(builtProgram(t), args...)
	cmd.Env = plainEnvironment()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// plainEnvironment is testproc.Environ with withoutLine.
func plainEnvironment() []string { return append(testproc.Environ(), withoutLine...) }

// Whoever runs the tests may have a Weir, a Redis or a collector of their own. Neither the tests
// nor what they start take settings from that environment. The program itself, which testscript
// makes of this binary, takes what its script says.
func init() {
	if filepath.Base(os.Args[0]) == "weir" {
		return
	}
	own := variables()
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains(own, name) || strings.HasPrefix(name, "REDIS_") || strings.HasPrefix(name, "REDISCLI_") || strings.HasPrefix(name, "OTEL_") {
			_ = os.Unsetenv(name)
		}
	}
}

// listens waits until the program takes connections at an address.
func (p *process) listens(address string) {
	p.t.Helper()
	eventually(p.t, filepath.Base(p.cmd.Path)+" takes connections", func() bool {
		select {
		case err := <-p.exited:
			p.t.Fatalf("%s ended: %v\n%s%s", p.cmd.Path, err, p.stdout, p.stderr)
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func (p *process) addr(door string) string {
	p.t.Helper()
	return p.stderr.await(p.t, `door=`+door+` addr=(\S+)`)[1]
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits for the end of the program and returns its exit status; -1 for one that a signal
// ended.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience.Left(p.t)):
		p.t.Fatalf("it does not end; it wrote\n%s", p.stderr)
		return 0
	}
}

// used asks how much of 1,000 a day a key has used.
func used(t *testing.T, addr, key string) (n int) {
	t.Helper()
	_, _, body := get(t, "http://"+addr+"/api/v1/limit?hits=0&key="+key)
	found := regexp.MustCompile(`"remaining":(\d+)`).FindStringSubmatch(body)
	if found == nil {
		t.Fatal(body)
	}
	if _, err := fmt.Sscan(found[1], &n); err != nil {
		t.Fatal(err)
	}
	return 1000 - n
}

const dailyRules = "limits: [{ name: daily, per: [key], allow: 1000/day, algorithm: sliding_log }]\n"

// TestSnapshot: counters survive SIGTERM whole, and SIGKILL without the last interval.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	program, dir := builtProgram(t), t.TempDir()
	writeRules(t, filepath.Join(dir, "rules.yaml"), dailyRules)
	snapshot := filepath.Join(dir, "weir.snapshot")
	run := func(every string) (*process, string) {
		p := launch(t, program, dir, "serve", "--rules=rules.yaml", "--snapshot-path="+snapshot, "--snapshot-every="+every)
		return p, p.addr("http")
	}
	ask := func(addr string, n int) {
		t.Helper()
		for range n {
			if status, _, body := get(t, "http://"+addr+"/api/v1/limit?key=ada"); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
		}
	}
	p, addr := run("1h")
	ask(addr, 7)
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Fatalf("SIGTERM: exit status %d\n%s", status, p.stderr)
	}
	p, addr = run("100ms")
	if n := used(t, addr, "ada"); n != 7 {
		t.Fatalf("after SIGTERM and a restart %d are used, want 7", n)
	}
	ask(addr, 5)
	// One snapshot may have been under way; the second that ends from here on holds all 12.
	modified := func() time.Time {
		info, err := os.Stat(snapshot)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	for range 2 {
		before := modified()
		// The writer may leave out a snapshot that would be like the last; a key that changes makes
		// it write.
		eventually(t, "a snapshot is written", func() bool {
			get(t, "http://"+addr+"/api/v1/limit?key=other")
			return !modified().Equal(before)
		})
	}
	ask(addr, 3)
	p.signal(syscall.SIGKILL)
	p.wait()
	p, addr = run("1h")
	if n := used(t, addr, "ada"); n < 12 || n > 15 {
		t.Errorf("after SIGKILL and a restart %d are used, want 12 to 15", n)
	}
	p.signal(syscall.SIGINT)
	if status := p.wait(); status != 0 {
		t.Fatalf("SIGINT: exit status %d\n%s", status, p.stderr)
	}

	// A damaged snapshot is set aside, and reported.
	if err := os.WriteFile(snapshot, []byte(strings.Repeat("damaged", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	p, addr = run("1h")
	if n := used(t, addr, "ada"); n != 0 {
		t.Errorf("from a damaged snapshot: %d", n)
	}
	if !strings.Contains(p.stderr.String(), "snapshot") || !strings.Contains(p.stderr.String(), "WARN") {
		t.Errorf("a damaged snapshot was not told of:\n%s", p.stderr)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// TestExamples: the requests that the program prints do what it says when they are pasted.
func TestExamples(t *testing.T) {
	t.Parallel()
	needs(t, "bash", "curl")
	dir := t.TempDir()
	p := launch(t, builtProgram(t), dir, "serve")
	p.stdout.await(t, "api/v1/keys")
	var pasted strings.Builder
	for line := range strings.Lines(p.stdout.String()) {
		if strings.HasPrefix(line, "curl ") || strings.HasPrefix(line, "for ") {
			pasted.WriteString(line)
		}
	}
	out, err := exec.Command("bash", "-e", "-c", pasted.String()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, pasted.String(), out)
	}
	text := string(out)
	if strings.Count(text, "HTTP/1.1 200 OK") != 2 || !strings.Contains(text, "200 429") || !strings.Contains(text, "weir_requests_total") || !strings.Contains(text, "key=ada") {
		t.Errorf("pasting\n%s\ngave\n%s", pasted.String(), out)
	}
	first, _, _ := strings.Cut(pasted.String(), "\n")
	out, err = exec.Command("bash", "-c", first).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "HTTP/1.1 429 Too Many Requests") || !strings.Contains(string(out), "\nRetry-After: ") {
		t.Errorf("after ten requests %s gave %v\n%s", first, err, out)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// TestBrokenPipe: a server whose output nobody reads any more goes on.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "rules.yaml"), dailyRules)
	cmd := exec.Command(builtProgram(t), "serve", "--rules=rules.yaml", "--listen-http=127.0.0.1:0", "--listen-grpc=off", "--listen-resp=off", "--listen-admin=off")
	cmd.Dir, cmd.Env = dir, plainEnvironment()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	seen := newOutput()
	buf := make([]byte, 1<<12)
	for !strings.Contains(seen.String(), "door=http addr=") {
		n, err := stderr.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = seen.Write(buf[:n])
	}
	addr := seen.await(t, `door=http addr=(\S+)`)[1]
	_ = stderr.Close()
	_ = stdout.Close()
	writeRules(t, filepath.Join(dir, "rules.yaml"), strings.Replace(dailyRules, "1000/day", "500/day", 1))
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	// It has logged the reload, into nothing, before the new rules are seen or soon after.
	eventually(t, "the new rules are in force", func() bool {
		_, _, body := get(t, "http://"+addr+"/api/v1/limit?hits=0&key=ada")
		return strings.Contains(body, `"limit":500`)
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
