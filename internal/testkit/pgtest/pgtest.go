// Package pgtest starts real PostgreSQL servers for tests and benchmarks: a single one (Start), one
// with TLS (StartTLS), a replica of one that can be promoted (Server.Replica), and pgbouncer before
// one (Server.Bouncer). redistest.Proxy makes the network in front of them faulty.
//
// Begin with Start, or with Shared for a test that needs no more than a database. Servers listen on
// free ports of the loopback, keep their files in temporary folders, and end with the test, or with
// the process that runs it, however that ends. The log of a failed test's servers is shown with it.
// Where PostgreSQL is not installed, is too old or does not start, the test is skipped.
//
// Variables that begin with PG are removed from the environment of the process that runs the tests:
// the server and all its clients read them.
//
// A server has the database weir, which belongs to the role weir; that is no superuser. Clients on
// this machine need no password, except for the role guarded, whose password is Password.
//
// Methods that fail end the test, as t.Fatal does. Call them from the test's goroutine.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// Password is the password of the role guarded.
const Password = "open: sesame/é"

// Server is a PostgreSQL server, as a test sees it.
type Server struct {
	testproc.Handle
	*instance
	db string // the database of the test: weir, or one of its own on a shared server
}

// instance is a server, whether it runs or not. Its data lie in the folder data of its Dir.
type instance struct {
	server   *testproc.Server
	port     int
	reserved []net.PacketConn
	owner    *account
	tls      bool
	disks    []string // that are mounted
}

// Start starts a server. Options are further lines of postgresql.conf, such as "max_connections =
// 10". Its writes may be lost when the machine fails, but not when it is killed; with "fsync = on"
// it is as durable as can be.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	return start(t, false, options, func(s *Server) error { return s.owner.copy(template(t), s.data()) })
}

func init() {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PG") {
			_ = os.Unsetenv(name)
		}
	}
}

// start starts a server on the data that fill puts into the folder of data.
func start(t testing.TB, tls bool, options []string, fill func(s *Server) error) *Server {
	t.Helper()
	s := prepare(t)
	s.tls = tls
	if err := fill(s); err != nil {
		t.Fatal(err)
	}
	lines := append([]string{
		"listen_addresses = '127.0.0.1'",
		fmt.Sprint("port = ", s.port),
		fmt.Sprintf("unix_socket_directories = '%s'", s.Dir),
		"fsync = off",
		"shared_buffers = 32MB",
		"log_min_messages = warning",
		// For replicas and copies of the data.
		"wal_level = replica", "max_wal_senders = 4",
	}, options...)
	s.write("postgresql.conf", strings.Join(lines, "\n")+"\n")
	if err := s.Launch(t); err != nil {
		if of := s.startsBare(); of != nil {
			t.Skipf("PostgreSQL does not start here: %v", of)
		}
		t.Fatal(err)
	}
	return s
}

// startsBare returns why the server does not start on new data with nothing but defaults, at the
// same port.
func (s *Server) startsBare() error {
	bare, err := newServer(s.T, s.owner, s.port)
	if err != nil {
		return err
	}
	defer os.RemoveAll(bare.Dir)
	data, err := makeTemplate(binary(s.T, "initdb"), binary(s.T, "postgres"))
	if err != nil {
		return err
	}
	if err := bare.owner.copy(data, bare.data()); err != nil {
		return err
	}
	bare.write("postgresql.conf",
		fmt.Sprintf("listen_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = '%s'\n", s.port, bare.Dir))
	if err := bare.Launch(s.T); err != nil {
		return fmt.Errorf("%w\n%s", err, bare.Tail())
	}
	bare.Kill()
	return nil
}

// makeDir makes a folder for the files of a server; t.TempDir is closed to other users. The path of
// a socket in it has about 100 bytes at most.
func makeDir(owner *account) (string, error) {
	parent := ""
	if len(os.TempDir()) > 60 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "pgtest")
	if err != nil {
		return "", err
	}
	return dir, owner.own(dir)
}

// prepare returns a server without data, at a port of its own.
func prepare(t testing.TB) *Server {
	t.Helper()
	installed(t)
	owner, err := ownerOfServers()
	if err != nil {
		t.Skipf("there is no user for PostgreSQL, which does not run as root: %v", err)
	}
	port, reserved, err := testproc.Reserve(false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(t, owner, port)
	if err != nil {
		testproc.Release(reserved)
		t.Fatal(err)
	}
	s.reserved = reserved
	t.Cleanup(s.cleanup)
	return s
}

// newServer returns a server without data.
func newServer(t testing.TB, owner *account, port int) (*Server, error) {
	dir, err := makeDir(owner)
	if err != nil {
		return nil, err
	}
	s := &Server{instance: &instance{port: port, owner: owner}, db: "weir"}
	s.server = &testproc.Server{
		Name: "postgres " + s.Addr(), Dir: dir, InOrder: syscall.SIGINT, Family: true,
		Command: func() *exec.Cmd {
			cmd := exec.Command(binary(t, "postgres"), "-D", s.data())
			cmd.Env = append(os.Environ(), "LC_ALL=C")
			owner.run(cmd)
			return cmd
		},
		Answers: s.answers,
	}
	s.Handle = testproc.Handle{Server: s.server, T: t}
	return s, nil
}

// binary returns the path of a program of PostgreSQL's server. Debian keeps them where nobody's
// PATH leads.
func binary(t testing.TB, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	sort.Slice(found, func(i, j int) bool { return version(found[i]) < version(found[j]) })
	if len(found) > 0 {
		return found[len(found)-1]
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(name + " is not installed; on Debian: apt-get install postgresql")
	}
	return path
}

// oldest is the first version of PostgreSQL that Weir works with.
const oldest = 15

// installed skips the test if the server is not installed, does not run, or is too old.
func installed(t testing.TB) {
	t.Helper()
	path := binary(t, "postgres")
	text, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil {
		t.Skipf("%s does not run: %v: %.200s", path, err, text)
	}
	if n := majorOf(string(text)); n > 0 && n < oldest {
		t.Skipf("%s is too old; Weir needs PostgreSQL %d; on Debian 12 or newer: apt-get install postgresql",
			strings.TrimSpace(string(text)), oldest)
	}
}

// majorOf returns the major version in a server's version string, such as "postgres
// (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"; 0 if it finds none.
func majorOf(text string) int {
	_, version, _ := strings.Cut(text, "(PostgreSQL) ")
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(version)
	}
	n, _ := strconv.Atoi(version[:end])
	return n
}

