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
	*instance
	t  testing.TB
	db string // the database of the test: weir, or one of its own on a shared server
}

// instance is a server, whether it runs or not.
type instance struct {
	dir      string // its files; its data lie in the folder data
	port     int
	reserved []net.PacketConn
	owner    *account
	tls      bool
	disks    []string // that are mounted

	mu      sync.Mutex
	process *testproc.Process // the last one
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
	s := newServer(t)
	s.tls = tls
	if err := fill(s); err != nil {
		t.Fatal(err)
	}
	lines := append([]string{
		"listen_addresses = '127.0.0.1'",
		fmt.Sprint("port = ", s.port),
		fmt.Sprintf("unix_socket_directories = '%s'", s.dir),
		"fsync = off",
		"shared_buffers = 32MB",
		"log_min_messages = warning",
		// For replicas and copies of the data.
		"wal_level = replica", "max_wal_senders = 4",
	}, options...)
	s.write("postgresql.conf", strings.Join(lines, "\n")+"\n")
	if err := s.launch(); err != nil {
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
	bare := &Server{instance: &instance{port: s.port, owner: s.owner}, t: s.t, db: s.db}
	var err error
	if bare.dir, err = makeDir(bare.owner); err != nil {
		return err
	}
	defer os.RemoveAll(bare.dir)
	data, err := makeTemplate(binary(s.t, "initdb"), binary(s.t, "postgres"))
	if err != nil {
		return err
	}
	if err := bare.owner.copy(data, bare.data()); err != nil {
		return err
	}
	bare.write("postgresql.conf", fmt.Sprintf("listen_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = '%s'\n", s.port, bare.dir))
	if err := bare.launch(); err != nil {
		return fmt.Errorf("%w\n%s", err, endOf(filepath.Join(bare.dir, "log")))
	}
	bare.kill()
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

func newServer(t testing.TB) *Server {
	t.Helper()
	installed(t)
	s := &Server{instance: &instance{}, t: t, db: "weir"}
	var err error
	if s.owner, err = ownerOfServers(); err != nil {
		t.Skipf("there is no user for PostgreSQL, which does not run as root: %v", err)
	}
	if s.dir, err = makeDir(s.owner); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.cleanup)
	if s.port, s.reserved, err = testproc.Reserve(false); err != nil {
		t.Fatal(err)
	}
	return s
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
		t.Skipf("%s is too old; Weir needs PostgreSQL %d; on Debian 12 or newer: apt-get install postgresql", strings.TrimSpace(string(text)), oldest)
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

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// write writes a file into the folder of data.
func (s *Server) write(name, text string) {
	s.t.Helper()
	file := filepath.Join(s.data(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := s.owner.own(file); err != nil {
		s.t.Fatal(err)
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
	s.t.Helper()
	if err := s.Try(sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// Try is Exec that returns the error.
func (s *Server) Try(sql string, args ...any) error {
	return s.with(patience.Left(s.t), func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// Text returns the one value of a query of the superuser, as a text.
func (s *Server) Text(sql string, args ...any) (text string) {
	s.t.Helper()
	err := s.with(patience.Left(s.t), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "select ("+sql+")::text", args...).Scan(&text)
	})
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// Number is Text of a whole number.
func (s *Server) Number(sql string, args ...any) int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(s.Text(sql, args...), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// with calls f with a connection through the socket, which needs no TLS.
func (s *Server) with(timeout time.Duration, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%d user=postgres dbname=%s sslmode=disable", s.dir, s.port, s.db))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return f(ctx, c)
}

// launch starts a process and waits until it answers.
func (s *Server) launch() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(binary(s.t, "postgres"), "-D", s.data())
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	s.owner.run(cmd)
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
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-p.Ended:
			return fmt.Errorf("postgres %s does not start: %v", s.Addr(), p.Cmd.ProcessState)
		case <-deadline:
			return fmt.Errorf("postgres %s does not answer: %v", s.Addr(), last)
		case <-tick.C:
			last = s.with(time.Second, func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
			var refused *pgconn.PgError
			// It may have too few connections for one more.
			if last == nil || errors.As(last, &refused) && refused.Code != "57P03" {
				return nil
			}
		}
	}
}

func (s *instance) last() *testproc.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// PID returns the id of its first process, the last one if it does not run.
func (s *Server) PID() int { return s.last().Cmd.Process.Pid }

// Stop ends it in order (SIGINT): connections are closed, and data are written. Nothing happens if
// it does not run.
func (s *Server) Stop() {
	s.t.Helper()
	p := s.last()
	s.Resume()
	_ = p.Cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-p.Ended:
	case <-time.After(patience.Left(s.t)):
		s.kill()
		s.t.Fatalf("postgres %s does not end", s.Addr())
	}
}

// Kill ends all its processes at once (SIGKILL), as when the machine loses its current; but the
// system still writes its buffers to the disk. Nothing happens if it does not run.
func (s *Server) Kill() {
	s.t.Helper()
	s.kill()
}

func (s *instance) kill() {
	p := s.last()
	select {
	case <-p.Ended:
		return
	default:
	}
	pid := p.Cmd.Process.Pid
	_ = testproc.Pause(pid) // so that it starts no more of them
	all := children(pid)
	_ = p.Cmd.Process.Kill()
	<-p.Ended
	for _, each := range all {
		_ = signal(each, syscall.SIGKILL)
	}
	// The next one would find the memory that these share still in use.
	for _, each := range all {
		for signal(each, 0) == nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// Restart stops it, if it runs, and starts it again with the same port and data. It returns when
// the server answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	if err := s.launch(); err != nil {
		s.t.Fatal(err)
	}
}

// Pause stops all its processes (SIGSTOP): bytes arrive, but nothing answers, until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	if err := testproc.Pause(s.PID()); err != nil {
		s.t.Fatalf("pause postgres %s: %v", s.Addr(), err)
	}
	for _, each := range children(s.PID()) {
		_ = signal(each, stop)
	}
}

// Resume lets it go on after Pause.
func (s *Server) Resume() {
	s.t.Helper()
	for _, each := range children(s.PID()) {
		_ = signal(each, cont)
	}
	_ = testproc.Resume(s.last().Cmd.Process)
}

// CPU returns the processor time of its present processes, and of its processes that have ended.
func (s *Server) CPU() time.Duration {
	s.t.Helper()
	spent := spentOf(s.PID())
	for _, each := range children(s.PID()) {
		spent += spentOf(each)
	}
	return spent
}

// Log returns the server's log.
func (s *Server) Log() string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

func (s *Server) cleanup() {
	if s.last() != nil {
		s.kill()
	}
	for _, dir := range s.disks {
		if err := exec.Command("umount", "-l", dir).Run(); err != nil {
			s.t.Error(err)
		}
	}
	testproc.Release(s.reserved)
	if s.t.Failed() {
		s.t.Logf("postgres %s logged\n%s", s.Addr(), endOf(filepath.Join(s.dir, "log")))
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Error(err)
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
		s.kill()
		testproc.Release(s.reserved)
		_ = os.RemoveAll(s.dir)
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
	s := &Server{instance: shared.server, t: t, db: "postgres"}
	name := fmt.Sprint("weir", shared.count)
	s.Exec("create database " + name + " owner weir")
	s.db = name
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("postgres %s logged\n%s", s.Addr(), endOf(filepath.Join(s.dir, "log")))
		}
	})
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

// endOf returns the end of a log.
func endOf(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	const most = 8 << 10
	if len(text) > most {
		text = append([]byte("…"), text[len(text)-most:]...)
	}
	return string(text)
}
