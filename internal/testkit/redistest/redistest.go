// Package redistest starts real Redis servers for tests and benchmarks: a single one (Start), one
// with TLS (StartTLS) or another clock (StartAhead), a master with replicas under Sentinel
// (StartSentinel) and a cluster (StartCluster). A proxy makes the network in front of them faulty
// (Proxy).
//
// Begin with Start (redistest.go). Servers listen on free ports of the loopback, keep their files
// in temporary folders, and end with the test, or with the process that runs it, however that ends.
// The log of a failed test's servers is shown with it. Where redis-server is not installed, is too
// old or does not start, the test is skipped.
//
// Methods that fail end the test, as t.Fatal does. Call them from the test's goroutine; in any
// other they end only that goroutine.
package redistest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// Server is a running redis-server.
type Server struct {
	t        testing.TB
	kind     kind
	dir      string
	port     int
	reserved []net.PacketConn
	password string

	mu      sync.Mutex
	process *testproc.Process // the last one
}

// kind holds the differences between kinds of servers.
type kind struct {
	config func(port int) []string // lines of redis.conf for a server at port
	args   []string                // to be given after redis.conf
	env    []string                // beside the environment of this process
	bus    bool                    // the port's cluster bus is needed too
	tls    *tls.Config             // for clients; nil means plain TCP
	needs  string                  // a feature that a redis-server may be built without
}

// Start starts a server that saves nothing on disk. Options are further lines of redis.conf, such
// as "maxmemory 1mb", "requirepass secret" or "appendonly yes".
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	return start(t, kind{config: func(port int) []string { return []string{fmt.Sprint("port ", port)} }}, options)
}

func start(t testing.TB, k kind, options []string) *Server {
	t.Helper()
	if err := installed(); err != nil {
		t.Skip(err)
	}
	s := &Server{t: t, kind: k, dir: t.TempDir(), password: password(options)}
	t.Cleanup(s.cleanup)
	for try := 1; ; try++ {
		var err error
		if s.port, s.reserved, err = testproc.Reserve(k.bus); err != nil {
			t.Fatal(err)
		}
		// A script that a busy machine leaves alone for 5 s would make the others' calls fail.
		lines := append([]string{"bind 127.0.0.1", `save ""`, "busy-reply-threshold 0"}, k.config(s.port)...)
		lines = append(lines, options...)
		if err := os.WriteFile(s.file("redis.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err = s.launch()
		if err == nil {
			return s
		}
		if k.needs != "" && strings.Contains(s.log(), "Bad directive") {
			t.Skipf("redis-server is built without %s", k.needs)
		}
		if try == 10 || !errors.Is(err, errPortTaken) {
			if err := startsBare(t); err != nil {
				t.Skipf("redis-server does not start here: %v", err)
			}
			t.Fatal(err)
		}
		testproc.Release(s.reserved)
	}
}

// oldest is the first version of Redis that has all that Weir needs: functions.
const oldest = 7

const install = "on Debian 12 or newer: apt-get install redis-server"

// installed returns why there is no redis-server to start; nil if there is one.
var installed = sync.OnceValue(func() error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("redis-server is not installed; " + install)
	}
	cmd := exec.Command(path, "--version")
	cmd.Env = environ()
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("redis-server does not start: %w: %.200s", err, text)
	}
	return checkVersion(string(text))
})

// checkVersion returns why a server that says this of its version is not started: "Redis server
// v=7.0.15 sha=…".
func checkVersion(text string) error {
	_, version, ok := strings.Cut(text, " v=")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); ok && err == nil && n < oldest {
		version, _, _ = strings.Cut(version, " ")
		return fmt.Errorf("redis-server %s is too old; Weir needs %d.0; %s", version, oldest, install)
	}
	return nil
}

// startsBare returns why a server does not start that has nothing but defaults and a port.
func startsBare(t testing.TB) error {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir()}
	t.Cleanup(s.cleanup)
	var err error
	if s.port, s.reserved, err = testproc.Reserve(false); err != nil {
		return err
	}
	lines := fmt.Sprintf("port %d\nbind 127.0.0.1\nsave \"\"\n", s.port)
	if err := os.WriteFile(s.file("redis.conf"), []byte(lines), 0o600); err != nil {
		return err
	}
	if err := s.launch(); err != nil && !errors.Is(err, errPortTaken) {
		return fmt.Errorf("%w\n%s", err, s.log())
	}
	return nil
}

// environ is the environment of a server. It ends if the locale of this machine is one that it
// does not find.
func environ() []string { return append(testproc.Environ(), "LC_ALL=C") }

