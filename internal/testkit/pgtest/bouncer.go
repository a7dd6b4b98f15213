package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// Bouncer is a pgbouncer before a Server.
type Bouncer struct {
	testproc.Handle
	db   string
	port int
}

// Bouncer starts a pgbouncer before the server. mode is its pool_mode: "session" or "transaction".
// Options are further lines of its section [pgbouncer].
func (s *Server) Bouncer(mode string, options ...string) *Bouncer {
	s.T.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		if _, err := os.Stat("/usr/sbin/pgbouncer"); err != nil {
			s.T.Skip("pgbouncer is not installed; on Debian: apt-get install pgbouncer")
		}
		path = "/usr/sbin/pgbouncer"
	}
	dir, err := makeDir(s.owner)
	if err != nil {
		s.T.Fatal(err)
	}
	port, reserved, err := testproc.Reserve(false)
	if err != nil {
		s.T.Fatal(err)
	}
	b := &Bouncer{db: s.db, port: port}
	lines := append([]string{
		"[databases]",
		fmt.Sprintf("* = host=127.0.0.1 port=%d", s.port),
		"[pgbouncer]",
		"listen_addr = 127.0.0.1", fmt.Sprint("listen_port = ", port), "unix_socket_dir =",
		"auth_type = any", "pool_mode = " + mode, "server_login_retry = 1", "log_connections = 0",
		"log_disconnections = 0",
		// pgbouncer knows the parameters of a connection that it can set again, and no other.
		"ignore_startup_parameters = extra_float_digits,search_path",
	}, options...)
	// auth_type any logs everybody in as the user of the database.
	lines[1] += " user=weir"
	ini := filepath.Join(dir, "pgbouncer.ini")
	b.Handle = testproc.Handle{T: s.T, Server: &testproc.Server{
		Name: "pgbouncer " + b.Addr(), Dir: dir,
		Command: func() *exec.Cmd {
			cmd := exec.Command(path, ini)
			s.owner.run(cmd)
			return cmd
		},
		Answers: b.answers,
	}}
	s.T.Cleanup(func() {
		b.Kill()
		testproc.Release(reserved)
		b.ShowLog()
		if err := os.RemoveAll(dir); err != nil {
			b.T.Error(err)
		}
	})
	if err := os.WriteFile(ini, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		s.T.Fatal(err)
	}
	if err := s.owner.own(ini); err != nil {
		s.T.Fatal(err)
	}
	if err := b.Launch(s.T); err != nil {
		s.T.Skipf("pgbouncer does not start here: %v\n%s", err, b.Tail())
	}
	return b
}

func (b *Bouncer) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, b.URL())
	if err != nil {
		return err
	}
	return errors.Join(c.Ping(ctx), c.Close(ctx))
}

// Addr returns the host and port at which it listens.
func (b *Bouncer) Addr() string { return testproc.Loopback(b.port) }

// URL returns the address of the database through it, for the role weir.
func (b *Bouncer) URL() string {
	return "postgres://weir@" + b.Addr() + "/" + b.db + "?sslmode=disable"
}
