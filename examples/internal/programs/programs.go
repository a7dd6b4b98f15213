// Package programs starts programs that examples show together on one machine, and stops them.
package programs

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// most is how many of a program's lines are kept.
const most = 200

// Process is a program that was started, and its last lines.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	lines []string
}

// List are all that were started. The zero value is an empty one.
type List struct {
	list []*Process
}

// Start starts a program in a folder; name is what messages call it. It lives until Stop is called.
func (p *List) Start(name, dir, program string, args ...string) (*Process, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		return nil, err
	}
	s := &Process{name: name, cmd: cmd, done: make(chan struct{})}
	p.list = append(p.list, s)
	go func() {
		defer close(s.done)
		in := bufio.NewScanner(reader)
		for in.Scan() {
			s.mu.Lock()
			s.lines = append(s.lines[max(0, len(s.lines)-most):], in.Text())
			s.mu.Unlock()
		}
		_ = cmd.Wait()
	}()
	return s, nil
}

// Stop ends the programs that were started, the last one first: by its own process id, in peace,
// and by force if it is still there after five seconds.
func (p *List) Stop() {
	for _, s := range slices.Backward(p.list) {
		if s.cmd.Process.Signal(syscall.SIGTERM) != nil {
			_ = s.cmd.Process.Kill()
		}
	}
	force := time.After(5 * time.Second)
	for _, s := range p.list {
		select {
		case <-s.done:
		case <-force:
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	}
}

// Said waits for a line of the program that matches a pattern, and returns its first group.
func (s *Process) Said(ctx context.Context, pattern string) (string, error) {
	want := regexp.MustCompile(pattern)
	for {
		s.mu.Lock()
		lines := slices.Clone(s.lines)
		s.mu.Unlock()
		for _, line := range lines {
			if found := want.FindStringSubmatch(line); found != nil {
				return found[1], nil
			}
		}
		select {
		case <-s.done:
			return "", fmt.Errorf("%s has ended:\n%s", s.name, strings.Join(lines[max(0, len(lines)-10):], "\n"))
		case <-ctx.Done():
			return "", fmt.Errorf("%s has not started in time:\n%s", s.name,
				strings.Join(lines[max(0, len(lines)-10):], "\n"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// FreeAddress returns an address of the loopback at which nobody listens now.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Signal sends a signal to the program.
func (s *Process) Signal(sig os.Signal) error { return s.cmd.Process.Signal(sig) }

// Done is closed when the program has ended.
func (s *Process) Done() <-chan struct{} { return s.done }

// Built returns the path of a program: what path names, or, if path is empty, a build of one of
// this module's packages in a folder.
func Built(ctx context.Context, path, pkg, dir string) (string, error) {
	if path != "" {
		found, err := exec.LookPath(path)
		if err != nil {
			return "", err
		}
		return filepath.Abs(found)
	}
	built := filepath.Join(dir, filepath.Base(pkg))
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", built, pkg).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return built, nil
}
