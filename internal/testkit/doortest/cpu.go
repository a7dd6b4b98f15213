//go:build unix

package doortest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// The processor time that a server spends on one decision is steadier than how many it makes in a
// second, and it can only be separated from its client's in a process of its own. So a benchmark
// starts the test program again as a server (CPUServers), and asks it between rounds how much it
// has used.

// CPUServers are the servers that the test program can be, by name. Each serves l until the process
// ends.
var CPUServers = map[string]func(l net.Listener) error{}

const cpuEnv = "WEIR_TEST_SERVE"

// CPUMain is for TestMain of a package with such servers, with its testing.M or a Holding.
func CPUMain(m interface{ Run() int }) {
	if name := os.Getenv(cpuEnv); name != "" {
		if err := cpuServe(name, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// cpuServe serves on a free port, whose address it prints; then it prints the time used so far in
// µs for each line that comes in, until there are no more.
func cpuServe(name string, in io.Reader, out io.Writer) error {
	serve, ok := CPUServers[name]
	if !ok {
		return fmt.Errorf("no server %q", name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- serve(l) }()
	fmt.Fprintln(out, l.Addr())
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var used syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
			return err
		}
		µs := func(t syscall.Timeval) int64 { return int64(t.Sec)*1_000_000 + int64(t.Usec) }
		select {
		case err := <-failed:
			return fmt.Errorf("%s: %w", name, err)
		default:
			fmt.Fprintln(out, µs(used.Utime)+µs(used.Stime))
		}
	}
	return nil
}

// CPUServer is such a process.
type CPUServer struct {
	name  string
	Addr  string
	ask   io.Writer
	lines *bufio.Scanner
}

func StartCPUServer(tb testing.TB, name string) *CPUServer {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), cpuEnv+"="+name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			tb.Errorf("%s: %v", name, err)
		}
	})
	c := &CPUServer{name: name, ask: in, lines: bufio.NewScanner(out)}
	c.Addr = c.line(tb)
	return c
}

func (c *CPUServer) line(tb testing.TB) string {
	tb.Helper()
	if !c.lines.Scan() {
		tb.Fatalf("%s ended", c.name)
	}
	return c.lines.Text()
}

// Used is the processor time, user and system, that the server has used so far.
func (c *CPUServer) Used(tb testing.TB) time.Duration {
	tb.Helper()
	if _, err := fmt.Fprintln(c.ask); err != nil {
		tb.Fatal(err)
	}
	µs, err := strconv.ParseInt(c.line(tb), 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return time.Duration(µs) * time.Microsecond
}

// CompareCPU loads the named servers in turn, b.N rounds, and reports the median time that each
// spent on a request, and the first server's time divided by each other's. connect returns a
// function that does one round, and returns how many requests it made.
func CompareCPU(b *testing.B, connect func(addr string) (round func() (requests int)), names ...string) {
	type run struct {
		server *CPUServer
		round  func() int
		perOp  []float64 // µs
	}
	runs := make([]run, len(names))
	for i, name := range names {
		server := StartCPUServer(b, name)
		runs[i] = run{server: server, round: connect(server.Addr)}
		runs[i].round() // to warm up
	}
	b.ResetTimer()
	for range b.N {
		for i := range runs {
			r := &runs[i]
			before := r.server.Used(b)
			n := r.round()
			r.perOp = append(r.perOp, float64((r.server.Used(b)-before).Microseconds())/float64(n))
		}
	}
	b.StopTimer()
	median := func(r run) float64 {
		slices.Sort(r.perOp)
		return r.perOp[len(r.perOp)/2]
	}
	for i, r := range runs {
		b.ReportMetric(median(r), r.server.name+"-µs/request")
		if i > 0 {
			b.ReportMetric(median(runs[0])/median(r), names[0]+"-by-"+names[i])
		}
	}
	b.ReportMetric(0, "ns/op") // of rounds: it means nothing
}
