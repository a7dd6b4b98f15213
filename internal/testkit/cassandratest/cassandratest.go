// Package cassandratest starts real Apache Cassandra servers for tests and benchmarks: one that all
// tests of a package share (Shared), or a test's own (Start).
//
// Begin with Shared, and call Main from TestMain. A server takes about ten seconds to start, and
// 600 MB of memory. It listens on free ports of the loopback, keeps its files in a temporary
// folder, and ends with the process that runs the tests, however that ends. It asks for a password,
// and speaks TLS to clients that begin with it. Its log is shown with a test that failed. The test
// is skipped where there is no Java 17, where the parts from Maven are missing, or where the server
// does not start. A quick run (effort.Long) skips every test, but not benchmarks and clusters.
//
// Methods that fail end the test, as t.Fatal does. Call them from the test's goroutine.
package cassandratest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// User and Password belong to the role that may do all.
const (
	User     = "cassandra"
	Password = "cassandra"
)

// Server is a Cassandra server, as a test sees it.
type Server struct {
	*instance
	t testing.TB
}

var shared struct {
	mu       sync.Mutex
	prepared bool // Main has been called
	server   *instance
	reason   string // why there is none; "" if there is one, or none was needed yet
}

// Main runs the tests of a package, and then ends the server that they share. TestMain calls it.
func Main(m interface{ Run() int }) {
	shared.prepared = true
	code := m.Run()
	if s := shared.server; s != nil {
		s.remove()
	}
	os.Exit(code)
}

// Shared returns the server of this package's tests, and starts it for the first of them. A test
// finds it running, whatever the one before has done to it. Tests that end or pause it must not run
// in parallel with others. It is compiled for a quick start, which makes it slower than others are.
func Shared(t testing.TB) *Server {
	t.Helper()
	effort.Long(t, "starts Cassandra, which takes ten seconds")
	if !shared.prepared {
		t.Fatal("TestMain must call cassandratest.Main")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.reason != "" {
		t.Skip(shared.reason)
	}
	if shared.server == nil {
		i := newInstance(t, nil)
		i.quick = true
		shared.server, shared.reason = i, "Cassandra does not start here, as the first test of the package says"
		i.launch(t)
		shared.reason = ""
	}
	s := &Server{instance: shared.server, t: t}
	s.tell()
	if s.paused {
		s.Resume()
	}
	if s.ended() {
		s.launch(t)
	}
	return s
}

// Start starts a server for one test or benchmark. Options are further lines of cassandra.yaml,
// such as "paxos_variant: v2".
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	if _, benchmark := t.(*testing.B); !benchmark {
		effort.Long(t, "starts Cassandra, which takes ten seconds")
	}
	s := &Server{instance: newInstance(t, options), t: t}
	t.Cleanup(s.remove)
	s.tell()
	s.launch(t)
	return s
}

// tell shows the server's log with a test that fails.
func (s *Server) tell() {
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("Cassandra %s logged\n%s", s.Addr(), s.log())
		}
	})
}

// Addr returns the host and port at which it listens for clients.
func (s *Server) Addr() string { return s.addr() }

// URL returns the address of a keyspace, for User, as clients are given it:
// cassandra://cassandra:cassandra@127.0.0.1:9042/name.
func (s *Server) URL(keyspace string) string {
	return urlOf(s.Addr(), keyspace)
}

func urlOf(hosts, keyspace string) string {
	u := url.URL{Scheme: "cassandra", User: url.UserPassword(User, Password), Host: hosts, Path: keyspace}
	return u.String()
}

// CA returns the path of the certificate of the authority that has signed the server's.
func (s *Server) CA() string { return s.file("ca.pem") }

// Keyspace makes a keyspace for this test, and returns its name.
func (s *Server) Keyspace() string {
	s.t.Helper()
	return s.KeyspaceOn("'replication_factor': 1")
}

// KeyspaceOn makes a keyspace with copies in data centres, such as "'dc1': 2, 'dc2': 1", and
// returns its name.
func (s *Server) KeyspaceOn(copies string) string {
	s.t.Helper()
	name := fmt.Sprintf("test_%x", rand.Uint64())
	s.Do("CREATE KEYSPACE " + name + " WITH replication = {'class': 'NetworkTopologyStrategy', " + copies + "}")
	return name
}

// Do executes a statement of CQL as User.
func (s *Server) Do(statement string) {
	s.t.Helper()
	session, err := s.session(patience.Left(s.t))
	if err == nil {
		defer session.Close()
		err = session.Query(statement).Exec()
	}
	if err != nil {
		s.t.Fatalf("Cassandra %s: %s: %v", s.Addr(), statement, err)
	}
}

// session connects with this server alone.
func (i *instance) session(timeout time.Duration) (*gocql.Session, error) {
	c := gocql.NewCluster(i.host)
	c.Port, c.NumConns, c.Timeout, c.ConnectTimeout = i.port, 1, timeout, timeout
	c.Authenticator = gocql.PasswordAuthenticator{Username: User, Password: Password}
	c.DisableInitialHostLookup = true
	c.Metadata.CacheMode = gocql.Disabled
	return c.CreateSession()
}

// PID returns the id of its process, the last one if it does not run.
func (s *Server) PID() int { return s.process.Cmd.Process.Pid }

// Kill ends it at once (SIGKILL). Writes that it has acknowledged are there after Restart. Nothing
// happens if it does not run.
func (s *Server) Kill() {
	s.t.Helper()
	s.end(syscall.SIGKILL)
}

// Stop ends it in order (SIGTERM). Nothing happens if it does not run.
func (s *Server) Stop() {
	s.t.Helper()
	s.end(syscall.SIGTERM)
}

func (s *Server) end(by syscall.Signal) {
	s.t.Helper()
	p := s.process
	_ = p.Cmd.Process.Signal(by)
	// A paused server sees no SIGTERM until it is resumed.
	_ = testproc.Resume(p.Cmd.Process)
	s.paused = false
	select {
	case <-p.Ended:
	case <-time.After(patience.Left(s.t)):
		s.t.Fatalf("Cassandra %s does not end after %v", s.Addr(), by)
	}
}

// Restart stops it, if it runs, and starts it again at the same ports with the same data. It
// returns when the server answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.launch(s.t)
}

// Pause stops the server (SIGSTOP): connections are accepted and bytes arrive, but nothing answers,
// until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	if err := testproc.Pause(s.PID()); err != nil {
		s.t.Fatalf("pause Cassandra %s: %v", s.Addr(), err)
	}
	s.paused = true
}

// Resume lets it go on after Pause.
func (s *Server) Resume() {
	s.t.Helper()
	if err := testproc.Resume(s.process.Cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Fatalf("resume Cassandra %s: %v", s.Addr(), err)
	}
	s.paused = false
}

// Size returns the bytes that a keyspace takes on the disk, with the remains of its conditional
// writes. It restarts the server, so that all is there.
func (s *Server) Size(keyspace string) (bytes int64) {
	s.t.Helper()
	s.Stop()
	for _, pattern := range []string{keyspace + "/*/*", "system/paxos-*/*"} {
		files, err := filepath.Glob(filepath.Join(s.file("data"), pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, name := range files {
			if f, err := os.Stat(name); err == nil && f.Mode().IsRegular() {
				bytes += f.Size()
			}
		}
	}
	s.Restart()
	return bytes
}

// CPU returns the time that its process has spent on processors since it was started.
func (s *Server) CPU() time.Duration {
	s.t.Helper()
	d, err := testproc.CPU(s.PID())
	if err != nil {
		s.t.Fatalf("time of Cassandra %s: %v", s.Addr(), err)
	}
	return d
}