// password finds the one that options demand of clients.
func password(options []string) string {
	for _, line := range options {
		if p, ok := strings.CutPrefix(line, "requirepass "); ok {
			return strings.TrimSpace(p)
		}
	}
	return ""
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

// Addr returns the host and port at which it listens.
func (s *Server) Addr() string { return testproc.Loopback(s.port) }

// URL returns its address as clients are given it: redis://127.0.0.1:6379, with the password if
// there is one, rediss with TLS.
func (s *Server) URL() string {
	scheme := "redis"
	if s.kind.tls != nil {
		scheme = "rediss"
	}
	return address(scheme, s.password, s.Addr(), "")
}

// address writes a URL.
func address(scheme, password, hosts, path string) string {
	u := url.URL{Scheme: scheme, Host: hosts, Path: path}
	if password != "" {
		u.User = url.UserPassword("", password)
	}
	return u.String()
}

// PID returns the id of its process, the last one if it does not run.
func (s *Server) PID() int { return s.last().Cmd.Process.Pid }

// Kill ends it at once (SIGKILL). Nothing happens if it does not run.
func (s *Server) Kill() {
	s.t.Helper()
	s.end(syscall.SIGKILL)
}

// Stop ends it in order (SIGTERM), so that an append-only file is whole. Nothing happens if it does
// not run.
func (s *Server) Stop() {
	s.t.Helper()
	s.end(syscall.SIGTERM)
}

// Restart stops it, if it runs, and starts it again at the same port, in the same folder and with
// the same options. It returns when the server answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	if err := s.launch(); err != nil {
		s.t.Fatal(err)
	}
}

// Pause stops the server (SIGSTOP): connections are accepted and bytes arrive, but nothing answers,
// until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	if err := testproc.Pause(s.PID()); err != nil {
		s.t.Fatalf("pause redis-server %s: %v", s.Addr(), err)
	}
}

// Resume lets it go on after Pause.
func (s *Server) Resume() {
	s.t.Helper()
	if err := testproc.Resume(s.last().Cmd.Process); err != nil {
		s.t.Fatalf("resume redis-server %s: %v", s.Addr(), err)
	}
}

// CPU returns the time that its process has spent on processors since it was started, in user and
// system mode together, to the nanosecond.
func (s *Server) CPU() time.Duration {
	s.t.Helper()
	d, err := testproc.CPU(s.PID())
	if err != nil {
		s.t.Fatalf("time of redis-server %s: %v", s.Addr(), err)
	}
	return d
}

// Info returns a field of INFO, such as evicted_keys.
func (s *Server) Info(field string) string {
	s.t.Helper()
	text, _ := s.Do("INFO", "everything").(string)
	value, ok := lookup(text, field)
	if !ok {
		s.t.Fatalf("INFO of redis-server %s has no field %s", s.Addr(), field)
	}
	return value
}

// lookup finds a field in a text of lines "field:value".
func lookup(text, field string) (value string, ok bool) {
	for line := range strings.Lines(text) {
		if value, ok = strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// UsedMemory returns the bytes that it has allocated for data and for itself (used_memory).
func (s *Server) UsedMemory() int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(s.Info("used_memory"), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *Server) last() *testproc.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// errPortTaken is why a server may be started once more at another port.
var errPortTaken = errors.New("its port is taken")

// launch starts a process and waits until it answers.
func (s *Server) launch() error {
	log, err := os.OpenFile(s.file("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("redis-server", append([]string{s.file("redis.conf")}, s.kind.args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = append(environ(), s.kind.env...)
	// A process group of its own, for children that it forks to save or copy its data.
	p, err := testproc.Launch(cmd)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	return s.await(p)
}

// await waits until p answers.
func (s *Server) await(p *testproc.Process) error {
	deadline := time.After(patience.Left(s.t))
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-p.Ended:
			if strings.Contains(s.log(), "already in use") {
				return fmt.Errorf("redis-server %s: %w", s.Addr(), errPortTaken)
			}
			return fmt.Errorf("redis-server %s does not start: %v", s.Addr(), p.Cmd.ProcessState)
		case <-deadline:
			return fmt.Errorf("redis-server %s does not answer: %v", s.Addr(), last)
		case <-tick.C:
			_, last = s.try(time.Second, "PING")
			var refused Error
			if last == nil || errors.As(last, &refused) && !strings.HasPrefix(string(refused), "LOADING") {
				return nil // it answers, even if it asks for a password first
			}
		}
	}
}

// end ends the process with a signal and waits until it has ended.
func (s *Server) end(by syscall.Signal) {
	s.t.Helper()
	p := s.last()
	_ = p.Cmd.Process.Signal(by)
	// A paused server sees no SIGTERM until it is resumed.
	_ = testproc.Resume(p.Cmd.Process)
	select {
	case <-p.Ended:
	case <-time.After(patience.Left(s.t)):
		_ = p.Cmd.Process.Kill()
		<-p.Ended
		s.t.Fatalf("redis-server %s does not end after %v", s.Addr(), by)
	}
}

func (s *Server) cleanup() {
	if p := s.last(); p != nil {
		_ = p.Cmd.Process.Kill()
		<-p.Ended
		testproc.KillGroup(p.Cmd.Process.Pid)
	}
	testproc.Release(s.reserved)
	if s.t.Failed() {
		s.t.Logf("redis-server %s logged\n%s", s.Addr(), s.log())
	}
}

// log returns the end of the server's log.
func (s *Server) log() string {
	text, err := os.ReadFile(s.file("log"))
	if err != nil {
		return err.Error()
	}
	const most = 8 << 10
	if len(text) > most {
		text = append([]byte("…"), text[len(text)-most:]...)
	}
	return string(text)
}

// Clock reads the monotonic clock, which is the same for all processes of this machine.
func Clock() time.Duration { return testproc.Clock() }

var eventually = patience.Until
