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
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
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
	testproc.Handle
	*instance
}

// show returns a server for a test, and shows its log if the test fails.
func (i *instance) show(t testing.TB) *Server {
	s := &Server{testproc.Handle{Server: i.server, T: t}, i}
	t.Cleanup(s.ShowLog)
	return s
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
	s := shared.server.show(t)
	s.Resume()
	if s.Ended() {
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
	i := newInstance(t, options)
	t.Cleanup(i.remove)
	s := i.show(t)
	s.launch(t)
	return s
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
	s.T.Helper()
	return s.KeyspaceOn("'replication_factor': 1")
}

// KeyspaceOn makes a keyspace with copies in data centres, such as "'dc1': 2, 'dc2': 1", and
// returns its name.
func (s *Server) KeyspaceOn(copies string) string {
	s.T.Helper()
	name := fmt.Sprintf("test_%x", rand.Uint64())
	s.Do("CREATE KEYSPACE " + name + " WITH replication = {'class': 'NetworkTopologyStrategy', " + copies + "}")
	return name
}

// Do executes a statement of CQL as User.
func (s *Server) Do(statement string) {
	s.T.Helper()
	session, err := s.session(patience.Left(s.T))
	if err == nil {
		defer session.Close()
		err = session.Query(statement).Exec()
	}
	if err != nil {
		s.T.Fatalf("Cassandra %s: %s: %v", s.Addr(), statement, err)
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

// Size returns the bytes that a keyspace takes on the disk, with the remains of its conditional
// writes. It restarts the server, so that all is there.
func (s *Server) Size(keyspace string) (bytes int64) {
	s.T.Helper()
	s.Stop()
	for _, pattern := range []string{keyspace + "/*/*", "system/paxos-*/*"} {
		files, err := filepath.Glob(filepath.Join(s.file("data"), pattern))
		if err != nil {
			s.T.Fatal(err)
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