func version(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// write writes a file into the folder of data.
func (s *Server) write(name, text string) {
	s.T.Helper()
	file := filepath.Join(s.data(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.T.Fatal(err)
	}
	if err := s.owner.own(file); err != nil {
		s.T.Fatal(err)
	}
}

// Addr returns the host and port at which it listens.
func (s *Server) Addr() string { return testproc.Loopback(s.port) }

// URL returns the address of the database, for the role weir.
func (s *Server) URL() string { return s.URLOf("weir") }

// URLOf returns the address of the database for another role: postgres, the superuser, or
// guarded, without its password. With TLS it lacks the sslrootcert.
func (s *Server) URLOf(role string) string {
	mode := "disable"
	if s.tls {
		mode = "verify-full"
	}
	return "postgres://" + role + "@" + s.Addr() + "/" + s.db + "?sslmode=" + mode
}

// Exec executes SQL as the superuser, in the database.
func (s *Server) Exec(sql string, args ...any) {
	s.T.Helper()
	if err := s.Try(sql, args...); err != nil {
		s.T.Fatalf("%s: %v", sql, err)
	}
}

// Try is Exec that returns the error.
func (s *Server) Try(sql string, args ...any) error {
	return s.with(patience.Left(s.T), func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// Text returns the one value of a query of the superuser, as a text.
func (s *Server) Text(sql string, args ...any) (text string) {
	s.T.Helper()
	err := s.with(patience.Left(s.T), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "select ("+sql+")::text", args...).Scan(&text)
	})
	if err != nil {
		s.T.Fatalf("%s: %v", sql, err)
	}
	return text
}

// Number is Text of a whole number.
func (s *Server) Number(sql string, args ...any) int64 {
	s.T.Helper()
	n, err := strconv.ParseInt(s.Text(sql, args...), 10, 64)
	if err != nil {
		s.T.Fatal(err)
	}
	return n
}

// with calls f with a connection through the socket, which needs no TLS.
func (s *Server) with(timeout time.Duration, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := pgx.Connect(ctx,
		fmt.Sprintf("host=%s port=%d user=postgres dbname=%s sslmode=disable", s.Dir, s.port, s.db))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return f(ctx, c)
}

// answers asks the server. One that has too few connections for one more answers, too.
func (s *Server) answers() error {
	err := s.with(time.Second, func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code != "57P03" {
		return nil
	}
	return err
}

// Log returns the server's log.
func (s *Server) Log() string {
	s.T.Helper()
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		s.T.Fatal(err)
	}
	return string(text)
}

func (s *Server) cleanup() {
	s.Kill()
	for _, dir := range s.disks {
		if err := exec.Command("umount", "-l", dir).Run(); err != nil {
			s.T.Error(err)
		}
	}
	testproc.Release(s.reserved)
	s.ShowLog()
	if err := os.RemoveAll(s.Dir); err != nil {
		s.T.Error(err)
	}
}

// shared is the server that the tests of a package share.
var shared struct {
	mu       sync.Mutex
	prepared bool // Main has been called
	server   *instance
	count    int // of databases
}

// Main runs the tests of a package, ends the server that they share, and returns the code to exit
// with. TestMain calls it.
func Main(m interface{ Run() int }) int {
	shared.prepared = true
	code := m.Run()
	if s := shared.server; s != nil {
		s.server.Kill()
		testproc.Release(s.reserved)
		_ = os.RemoveAll(s.server.Dir)
	}
	return code
}

// Shared returns a server that the tests of a package share, with a new database for this one. It
// lets 400 clients in. A test that stops, pauses or bounds the server, changes a role, or looks at
// the activity of all databases needs one of its own.
func Shared(t testing.TB) *Server {
	t.Helper()
	if !shared.prepared {
		t.Fatal("TestMain must call pgtest.Main")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		keeper := &keeper{TB: t}
		s := Start(keeper, "max_connections = 400")
		keeper.kept = true
		shared.server = s.instance
	}
	shared.count++
	s := &Server{Handle: testproc.Handle{Server: shared.server.server, T: t}, instance: shared.server, db: "postgres"}
	name := fmt.Sprint("weir", shared.count)
	s.Exec("create database " + name + " owner weir")
	s.db = name
	t.Cleanup(s.ShowLog)
	return s
}

// keeper is the first test that needs the shared server, which outlives it.
type keeper struct {
	testing.TB
	kept bool
}

// Deadline is for package patience.
func (k *keeper) Deadline() (time.Time, bool) {
	if of, ok := k.TB.(interface{ Deadline() (time.Time, bool) }); ok {
		return of.Deadline()
	}
	return time.Time{}, false
}

func (k *keeper) Cleanup(f func()) {
	k.TB.Cleanup(func() {
		if !k.kept {
			f()
		}
	})
}
