package fallback_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

var eventually = patience.Until

// fleet is some nodes.
type fleet struct {
	t     testing.TB
	nodes []*process
}

// process is a node process from without.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	orders  *json.Encoder
	reports *json.Decoder
	log     bytes.Buffer // what it said; to be read when it has ended
}

// startFleet starts n nodes, which end with the test.
func startFleet(t testing.TB, n int) *fleet {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t}
	for range n {
		p := &process{cmd: exec.Command(self)}
		// A process of the race detector would rest for a second before it ends.
		p.cmd.Env = append(testproc.Environ(), nodeVariable+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
		p.cmd.Stderr = &p.log
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.orders, p.reports = json.NewEncoder(p.in), json.NewDecoder(out)
		t.Cleanup(func() { p.end(t) })
		f.nodes = append(f.nodes, p)
	}
	return f
}

// end lets a node end, as it does when its standard input does.
func (p *process) end(t testing.TB) {
	_ = p.in.Close()
	overdue := time.AfterFunc(patience.Left(t), func() {
		t.Error("a node does not end")
		_ = p.cmd.Process.Kill()
	})
	defer overdue.Stop()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("a node ended with %v", err)
	}
	if t.Failed() && p.log.Len() > 0 {
		text := p.log.Bytes()
		t.Logf("a node logged\n%s", text[max(0, len(text)-8<<10):])
	}
}

// all gives the nodes an order each, all at once, and returns their reports.
func (f *fleet) all(what func(i int) order) []report {
	f.t.Helper()
	reports, failed := make([]report, len(f.nodes)), make([]error, len(f.nodes))
	var wg sync.WaitGroup
	for i, p := range f.nodes {
		wg.Go(func() {
			// it tells what it is doing
			overdue := time.AfterFunc(patience.Left(f.t), func() { _ = p.cmd.Process.Signal(syscall.SIGQUIT) })
			defer overdue.Stop()
			if failed[i] = p.orders.Encode(what(i)); failed[i] == nil {
				failed[i] = p.reports.Decode(&reports[i])
			}
		})
	}
	wg.Wait()
	for i := range reports {
		if failed[i] != nil {
			f.t.Fatalf("node %d: %v", i, failed[i])
		}
		if reports[i].Error != "" {
			f.t.Fatalf("node %d: %s", i, reports[i].Error)
		}
	}
	return reports
}

// ask gives all nodes the same order.
func (f *fleet) ask(o order) []report {
	f.t.Helper()
	return f.all(func(int) order { return o })
}

// await waits until ok is true of each node, and returns the reports.
func (f *fleet) await(what string, ok func(i int, r *report) bool) (reports []report) {
	f.t.Helper()
	eventually(f.t, what, func() bool {
		reports = f.ask(order{})
		for i := range reports {
			if !ok(i, &reports[i]) {
				return false
			}
		}
		return true
	})
	return reports
}

// goOn waits until each node has made n more decisions in a phase.
func (f *fleet) goOn(at phase, n int64) {
	f.t.Helper()
	was := f.ask(order{})
	f.await(fmt.Sprintf("each node makes %d more decisions", n), func(i int, r *report) bool {
		return r.Decisions[at] >= was[i].Decisions[at]+n
	})
}
