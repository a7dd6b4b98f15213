//go:build unix

package leasecheck_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// process is a worker process from outside. Its methods are for one goroutine.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	in      io.WriteCloser
	orders  *json.Encoder
	answers chan answer
	log     bytes.Buffer // what it said; to be read when it has ended
	stopped bool         // SIGSTOP

	killed bool
	waited bool // it has ended

	mu    sync.Mutex
	wrong string // the first error in an answer
}

// launch starts a worker, which begins at once.
func launch(t testing.TB, s *setup) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self), answers: make(chan answer, 1000)}
	// The race detector would let each of them sleep for a second at its end.
	p.cmd.Env = append(testproc.Environ(), workerVariable+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
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
	p.orders = json.NewEncoder(p.in)
	go p.read(out)
	t.Cleanup(func() {
		if !p.waited { // the test was ended by an error, and nobody would wake a stopped worker
			p.kill()
		}
	})
	p.tell(s)
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.answers)
	for d := json.NewDecoder(out); ; {
		var a answer
		if d.Decode(&a) != nil {
			return
		}
		if a.Error != "" {
			p.mu.Lock()
			p.wrong = a.Error
			p.mu.Unlock()
		}
		p.answers <- a
	}
}

// tell gives an order, and does not wait for the answer.
func (p *process) tell(o any) {
	if err := p.orders.Encode(o); err != nil && !p.killed {
		p.t.Errorf("a worker takes no orders: %v", err)
	}
}

// await waits for the next answer.
func (p *process) await() answer {
	p.t.Helper()
	return patience.Receive(p.t, "an answer of a worker", p.answers)
}

// pause and resume are SIGSTOP and SIGCONT.
func (p *process) pause() {
	p.stopped = true
	p.signal(syscall.SIGSTOP)
}

func (p *process) resume() {
	p.stopped = false
	p.signal(syscall.SIGCONT)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("a worker gets no signal: %v", err)
	}
}

// kill ends it at once (SIGKILL).
func (p *process) kill() {
	p.killed = true
	p.signal(syscall.SIGKILL)
	p.wait()
}

// end lets it end in order, and returns its last answer.
func (p *process) end() (last answer) {
	p.t.Helper()
	p.tell(order{Stop: true})
	_ = p.in.Close()
	for open := true; open; {
		var a answer
		if a, open = <-p.answers; open {
			last = a
		}
	}
	p.wait()
	return last
}

func (p *process) wait() {
	for range p.answers { // until it has ended
	}
	p.waited = true
	if err := p.cmd.Wait(); err != nil && !p.killed {
		p.t.Errorf("a worker ended with %v: %s", err, p.log.String())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wrong != "" {
		p.t.Error("a worker: ", p.wrong)
	}
}

// settle waits for as many answers as a worker owes that begins.
func settle(list []*process) {
	for _, p := range list {
		p.await()
	}
}
