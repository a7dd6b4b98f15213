package testproc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// Server is a server that tests start, end, and start again on the same data. Set its fields, then
// call Launch. A test calls it through a Handle.
type Server struct {
	Name string // what failures call it, such as "redis-server 127.0.0.1:17000"
	Dir  string // of its files; each run starts in it
	// Command returns the command of a run. Its output goes to a log in Dir.
	Command func() *exec.Cmd
	// Answers asks the server, for a second or so, whether it takes requests.
	Answers func() error
	// InOrder is the signal by which it ends in order; 0 means SIGTERM.
	InOrder syscall.Signal
	// Family says that the children of its process belong to it, though no signal reaches all.
	Family bool

	mu      sync.Mutex
	process *Process // the last one
}

// Launch starts a process and waits until it answers.
func (s *Server) Launch(t testing.TB) error {
	if err := s.Begin(); err != nil {
		return err
	}
	return s.Await(t)
}

// Begin starts a process.
func (s *Server) Begin() error {
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.Command()
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, log, log
	p, err := Launch(cmd)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	return nil
}

// Await waits until the process answers.
func (s *Server) Await(t testing.TB) error {
	p := s.last()
	late := time.NewTimer(patience.Left(t))
	defer late.Stop()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := s.Answers()
		select {
		case <-p.Ended:
			return fmt.Errorf("%s does not start: %v", s.Name, p.Cmd.ProcessState)
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.Ended:
		case <-late.C:
			return fmt.Errorf("%s does not answer: %w", s.Name, err)
		case <-time.After(pause):
		}
	}
}

func (s *Server) last() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// PID returns the id of its process, the last one if it does not run.
func (s *Server) PID() int { return s.last().Cmd.Process.Pid }

// Ended reports whether it does not run.
func (s *Server) Ended() bool {
	select {
	case <-s.last().Ended:
		return true
	default:
		return false
	}
}

// Kill ends it at once (SIGKILL), as when the machine loses its current; but the system still
// writes its buffers to the disk. Nothing happens if it does not run.
func (s *Server) Kill() {
	p := s.last()
	if p == nil {
		return
	}
	var all []int
	if s.Family && !s.Ended() {
		_ = Pause(p.Cmd.Process.Pid) // so that it starts no more of them
		all = children(p.Cmd.Process.Pid)
	}
	_ = p.Cmd.Process.Kill()
	<-p.Ended
	for _, each := range all {
		_ = signal(each, syscall.SIGKILL)
	}
	// The next run would find the memory that these share still in use.
	for _, each := range all {
		for Runs(each) && !defunct(each) {
			time.Sleep(time.Millisecond)
		}
	}
}

// Remove kills it with all that it has started in its process group.
func (s *Server) Remove() {
	if p := s.last(); p != nil {
		s.Kill()
		KillGroup(p.Cmd.Process.Pid)
	}
}

// LogFile returns the path of its log.
func (s *Server) LogFile() string { return filepath.Join(s.Dir, "log") }

// Tail returns the end of its log.
func (s *Server) Tail() string {
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	const most = 16 << 10
	if len(text) > most {
		text = append([]byte("…"), text[len(text)-most:]...)
	}
	return string(text)
}

// Handle is a server in the hands of a test. Methods that fail end the test.
type Handle struct {
	*Server
	T testing.TB
}

// ShowLog shows the log with a test that has failed. It is for the test's cleanup.
func (h *Handle) ShowLog() {
	if h.T.Failed() {
		h.T.Logf("%s logged\n%s", h.Name, h.Tail())
	}
}

// Stop ends the server in order: it closes connections and writes its data. Nothing happens if it
// does not run.
func (h *Handle) Stop() {
	h.T.Helper()
	if h.Ended() {
		return
	}
	p, by := h.last(), h.InOrder
	if by == 0 {
		by = syscall.SIGTERM
	}
	_ = p.Cmd.Process.Signal(by)
	h.Resume() // one that is paused does not see the signal before
	select {
	case <-p.Ended:
	case <-time.After(patience.Left(h.T)):
		h.Kill()
		h.T.Fatalf("%s does not end after %v", h.Name, by)
	}
}

// Wait waits until the server has ended by itself, and returns how; nil means with status 0.
func (h *Handle) Wait() error {
	h.T.Helper()
	p := h.last()
	patience.Receive(h.T, "the end of "+h.Name, p.Ended)
	return p.Err
}

// Restart stops the server, if it runs, and starts it again with the same address, options and
// data. It returns when the server answers.
func (h *Handle) Restart() {
	h.T.Helper()
	h.Stop()
	if err := h.Launch(h.T); err != nil {
		h.T.Fatal(err)
	}
}

// Pause stops its processes (SIGSTOP): connections are accepted and bytes arrive, but nothing
// answers, until Resume.
func (h *Handle) Pause() {
	h.T.Helper()
	if err := Pause(h.PID()); err != nil {
		h.T.Fatalf("pause %s: %v", h.Name, err)
	}
	for _, each := range h.Children() {
		_ = signal(each, stop)
	}
}

// Resume lets it go on after Pause. Nothing happens if it does not run.
func (h *Handle) Resume() {
	h.T.Helper()
	if h.Ended() {
		return
	}
	for _, each := range h.Children() {
		_ = signal(each, cont)
	}
	if err := Resume(h.last().Cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		h.T.Fatalf("resume %s: %v", h.Name, err)
	}
}

// CPU returns the time that it has spent on processors since it was started, in user and system
// mode together.
func (h *Handle) CPU() time.Duration {
	h.T.Helper()
	spent, err := CPU(h.PID())
	if err != nil {
		h.T.Fatalf("time of %s: %v", h.Name, err)
	}
	if h.Family {
		spent += spentByEnded(h.PID())
	}
	for _, each := range h.Children() {
		if of, err := CPU(each); err == nil {
			spent += of + spentByEnded(each)
		}
	}
	return spent
}

// Runs reports whether there is a process.
func Runs(pid int) bool { return signal(pid, 0) == nil }

// Children returns the processes of its family beside the first.
func (s *Server) Children() []int {
	if !s.Family {
		return nil
	}
	return children(s.PID())
}
