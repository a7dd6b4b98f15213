package pgtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(patience.Context(t), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func TestServer(t *testing.T) {
	t.Parallel()
	s := Start(t, "max_connections = 17")
	if got := s.Text("select current_setting('max_connections')"); got != "17" {
		t.Errorf("max_connections is %s", got)
	}
	c := connect(t, s.URL())
	if _, err := c.Exec(t.Context(), "create table kept (n int); insert into kept values (7)"); err != nil {
		t.Fatal(err)
	}
	if err := connectError(t, s.URLOf("guarded")); err == nil {
		t.Error("the role guarded needs no password")
	}

	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Exec(ctx, "select 1"); err == nil {
		t.Error("a server that is paused answers")
	}
	s.Resume()
	connect(t, s.URL())

	s.Kill()
	if err := connectError(t, s.URL()); err == nil {
		t.Error("a server that was killed answers")
	}
	s.Restart()
	if got := s.Number("select n from kept"); got != 7 {
		t.Errorf("after a crash it is %d", got)
	}
	if s.CPU() <= 0 {
		t.Error("it has used no processor")
	}
}

func connectError(t *testing.T, url string) error {
	t.Helper()
	c, err := pgx.Connect(patience.Context(t), url)
	if err == nil {
		_ = c.Close(t.Context())
	}
	return err
}

func TestReplica(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts servers of its own")
	s := Start(t)
	r := s.Replica()
	s.Exec("create table kept (n int)")
	s.Await(r)
	if err := r.Try("insert into kept values (1)"); err == nil {
		t.Error("a replica takes writes")
	}
	s.Kill()
	r.Promote()
	r.Exec("insert into kept values (1)")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a server of its own")
	s, files := StartTLS(t)
	connect(t, s.URL()+"&sslrootcert="+files.CA)
	if err := connectError(t, "postgres://weir@"+s.Addr()+"/weir?sslmode=disable"); err == nil {
		t.Error("it answers without TLS")
	}
}

func TestBouncer(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a server of its own")
	s := Start(t)
	for _, mode := range []string{"session", "transaction"} {
		b := s.Bouncer(mode)
		var user string
		if err := connect(t, b.URL()).QueryRow(t.Context(), "select current_user").Scan(&user); err != nil ||
			user != "weir" {
			t.Errorf("%s: %s, %v", mode, user, err)
		}
		b.Stop()
		if err := connectError(t, b.URL()); err == nil {
			t.Errorf("%s: it was stopped, and answers", mode)
		}
	}
}

// TestShared: each test has a database of its own on one server.
func TestShared(t *testing.T) {
	t.Parallel()
	a, b := Shared(t), Shared(t)
	if a.Addr() != b.Addr() {
		t.Errorf("there are two servers: %s, %s", a.Addr(), b.Addr())
	}
	for _, s := range []*Server{a, b} {
		if _, err := connect(t, s.URL()).Exec(t.Context(), "create table mine (n int)"); err != nil {
			t.Error(err)
		}
		s.Exec("insert into mine values (1)")
		if n := s.Number("select count(*) from mine"); n != 1 {
			t.Errorf("%d rows are in the table", n)
		}
	}
}

func TestMajorOf(t *testing.T) {
	for text, want := range map[string]int{
		"postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n": 15, "postgres (PostgreSQL) 9.6.1": 9, "postgres (PostgreSQL) 19beta1": 19, "": 0, "x": 0,
	} {
		if got := majorOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
