package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// Bouncer is a pgbouncer before a Server.
type Bouncer struct {
	t        testing.TB
	db       string
	dir      string
	port     int
	reserved []net.PacketConn
	process  *testproc.Process
}

// Bouncer starts a pgbouncer before the server. mode is its pool_mode: "session" or "transaction".
// Options are further lines of its section [pgbouncer].
func (s *Server) Bouncer(mode string, options ...string) *Bouncer {
	s.t.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		if _, err := os.Stat("/usr/sbin/pgbouncer"); err != nil {
			s.t.Skip("pgbouncer is not installed; on Debian: apt-get install pgbouncer")
		}
		path = "/usr/sbin/pgbouncer"
	}
	b := &Bouncer{t: s.t, db: s.db}
	if b.dir, err = makeDir(s.owner); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(b.cleanup)
	if b.port, b.reserved, err = testproc.Reserve(false); err != nil {
		s.t.Fatal(err)
	}
	lines := append([]string{
		"[databases]",
		fmt.Sprintf("* = host=127.0.0.1 port=%d", s.port),
		"[pgbouncer]",
		"listen_addr = 127.0.0.1", fmt.Sprint("listen_port = ", b.port), "unix_socket_dir =",
		"auth_type = any", "pool_mode = " + mode, "server_login_retry = 1", "log_connections = 0", "log_disconnections = 0",
		// pgbouncer knows the parameters of a connection that it can set again, and no other.
		"ignore_startup_parameters = extra_float_digits,search_path",
	}, options...)
	// auth_type any logs everybody in as the user of the database.
	lines[1] += " user=weir"
	ini, log := filepath.Join(b.dir, "pgbouncer.ini"), filepath.Join(b.dir, "log")
	if err := os.WriteFile(ini, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := s.owner.own(ini); err != nil {
		s.t.Fatal(err)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(path, ini)
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, out, out
	s.owner.run(cmd)
	if b.process, err = testproc.Launch(cmd); err != nil {
		s.t.Fatal(err)
	}
	var last error
	patience.Until(s.t, "pgbouncer answers", func() bool {
		select {
		case <-b.process.Ended:
			last = errors.New("it has ended")
			return true
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var c *pgx.Conn
		if c, last = pgx.Connect(ctx, b.URL()); last != nil {
			return false
		}
		last = c.Ping(ctx)
		_ = c.Close(ctx)
		return last == nil
	})
	if last != nil {
		s.t.Skipf("pgbouncer does not start here: %v\n%s", b.process.Cmd.ProcessState, endOf(log))
	}
	return b
}

// Addr returns the host and port at which it listens.
func (b *Bouncer) Addr() string { return testproc.Loopback(b.port) }

// URL returns the address of the database through it, for the role weir.
func (b *Bouncer) URL() string {
	return "postgres://weir@" + b.Addr() + "/" + b.db + "?sslmode=disable"
}

// Stop ends it at once: clients lose their connections.
func (b *Bouncer) Stop() {
	_ = b.process.Cmd.Process.Signal(syscall.SIGTERM)
	<-b.process.Ended
}

func (b *Bouncer) cleanup() {
	if b.process != nil {
		_ = b.process.Cmd.Process.Kill()
		<-b.process.Ended
	}
	testproc.Release(b.reserved)
	if b.t.Failed() {
		b.t.Logf("pgbouncer %s logged\n%s", b.Addr(), endOf(filepath.Join(b.dir, "log")))
	}
	if err := os.RemoveAll(b.dir); err != nil {
		b.t.Error(err)
	}
}
