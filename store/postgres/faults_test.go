package postgres_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// taker makes calls of one unit on one key, and keeps account of them.
type taker struct {
	testing.TB
	s       *postgres.Store
	counter *rule.Counter
	made    int64 // calls that were charged
	unknown int64 // calls of which that is not known
}

func newTaker(t testing.TB, s *postgres.Store) *taker {
	t.Helper()
	c, err := counterOf(algo.Config{Algorithm: algo.FixedWindow, N: 1e9, Window: 366 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return &taker{TB: t, s: s, counter: c}
}

func (t *taker) take(ctx context.Context, cost int64) (algo.Result, error) {
	results := make([]algo.Result, 1)
	_, err := t.s.Take(ctx, []store.Charge{{
		Counter: t.counter, Limit: t.counter.Limit, Key: []byte("key"), Ask: algo.Ask{Cost: cost, MaxDelay: -1},
	}}, results)
	return results[0], err
}

// try is a call that may fail, and returns how.
func (t *taker) try(ctx context.Context) error {
	_, err := t.take(ctx, 1)
	switch {
	case err == nil:
		t.made++
	case !errors.Is(err, store.ErrNotCharged):
		t.unknown++
	}
	return err
}

// well makes calls until one succeeds.
func (t *taker) well() {
	t.Helper()
	patience.Until(t, "the store decides", func() bool { return t.try(t.Context()) == nil })
}

// counted checks what is counted: each call that succeeded, and once at most each whose outcome is
// not known.
func (t *taker) counted() {
	t.Helper()
	t.well()
	r, err := t.take(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if used := r.Limit - r.Remaining; used < t.made || used > t.made+t.unknown {
		t.Errorf("%d units are counted; %d calls were made, and perhaps %d more", used, t.made, t.unknown)
	}
}

func (t *taker) short() (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 300*time.Millisecond)
}

// throughProxy replaces the address of a URL.
func throughProxy(t testing.TB, of, addr string) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = addr
	return u.String()
}

func TestFaults(t *testing.T) {
	t.Parallel()
	effort.Long(t, "kills and starts servers")
	s := pgtest.Start(t, "max_connections = 40")
	proxy := redistest.Proxy(t, s.Addr())
	schema := "" // of the store that is tested
	for _, test := range []struct {
		name string
		run  func(t *taker)
	}{
		{"Killed", func(t *taker) {
			s.Kill()
			if err := t.try(t.Context()); err == nil {
				t.Error("a server that is not there decides")
			}
			if err := t.try(t.Context()); !errors.Is(err, store.ErrNotCharged) {
				t.Errorf("nobody listens: %v", err)
			}
			s.Restart()
		}},
		{"Hung", func(t *taker) {
			s.Pause()
			ctx, cancel := t.short()
			defer cancel()
			if err := t.try(ctx); err == nil {
				t.Error("a server that hangs decides")
			}
			s.Resume()
		}},
		{"Cut", func(t *taker) {
			proxy.Cut()
			_ = t.try(t.Context())
		}},
		{"LostAnswers", func(t *taker) {
			proxy.LoseReplies()
			ctx, cancel := t.short()
			defer cancel()
			if err := t.try(ctx); err == nil {
				t.Error("an answer came")
			}
			proxy.Pass()
		}},
		{"Slow", func(t *taker) {
			proxy.Delay(40 * time.Millisecond)
			t.well()
			proxy.Pass()
		}},
		{"ReadOnly", func(t *taker) {
			s.Exec("alter role weir set default_transaction_read_only = on")
			s.Exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'weir'")
			patience.Until(t, "the server takes no writes", func() bool {
				err := t.try(t.Context())
				return errors.Is(err, store.ErrNotCharged) && strings.Contains(err.Error(), "read-only")
			})
			s.Exec("alter role weir set default_transaction_read_only = off")
			s.Exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'weir'")
		}},
		{"NoConnections", func(t *taker) {
			var held []*pgx.Conn
			patience.Until(t, "the store finds no connection", func() bool {
				// The server frees those that were cut after a moment.
				proxy.Cut()
				patience.Until(t, "all connections are taken", func() bool {
					c, err := pgx.Connect(t.Context(), s.URL())
					if err == nil {
						held = append(held, c)
					}
					return err != nil
				})
				err := t.try(t.Context())
				return errors.Is(err, store.ErrNotCharged) && strings.Contains(err.Error(), "53300")
			})
			for _, c := range held {
				_ = c.Close(t.Context())
			}
		}},
		{"Gone", func(t *taker) {
			s.Exec("drop schema " + schema + " cascade")
			t.made, t.unknown = 0, 0
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			schema = newSchema()
			address := throughProxy(t, s.URL(), proxy.Addr()) + "&weir_tables=synced&weir_schema=" + schema
			w := newTaker(t, open(t, postgres.Options{URL: address, Timeout: 5 * time.Second}))
			for range 5 {
				w.well()
			}
			test.run(w)
			w.counted()
		})
	}
}

// TestFailover: a replica takes over from a server that is killed, and the nodes find it.
func TestFailover(t *testing.T) {
	effort.Long(t, "starts a replica; TestFaults kills a server")
	t.Parallel()
	primary := pgtest.Start(t)
	replica := primary.Replica()
	primary.Exec("alter system set synchronous_standby_names = '*'")
	primary.Exec("select pg_reload_conf()")
	both := strings.Replace(primary.URL(), primary.Addr(), primary.Addr()+","+replica.Addr(), 1)
	w := newTaker(t, open(t, postgres.Options{URL: both + "&weir_tables=synced", Timeout: 5 * time.Second}))
	for range 20 {
		w.well()
	}
	primary.Kill()
	if err := w.try(t.Context()); err == nil {
		t.Error("nobody decides, and a decision was made")
	}
	replica.Exec("alter system reset synchronous_standby_names")
	replica.Promote()
	w.counted()
}

// TestTLS: the server's certificate is verified, and the password comes from a file.
func TestTLS(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a server of its own")
	s, files := pgtest.StartTLS(t)
	s.Exec("grant create on database weir to guarded")
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	pass := filepath.Join(t.TempDir(), "pgpass")
	line := host + ":" + port + ":weir:guarded:" + strings.ReplaceAll(pgtest.Password, ":", `\:`) + "\n"
	if err := os.WriteFile(pass, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	guarded := s.URLOf("guarded") + "&passfile=" + url.QueryEscape(pass)
	newTaker(t, open(t, postgres.Options{URL: guarded + "&sslrootcert=" + files.CA})).well()
	for name, of := range map[string]string{
		"x509":   guarded,
		"passwo": s.URLOf("guarded") + "&sslrootcert=" + files.CA + "&passfile=/dev/null",
	} {
		w := newTaker(t, open(t, postgres.Options{URL: of}))
		if err := w.try(t.Context()); !errors.Is(err, store.ErrNotCharged) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
